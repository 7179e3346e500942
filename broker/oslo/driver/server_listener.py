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
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from oslo_messaging._drivers import base
from oslo_messaging.server import MessageHandlingServer

from broker.oslo.driver.listener import LEAST_WINDOW, ZmqIncoming, ZmqListener
from broker.oslo.reactor import natives

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ClientInbox

log = logging.getLogger(__name__)

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
        executor = server._work_executor
        threads = getattr(executor, "_max_workers", LEAST_WINDOW)
        self._workers = Workers(
            executor.submit, server._process_incoming, self._listener, self._inbox, threads
        )
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
        submit: has something called by a thread of the executor.
        process: what the server does with a message.
        listener: reads it.
        inbox: where it is.
        threads: that the executor has at most.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[], None]], object],
        process: Callable[[list[ZmqIncoming]], None],
        listener: ZmqListener,
        inbox: ClientInbox,
        threads: int,
    ) -> None:
        self._submit = submit
        self._process = process
        self._listener = listener
        self._inbox = inbox
        self._threads = threads
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
            while not self._done():
                self._take()
        except BaseException:  # an endpoint that ends its thread leaves the rest to another one
            with self._lock:
                self._works -= 1
                self._ask()
            raise

    def _done(self) -> bool:
        """Whether a call of ``_work`` may end; one that does is relied on by nobody who asks for a thread in vain."""
        if os.getpid() != self._pid:
            return True
        with self._lock:
            if self._inbox.empty:
                self._works -= 1
                return True
        return False

    def _take(self) -> None:
        """Process what is here."""
        while (item := self._inbox.get(0)) is not None:
            self.more()
            incoming = self._listener.read(item)
            if incoming is None:
                continue
            try:
                self._process([incoming])
            except Exception:  # as in the future that nobody of oslo.messaging looks at
                log.exception("a message to %s failed in its server", item.address)

    def _refuse(self) -> None:
        """No thread is to be had and none runs: the next message is lost, and its caller, whom nobody else answers, is
        told.
        """
        item = self._inbox.get(0)
        incoming = None if item is None else self._listener.read(item)
        if incoming is not None:
            incoming.acknowledge()
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
    if known is None or not hasattr(server, "_process_incoming") or not _can_submit(server):
        # nothing is wrong but the CPU that each message takes: another release, to which this room is to be fitted
        log.warning(
            "this release of oslo.messaging has renamed what its server is known by: messages are polled for"
        )
        return None
    return server if getattr(callback, "__func__", None) is known else None


def _can_submit(server: Any) -> bool:
    return hasattr(getattr(server, "_work_executor", None), "submit")
