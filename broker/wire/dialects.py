"""The three texts of RFC 3, and the form that deployed software made of the newest: a property of a link.

::

    cmb1             first CMB1: flag 0x04 marks JSON, keepalives, ZeroMQ only
    cmb1rev          CMB1 revision: noresponse, private, streaming; keepalives, ZeroMQ only
    flux1            Flux v1 as deployed flux-core writes it: the default, and every Message inside
    flux1, strict    Flux v1 as its text says

Bytes cannot tell them apart, so a setting of each listener or dialer does. A link in the default form never
comes here: it uses ``from_parts``, ``Message.parts`` and ``Message.framed`` directly (see
``Dialect.native``).

A text adds a class to ``_DIALECTS``; nothing else in the house names one. ``Dialect`` says what such a class does and
has the rules that all texts share.

From one dialect to another every message passes through the form of the house (Flux v1 as deployed), so a pair of
dialects loses what either half loses. The rules, by the side that a message is written to (``-`` carried as it is):

=====================  ===========  =============  ====================  ==============================
what                   flux1        flux1 strict   cmb1rev               cmb1
=====================  ===========  =============  ====================  ==============================
NORESPONSE 0x04        -            -              -                     refused: would be answered
UPSTREAM 0x10          -            -              -                     -
PRIVATE 0x20           -            -              -                     refused: would be shown to all
STREAMING 0x40         -            -              -                     refused: would end at the first
USER1 0x80             -            -              refused: undefined    refused: undefined
payload                -            -              -                     JSON marked, its NUL removed
control HEARTBEAT      -            -              keepalive, errnum 0   keepalive, errnum 0
control, other types   -            -              refused               refused
control with parts     -            refused        refused               refused
no topic (but control) -            refused        refused               refused
nodeid 0xFFFFFFFE      -            refused        refused               refused
routes, delimiter      -            requests and responses only, delimiter always
route id, topic        -            NUL-terminated as they are (hops unescaped, or refused)
event's unused word    -            zero           zero                  zero
credentials, errnum, nodeid, matchtag, sequence, control status: carried by all
=====================  ===========  =============  ====================  ==============================

A flag is refused on every type, also where its text gives it no meaning (STREAMING on an event): a receiver
must see the flags that were sent, or nothing. Nobody is left waiting for what was refused: see
``answer_refused`` and ``said_instead``, which links use (``Link.refuse``). And by the side that it is read from:

=====================  ===========  =============  ====================  ==============================
what                   flux1        flux1 strict   cmb1rev               cmb1
=====================  ===========  =============  ====================  ==============================
undefined flag bits    none         none           0x80: DecodeError     0x20 0x40 0x80: DecodeError
bit 0x04               NORESPONSE   NORESPONSE     NORESPONSE            JSON: the payload gains a NUL
keepalive errnum       -            -              refused unless 0      refused unless 0
missing delimiter      kept so      added          added                 added
parts of control       kept         dropped        dropped               dropped
=====================  ===========  =============  ====================  ==============================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from broker.errors import ConfigError, DecodeError, Untranslatable
from broker.wire.decoding import from_parts
from broker.wire.message import (
    CONTROL,
    DELIMITER,
    EVENT,
    MAGIC_TEXT,
    NODEID_UPSTREAM,
    NORESPONSE,
    PAYLOAD,
    PRIVATE,
    REQUEST,
    RESPONSE,
    ROUTE,
    STREAMING,
    TOPIC,
    UPSTREAM,
    USER1,
    Message,
    response,
)
from broker.wire.parts import encode_part, part_data
from broker.wire.payload import encode_text, is_json_object

JSON: Final = 0x04
"""flag-json: the payload is JSON."""
HEARTBEAT: Final = 0
"""The one control type that a keepalive can stand for."""
_WHY: Final = {
    NORESPONSE: ("flag NORESPONSE", "the peer would answer, and to this text the bit means JSON"),
    PRIVATE: ("flag PRIVATE", "the peer would show the event to everyone"),
    STREAMING: ("flag STREAMING", "the peer would take the first response for the last"),
    USER1: ("flag USER1", "the bit is younger than this text"),
}


class Dialect(ABC):
    """One text of RFC 3, spoken on a link. Instances hold no state: one serves every link.

    Inside the house a Message always has the deployed form of Flux v1, with a route delimiter on every type.
    """

    __slots__ = ()

    name: ClassVar[str]
    """Its name in settings."""
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
    """Flux v1 to the letter of its text.

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
            parts.append(bytes(part_data(message.topic_part) or b"") + b"\0")
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


