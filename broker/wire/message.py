"""The one Message class: an encoded message, held as five byte segments.

Theory of operation (RFC 3, "Common Message Format"). A message is a sequence of parts, each encoded as a size
byte (or 255 and a big-endian u32) and data. The corridor never decodes it; it needs five places::

    front         route parts, then the empty delimiter part; b"" when flag ROUTE is clear
    topic_part    the topic part, encoded; b"" when flag TOPIC is clear
    payload_part  the payload part, encoded; b"" when flag PAYLOAD is clear
    head          PROTO with its size byte, but for the last word (17 bytes)
    tag           the last word of PROTO: the matchtag of requests and responses (4 bytes)

so a route push is ``hop + front``, a stamp replaces ``head``, two calls of the same kind differ in ``tag`` and payload
alone, and no payload is ever copied by transit.

Rules of this file: a Message is *canonical* (short sizes for short parts, no NUL in routes and topic, flags agree with
parts; ``decoding`` sees to it). A message is patched only before its first ``framed()``; a user that patches a shared
one takes a ``copy()`` first.
"""

# compiled: mypyc

from __future__ import annotations

from operator import index
from struct import Struct
from typing import Final

from broker.identity import USERID_UNKNOWN
from broker.wire.parts import encode_part, part_data, split_parts
from broker.wire.topic import encode_topic

REQUEST: Final = 1
RESPONSE: Final = 2
EVENT: Final = 4
CONTROL: Final = 8

OPEN: Final = 0x100
"""First word of a control message of ours: its receiver's events are welcome. Deployed software numbers such words from
0."""
SHUT: Final = 0x101
"""First word of another: nobody should publish more than a little for now."""
HANDLED: Final = 0x102
"""First word of another: the second says how many messages of its receiver are handled, modulo 2**32. An owner's link
that sends one, whatever it says, is told from then on, and OPEN and SHUT, too."""
MARK: Final = 0x103
"""First word of another: its sender wants the second one back when what came before is handled ..."""
MARKED: Final = 0x104
"""... in one that begins so."""

TOPIC: Final = 0x01
PAYLOAD: Final = 0x02
NORESPONSE: Final = 0x04
ROUTE: Final = 0x08
UPSTREAM: Final = 0x10
PRIVATE: Final = 0x20
STREAMING: Final = 0x40
USER1: Final = 0x80

NODEID_ANY: Final = 0xFFFFFFFF
"""Any rank: the nearest broker towards the root that has the service."""
NODEID_UPSTREAM: Final = 0xFFFFFFFE
"""API convenience only; never encoded (RFC 3, "Rank Assignment")."""
MATCHTAG_NONE: Final = 0

DELIMITER: Final = b"\x00"
MAGIC_DEPLOYED: Final = Struct("=I").pack(0xFFEE0012)
"""Frame magic as deployed flux-core writes it: a host-order u32 (12 00 EE FF on little-endian hosts)."""
MAGIC_TEXT: Final = b"\xff\xee\x00\x12"
"""Frame magic as the text of RFC 3 writes it."""

_HEAD = Struct(">BBBBBIII")  # size byte 20, magic 8E, version 1, type, flags, userid, rolemask, first word
_U32 = Struct(">I")
SMALL_BYTES: Final = 512
_HEADERS: Final = [MAGIC_DEPLOYED + size.to_bytes(4, "big") for size in range(SMALL_BYTES)]
"""Frame headers of small messages, made once."""
TYPE_NAMES: Final = {REQUEST: "request", RESPONSE: "response", EVENT: "event", CONTROL: "control"}


