"""A second reading of RFC 3, slow and plain, that the fast one is compared with.

It shares no code with the broker: sizes, parts, PROTO and the oddities that deployed brokers accept (NUL
ends a route or topic, parts nobody announced are dropped) are written here once more, from the text.
"""

from typing import NamedTuple

DEPLOYED = bytes.fromhex("1200eeff")
TEXT = bytes.fromhex("ffee0012")


class Fields(NamedTuple):
    """A message, decoded."""

    routes: tuple[bytes, ...]
    topic: bytes | None
    payload: bytes | None
    kind: int
    flags: int
    words: tuple[int, int, int, int]
    """userid, rolemask and the two words whose meaning depends on the type."""


class BadError(Exception):
    """Not a message."""


def parts_of(body: bytes) -> list[bytes]:
    parts = []
    while body:
        size, body = body[0], body[1:]
        if size == 255:
            if len(body) < 4:
                raise BadError("long size")
            size, body = int.from_bytes(body[:4], "big"), body[4:]
        if size > len(body):
            raise BadError("part")
        parts.append(body[:size])
        body = body[size:]
    return parts


def fields_of(parts: list[bytes]) -> Fields:
    if not parts or len(parts[-1]) != 20:
        raise BadError("PROTO")
    *parts, proto = parts
    if proto[:2] != b"\x8e\x01" or proto[2] not in (1, 2, 4, 8):
        raise BadError("PROTO")
    flags = proto[3]
    routes: list[bytes] = []
    topic = payload = None
    if flags & 0x08:
        if b"" not in parts:
            raise BadError("delimiter")
        end = parts.index(b"")
        routes = [cut for cut in (part.split(b"\0")[0] for part in parts[:end]) if cut]
        parts = parts[end + 1 :]
    if flags & 0x01:
        if not parts:
            raise BadError("topic")
        topic = parts.pop(0).split(b"\0")[0]
    if flags & 0x02:
        if not parts:
            raise BadError("payload")
        payload = parts.pop(0)
    words = [int.from_bytes(proto[at : at + 4], "big") for at in (4, 8, 12, 16)]
    return Fields(tuple(routes), topic, payload, proto[2], flags, (words[0], words[1], words[2], words[3]))


def read_stream(data: bytes, max_bytes: int) -> tuple[list[Fields], bool]:
    """The messages of a stream up to the first bad frame, and whether there was one."""
    seen: list[Fields] = []
    while len(data) >= 8:
        size = int.from_bytes(data[4:8], "big")
        if data[:4] not in (DEPLOYED, TEXT) or size > max_bytes or size < 21:
            return seen, True
        if len(data) < 8 + size:
            break
        try:
            seen.append(fields_of(parts_of(data[8 : 8 + size])))
        except BadError:
            return seen, True
        data = data[8 + size :]
    return seen, False


def part(data: bytes) -> bytes:
    size = len(data)
    return (bytes([size]) if size < 255 else b"\xff" + size.to_bytes(4, "big")) + data


def write_parts(fields: Fields) -> list[bytes]:
    parts = [*fields.routes, b""] if fields.flags & 0x08 else []
    if fields.topic is not None:
        parts.append(fields.topic)
    if fields.payload is not None:
        parts.append(fields.payload)
    words = b"".join(word.to_bytes(4, "big") for word in fields.words)
    return [*parts, bytes([0x8E, 1, fields.kind, fields.flags]) + words]


def framed(body: bytes, magic: bytes = DEPLOYED) -> bytes:
    return magic + len(body).to_bytes(4, "big") + body


def write(fields: Fields, magic: bytes = DEPLOYED) -> bytes:
    return framed(b"".join(part(data) for data in write_parts(fields)), magic)