class Cmb1Rev(Dialect):
    """CMB1 as revised before it became Flux v1: ZeroMQ parts, keepalives, and every flag of Flux v1 but the youngest.

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


class Cmb1(Cmb1Rev):
    """The first CMB1, the oldest text: as the revision, with a JSON flag and without three later ones.

    - Flag 0x04 marks a JSON payload; the bit became NORESPONSE in the revision. Here JSON has no NUL at its
      end: the payload conventions are younger. So a marked payload gains one NUL on the way in (one it has
      already is not doubled), and a payload which obeys the conventions, one JSON object and one NUL, is marked
      and loses it on the way out.
    - The mark itself is not kept inside: an unmarked payload that obeys the conventions *is* JSON in Flux v1. A
      marked payload is not parsed here; a service answers EPROTO to one that is no object.
    - NORESPONSE, PRIVATE and STREAMING do not exist and are refused on the way out: without them the peer would
      do something else than it was asked.
    """

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


_DIALECTS: Final[dict[tuple[str, bool], Dialect]] = {
    ("flux1", False): Flux1(),
    ("flux1", True): Flux1Text(),
    ("cmb1rev", False): Cmb1Rev(),
    ("cmb1", False): Cmb1(),
}
NAMES: Final = tuple(dict.fromkeys(name for name, _strict in _DIALECTS))
"""The names for settings."""


def dialect(name: str, strict: bool = False) -> Dialect:
    """The dialect called ``name``; ``strict`` asks for the form of its text where deployed software differs.

    Raises:
        ConfigError: no such dialect, or one that has a single form.
    """
    found = _DIALECTS.get((name, strict))
    if found is None:
        known = f"{name!r} has one form only" if name in NAMES else f"known: {', '.join(NAMES)}"
        raise ConfigError(f"no dialect {name!r}{' with strict_rfc3' if strict else ''}; {known}")
    return found


def translate(parts: list[bytes], source: Dialect, target: Dialect) -> list[bytes]:
    """The message in ``parts``, read as ``source``, written as ``target``.

    Raises:
        DecodeError: no message of ``source``.
        Untranslatable: ``target`` cannot carry it; the text says which field and why.
    """
    return target.encode(source.decode(parts))


def answer_refused(message: Message, error: Untranslatable) -> Message | None:
    """The answer to a request that could not be written to its link: EOPNOTSUPP and the reason as text.

    A link gives it to its receiver as if its peer had answered, so that no caller waits for ever. None for
    everything that expects no answer.
    """
    if message.type != REQUEST or message.flags & NORESPONSE:
        return None
    return response(message, encode_text(str(error)), errnum=error.errno)


def said_instead(message: Message, error: Untranslatable) -> Message | None:
    """The substitute for a response that its link cannot carry: EOPNOTSUPP and the reason as text.

    It has no flags that a dialect could refuse. None for everything but a response, and for one without such
    flags: it was refused for something that an error response would share.
    """
    common = message.flags & (TOPIC | PAYLOAD | ROUTE)
    if message.type != RESPONSE or message.flags == common:
        return None
    text, sender = encode_text(str(error)), (message.userid, message.rolemask)
    instead = response(message, text, errnum=error.errno, userid=sender[0], rolemask=sender[1])
    instead.set_flags(common | PAYLOAD)
    return instead