class Message:
    """One Flux message in its encoded form, with decoded properties on demand.

    Not safe to patch once sent; see the rules at the top of this file.
    """

    __slots__ = ("_framed", "front", "head", "payload_part", "tag", "topic_part")

    def __init__(
        self, front: bytes, topic_part: bytes, payload_part: bytes | memoryview, head: bytes, tag: bytes
    ) -> None:
        self.front: bytes = front
        self.topic_part: bytes = topic_part
        self.payload_part: bytes | memoryview = payload_part
        self.head: bytes = head
        self.tag: bytes = tag
        self._framed: bytes | None = None

    # -- header fields -------------------------------------------------------------------------

    @property
    def type(self) -> int:
        """REQUEST 1, RESPONSE 2, EVENT 4 or CONTROL 8."""
        return self.head[3]

    @property
    def flags(self) -> int:
        """The flag byte: TOPIC 1, PAYLOAD 2, NORESPONSE 4, ROUTE 8, UPSTREAM 16, PRIVATE 32, STREAMING 64,
        USER1 128.
        """
        return self.head[4]

    @property
    def userid(self) -> int:
        """Userid of the sender; 0xFFFFFFFF until stamped."""
        return int.from_bytes(self.head[5:9], "big")

    @property
    def rolemask(self) -> int:
        """Role bits of the sender; 0 until stamped."""
        return int.from_bytes(self.head[9:13], "big")

    @property
    def aux1(self) -> int:
        """First type-specific word: nodeid, errnum, sequence or control type."""
        return int.from_bytes(self.head[13:], "big")

    @property
    def aux2(self) -> int:
        """Second type-specific word: matchtag (request, response), unused (event), control status."""
        return int.from_bytes(self.tag, "big")

    # spelled out, not aliased: a compiled class has no properties at class-body time
    @property
    def nodeid(self) -> int:
        """Target rank of a request; 0xFFFFFFFF is any."""
        return self.aux1

    @property
    def errnum(self) -> int:
        """POSIX error number of a response; 0 is success."""
        return self.aux1

    @property
    def sequence(self) -> int:
        """Number of an event; 0 until rank 0 gave it one."""
        return self.aux1

    @property
    def matchtag(self) -> int:
        """The number that pairs a response with its request; 0 for none."""
        return self.aux2

    @property
    def proto(self) -> bytes:
        """The 20 bytes of PROTO."""
        return self.head[1:] + self.tag

    # -- parts ---------------------------------------------------------------------------------

    @property
    def topic(self) -> str | None:
        """The topic string; None when there is none. Bytes that are not UTF-8 become surrogate escapes."""
        data = part_data(self.topic_part)
        return None if data is None else bytes(data).decode("utf-8", "surrogateescape")

    @property
    def payload(self) -> bytes | None:
        """The payload, copied out; None when the message has none."""
        data = part_data(self.payload_part)
        return None if data is None else bytes(data)

    @property
    def routes(self) -> list[bytes]:
        """Route ids, most recent hop first."""
        return [bytes(part) for part in split_parts(self.front)][:-1] if self.front else []

    @property
    def size(self) -> int:
        """Bytes of all encoded parts, as a frame's length field states them."""
        return len(self.front) + len(self.topic_part) + len(self.payload_part) + 21

    def parts(self) -> list[bytes]:
        """The message as a list of parts, as ZeroMQ carries it; PROTO last."""
        parts = split_parts(self.front) if self.front else []
        for encoded in (self.topic_part, self.payload_part):
            data = part_data(encoded)
            if data is not None:
                parts.append(bytes(data))
        parts.append(self.head[1:] + self.tag)
        return parts

    # -- encoded forms -------------------------------------------------------------------------

    def framed(self) -> bytes:
        """The framed message in deployed byte order; made once and kept."""
        framed = self._framed
        if framed is None:
            front, topic, payload = self.front, self.topic_part, self.payload_part
            size = len(front) + len(topic) + len(payload) + 21
            header = _HEADERS[size] if size < SMALL_BYTES else MAGIC_DEPLOYED + size.to_bytes(4, "big")
            framed = self._framed = b"".join((header, front, topic, payload, self.head, self.tag))
        return framed

    def recorded(self, front: bytes) -> bytes:
        """The framed message as it stands, for the record; then hops are popped: ``front``, the lower end of the
        stack, is what remains, and the frame to send on is cut out of the recorded one instead of being joined anew.
        """
        topic, payload = self.topic_part, self.payload_part
        size = len(self.front) + len(topic) + len(payload) + 21
        header = _HEADERS[size] if size < SMALL_BYTES else MAGIC_DEPLOYED + size.to_bytes(4, "big")
        full = b"".join((header, self.front, topic, payload, self.head, self.tag))
        popped = len(self.front) - len(front)
        self.front = front
        size -= popped
        if size < SMALL_BYTES:
            self._framed = _HEADERS[size] + full[8 + popped :]
        else:  # a link that makes a form of its own need not copy a large payload twice
            self._framed = None
        return full

    def encode(self) -> bytes:
        """All parts encoded and concatenated, without frame header."""
        return b"".join((self.front, self.topic_part, self.payload_part, self.head, self.tag))

    def copy(self) -> Message:
        """A message of its own over the same bytes; patching one leaves the other alone."""
        return Message(self.front, self.topic_part, self.payload_part, self.head, self.tag)

    # -- patches (before the first framed()) ----------------------------------------------------

    def push_route(self, route: bytes) -> None:
        """Put ``route`` (1 to 254 bytes) on top of the stack; adds the delimiter when it was missing."""
        if not self.front:
            self.front = DELIMITER
            self.set_flags(self.head[4] | ROUTE)
        self.front = encode_part(route) + self.front

    def set_flags(self, flags: int) -> None:
        """Replace the flag byte."""
        head = self.head
        self.head = head[:4] + bytes((flags,)) + head[5:]

    def set_credentials(self, userid: int, rolemask: int) -> None:
        """Replace userid and rolemask."""
        head = self.head
        self.head = head[:5] + _U32.pack(userid) + _U32.pack(rolemask) + head[13:]

    def set_aux1(self, value: int) -> None:
        """Replace nodeid, errnum, sequence or control type."""
        self.head = self.head[:13] + _U32.pack(value)

    def __repr__(self) -> str:
        kind = TYPE_NAMES.get(self.type, "?")
        return (
            f"<{kind} {self.topic!r} flags={self.flags:#x} user={self.userid}/{self.rolemask} "
            f"aux={self.aux1},{self.aux2} routes={len(self.routes)} payload={len(self.payload_part)}B>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.encode())


# -- constructors --------------------------------------------------------------------------------


def request(
    topic: str | bytes,
    payload: bytes | None = None,
    *,
    nodeid: int = NODEID_ANY,
    matchtag: int = MATCHTAG_NONE,
    flags: int = 0,
    userid: int = USERID_UNKNOWN,
    rolemask: int = 0,
) -> Message:
    """A request (RFC 3, "Request Message Type"); ``flags`` may add NORESPONSE, UPSTREAM, STREAMING, USER1.

    Raises:
        ValueError: ``nodeid`` is neither a rank nor NODEID_ANY; 0xFFFFFFFE is never encoded ("Rank Assignment").
        ProtocolError: EPROTO; ``topic`` holds a NUL or a lone surrogate.
    """
    if not 0 <= index(nodeid) <= NODEID_ANY or nodeid == NODEID_UPSTREAM:
        raise ValueError(f"nodeid {nodeid} is no rank; flag UPSTREAM and the rank to skip ask above it")
    return _build(REQUEST, flags | ROUTE, DELIMITER, topic, payload, (userid, rolemask, nodeid, matchtag))


def response(
    to: Message,
    payload: bytes | None = None,
    *,
    errnum: int = 0,
    userid: int = USERID_UNKNOWN,
    rolemask: int = 0,
) -> Message:
    """The response to ``to``: its route stack, topic, matchtag and flags (payload apart) are copied."""
    flags = (to.head[4] & ~PAYLOAD) | ROUTE
    part: bytes = b""
    if payload is not None:
        flags |= PAYLOAD
        part = encode_part(payload)
    head = _HEAD.pack(20, 0x8E, 1, RESPONSE, flags, userid, rolemask, errnum)
    return Message(to.front or DELIMITER, to.topic_part, part, head, to.tag)


def event(
    topic: str | bytes,
    payload: bytes | None = None,
    *,
    sequence: int = 0,
    flags: int = 0,
    userid: int = USERID_UNKNOWN,
    rolemask: int = 0,
) -> Message:
    """An event, with the delimiter that deployed software sends (the text has none: strict_rfc3)."""
    return _build(EVENT, flags | ROUTE, DELIMITER, topic, payload, (userid, rolemask, sequence, 0))


def control(kind: int, status: int = 0) -> Message:
    """A control message (RFC 3, "Control message type"): two words for the direct peer only."""
    head = _HEAD.pack(20, 0x8E, 1, CONTROL, ROUTE, USERID_UNKNOWN, 0, kind)
    return Message(DELIMITER, b"", b"", head, _U32.pack(status))


def _build(
    kind: int,
    flags: int,
    front: bytes,
    topic: str | bytes,
    payload: bytes | None,
    words: tuple[int, int, int, int],
) -> Message:
    name = encode_topic(topic)
    flags |= TOPIC
    part: bytes = b""
    if payload is not None:
        flags |= PAYLOAD
        part = encode_part(payload)
    head = _HEAD.pack(20, 0x8E, 1, kind, flags, *words[:3])
    return Message(front, encode_part(name), part, head, _U32.pack(words[3]))
