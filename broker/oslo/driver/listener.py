"""What a server of oslo.messaging polls: its listener, the messages that come of it, and how many it holds of them.

Its executor's queue has no bound of its own: as many messages are handed out as the window has room for, and others
wait in the inbox until one is acknowledged.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from oslo_messaging._drivers import base

from broker.oslo.bodies import USUAL, BodyFormat
from broker.oslo.driver import serialization

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ClientInbox, ReceivedMessage


log = logging.getLogger(__name__)

LEAST_WINDOW: Final = 64
"""As many as the threads of a server's executor, by default: with fewer some would be idle."""
LOOK_S: Final = 0.5
"""While it is full it is looked at this often at least."""
_numbers = itertools.count(1)
"""Counted, not drawn: random bytes cost a system call without the interpreter's lock, which workers then take."""
_PAUSE_S: Final = 0.1
"""Between two looks at an inbox that ended under a server that goes on polling: its transport was cleaned up first."""


class Window:
    """Counts messages handed out and acknowledged.

    One thread hands out (``wait``, ``take``), any thread acknowledges (``give``); only one may wait. A lock of its own
    is not needed: what is taken has one writer, what is given is counted by one instruction.

    Args:
        limit: messages.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._low = limit // 2
        self._taken = 0
        self._given = 0
        self._numbers = itertools.count(1)
        self._room = threading.Event()
        self._waiting = False
        self._open = False

    def wait(self) -> None:
        """Return when fewer than ``limit`` are out; when none were, at once."""
        while self._taken - self._given >= self._limit and not self._open:
            self._room.clear()
            self._waiting = True
            if self._taken - self._given >= self._limit and not self._open:
                self._room.wait(LOOK_S)
        self._waiting = False

    def take(self) -> None:
        """Count a message that is handed out."""
        self._taken += 1

    def give(self) -> None:
        """A message was acknowledged or given back: there is room for another one."""
        self._given = given = next(self._numbers)
        if self._waiting and self._taken - given <= self._low:
            self._waiting = False
            self._room.set()

    def open(self) -> None:
        """Never wait again: what is left is drained."""
        self._open = True
        self._room.set()


class ZmqIncoming(base.RpcIncomingMessage):  # type: ignore[misc]
    """A request or notification. Any thread may use it, and nothing here raises. Casts and notifications are never
    replied to, whatever the server asks.

    Args:
        item: what the wing knows of it.
        request: its body, read.
        window: of its listener.
        form: of replies.

    Attributes:
        client_timeout: of a monitored call: seconds that the caller waits for a heartbeat; else None.
        msg_id: for logs of this process.
    """

    def __init__(
        self,
        item: ReceivedMessage,
        request: serialization.Request,
        window: Window,
        form: BodyFormat = USUAL,
    ) -> None:
        super().__init__(request.ctxt, request.message, f"{next(_numbers):x}")
        self.client_timeout = item.monitor_s
        self._item = item
        self._form = form
        self._window: Window | None = window

    def acknowledge(self) -> None:
        """The server takes care of it: there is room for another one."""
        self._settled()
        try:
            self._item.acknowledge()
        except Exception:
            log.exception("message %s from %s could not be acknowledged", self.msg_id, self._item.address)

    def requeue(self) -> None:
        """Give a notification back: it comes again, to this or another listener of its pool, behind the others."""
        self._settled()
        try:
            self._item.requeue()
        except Exception:
            log.exception("message %s from %s could not be given back", self.msg_id, self._item.address)

    def _settled(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            window.give()

    def reply(self, reply: Any = None, failure: tuple[Any, Any, Any] | None = None) -> None:
        """Answer a call with its result, or with ``sys.exc_info()`` of its endpoint."""
        if not self._item.wants_reply:
            return
        try:
            self._send(serialization.failure_body(failure) if failure else serialization.reply_body(reply))
        except Exception:
            log.exception("call %s at %s could not be answered", self.msg_id, self._item.address)

    def _send(self, body: bytes) -> None:
        limit = self._item.reply_bytes_max
        if len(body) > limit:
            body = serialization.too_large_body(len(body), limit)
        self._item.reply(self._form.write(body))

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

    Attributes:
        window: the same, counted.
    """

    def __init__(
        self, inbox: ClientInbox, batch_max: int, window: int = LEAST_WINDOW, form: BodyFormat = USUAL
    ) -> None:
        super().__init__(prefetch_size=batch_max)
        self._form = form
        self._inbox = inbox
        self.window = Window(window)
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
        self.window.wait()
        while True:
            item = self._inbox.get(timeout_s)
            if item is None:
                return None
            incoming = self.read(item)
            if incoming is not None:
                return incoming

    def read(self, item: ReceivedMessage) -> ZmqIncoming | None:
        """What oslo.messaging takes ``item`` for; None: it cannot be read, and its caller is told."""
        try:
            request = serialization.read_request(item.body, self._form)
            incoming = ZmqIncoming(item, request, self.window, self._form)
        except Exception as error:
            _refuse(item, error)
            return None
        self.window.take()
        return incoming

    def _rest(self, timeout_s: float | None) -> None:
        if timeout_s is None and not self._stopped:
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """Take nothing more; ``poll`` gives what is here, then nothing, at once."""
        self._stopped = True
        self.window.open()
        self._guarded(self._inbox.stop)

    def cleanup(self) -> None:
        """End it. Replies that are on their way still go out."""
        self._stopped = True
        self.window.open()
        self._guarded(self._inbox.close)

    @staticmethod
    def _guarded(step: Any) -> None:
        try:
            step()
        except Exception:
            log.exception("a listener did not end as it should")


def _refuse(item: ReceivedMessage, error: Exception) -> None:
    log.warning("dropped a message to %s: %s", item.address, error)
    item.acknowledge()
    if item.wants_reply:
        item.reply(serialization.failure_body((type(error), error, None)))
