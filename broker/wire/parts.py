"""The encoding of one part: a size byte and data (RFC 3, "Message Framing and Security").

Up to 254 bytes the size is one byte; from 255 bytes on it is 255 and a big-endian u32. A longer form than needed is
decoded, never written.
"""

# compiled: mypyc

from __future__ import annotations

from struct import Struct

from broker.errors import DecodeError

_LONG = Struct(">BI")


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


def part_size(encoded: bytes | memoryview) -> int:
    """Bytes of the data of one encoded part, which is not copied to count them; 0 for no part."""
    size = len(encoded)
    return size - 5 if size > 255 else max(size - 1, 0)


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
