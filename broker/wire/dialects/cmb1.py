"""The first CMB1, the oldest text of Flux RFC 3: as the revision, with a JSON flag and without three later ones.

- Flag 0x04 marks a JSON payload; the bit became NORESPONSE in the revision. Here JSON has no NUL at its
  end: the payload conventions are younger. So a marked payload gains one NUL on the way in (one it has
  already is not doubled), and a payload which obeys the conventions, one JSON object and one NUL, is marked
  and loses it on the way out.
- The mark itself is not kept inside: an unmarked payload that obeys the conventions *is* JSON in Flux v1. A
  marked payload is not parsed here; a service answers EPROTO to one that is no object.
- NORESPONSE, PRIVATE and STREAMING do not exist and are refused on the way out: without them the peer would
  do something else than it was asked.
"""

from __future__ import annotations

from typing import ClassVar, Final

from broker.wire.dialects.cmb1rev import Cmb1Rev
from broker.wire.message import PAYLOAD, ROUTE, TOPIC, UPSTREAM, Message
from broker.wire.parts import encode_part
from broker.wire.payload import is_json_object

JSON: Final = 0x04
"""flag-json: the payload is JSON."""


class Cmb1(Cmb1Rev):
    """The first CMB1; see the rules at the top of this file."""

    __slots__ = ()

    name: ClassVar[str] = "cmb1"
    defined: ClassVar[int] = TOPIC | PAYLOAD | JSON | ROUTE | UPSTREAM
    carried: ClassVar[int] = TOPIC | PAYLOAD | ROUTE | UPSTREAM

    def decode(self, parts: list[bytes]) -> Message:
        """The message in the form of the house; JSON gains its NUL.

        Raises:
            DecodeError: not a message, or with a flag bit that the text does not define.
            Untranslatable: a keepalive with an errnum.
        """
        message = super().decode(parts)
        if message.flags & JSON:
            message.set_flags(message.flags & ~JSON)
            payload = message.payload
            if payload is not None:
                message.payload_part = encode_part(payload.partition(b"\0")[0] + b"\0")
        return message

    def _payload(self, message: Message) -> tuple[bytes | None, int]:
        payload = message.payload
        if payload is not None and is_json_object(payload):
            return payload[:-1], JSON
        return payload, 0
