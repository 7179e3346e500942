"""How a server of oslo.messaging gets its messages: the threads of its executor take them, or a thread polls.

oslo.messaging's public interface is a callback, which puts each message into the executor's queue and wakes a thread
for it, whether the thread of the sockets calls it or one that polls. With an endpoint that is quick, whoever was
running takes that message, too, and the thread that was woken waits for the interpreter's lock to find nothing. A cast
of 200 bytes takes 27 us of the server's CPU without the callback; with it, called by the thread of the sockets, 70 us,
at half the casts/s. So threads of the executor are asked for only as they have something to do (``Workers``), with
names of oslo.messaging's server that its own callback uses, which are private (``find_server``).

Polled for is whatever is not that very callback with the executor of real threads: a release that has renamed one of
those names, batches, executors that run the endpoint at once or in greenlets, callers that are no server of
oslo.messaging.

Who polls has as many messages handed out as the window has room for, since the executor's queue has no bound of its
own; others wait in the inbox until one is acknowledged.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from oslo_messaging._drivers import base
from oslo_messaging.server import MessageHandlingServer

from broker.oslo.bodies import USUAL, BodyFormat
from broker.oslo.driver import serialization
from broker.oslo.reactor import natives

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ClientInbox, ReceivedMessage


log = logging.getLogger(__name__)

LEAST_WINDOW: Final = 64
"""As many as the threads of a server's executor, by default: with fewer some would be idle."""
_numbers = itertools.count(1)
"""Counted, not drawn: random bytes cost a system call without the interpreter's lock, which workers then take."""
_PAUSE_S: Final = 0.1
"""Between two looks at an inbox that ended under a server that goes on polling: its transport was cleaned up first."""


