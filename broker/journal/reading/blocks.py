"""Blocks of a segment, each with its header checked: ``walk`` raises at the first damage, ``salvage`` names it and goes
on behind it.

Theory of operation. The length of a block must agree with its counts to the byte, so that a header with one damaged
field is known for what it is before its length leads anywhere. Behind damage ``salvage`` looks for the next block:

- a header that is in order, with a wrong CRC: the damage is that block;
- a header that is in order and says more than the file has: torn, nothing is looked for behind it;
- else the next place that is a multiple of 8 from which headers lead, one to the next, to the end of the file.
  A payload may hold blocks, by chance or by intent: what follows them is no header, so they are not taken for blocks.
  Only when no such place exists, further damage being in the way, does a block count whose CRC is right and whose
  numbers go on, JUMP_MAX at most.

A file is read in windows, never mapped: the writer may cut it while somebody reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from broker.journal.crc import crc32
from broker.journal.layout import (
    ALIGN,
    BLOCK_CRC_FROM,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CODECS,
    HEADER_BYTES,
    JUMP_MAX,
    UNNUMBERED,
    VERSION,
    padded,
)
from broker.journal.reading.bodies import unpacked
from broker.journal.reading.segments import Damage, Damaged, Segment, open_file, segments

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


__all__ = [
    "Block",
    "Damage",
    "Damaged",
    "Segment",
    "SegmentFile",
    "salvage",
    "segments",
    "walk",
]

WINDOW_BYTES: Final = 4 << 20
"""Read at once, so that four full blocks make one batch; a block above SMALL_BYTES is read by itself."""
SMALL_BYTES: Final = 1 << 20
_SEARCH_BYTES: Final = 4 << 20
"""Searched at once for the next block behind damage."""


class SegmentFile:
    """A segment, open: it can be read on after retention has deleted it.

    Raises:
        FileNotFoundError: it is gone.
    """

    __slots__ = ("_file", "_last", "_window", "_window_at", "segment")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open_file(os.fspath(path))
        try:
            self.segment = Segment(path, self._file)
        except BaseException:
            self._file.close()
            raise
        self._window = memoryview(b"")
        self._window_at = 0
        self._last = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; blocks that were taken from it stay."""
        self._file.close()

    def refresh(self) -> None:
        """Forget what was read ahead, and look at size and header again."""
        self._window = memoryview(b"")
        self.segment = Segment(self.segment.path, self._file)

    def size(self) -> int:
        """Bytes now."""
        return self._file.size()

    def deleted(self) -> bool:
        """Whether it has no name any more."""
        return self._file.deleted()

    def view(self, offset: int, size: int, end: int) -> memoryview:
        """``size`` bytes at ``offset``, fewer where the file ends; reads ahead, not beyond ``end``."""
        at = offset - self._window_at
        if at < 0 or at + size > len(self._window):
            ahead = WINDOW_BYTES if self._last <= SMALL_BYTES else self._last + self._last // 8
            self._window = memoryview(self._file.read(min(max(size, ahead), end - offset), offset))
            self._window_at, at = offset, 0
        return self._window[at : at + size]

    def examine(self, offset: int, end: int, crc: bool = True) -> Block | Damage:
        """The block at ``offset``, or what is wrong there: all up to ``end`` where no length can be believed."""
        path = self.segment.path
        rest = end - offset
        if rest < HEADER_BYTES:
            why = f"torn: {rest} of the {HEADER_BYTES} bytes of a block header"
            return Damage(path, offset, rest, why, torn=True)
        start = self.view(offset, HEADER_BYTES, end)
        head = head_of(start) if len(start) == HEADER_BYTES else "the file was cut meanwhile"
        if isinstance(head, str):
            return Damage(path, offset, rest, head)
        if head.length > rest:
            return Damage(path, offset, rest, f"torn: {rest} bytes of a block of {head.length}", torn=True)
        data = self.view(offset, head.length, end)
        self._last = head.length
        if len(data) < head.length:
            return Damage(path, offset, rest, "the file was cut meanwhile", torn=True)
        if crc and (computed := crc32(data[BLOCK_CRC_FROM:])) != head.crc:
            why = f"CRC of the block {head.crc:08x}, computed {computed:08x}"
            return Damage(path, offset, head.length, why)
        return Block(self.segment, offset, head, data, offset - self._window_at)

    def walk(self, start: int, end: int, crc: bool = True) -> Iterator[Block]:
        """As the function ``walk``."""
        if self.segment.damage is not None:
            raise Damaged(*self.segment.damage)
        offset = start
        while offset < end:
            found = self.examine(offset, end, crc)
            if isinstance(found, Damage):
                raise Damaged(*found)
            yield found
            offset += found.length

    def salvage(self, start: int, end: int) -> Iterator[Block | Damage]:
        """As the function ``salvage``."""
        damage, foreign = self.segment.damage, self.segment.foreign
        if damage is not None and start <= HEADER_BYTES:
            yield damage._replace(length=end) if foreign else damage
        if foreign:
            return  # nothing in it can be told
        offset, next_seq = start, self.segment.first_seq
        while offset < end:
            found = self.examine(offset, end)
            if isinstance(found, Block):
                offset = found.end
                next_seq = found.first_seq + (found.count if found.numbered else 0)
            else:
                resume = end if found.torn else self._behind(found, end, next_seq)
                found = found._replace(length=resume - offset)
                offset = resume
            yield found

    def heads(self, start: int = HEADER_BYTES, end: int | None = None) -> Iterator[Head | str]:
        """The headers of the blocks, bodies not looked at; a text in place of the first that is torn or damaged."""
        offset = start
        end = self.size() if end is None else end
        while offset < end:
            data = self._file.read(HEADER_BYTES, offset)
            head = head_of(data) if len(data) == HEADER_BYTES else "torn"
            if isinstance(head, Head) and offset + head.length > end:
                head = "torn"
            yield head
            if isinstance(head, str):
                return
            offset += head.length

    # -- behind damage -------------------------------------------------------------------------

    def _behind(self, damage: Damage, end: int, next_seq: int) -> int:
        """Where to read on behind damage that has been found at its offset; ``end`` where there is nothing more."""
        if self.head_at(damage.offset, end) is not None:
            return damage.offset + damage.length
        doubtful, budget = end, 2 * (end - damage.offset)
        failed: set[int] = set()
        for at in self._candidates(damage.offset + ALIGN, end):
            head = self.head_at(at, end)
            if head is None:
                continue
            if self._leads_to_end(at, end, failed):
                return at
            if doubtful == end and head.length <= budget and self._goes_on(head, next_seq):
                budget -= head.length  # many long blocks may be said to begin within each other
                if isinstance(self.examine(at, end), Block):
                    doubtful = at
        return doubtful

    def _goes_on(self, head: Head, next_seq: int) -> bool:
        same_rank = self.segment.damage is not None or head.rank == self.segment.rank
        return same_rank and next_seq <= head.first_seq < next_seq + JUMP_MAX

    def head_at(self, offset: int, end: int) -> Head | None:
        """The header at ``offset``; None where there is none that is in order and lies before ``end``."""
        data = self._file.read(HEADER_BYTES, offset) if end - offset >= HEADER_BYTES else b""
        head = head_of(data) if len(data) == HEADER_BYTES else ""
        return head if isinstance(head, Head) else None

    def _candidates(self, start: int, end: int) -> Iterator[int]:
        """Multiples of 8 from ``start`` on where a block's magic stands."""
        for offset in range(start, end, _SEARCH_BYTES):
            data = self._file.read(min(_SEARCH_BYTES + 4, end - offset), offset)
            at = data.find(BLOCK_MAGIC)
            while 0 <= at < _SEARCH_BYTES:
                if (offset + at) % 8 == 0:
                    yield offset + at
                at = data.find(BLOCK_MAGIC, at + 1)

    def _leads_to_end(self, start: int, end: int, failed: set[int]) -> bool:
        """Whether headers lead from ``start``, one to the next, to the end; ``failed`` keeps where that was not so."""
        way, at = [], start
        while at not in failed:
            head = self.head_at(at, end)
            if head is None:
                break
            if at + head.length >= end:  # beyond it: the last one is torn
                return True
            way.append(at)
            at += head.length
        failed.update(way)
        return False


def walk(
    path: str | os.PathLike[str], start: int = HEADER_BYTES, end: int | None = None, *, crc: bool = True
) -> Iterator[Block]:
    """The blocks of ``path`` from ``start`` to exactly ``end``.

    Args:
        path: a segment.
        start: where a block stands.
        end: where one ends; None: the file's end now.
        crc: whether the CRC of each block is checked.

    Raises:
        Damaged: the segment's header is damaged, no block stands at ``start`` or where the one before ends, a CRC is
            wrong, or none ends at ``end``. Blocks in front of that have been given out.
        FileNotFoundError: the segment is gone.
    """
    with SegmentFile(path) as file:
        limit = file.size()
        if end is not None and end > limit:
            why = f"blocks up to {end} expected, the file ends at {limit}"
            raise Damaged(os.fspath(path), limit, end - limit, why, True)
        yield from file.walk(start, limit if end is None else end, crc)


def salvage(
    path: str | os.PathLike[str], start: int = HEADER_BYTES, end: int | None = None
) -> Iterator[Block | Damage]:
    """The blocks of ``path`` in order, and in between each damage with its exact extent; the header's, too.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    with SegmentFile(path) as file:
        limit = file.size()
        yield from file.salvage(start, limit if end is None else min(end, limit))
