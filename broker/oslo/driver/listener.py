"""What a server of oslo.messaging polls."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from oslo_messaging._drivers import base

from broker.oslo.bodies import USUAL, BodyFormat
from broker.oslo.driver import serialization
from broker.oslo.driver.incoming import ZmqIncoming
from broker.oslo.driver.window import LEAST, Window

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ClientInbox, ReceivedMessage

log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.1
"""Between two looks at an inbox that ended under a server that goes on polling: its transport was cleaned up first."""


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
        self, inbox: ClientInbox, batch_max: int, window: int = LEAST, form: BodyFormat = USUAL
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