class ZmqIncoming(base.RpcIncomingMessage):  # type: ignore[misc]
    """A request or notification. Any thread may use it, and nothing here raises. Casts and notifications are never
    replied to, whatever the server asks.

    Args:
        item: what the wing knows of it.
        request: its body, read.
        settled: called once, when it is taken care of, or given back; None: nobody counts.
        form: of replies.

    Attributes:
        client_timeout: of a monitored call: seconds that the caller waits for a heartbeat; else None.
        msg_id: for logs of this process.
    """

    def __init__(
        self,
        item: ReceivedMessage,
        request: serialization.Request,
        settled: Callable[[], None] | None = None,
        form: BodyFormat = USUAL,
    ) -> None:
        super().__init__(request.ctxt, request.message, f"{next(_numbers):x}")
        self.client_timeout = item.monitor_s
        self._item = item
        self._form = form
        self._settled = settled

    def acknowledge(self) -> None:
        """The server takes care of it: there is room for another one."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled()

    def requeue(self) -> None:
        """Give a notification back: it comes again, to this or another listener of its pool, behind the others."""
        self.acknowledge()
        try:
            self._item.requeue()
        except Exception:
            log.exception("message %s from %s could not be given back", self.msg_id, self._item.address)

    def reply(self, reply: Any = None, failure: tuple[Any, Any, Any] | None = None) -> None:
        """Answer a call with its result, or with ``sys.exc_info()`` of its endpoint."""
        if not self._item.wants_reply:
            return
        try:
            body = serialization.failure_body(failure) if failure else serialization.reply_body(reply)
            limit = self._item.reply_bytes_max
            if len(body) > limit:
                body = serialization.too_large_body(len(body), limit)
            self._item.reply(self._form.write(body))
        except Exception:
            log.exception("call %s at %s could not be answered", self.msg_id, self._item.address)

    def heartbeat(self) -> None:
        """Tell the caller of a monitored call that it is still worked on."""
        try:
            self._item.beat()
        except Exception:
            log.exception("heartbeat of call %s at %s could not be sent", self.msg_id, self._item.address)


class ZmqListener(base.PollStyleListener):  # type: ignore[misc]
    """Reads one inbox, in batches.

    Args:
        inbox: of the session.
        batch_max: messages that a batch may hold at most; more would never come before the first are acknowledged.
        window: messages that may be handed out and not acknowledged.
        form: of bodies.
    """

    def __init__(
        self, inbox: ClientInbox, batch_max: int, window: int = LEAST_WINDOW, form: BodyFormat = USUAL
    ) -> None:
        super().__init__(prefetch_size=batch_max)
        self._form = form
        self._inbox = inbox
        self._room = threading.Semaphore(window)
        self._stopped = False

    def poll(
        self, timeout: float | None = None, batch_size: int = 1, batch_timeout: float | None = None
    ) -> list[ZmqIncoming]:
        """Up to ``batch_size`` messages; none after ``timeout`` seconds, or when stopped and empty.

        The first message starts ``batch_timeout``: then a batch is complete however few it has.
        """
        try:
            first = self._next(timeout)
            if first is None:
                self._rest(timeout)
                return []
            if batch_size <= 1:
                return [first]
            return self._batch(first, batch_size, batch_timeout)
        except Exception:
            # the loop around this would come again at once, and for ever
            log.exception("messages could not be read")
            time.sleep(_PAUSE_S)
            return []

    def _batch(self, first: ZmqIncoming, size: int, patience_s: float | None) -> list[ZmqIncoming]:
        batch = [first]
        end_s = None if patience_s is None else time.monotonic() + patience_s
        while len(batch) < size:
            incoming = self._next(None if end_s is None else max(end_s - time.monotonic(), 0.0))
            if incoming is None:
                break
            batch.append(incoming)
        return batch

    def _next(self, timeout_s: float | None) -> ZmqIncoming | None:
        """The next message that can be read; others are answered, so that their callers need not wait."""
        if not self._stopped:  # or what is left is drained
            self._room.acquire()
        while True:
            item = self._inbox.get(timeout_s)
            if item is None:
                self._room.release()
                return None
            incoming = self.read(item, self._room.release)
            if incoming is not None:
                return incoming

    def read(self, item: ReceivedMessage, settled: Callable[[], None] | None = None) -> ZmqIncoming | None:
        """What oslo.messaging takes ``item`` for; None: it cannot be read, and its caller is told.

        ``settled``: see ``ZmqIncoming``.
        """
        try:
            return ZmqIncoming(item, serialization.read_request(item.body, self._form), settled, self._form)
        except Exception as error:
            _refuse(item, error)
            return None

    def _rest(self, timeout_s: float | None) -> None:
        if timeout_s is None and not self._stopped:
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """Take nothing more; ``poll`` gives what is here, then nothing, at once."""
        self._stopped = True
        self._room.release()
        self._guarded(self._inbox.stop)

    def cleanup(self) -> None:
        """End it. Replies that are on their way still go out."""
        self._stopped = True
        self._room.release()
        self._guarded(self._inbox.close)

    @staticmethod
    def _guarded(step: Any) -> None:
        try:
            step()
        except Exception:
            log.exception("a listener did not end as it should")


def _refuse(item: ReceivedMessage, error: Exception) -> None:
    log.warning("dropped a message to %s: %s", item.address, error)
    if item.wants_reply:
        item.reply(serialization.failure_body((type(error), error, None)))


_EXECUTOR: Final = "threading"
"""oslo.messaging's name of the executor whose threads run the endpoints."""


class ServerListener(base.PollStyleListenerAdapter):  # type: ignore[misc]
    """What the driver gives a server.

    Args:
        listener: reads the messages.
        inbox: where they come.
        batch_size, batch_timeout: as the server wants them.
    """

    def __init__(
        self,
        listener: ZmqListener,
        inbox: ClientInbox,
        batch_size: int,
        batch_timeout: float | None,
    ) -> None:
        super().__init__(listener, batch_size, batch_timeout)
        self._listener = listener
        self._inbox = inbox
        self._workers: Workers | None = None

    def start(self, on_incoming_callback: Callable[[list[Any]], None]) -> None:
        """Begin to hand messages over."""
        server = find_server(on_incoming_callback) if self.batch_size == 1 else None
        if server is None:
            super().start(on_incoming_callback)
            return
        base.Listener.start(self, on_incoming_callback)
        self._workers = Workers(server, self._listener, self._inbox)
        self._inbox.notify(self._workers.more)

    def stop(self) -> None:
        """Take nothing more; what is here is handed over."""
        if self._workers is None:
            super().stop()
            return
        self._listener.stop()
        self._workers.close()
        base.Listener.stop(self)


