"""Bodies as stored -> bodies -> parts: where topic and origin stand, as the entry says, or by a walk where it cannot.

::

    flux            route ... route, empty delimiter | topic | payload | PROTO      (each there when its flag is set)
    nfp oslo state  topic | JSON object | parts of the wire ...
    dictionary      JSON object

The origin is the route next to the delimiter: the first hop of a request, whoever sent it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.errors import ConfigError, DecodeError
from broker.extras import lacking
from broker.journal.layout import CODECS, FLUX, OVERFLOW8, OVERFLOW16
from broker.wire.message import PAYLOAD, ROUTE, TOPIC

PROTO_PART_BYTES: Final = 21
"""PROTO with its size byte: the last bytes of a Flux body."""
_LONG: Final = 255


class Place(NamedTuple):
    """Where topic and origin stand in a body: offset and length of their data; length 0 where there is none."""

    topic_at: int
    topic_len: int
    origin_at: int
    origin_len: int
    routes: int


def overflows(topic_at: int, topic_len: int, origin_at: int, origin_len: int, routes: int) -> bool:
    """Whether a field of the entry could not hold its value."""
    return OVERFLOW16 in (topic_at, topic_len, origin_at) or OVERFLOW8 in (origin_len, routes)


def located(body: bytes | memoryview, kind: int, flags: int) -> Place:
    """The slow way: walk the parts.

    Args:
        body: one body.
        kind: of the record.
        flags: the flag byte of PROTO; of a record that is not flux anything.

    Raises:
        DecodeError: a part runs past the end, or the delimiter is missing.
    """
    if kind != FLUX:
        at, size = part_at(body, 0)
        return Place(at, size, 0, 0, 0)
    pos = origin_at = origin_len = routes = 0
    if flags & ROUTE:
        at, size = part_at(body, pos)
        while size:
            routes, origin_at, origin_len = routes + 1, at, size
            at, size = part_at(body, at + size)
        pos = at
    at, size = part_at(body, pos) if flags & TOPIC else (0, 0)
    return Place(at, size, origin_at, origin_len, routes)


def part_at(body: bytes | memoryview, pos: int) -> tuple[int, int]:
    """Offset and length of the data of the part whose size stands at ``pos``.

    Raises:
        DecodeError: it runs past the end.
    """
    end = len(body)
    if pos >= end:
        raise DecodeError(f"a part expected at {pos}, the body has {end} bytes")
    size, at = body[pos], pos + 1
    if size == _LONG:
        size, at = int.from_bytes(body[at : at + 4], "big"), at + 4
    if at + size > end:
        raise DecodeError(f"part at {pos}: {size} bytes announced, {max(0, end - at)} left")
    return at, size


def encoded_size(length: int) -> int:
    """Bytes of a part with ``length`` bytes of data, its size included."""
    return length + (1 if length < _LONG else 5)


def wire_len(kind: int, flags: int, body_len: int, payload_len: int, stripped: bool) -> int:
    """Bytes of all parts as they were on the wire, without frame header: what was left out of the body is added.

    What was left out of a record that is not flux counts with its data alone: how many parts it had is not known.
    """
    if not stripped:
        return body_len
    if kind != FLUX:
        return body_len + payload_len
    return body_len + (encoded_size(payload_len) if flags & PAYLOAD else 0)


def unpacked(codec: int, stored: memoryview, size: int) -> bytes | memoryview:
    """``size`` bytes of bodies from ``stored``, which is one frame of zstd or lz4, or the bodies themselves.

    Raises:
        ConfigError: the library is not installed; the text names the extra.
        ValueError: it is no such frame, or of another size.
    """
    if codec == 0:
        if len(stored) != size:
            raise ValueError(f"{len(stored)} bytes of bodies stored, {size} announced")
        return stored
    bodies = _zstd(stored, size) if codec == 1 else _lz4(stored, size)
    if len(bodies) != size:
        raise ValueError(f"{len(bodies)} bytes of bodies unpacked, {size} announced")
    return bodies


def _zstd(stored: memoryview, size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("zstandard", 1) from None
    try:
        announced = zstandard.frame_content_size(stored)
        if announced not in (size, -1):  # -1: the frame does not say
            raise ValueError(f"{announced} bytes in the zstd frame, {size} announced")
        unpacked: bytes = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: {error}") from None
    return unpacked


def _lz4(stored: memoryview, size: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("lz4", 2) from None
    try:
        # bounded by what was announced: a frame may be made to unpack to any size
        unpacked: bytes = lz4.frame.LZ4FrameDecompressor().decompress(stored, max_length=size + 1)
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"lz4: {error}") from None
    return unpacked


def _missing(library: str, codec: int) -> ConfigError:
    return ConfigError(f"journal: bodies compressed with {CODECS[codec]}: {lacking(library)}")
