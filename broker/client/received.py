"""Messages that came in, with what a program asks of them: Response, Event (RFC 3).

They are thin views: nothing is decoded before it is asked for, and ``message`` is the whole of it.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

from broker.errors import ProtocolError, RpcError
from broker.wire.message import PRIVATE, Message
from broker.wire.payload import any_text, decode_json

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


class Response(Received):
    """The answer to a request, or one of the answers of a stream (RFC 6)."""

    __slots__ = ()

    @property
    def errnum(self) -> int:
        """0, or the POSIX error number; nonzero only where a raw ``request`` was made: ``rpc`` raises it."""
        return self.message.errnum

    def error(self) -> RpcError:
        """The RpcError this response stands for, with the service's text or the system's."""
        return RpcError(self.message.errnum, self.text, self.topic)


class Event(Received):
    """One event.

    Attributes:
        lost: how many events this subscription had no room for right before this one; 0 almost always.
        missed: why others may be missing right before this one: the link was lost, say; "" almost always.
    """

    __slots__ = ("lost", "missed")

    def __init__(self, message: Message, lost: int = 0, missed: str = "") -> None:
        super().__init__(message)
        self.lost = lost
        self.missed = missed

    @property
    def sequence(self) -> int:
        """Number of the event in the whole instance, from 1 on; other topics leave gaps."""
        return self.message.sequence

    @property
    def private(self) -> bool:
        """True when only the sender's userid and the owner received it."""
        return bool(self.message.flags & PRIVATE)
