"""What a dialect does for a link, and the rules that all texts of RFC 3 share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from broker.errors import Untranslatable
from broker.wire.message import (
    CONTROL,
    DELIMITER,
    EVENT,
    NODEID_UPSTREAM,
    PAYLOAD,
    REQUEST,
    ROUTE,
    TOPIC,
    Message,
)


class Dialect(ABC):
    """One text of RFC 3, spoken on a link. Instances hold no state: one serves every link.

    Inside the house a Message always has the deployed form of Flux v1, with a route delimiter on every type.
    """

    __slots__ = ()

    name: ClassVar[str]
    """What a setting calls it."""
    strict: ClassVar[bool] = False
    """True when it writes what the text says where deployed software does otherwise."""
    native: ClassVar[bool] = False
    """True when a link may bypass this object: ``from_parts``, ``parts`` and ``framed`` do the same."""

    @abstractmethod
    def decode(self, parts: list[bytes]) -> Message:
        """The message in ``parts``, without the identity part that a ROUTER socket puts in front.

        Raises:
            DecodeError: no message of this dialect; the link ends.
            Untranslatable: a message of this dialect that Flux v1 has no form for; count and drop it.
        """

    @abstractmethod
    def encode(self, message: Message) -> list[bytes]:
        """``message`` as parts of this dialect; ``message`` itself is left alone.

        Raises:
            Untranslatable: this dialect cannot carry it, or no text allows it to be sent.
        """

    def frame(self, message: Message) -> bytes:
        """``message`` framed for a byte stream (RFC 3, "Message Framing and Security").

        Raises:
            Untranslatable: as ``encode``, and always in the dialects that exist inside ZeroMQ only.
        """
        raise self.refusal("stream framing", "its text encapsulates messages in ZeroMQ only")

    def refusal(self, field: str, why: str) -> Untranslatable:
        """The error that says which field this dialect cannot carry and why."""
        return Untranslatable(f"{self.name} cannot carry {field}: {why}")

    def check(self, message: Message) -> None:
        """Refuse what every text of RFC 3 forbids to send, whatever the dialect.

        Raises:
            Untranslatable: a control message with topic or payload, another message without topic, a request
                to the pseudo rank 0xFFFFFFFE ("Rank Assignment": SHALL NOT appear in an encoded message).
        """
        if message.type == CONTROL:
            if message.topic_part or message.payload_part:
                raise self.refusal("topic or payload", "control messages are PROTO alone")
        elif not message.topic_part:
            raise self.refusal("a missing topic", "requests, responses and events have one")
        elif message.type == REQUEST and message.nodeid == NODEID_UPSTREAM:
            raise self.refusal("nodeid 0xfffffffe", "it is never encoded; flag UPSTREAM says what it means")


def house_form(message: Message) -> Message:
    """``message`` with the delimiter that deployed software writes on every type; control bare."""
    if message.type == CONTROL:
        flags = message.flags & ~(TOPIC | PAYLOAD) | ROUTE
        message = Message(DELIMITER, b"", b"", message.head, message.tag)
        message.set_flags(flags)
    elif not message.front:
        message.front = DELIMITER
        message.set_flags(message.flags | ROUTE)
    return message


def text_proto(message: Message, flags: int) -> bytes:
    """PROTO with these flags, the unused word of an event zero as every text has it."""
    head = message.head
    return head[1:4] + bytes((flags,)) + head[5:] + (bytes(4) if message.type == EVENT else message.tag)


def routed(message: Message) -> bool:
    """Whether the texts put a route stack in front: on requests and responses, never on the other two."""
    return message.type not in (EVENT, CONTROL)
