"""Bodies on the wire: JSON objects, or a zlib stream of one where its sender was told to compress (pure).

A reader sees which by the first byte, ``{`` or ``x`` (RFC 1950: deflate, window of 32 KiB), and is told how much it may
become: a stream of a few bytes can hold gigabytes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

WORTHWHILE_BYTES: Final = 4096
"""Smaller bodies are not compressed: they fit into two or three packets, and compressing takes longer than sending."""
PLAIN_BYTES_MAX: Final = 64 << 20
"""What a body may become for readers that are told nothing else: the usual ``message_bytes_max``."""
_LEVEL: Final = 1
"""The fastest: JSON shrinks to a fifth or so by any of them."""
_FIRST: Final = b"x"


def compressed(body: bytes, limit: int) -> bytes:
    """``body`` as a stream, where that is worthwhile. One above ``limit`` stays as it is, so that whoever sends it is
    told of its size: its receiver would not take it however small it had become.

    >>> compressed(b'{"ctxt": {}}', 1000)
    b'{"ctxt": {}}'
    """
    if not WORTHWHILE_BYTES <= len(body) <= limit:
        return body
    stream = zlib.compress(body, _LEVEL)
    return stream if len(stream) < len(body) else body


def plain(body: bytes, limit: int = PLAIN_BYTES_MAX) -> bytes:
    """The JSON that ``body`` is or holds.

    Raises:
        ValueError: a stream that is none, ends too early or late, or holds more than ``limit`` bytes.

    >>> plain(compressed(b'{"ctxt": "%s"}' % bytes(9000), 10_000))[:9]
    b'{"ctxt": '
    """
    if body[:1] != _FIRST:
        return body
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed body of {len(body)} bytes that cannot be read: {error}") from None
    if len(found) > limit:
        raise ValueError(f"a compressed body of {len(body)} bytes that holds more than {limit}")
    if not stream.eof or stream.unused_data:
        raise ValueError(f"a compressed body of {len(body)} bytes that is cut, or has something behind it")
    return found


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """How one process writes its bodies, and how much it takes.

    Attributes:
        limit: bytes of JSON that a body may be or become.
        compress: write streams, where that is worthwhile; whoever reads takes both.
    """

    limit: int = PLAIN_BYTES_MAX
    compress: bool = False

    def write(self, body: bytes) -> bytes:
        """``body`` for the wire."""
        return compressed(body, self.limit) if self.compress else body


USUAL: Final = BodyFormat()
"""Writes JSON, reads both."""
