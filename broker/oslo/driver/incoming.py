"""One message at a server or listener of oslo.messaging. Any thread may use it; nothing here raises."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any

from oslo_messaging._drivers import base

from broker.oslo.bodies import USUAL, BodyFormat
from broker.oslo.driver import serialization
from broker.oslo.driver.window import Window

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ReceivedMessage

log = logging.getLogger(__name__)

_numbers = itertools.count(1)
"""Counted, not drawn: random bytes cost a system call without the interpreter's lock, which workers then take."""


class ZmqIncoming(base.RpcIncomingMessage):  # type: ignore[misc]
    """A request or notification; casts and notifications are never replied to, whatever the server asks.

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
