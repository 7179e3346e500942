"""Flux v1, RFC 3 as it is today: as deployed, and as its text says where the two differ.

======================  =================================  ==========================================
what                    deployed (``Flux1``)               text (``Flux1Text``, setting strict_rfc3)
======================  =================================  ==========================================
stream magic            host-order u32, 12 00 EE FF        FF EE 00 12
routes and topic        without NUL                        NUL-terminated
events                  delimiter, leftover routes         "SHALL NOT include routes or a delimiter"
control                 delimiter                          the same SHALL NOT
unused word of events   as the publisher set it            zero
======================  =================================  ==========================================

Both read either form. Flag 0x80 (user1) is younger than the text and opaque; both carry it.
"""

from __future__ import annotations

from typing import ClassVar

from broker.wire.decoding import from_parts
from broker.wire.dialects.contract import Dialect, house_form, routed, text_proto
from broker.wire.message import MAGIC_TEXT, ROUTE, Message
from broker.wire.parts import encode_part


class Flux1(Dialect):
    """Flux v1 as deployed flux-core speaks it; links use the methods of Message directly."""

    __slots__ = ()

    name: ClassVar[str] = "flux1"
    native: ClassVar[bool] = True

    def decode(self, parts: list[bytes]) -> Message:
        """See ``from_parts``."""
        return from_parts(parts)

    def encode(self, message: Message) -> list[bytes]:
        """See ``Message.parts``."""
        return message.parts()

    def frame(self, message: Message) -> bytes:
        """See ``Message.framed``."""
        return message.framed()


class Flux1Text(Dialect):
    """Flux v1 to the letter of its text."""

    __slots__ = ()

    name: ClassVar[str] = "flux1"
    strict: ClassVar[bool] = True

    def decode(self, parts: list[bytes]) -> Message:
        """Either form is read; events and control gain the delimiter that the house expects.

        Raises:
            DecodeError: see ``from_parts``.
        """
        return house_form(from_parts(parts))

    def encode(self, message: Message) -> list[bytes]:
        """Routes and topic with their NUL; no delimiter on events and control.

        Raises:
            Untranslatable: see ``Dialect.check``.
        """
        self.check(message)
        flags = message.flags
        parts: list[bytes] = []
        if routed(message):
            parts = [route + b"\0" for route in message.routes]
            parts.append(b"")
            flags |= ROUTE
        else:
            flags &= ~ROUTE
        if message.topic_part:
            parts.append(_data(message.topic_part) + b"\0")
        payload = message.payload
        if payload is not None:
            parts.append(payload)
        parts.append(text_proto(message, flags))
        return parts

    def frame(self, message: Message) -> bytes:
        """``FF EE 00 12``, the length, and the parts of ``encode``.

        Raises:
            Untranslatable: see ``Dialect.check``.
        """
        body = b"".join(encode_part(part) for part in self.encode(message))
        return MAGIC_TEXT + len(body).to_bytes(4, "big") + body


def _data(part: bytes) -> bytes:
    return part[5:] if part[0] == 255 else part[1:]
