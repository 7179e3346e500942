"""Bytes to canonical messages, every part walked once (RFC 3, "Common Message Format").

``decode`` takes what is canonical by the straight way and leaves the rest to ``from_parts``, which either re-encodes
or raises; ``decode_large`` does the same for a frame whose payload is not to be copied.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.errors import DecodeError
from broker.wire.message import CONTROL, DELIMITER, EVENT, PAYLOAD, REQUEST, RESPONSE, ROUTE, TOPIC, Message
from broker.wire.parts import encode_part, split_parts

_TYPES = frozenset((REQUEST, RESPONSE, EVENT, CONTROL))
_FLAGS_BY_LEAD: Final = {bytes((20, 0x8E, 1, kind, flags)): flags for kind in _TYPES for flags in range(256)}
"""Every valid first five bytes of PROTO with its size -> the flag byte: one lookup instead of five comparisons."""
LARGE_HEAD_BYTES: Final = 8 << 10
"""How far into a large frame its payload may begin and still be passed on without copying."""


def decode(data: bytes, start: int, stop: int) -> Message:
    """The message in ``data[start:stop]`` (parts without frame header), every part walked once.

    The straight way below takes canonical messages; whatever it does not recognise goes through
    ``from_parts``, which either re-encodes or raises. Flag bits are literals here (8 ROUTE, 1 TOPIC, 2 PAYLOAD): each
    name would cost a look-up per message.

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
            # a NUL in a route: deployed brokers cut it there, so it is re-encoded
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
    # flags and parts disagree: parts that nobody announced are dropped, missing ones raise
    if pos != at or (flags & 1 and not topic) or (flags & 2 and not payload):
        return from_parts(split_parts(data, start, stop))
    return Message(front, topic, payload, tail[:17], tail[17:])


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
    return Message(head.front, head.topic_part, data[body : stop - 21], head.head, head.tag)


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


def from_parts(parts: Sequence[bytes | memoryview]) -> Message:
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
    proto = bytes(parts[-1])
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
        topic = encode_part(bytes(name).partition(b"\0")[0])
    if flags & PAYLOAD:
        data = next(rest, None)
        if data is None:
            raise DecodeError("flag PAYLOAD is set and the payload part is missing")
        payload = encode_part(data)
    return Message(front, topic, payload, b"\x14" + proto[:16], proto[16:])


def _front(parts: Iterator[bytes | memoryview]) -> bytes:
    """Consume route parts up to the delimiter from the iterator ``parts``."""
    front = b""
    for part in parts:
        if not part:
            return front + DELIMITER
        route = bytes(part).partition(b"\0")[0]
        if route:
            front += encode_part(route)
    raise DecodeError("flag ROUTE is set and no route delimiter was found")
