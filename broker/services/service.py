"""What a service is.

A service is a class with a ``name`` and methods marked ``@method``. A handler gets a ``Request`` and either returns a
payload (a mapping becomes JSON, a str a NUL-terminated string, bytes stay), or ``DONE`` for an empty response,
or ``LATER`` when it answers itself with ``request.respond``. Plain functions run inline, in order; ``async def``
handlers run as bounded tasks; an async generator answers once per ``yield`` and ends its stream with ENODATA. Raise
``RpcError(errnum, text)`` to refuse.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.wire.message import STREAMING, Message
from broker.wire.payload import decode_json, encode_json, encode_text

Payload = Mapping[str, Any] | str | bytes | None


class Done:
    """Type of the two answers that are no payload."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


DONE: Final = Done("DONE")
"""Answer with an empty response."""
LATER: Final = Done("LATER")
"""The handler answers itself, now or later."""

Handler = Callable[..., Any]
AnyHandler = TypeVar("AnyHandler", bound=Handler)


def method(
    name: str, *, allow: int = Role.NONE, streaming: bool = False
) -> Callable[[AnyHandler], AnyHandler]:
    """Mark a handler for ``SERVICE.name``.

    Args:
        name: everything after the service's name and its dot.
        allow: role bits that may call it besides OWNER, who always may; 0 is owner only.
        streaming: requests without the STREAMING flag are refused with EPROTO (RFC 6, "Streaming Responses").
    """

    def mark(handler: AnyHandler) -> AnyHandler:
        handler.__dict__["headgate_method"] = (name, int(allow), streaming)
        return handler

    return mark


class Request:
    """A delivered request as its handler sees it."""

    __slots__ = ("_object", "context", "message")

    def __init__(self, message: Message, context: Context) -> None:
        self.message: Message = message
        self.context: Context = context
        self._object: dict[str, Any] | None = None

    @property
    def topic(self) -> str:
        """The whole topic string."""
        return self.message.topic or ""

    @property
    def sender(self) -> bytes:
        """The full route stack, encoded: who sent this. Compare whole stacks, never the first hop."""
        return self.message.front

    @property
    def streaming(self) -> bool:
        """True when the caller takes a stream of responses."""
        return bool(self.message.flags & STREAMING)

    @property
    def owner(self) -> bool:
        """True when the sender has the OWNER role."""
        return bool(self.message.rolemask & Role.OWNER)

    def json(self) -> dict[str, Any]:
        """The payload as a JSON object, parsed once.

        Raises:
            ProtocolError: there is none, or it is no JSON object with a terminating NUL.
        """
        if self._object is None:
            self._object = decode_json(self.message.payload)
        return self._object

    def field(self, name: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        """One key of the JSON payload.

        Raises:
            ProtocolError: missing without a default, or of another type (bool is not taken for int).
        """
        data = self.json()
        value = data.get(name, default)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if value is default and default is not ...:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ProtocolError(f"{self.topic}: key {name!r} is missing or of the wrong type")
        return value

    def respond(self, payload: Payload = None, *, always: bool = False) -> None:
        """Send one response; ``always``: even when the request wants none."""
        self.context.respond(self.message, encode_payload(payload), always=always)

    def fail(self, errnum: int, text: str = "", *, always: bool = False) -> None:
        """Send an error response; ends a stream (ENODATA 61 is its good end)."""
        self.context.respond(self.message, encode_text(text) if text else None, errnum, always=always)


class Service:
    """Base of every built-in service.

    Attributes:
        name: the first word of its topics.
        context: the broker.
        last_used: monotonic seconds of the last request.
        debug_flags: what ``SERVICE.debug`` set; every service gives its bits a meaning of its own, or none.
    """

    name: str = ""

    def __init__(self, context: Context) -> None:
        self.context: Context = context
        self.last_used: float = context.now()
        self.debug_flags: int = 0

    def start(self) -> None:
        """Called once, before the first request: time to look at the broker and to ask for callbacks."""

    def methods(self) -> dict[str, tuple[Handler, int, bool]]:
        """Method name -> (bound handler, allow mask, streaming)."""
        found: dict[str, tuple[Handler, int, bool]] = {}
        for attribute in dir(type(self)):
            marked = getattr(getattr(type(self), attribute), "__dict__", {}).get("headgate_method")
            if marked is not None:
                found[marked[0]] = (getattr(self, attribute), marked[1], marked[2])
        return found

    def unknown(self, request: Request) -> RpcError:
        """What a request for a method that is not there is answered with."""
        return RpcError(errno.ENOSYS, f"Unknown service method '{request.topic}'")

    def disconnected(self, sender: bytes) -> None:
        """The sender with this route stack is gone: drop what is kept for it. Called once per sender."""

    def cancelled(self, sender: bytes, matchtag: int) -> None:
        """The sender wants no more responses to its request with ``matchtag``."""

    def stats(self) -> Mapping[str, Any]:
        """What ``SERVICE.stats-get`` answers."""
        return {}

    def clear_stats(self) -> None:
        """``SERVICE.stats-clear``."""


def encode_payload(payload: Payload) -> bytes | None:
    """The bytes of a payload by the norms of RFC 3 ("Payload Conventions")."""
    if payload is None or isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return encode_text(payload)
    return encode_json(payload)


def failure_of(error: Exception) -> tuple[int, str]:
    """(errnum, text) with which a handler's exception is answered.

    Deployed EPROTO answers carry no text, and a text that only spells the number is left out.
    """
    if isinstance(error, RpcError):
        text = str(error)
        return error.errno, "" if text == os.strerror(error.errno) else text
    if isinstance(error, ProtocolError):
        return errno.EPROTO, ""
    return errno.EIO, f"{type(error).__name__}"
