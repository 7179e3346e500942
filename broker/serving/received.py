"""A message that came in, with what a program asks of it (RFC 3)."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

from broker.errors import ProtocolError
from broker.wire.message import Message
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
