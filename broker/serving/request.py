"""A message that came in, with what a program asks of it (RFC 3); and one request for a method of ours, with what its
handler may do (RFC 6, "Response Messages").
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

import msgspec

from broker.errors import ProtocolError
from broker.identity import Role
from broker.wire.message import STREAMING, Message
from broker.wire.payload import Payload, any_text, decode_json, encode, encode_reason

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Received:
    """One message from the link.

    Attributes:
        message: the message itself, every header field and part.
    """

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def topic(self) -> str:
        """The topic string; "" when the message has none."""
        return self.message.topic or ""

    @property
    def payload(self) -> bytes | None:
        """The payload as sent, its NUL included; None when there is none."""
        return self.message.payload

    @property
    def text(self) -> str:
        """The payload as text up to its first NUL; "" when there is none. Never raises."""
        return any_text(self.message.payload)

    @property
    def userid(self) -> int:
        """Userid of the sender as the broker stamped it; 0xFFFFFFFF when nobody did."""
        return self.message.userid

    @property
    def rolemask(self) -> int:
        """Roles of the sender as the broker stamped them: OWNER 1, USER 2, LOCAL 4, ADMIN 8."""
        return self.message.rolemask

    @overload
    def json(self) -> dict[str, Any]: ...
    @overload
    def json(self, shape: type[T]) -> T: ...
    def json(self, shape: Any = None) -> Any:
        r"""The payload as a JSON object; as ``shape`` (a Struct, a dataclass, a TypedDict) when given.

        Raises:
            ProtocolError: no payload, no NUL, no JSON object, or not of that shape.

        >>> from broker.wire.message import event
        >>> Received(event("a", b'{"id":7}\x00')).json()
        {'id': 7}
        """
        content = decode_json(self.message.payload)
        if shape is None:
            return content
        try:
            return msgspec.convert(content, shape)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"payload of {self.topic}: {error}") from error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message!r}>"


class Later:
    """Type of LATER."""

    def __repr__(self) -> str:
        return "LATER"


LATER: Final = Later()
"""A handler returns this when it kept the request and will call ``respond`` or ``respond_error`` itself."""

Result: TypeAlias = Payload | Later
Handler: TypeAlias = Callable[["Request"], "Result | Awaitable[Result] | AsyncIterator[Payload]"]
"""``def``, ``async def`` or an async generator function of one Request."""
Respond: TypeAlias = Callable[[Message, bytes | None, int], None]
"""``respond(request, payload, errnum)`` sends a response, unless the request wants none (flag NORESPONSE)."""


class RequestMessage(Received):
    """The content of a request, for its handler to look at."""

    __slots__ = ("_object",)

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self._object: dict[str, Any] | None = None

    @property
    def sender(self) -> bytes:
        """The full route stack, encoded: the identity of the sender. Compare whole stacks, never the first hop."""
        return self.message.front

    @property
    def streaming(self) -> bool:
        """True when the caller expects many responses, ended by an error response."""
        return bool(self.message.head[4] & STREAMING)

    @property
    def matchtag(self) -> int:
        """The caller's number for this call; unique together with the route stack only."""
        return self.message.matchtag

    @property
    def owner(self) -> bool:
        """True when the sender has the OWNER role."""
        return bool(self.message.rolemask & Role.OWNER)

    def field(self, name: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        """One key of the JSON payload, which is parsed once.

        Raises:
            ProtocolError: no JSON object; missing without a default, or of another type (bool is not taken for int).
        """
        if self._object is None:
            self._object = self.json()
        value = self._object.get(name, default)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if value is default and default is not ...:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ProtocolError(f"{self.topic}: key {name!r} is missing or of the wrong type")
        return value


class Request(RequestMessage):
    """One request for a method of ours."""

    __slots__ = ("_respond", "done", "task")

    def __init__(self, message: Message, respond: Respond) -> None:
        self.message = message  # without super(): two calls less for each request
        self._object = None
        self._respond = respond
        self.task: asyncio.Task[None] | None = None
        """The task that runs the handler; None for a plain function, and while the request waits."""
        self.done = False
        """True once the last response was given, or the sender is gone or cancelled."""

    def respond(self, payload: Payload = None) -> None:
        """Send a response; the last one unless ``streaming``.

        Nothing is sent when the caller wants no response (flag NORESPONSE) or the request is ``done``: a
        cancel may arrive at any time.
        """
        if self.done:
            return
        data = encode(payload)
        self.done = not self.streaming
        self._respond(self.message, data, 0)

    def respond_error(self, errnum: int, text: str = "") -> None:
        """Send the last response: POSIX ``errnum``, not 0 (EIO for what is no such number), and a text for people."""
        if errnum == 0:
            raise ValueError("errnum 0 is success: use respond()")
        if self.done:
            return
        self.done = True
        self._respond(self.message, encode_reason(text), errnum if 0 < errnum < 2**32 else errno.EIO)

    def drop(self) -> None:
        """The sender is gone: say nothing more and stop the handler (RFC 6, "Disconnection")."""
        self.done = True
        if self.task is not None:
            self.task.cancel()

    def cancel(self, errnum: int, text: str = "") -> None:
        """Stop the handler and answer ``errnum``."""
        self.respond_error(errnum, text)
        self.drop()
