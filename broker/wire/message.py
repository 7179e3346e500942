r"""The one Message class: an encoded message, held as four byte segments.

Theory of operation (RFC 3, "Common Message Format"). A message is a sequence of parts, each encoded as a size
byte (or 255 and a big-endian u32) and data. The corridor never decodes it; it needs four places::

    front         route parts, then the empty delimiter part; b"" when flag ROUTE is clear
    topic_part    the topic part, encoded; b"" when flag TOPIC is clear
    payload_part  the payload part, encoded; b"" when flag PAYLOAD is clear
    tail          b"\x14" and the 20 bytes of PROTO

so a route push is ``hop + front``, a stamp is a splice of ``tail``, and no payload is ever copied by transit.

Rules of this file: a Message is *canonical* (short sizes for short parts, no NUL in routes and topic, flags
agree with parts); ``decode`` re-encodes what is decodable but not canonical. A message is patched only
before its first ``framed()``; whoever wants to patch a shared one takes a ``copy()``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from broker.errors import DecodeError
from broker.identity import USERID_UNKNOWN

REQUEST: Final = 1
RESPONSE: Final = 2
EVENT: Final = 4
CONTROL: Final = 8

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

_PROTO = Struct(">BBBBBIIII")  # size byte 20, magic 8E, version 1, type, flags, userid, rolemask, aux1, aux2
_U32 = Struct(">I")
_LONG = Struct(">BI")
_TYPES = frozenset((REQUEST, RESPONSE, EVENT, CONTROL))
_FLAGS_BY_LEAD: Final = {bytes((20, 0x8E, 1, kind, flags)): flags for kind in _TYPES for flags in range(256)}
"""Every valid first five bytes of ``tail`` -> the flag byte: one lookup instead of five comparisons."""
LARGE_HEAD_BYTES: Final = 8 << 10
"""How far into a large frame its payload may begin and still be passed on without copying."""
SMALL_BYTES: Final = 512
_HEADERS: Final = [MAGIC_DEPLOYED + size.to_bytes(4, "big") for size in range(SMALL_BYTES)]
"""Frame headers of small messages, made once."""
TYPE_NAMES: Final = {REQUEST: "request", RESPONSE: "response", EVENT: "event", CONTROL: "control"}


class Message:
    """One Flux message in its encoded form, with decoded properties on demand.

    Not safe to patch once sent; see the rules at the top of this file.
    """

    __slots__ = ("_framed", "front", "payload_part", "tail", "topic_part")

    def __init__(
        self, front: bytes, topic_part: bytes, payload_part: bytes | memoryview, tail: bytes
    ) -> None:
        self.front: bytes = front
        self.topic_part: bytes = topic_part
        self.payload_part: bytes | memoryview = payload_part
        self.tail: bytes = tail
        self._framed: bytes | None = None

    # -- header fields -------------------------------------------------------------------------

    @property
    def type(self) -> int:
        """REQUEST 1, RESPONSE 2, EVENT 4 or CONTROL 8."""
        return self.tail[3]

    @property
    def flags(self) -> int:
        """The flag byte: TOPIC 1, PAYLOAD 2, NORESPONSE 4, ROUTE 8, UPSTREAM 16, PRIVATE 32, STREAMING 64,
        USER1 128.
        """
        return self.tail[4]

    @property
    def userid(self) -> int:
        """Userid of the sender; 0xFFFFFFFF until stamped."""
        return int.from_bytes(self.tail[5:9], "big")

    @property
    def rolemask(self) -> int:
        """Role bits of the sender; 0 until stamped."""
        return int.from_bytes(self.tail[9:13], "big")

    @property
    def aux1(self) -> int:
        """First type-specific word: nodeid, errnum, sequence or control type."""
        return int.from_bytes(self.tail[13:17], "big")

    @property
    def aux2(self) -> int:
        """Second type-specific word: matchtag (request, response), unused (event), control status."""
        return int.from_bytes(self.tail[17:21], "big")

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
        """What pairs a response with its request; 0 for none."""
        return self.aux2

    @property
    def proto(self) -> bytes:
        """The 20 bytes of PROTO."""
        return self.tail[1:]

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
        parts.append(self.tail[1:])
        return parts

    # -- encoded forms -------------------------------------------------------------------------

    def framed(self) -> bytes:
        """The framed message in deployed byte order; made once and kept."""
        framed = self._framed
        if framed is None:
            front, topic, payload = self.front, self.topic_part, self.payload_part
            size = len(front) + len(topic) + len(payload) + 21
            header = _HEADERS[size] if size < SMALL_BYTES else MAGIC_DEPLOYED + size.to_bytes(4, "big")
            framed = self._framed = b"".join((header, front, topic, payload, self.tail))
        return framed

    def encode(self) -> bytes:
        """All parts encoded and concatenated, without frame header."""
        return b"".join((self.front, self.topic_part, self.payload_part, self.tail))

    def copy(self) -> Message:
        """A message of its own over the same bytes; patching one leaves the other alone."""
        return Message(self.front, self.topic_part, self.payload_part, self.tail)

    # -- patches (before the first framed()) ----------------------------------------------------

    def push_route(self, route: bytes) -> None:
        """Put ``route`` (1 to 254 bytes) on top of the stack; adds the delimiter when it was missing."""
        if not self.front:
            self.front = DELIMITER
            self.set_flags(self.tail[4] | ROUTE)
        self.front = encode_part(route) + self.front

    def set_flags(self, flags: int) -> None:
        """Replace the flag byte."""
        tail = self.tail
        self.tail = tail[:4] + bytes((flags,)) + tail[5:]

    def set_credentials(self, userid: int, rolemask: int) -> None:
        """Replace userid and rolemask."""
        tail = self.tail
        self.tail = tail[:5] + _U32.pack(userid) + _U32.pack(rolemask) + tail[13:]

    def set_aux1(self, value: int) -> None:
        """Replace nodeid, errnum, sequence or control type."""
        tail = self.tail
        self.tail = tail[:13] + _U32.pack(value) + tail[17:]

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
    """A request (RFC 3, "Request Message Type"); ``flags`` may add NORESPONSE, UPSTREAM, STREAMING, USER1."""
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
    flags = (to.tail[4] & ~PAYLOAD) | ROUTE
    part: bytes = b""
    if payload is not None:
        flags |= PAYLOAD
        part = encode_part(payload)
    tail = _PROTO.pack(20, 0x8E, 1, RESPONSE, flags, userid, rolemask, errnum, 0)[:17] + to.tail[17:]
    return Message(to.front or DELIMITER, to.topic_part, part, tail)


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
    tail = _PROTO.pack(20, 0x8E, 1, CONTROL, ROUTE, USERID_UNKNOWN, 0, kind, status)
    return Message(DELIMITER, b"", b"", tail)


def _build(
    kind: int,
    flags: int,
    front: bytes,
    topic: str | bytes,
    payload: bytes | None,
    words: tuple[int, int, int, int],
) -> Message:
    name = topic.encode("utf-8", "surrogateescape") if isinstance(topic, str) else topic
    flags |= TOPIC
    part: bytes = b""
    if payload is not None:
        flags |= PAYLOAD
        part = encode_part(payload)
    return Message(front, encode_part(name), part, _PROTO.pack(20, 0x8E, 1, kind, flags, *words))


# -- parts ----------------------------------------------------------------------------------------


def encode_part(data: bytes | memoryview) -> bytes:
    """Size byte (255 and u32 from 255 bytes on), then data (RFC 3, "Message Framing and Security")."""
    size = len(data)
    if size < 255:
        return b"%c%b" % (size, data)  # type: ignore[str-format]  # a buffer is fine for %b
    return b"".join((_LONG.pack(255, size), data))


def part_data(encoded: bytes | memoryview) -> bytes | memoryview | None:
    """The data of one encoded part; None for ``b""`` (no part)."""
    if not encoded:
        return None
    return encoded[1:] if encoded[0] != 255 else encoded[5:]


def split_parts(body: bytes | memoryview, start: int = 0, stop: int | None = None) -> list[bytes]:
    """Decode the parts of ``body[start:stop]``, long forms of short parts included.

    Raises:
        DecodeError: a size runs past the end.
    """
    end = len(body) if stop is None else stop
    parts: list[bytes] = []
    pos = start
    while pos < end:
        size = body[pos]
        pos += 1
        if size == 255:
            if pos + 4 > end:
                raise DecodeError(f"part {len(parts)}: long size truncated")
            size = int.from_bytes(body[pos : pos + 4], "big")
            pos += 4
        if pos + size > end:
            raise DecodeError(f"part {len(parts)}: {size} bytes announced, {end - pos} left")
        parts.append(bytes(body[pos : pos + size]))
        pos += size
    return parts


# -- decode ---------------------------------------------------------------------------------------


def decode(data: bytes, start: int, stop: int) -> Message:
    """The message in ``data[start:stop]`` (parts without frame header), every part walked once.

    The straight way below takes canonical messages; whatever it does not recognise goes through
    ``from_parts``, which either re-encodes or raises.

    Raises:
        DecodeError: not a message at all.
    """
    at = stop - 21
    tail = data[at:stop] if at >= start else b""
    flags = _FLAGS_BY_LEAD.get(tail[:5], -1)
    if flags < 0:
        return from_parts(split_parts(data, start, stop))
    pos = start
    front = topic = payload = b""
    if flags & 8:
        size = data[pos]
        if size == 0:
            front = DELIMITER
            pos += 1
        else:
            one_hop = size == 36 and pos + 37 < at and data[pos + 37] == 0
            pos = pos + 38 if one_hop else _front_end(data, pos, at)
            front = data[start:pos]
            if front.find(0) != pos - start - 1:
                return from_parts(split_parts(data, start, stop))
    if flags & 1 and pos < at:
        end = pos + 1 + data[pos]
        if end > pos + 255:
            end = _long_end(data, pos, at)
        topic = data[pos:end]
        if 0 in topic and 0 in topic[1 if topic[0] != 255 else 5 :]:
            return from_parts(split_parts(data, start, stop))
        pos = end
    if flags & 2 and pos < at:
        end = pos + 1 + data[pos]
        if end > pos + 255:
            end = _long_end(data, pos, at)
        payload = data[pos:at]
        pos = end
    if pos != at or (flags & 1 and not topic) or (flags & 2 and not payload):
        return from_parts(split_parts(data, start, stop))
    return Message(front, topic, payload, tail)


def decode_large(data: memoryview, start: int, stop: int) -> Message:
    """As ``decode``, for a frame with a buffer of its own: the payload stays a view of that buffer.

    The other segments are copied out, so that only the payload keeps the buffer alive.

    Raises:
        DecodeError: not a message at all.
    """
    edge = bytes(data[start : start + LARGE_HEAD_BYTES])
    tail = bytes(data[stop - 21 : stop])
    flags = _FLAGS_BY_LEAD.get(tail[:5], -1)
    pos = 0
    if flags & 8 and flags >= 0:
        pos = _front_end(edge, 0, len(edge) - 1)
    if flags & 1 and flags >= 0 and pos < len(edge):
        pos = pos + 1 + edge[pos] if edge[pos] != 255 else _long_end(edge, pos, len(edge))
    body = start + pos
    long_payload = flags >= 0 and flags & 2 and pos < len(edge) and edge[pos] == 255
    if not long_payload or _long_end(data, body, stop - 21) != stop - 21:
        return from_parts(split_parts(data, start, stop))
    # a stand-in payload lets the one decoder judge everything in front of it
    head = decode(edge[:pos] + b"\x00" + tail, 0, pos + 22)
    return Message(head.front, head.topic_part, data[body : stop - 21], head.tail)


def _front_end(data: bytes | memoryview, pos: int, limit: int) -> int:
    """One past the delimiter of the route stack at ``pos``; past ``limit`` when there is none before it."""
    size = data[pos]
    while size != 0:
        pos += size + 1
        if size == 255 or pos >= limit:
            return limit + 1
        size = data[pos]
    return pos + 1


def _long_end(data: bytes | memoryview, pos: int, limit: int) -> int:
    """Where a canonical long part at ``pos`` ends; ``limit + 1`` (no valid end) when it is none."""
    if pos + 5 > limit:
        return limit + 1
    size = int.from_bytes(data[pos + 1 : pos + 5], "big")
    return pos + 5 + size if size >= 255 else limit + 1


def from_parts(parts: list[bytes]) -> Message:
    """A canonical Message from parts as a transport received them.

    Deployed brokers accept some odd forms (protocols: "Accepted oddities"): routes and topic are cut at
    their first NUL, parts nobody announced are dropped. They are re-encoded here, so that policy, router
    and receiver see the same bytes.

    Raises:
        DecodeError: PROTO is missing or wrong, or a part that the flags announce is missing.
    """
    if not parts or len(parts[-1]) != 20:
        raise DecodeError(
            f"PROTO must be the last part and 20 bytes long, not {len(parts[-1]) if parts else 0}"
        )
    proto = parts[-1]
    if proto[0] != 0x8E:
        raise DecodeError(f"PROTO magic {proto[0]:#04x}, expected 0x8e")
    if proto[1] != 1:
        raise DecodeError(f"message version {proto[1]}, expected 1")
    if proto[2] not in _TYPES:
        raise DecodeError(f"message type {proto[2]}, expected 1, 2, 4 or 8")
    flags = proto[3]
    rest = iter(parts[:-1])
    front = topic = payload = b""
    if flags & ROUTE:
        front = _front(rest)
    if flags & TOPIC:
        name = next(rest, None)
        if name is None:
            raise DecodeError("flag TOPIC is set and the topic part is missing")
        topic = encode_part(name.partition(b"\0")[0])
    if flags & PAYLOAD:
        data = next(rest, None)
        if data is None:
            raise DecodeError("flag PAYLOAD is set and the payload part is missing")
        payload = encode_part(data)
    return Message(front, topic, payload, b"\x14" + proto)


def _front(parts: object) -> bytes:
    """Consume route parts up to the delimiter from the iterator ``parts``."""
    front = b""
    for part in parts:  # type: ignore[attr-defined]
        if not part:
            return front + DELIMITER
        route = part.partition(b"\0")[0]
        if route:
            front += encode_part(route)
    raise DecodeError("flag ROUTE is set and no route delimiter was found")