class Workers:
    """The threads of an executor that take messages from an inbox.

    Whoever takes one asks for another thread if there are more, and none is on its way. With an endpoint that waits for
    something that thread begins at once, and so on, until all that the executor has are busy; with one that is quick
    it begins when it has the interpreter's lock, and many messages are done by then.

    Args:
        server: oslo.messaging's (``find_server``): whose executor, and what it does with a message.
        listener: reads it.
        inbox: where it is.
    """

    def __init__(self, server: Any, listener: ZmqListener, inbox: ClientInbox) -> None:
        self._submit = server._work_executor.submit
        self._process = server._process_incoming
        self._threads = getattr(server._work_executor, "_max_workers", LEAST_WINDOW)
        self._listener = listener
        self._inbox = inbox
        self._lock = natives.allocate_lock()
        self._coming = self._closed = False
        self._works = 0  # calls of ``_work`` that were asked for and have not ended
        self._pid = os.getpid()

    def more(self) -> None:
        """Ask for a thread if a message waits and none is on its way. From any thread."""
        if self._coming or self._inbox.empty:
            return
        with self._lock:
            self._ask()

    def _ask(self) -> None:
        """Ask for a thread if a message waits and none is on its way. Under the lock."""
        while not (self._coming or self._closed or self._inbox.empty):
            self._coming = True
            self._works += 1
            try:
                self._submit(self._work)
            except Exception:
                self._coming = False
                self._works -= 1
                if self._works:
                    return  # they take it, too
                log.exception("a message could not be given to its server")
                self._refuse()

    def _work(self) -> None:
        """In a thread of the executor: process what is here."""
        self._coming = False  # what comes from now on asks for the next one; what is here is seen below
        try:
            while os.getpid() == self._pid:
                with self._lock:  # one that ends is relied on by nobody who asks for a thread in vain
                    if self._inbox.empty:
                        self._works -= 1
                        return
                while (item := self._inbox.get(0)) is not None:
                    self.more()
                    incoming = self._listener.read(item)
                    if incoming is None:
                        continue
                    try:
                        self._process([incoming])
                    except Exception:  # as in the future that nobody of oslo.messaging looks at
                        log.exception("a message to %s failed in its server", item.address)
        except BaseException:  # an endpoint that ends its thread leaves the rest to another one
            with self._lock:
                self._works -= 1
                self._ask()
            raise

    def _refuse(self) -> None:
        """No thread is to be had and none runs: the next message is lost, and its caller, whom nobody else answers, is
        told.
        """
        item = self._inbox.get(0)
        incoming = None if item is None else self._listener.read(item)
        if incoming is not None:
            incoming.reply(failure=sys.exc_info())

    def close(self) -> None:
        """Ask for the threads that what is here needs, then for none any more: an executor that is shut down keeps
        whoever asks waiting for all of its work.
        """
        if os.getpid() != self._pid:  # whoever held the lock at the fork is not here to give it back
            self._closed = True
            return
        with self._lock:
            for _ in range(self._threads):
                self._coming = False
                self._ask()
            self._closed = True


def find_server(callback: Callable[[list[Any]], None]) -> Any:
    """Returns the server whose callback that is, if the callback does no more than to put a message into the queue of
    an executor of real threads, and the server has the names that are needed to do without it; else None.
    """
    server = getattr(callback, "__self__", None)
    if not isinstance(server, MessageHandlingServer) or natives.threads_are_green():
        return None
    if getattr(server, "executor_type", "") != _EXECUTOR:
        return None
    known = getattr(MessageHandlingServer, "_on_incoming", None)
    can_submit = hasattr(getattr(server, "_work_executor", None), "submit")
    if known is None or not hasattr(server, "_process_incoming") or not can_submit:
        # nothing is wrong but the CPU that each message takes: another release, to which this room is to be fitted
        log.warning(
            "this release of oslo.messaging has renamed what its server is known by: messages are polled for"
        )
        return None
    return server if getattr(callback, "__func__", None) is known else None
