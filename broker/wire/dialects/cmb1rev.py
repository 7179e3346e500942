"""The CMB1 revision of Flux RFC 3: ZeroMQ parts, keepalives, and every flag of Flux v1 but the youngest.

What differs from the form inside the house:

- A keepalive is PROTO alone, words errnum and status. It says "still alive", which is what control type
  HEARTBEAT (0) says; the two carry each other, status included. A nonzero errnum is refused on the way in:
  taken for a control type, 2 would force a disconnect. STATUS, DISCONNECT and unknown control types are
  refused on the way out.
- Events have no routing ("When the topic string part is first, it is compatible with ZeroMQ PUB-SUB
  sockets").
- An identity is any 1*OCTET, and ZeroMQ makes up identities with NUL in them. Hops inside the house have no
  NUL, so NUL and % are written as %00 and %25 while a hop is inside: one to one, so a response finds its
  way back.
- Topic and routes have no NUL terminator. The grammar's ALPHA / DIGIT / "." is not enforced:
  ``state-machine.get`` was on the wire under this text too.
- Flag 0x80 is not defined: refused on the way out; on the way in it shows that the peer speaks something
  else.
"""

from __future__ import annotations

from typing import ClassVar, Final

from broker.errors import DecodeError, Untranslatable
from broker.wire.decoding import from_parts
from broker.wire.dialects.contract import Dialect, house_form, routed, text_proto
from broker.wire.message import (
    CONTROL,
    NORESPONSE,
    PAYLOAD,
    PRIVATE,
    ROUTE,
    STREAMING,
    TOPIC,
    UPSTREAM,
    USER1,
    Message,
)
from broker.wire.parts import part_data

HEARTBEAT: Final = 0
"""The one control type that a keepalive can stand for."""
_WHY: Final = {
    NORESPONSE: ("flag NORESPONSE", "the peer would answer, and to this text the bit means JSON"),
    PRIVATE: ("flag PRIVATE", "the peer would show the event to everyone"),
    STREAMING: ("flag STREAMING", "the peer would take the first response for the last"),
    USER1: ("flag USER1", "the bit is younger than this text"),
}


class Cmb1Rev(Dialect):
    """CMB1 as revised before it became Flux v1; see the rules at the top of this file."""

    __slots__ = ()

    name: ClassVar[str] = "cmb1rev"
    defined: ClassVar[int] = TOPIC | PAYLOAD | NORESPONSE | ROUTE | UPSTREAM | PRIVATE | STREAMING
    """The flag bits its text gives a meaning."""
    carried: ClassVar[int] = defined
    """The flag bits that mean the same inside the house."""

    def decode(self, parts: list[bytes]) -> Message:
        """The message in the form of the house.

        Raises:
            DecodeError: not a message, or with a flag bit that the text does not define.
            Untranslatable: a keepalive with an errnum.
        """
        message = from_parts(_escaped(parts))
        unknown = message.flags & ~self.defined
        if unknown:
            raise DecodeError(
                f"flags {unknown:#04x} are not defined in {self.name}: is this the peer's dialect?"
            )
        if message.type == CONTROL and message.aux1 != HEARTBEAT:
            raise Untranslatable(
                f"flux1 cannot carry keepalive errnum {message.aux1}: control messages have no such field"
            )
        return house_form(message)

    def encode(self, message: Message) -> list[bytes]:
        """``message`` as parts of this text.

        Raises:
            Untranslatable: see ``Dialect.check``; a flag that the text does not define; a control type other
                than HEARTBEAT; a hop that could not be told from an escaped one on its way back.
        """
        self.check(message)
        lost = message.flags & ~self.carried
        if lost:
            raise self.refusal(*_WHY[lost & -lost])
        if message.type == CONTROL and message.aux1 != HEARTBEAT:
            raise self.refusal(
                f"control type {message.aux1}", "a keepalive says that its sender lives, no more"
            )
        flags = message.flags & ~ROUTE
        parts: list[bytes] = []
        if routed(message):
            parts = [self._opened(hop) for hop in message.routes]
            parts.append(b"")
            flags |= ROUTE
        topic = part_data(message.topic_part)
        if topic is not None:
            parts.append(bytes(topic))
        payload, mark = self._payload(message)
        if payload is not None:
            parts.append(payload)
        parts.append(text_proto(message, flags | mark))
        return parts

    def _payload(self, message: Message) -> tuple[bytes | None, int]:
        """The payload part and the flag bits that mark its kind."""
        return message.payload, 0

    def _opened(self, hop: bytes) -> bytes:
        """The identity that ``hop`` stands for."""
        identity = hop.replace(b"%00", b"\0").replace(b"%25", b"%")
        if _escape(identity) != hop:
            raise self.refusal(f"route {hop[:64]!r}", "its % would come back as another hop")
        return identity


def _escape(identity: bytes) -> bytes:
    return identity.replace(b"%", b"%25").replace(b"\0", b"%00")


def _escaped(parts: list[bytes]) -> list[bytes]:
    """``parts`` with each identity in front of the delimiter in the form of the house."""
    if not parts or len(parts[-1]) != 20 or not parts[-1][3] & ROUTE or b"" not in parts:
        return parts
    stack = parts.index(b"")
    return [_escape(identity) for identity in parts[:stack]] + parts[stack:]
