"""One request for a method of ours, and what its handler may do with it (RFC 6, "Response Messages")."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.client.payload import Payload, encode
from broker.client.received import Received
from broker.errors import HeadgateError
from broker.wire.message import NORESPONSE, STREAMING, Message, response
from broker.wire.payload import encode_text

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)


class _Later:
    """Type of LATER."""

    def __repr__(self) -> str:
        return "LATER"


LATER: Final = _Later()
"""A handler returns this when it kept the request and will call ``respond`` or ``respond_error`` itself."""

Result: TypeAlias = Payload | _Later
Handler: TypeAlias = Callable[["Request"], "Result | Awaitable[Result] | AsyncIterator[Payload]"]
"""``def``, ``async def`` or an async generator function of one Request."""


class Request(Received):
    """One request for a method of ours."""

    __slots__ = ("_send", "done", "task")

    def __init__(self, message: Message, send: Callable[[Message], None]) -> None:
        self.message = message
        self._send = send
        self.task: asyncio.Task[None] | None = None
        """The task that runs the handler; None for a plain function, and while the request waits."""
        self.done = False
        """True once the last response was given, or the sender is gone or cancelled."""

    @property
    def streaming(self) -> bool:
        """True when the caller expects many responses, ended by an error response."""
        return bool(self.message.head[4] & STREAMING)

    @property
    def matchtag(self) -> int:
        """The caller's number for this call; unique together with the route stack only."""
        return self.message.matchtag

    def respond(self, payload: Payload = None) -> None:
        """Send a response; the last one unless ``streaming``.

        Nothing is sent when the caller wants no response (flag NORESPONSE) or the request is ``done``: a
        cancel may arrive at any time.
        """
        if self.done:
            return
        data = encode(payload)
        self.done = not self.streaming
        if not self.message.head[4] & NORESPONSE:
            self._send(response(self.message, data))

    def respond_error(self, errnum: int, text: str = "") -> None:
        """Send the last response: POSIX ``errnum``, not 0, and a short text for people."""
        if errnum == 0:
            raise ValueError("errnum 0 is success: use respond()")
        if self.done:
            return
        self.done = True
        if not self.message.head[4] & NORESPONSE:
            self._send(response(self.message, encode_text(text) if text else None, errnum=errnum))

    def finish(self, result: Result) -> None:
        """What the handler returned: answer it, unless it was LATER or the handler has answered already."""
        if isinstance(result, _Later) or self.done:
            return
        if result is not None or not self.streaming:
            self.respond(result)
        if self.streaming:
            self.respond_error(errno.ENODATA)

    def fail(self, error: Exception) -> None:
        """Answer with what the handler raised: its errno where it has one, else EIO and a log line here."""
        if isinstance(error, HeadgateError):
            self.respond_error(error.errno, str(error).replace("\0", ""))
        elif isinstance(error, OSError) and error.errno:
            self.respond_error(error.errno, error.strerror or os.strerror(error.errno))
        else:
            log.error("handler of %s failed", self.topic, exc_info=error)
            self.respond_error(errno.EIO, f"the handler of {self.topic} failed")

    def drop(self) -> None:
        """The sender is gone: say nothing more and stop the handler (RFC 6, "Disconnection")."""
        self.done = True
        if self.task is not None:
            self.task.cancel()

    def cancel(self, errnum: int, text: str = "") -> None:
        """Stop the handler and answer ``errnum``."""
        self.respond_error(errnum, text)
        self.drop()
