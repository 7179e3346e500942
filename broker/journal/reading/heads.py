"""One block of a segment: its header, checked; its entries; its bodies, unpacked when somebody wants them."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.journal.layout import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CODECS,
    HEADER_BYTES,
    UNNUMBERED,
    VERSION,
    padded,
)
from broker.journal.reading.codecs import unpacked
from broker.journal.reading.damage import Damaged
from broker.journal.reading.segments import Segment

NUMBERS_END: Final = 1 << 63
"""Numbers are below it: columns and tables hold them as signed."""


class Head(NamedTuple):
    """A block header, in order; the fields are those of ``Block``."""

    length: int
    crc: int
    codec: int
    flags: int
    records: int
    bodies_len: int
    first_seq: int
    first_ts: int
    last_ts: int
    rank: int
    stored_len: int

    @property
    def numbered(self) -> bool:
        """Whether its records have numbers."""
        return not self.flags & UNNUMBERED


def head_of(data: bytes | memoryview) -> Head | str:
    """The header, or what is wrong with it."""
    magic, length, crc, codec, version, flags, count, bodies, seq, first, last, rank, stored = (
        BLOCK_HEADER.unpack(data)
    )
    if magic != BLOCK_MAGIC:
        return f"block magic {magic.hex(' ')}, expected {BLOCK_MAGIC.hex(' ')}"
    if version != VERSION:
        return f"block of version {version}, this reader knows {VERSION}"
    if codec >= len(CODECS):
        return f"codec {codec}, known are 0 to {len(CODECS) - 1}"
    if length != padded(HEADER_BYTES + HEADER_BYTES * count + stored):
        return f"length {length} does not agree with {count} records and {stored} bytes of bodies"
    if seq + count > NUMBERS_END:
        return f"number {seq} of {count} records, expected less than {NUMBERS_END}"
    return Head(length, crc, codec, flags, count, bodies, seq, first, last, rank, stored)


class Block:
    """One complete block.

    Attributes:
        segment: where it stands; ``path``, ``writer`` and ``run`` are those of it.
        offset: of its header in the file.
        length: bytes with header and padding; the next block stands at ``offset + length``.
        count: records.
        first_seq: number of the first; of an unnumbered block that of the next one.
        first_ts: smallest time, ns.
        last_ts: largest time, ns.
        codec: index into ``layout.CODECS``.
        flags: UNNUMBERED.
        bodies_len: bytes of bodies, uncompressed.
        rank: whose records they are.
        data: the whole block.
        window_at: where it stands in the buffer it was read into (``data.obj``).
    """

    __slots__ = (
        "_bodies",
        "bodies_len",
        "codec",
        "count",
        "data",
        "first_seq",
        "first_ts",
        "flags",
        "last_ts",
        "length",
        "offset",
        "rank",
        "segment",
        "stored_len",
        "window_at",
    )

    def __init__(self, segment: Segment, offset: int, head: Head, data: memoryview, window_at: int) -> None:
        self.segment = segment
        self.offset = offset
        self.data = data
        self.window_at = window_at
        self.length, _crc, self.codec, self.flags, self.count, self.bodies_len = head[:6]
        self.first_seq, self.first_ts, self.last_ts, self.rank, self.stored_len = head[6:]
        self._bodies: bytes | memoryview | None = None

    @property
    def numbered(self) -> bool:
        """Whether its records have numbers."""
        return not self.flags & UNNUMBERED

    @property
    def end(self) -> int:
        """Where the next block stands."""
        return self.offset + self.length

    @property
    def entries(self) -> memoryview:
        """``count`` entries of 64 bytes."""
        return self.data[HEADER_BYTES : HEADER_BYTES + HEADER_BYTES * self.count]

    def bodies(self) -> bytes | memoryview:
        """The bodies, unpacked; kept once made.

        Raises:
            Damaged: they do not unpack to what the header announces.
            ConfigError: the library for their codec is not installed.
        """
        if self._bodies is None:
            at = HEADER_BYTES + HEADER_BYTES * self.count
            try:
                self._bodies = unpacked(self.codec, self.data[at : at + self.stored_len], self.bodies_len)
            except ValueError as error:
                raise self.damaged(str(error)) from None
        return self._bodies

    def damaged(self, why: str) -> Damaged:
        """The error that says this block, as a whole, is not what it should be."""
        return Damaged(self.segment.path, self.offset, self.length, why)

    def __repr__(self) -> str:
        return f"<block {self.segment.name}@{self.offset} {self.count} from {self.first_seq}>"
