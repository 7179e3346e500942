"""Many chunks -> one block: numbering, gaps, entries, bodies with or without payloads (sans I/O).

A chunk is walked when it comes (``intake.Walk``), which finds its records; all else is done for a whole block at once.
The bodies of a block are its chunks as they came, one behind the other: entries point at the parts of the frames in
them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from broker.errors import ConfigError, ProtocolError
from broker.extras import install
from broker.identity import USERID_UNKNOWN
from broker.journal.crc import crc32
from broker.journal.layout import (
    BLOCK_CRC_FROM,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CODECS,
    DICTIONARY,
    GAP,
    HEADER_BYTES,
    IN,
    STATE,
    UNNUMBERED,
    VERSION,
    padded,
)
from broker.journal.marks import CAUSES, NOTHING_LOST, mark, note
from broker.journal.options import JournalOptions
from broker.journal.writer.entries import Bytes, Fields, Ints, Table, fields, strip
from broker.journal.writer.intake import Chunk, Walk
from broker.journal.writer.peers import Change, PeerTable, departed

ZSTD_LEVEL: Final = 1
"""The fastest of the usual ones: the writer shares the machine with its broker."""

Compress = Callable[[bytes | memoryview], bytes]


def compressor(codec: str) -> tuple[int, Compress | None]:
    """Number of a codec, and what compresses with it; None for ``none``.

    Raises:
        ConfigError: no such codec, or its library is not installed.
    """
    if codec not in CODECS:
        raise ConfigError(f"journal: codec {codec!r}, expected one of {', '.join(CODECS)}")
    try:
        compress = None if codec == "none" else _zstd() if codec == "zstd" else _lz4()
    except ImportError as missing:
        text = f"journal: codec {codec}: {missing.name} is not installed: {install('journal')}"
        raise ConfigError(text, errno.ENOPKG) from None
    return CODECS.index(codec), compress


def _zstd() -> Compress:
    import zstandard

    compress: Compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress
    return compress


def _lz4() -> Compress:
    import lz4.frame

    def compress(bodies: bytes | memoryview) -> bytes:
        packed: bytes = lz4.frame.compress(bodies, store_size=True)
        return packed

    return compress


BLOCK_MAX_BYTES: Final = 64 << 20
"""What ``block_bytes`` may ask for: one more chunk on top of it, and all lengths in a block still are below 2^32."""
BEFORE: Final = "not written by the run before"
"""Cause of a gap in front of the first record of a run."""
_SPARE: Final = bytes(8)
"""Behind the last frame, not stored: so that four bytes of a size may be read wherever a part may begin."""

Piece = bytes | memoryview


class EncodedBlock(NamedTuple):
    """A block, ready to be written."""

    pieces: tuple[Piece, ...]
    """Its bytes, in order."""
    size: int
    """How many they are."""
    records: int
    first_seq: int
    next_seq: int
    """Number behind that of its last record."""
    lost: int
    """How many records its gap record stands for."""
    changes: list[Change]
    """Of peers, in order."""

    def encode(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)


class _Press:
    """Frames -> blocks, with the options that all blocks share."""

    def __init__(self, options: JournalOptions) -> None:
        self._rank = options.rank
        self._payload = options.payload
        self._codec, self._compress = compressor(options.codec)

    def press(
        self, frames: bytes, starts: Ints, ts: Ints, first_seq: int, lost: int = 0
    ) -> tuple[EncodedBlock | None, int]:
        """A block of the records before the first bad one, and how many they are.

        Args:
            frames: marks and frames, then ``_SPARE``.
            starts: where the marks are.
            ts: one for each record, ns.
            first_seq: number of the first record.
            lost: how many the first one stands for, when it is a gap record.
        """
        source = Bytes(frames)
        table = fields(source, starts, ts)
        size, good = len(frames) - len(_SPARE), len(starts)
        if table.bad.any():
            good = int(np.argmax(table.bad))
            size = int(starts[good])
            table = Fields(table.entries[:good], table.cut_from[:good], table.cut_to[:good], table.bad[:good])
        if not good:
            return None, 0
        changes = _changes(table.entries, frames)
        if self._payload:
            bodies: Piece = memoryview(frames)[:size]
        else:  # slices of bytes: half the cost of views, and what is left is small
            bodies = b"".join([frames[start:stop] for start, stop in strip(table, size)])
        return self._seal(table.entries, bodies, first_seq, lost, changes), good

    def repeat(self, peers: PeerTable, next_seq: int, now_ns: int) -> EncodedBlock | None:
        """The UNNUMBERED block at a segment's begin; None without peers."""
        frames = peers.records()
        walk = Walk(frames, now_ns)
        if not walk.starts:
            return None
        starts = np.array(walk.starts, np.int64)
        table = fields(Bytes(frames + _SPARE), starts, np.full(len(starts), now_ns, np.int64))
        return self._seal(table.entries, frames, next_seq, 0, [], UNNUMBERED)

    def _seal(
        self, entries: Table, bodies: Piece, first_seq: int, lost: int, changes: list[Change], flags: int = 0
    ) -> EncodedBlock:
        """Compress, pad, head and CRC (``layout``)."""
        codec, stored = 0, bodies
        if self._compress is not None:
            packed = self._compress(bodies)
            if len(packed) < len(bodies):
                codec, stored = self._codec, packed
        count, ts = len(entries), entries["ts"]
        length = HEADER_BYTES + entries.nbytes + len(stored)
        padding = bytes(padded(length) - length)
        length += len(padding)
        numbers = (len(bodies), first_seq, int(ts.min()), int(ts.max()), self._rank, len(stored))
        head = BLOCK_HEADER.pack(BLOCK_MAGIC, length, 0, codec, VERSION, flags, count, *numbers)
        table = entries.view(np.uint8).data
        crc = crc32(head[BLOCK_CRC_FROM:])
        for piece in (table, stored, padding):
            crc = crc32(piece, crc)
        head = BLOCK_HEADER.pack(BLOCK_MAGIC, length, crc, codec, VERSION, flags, count, *numbers)
        next_seq = first_seq if flags & UNNUMBERED else first_seq + count
        return EncodedBlock((head, table, stored, padding), length, count, first_seq, next_seq, lost, changes)


def _changes(entries: Table, frames: bytes) -> list[Change]:
    """The peers that came and went in these records, in order."""
    found = []
    for row in np.flatnonzero(entries["kind"] >= STATE).tolist():
        entry = entries[row]
        at, peer = int(entry["body"]), int(entry["peer"])
        body = frames[at : at + int(entry["length"])]
        if entry["kind"] == DICTIONARY:
            found.append(Change(peer, int(entry["transport"]), body))
        elif (gone := departed(peer, body)) is not None:
            found.append(gone)
    return found


class BlockBuilder:
    """Collects chunks, and makes a block of them when it is time.

    Args:
        options: of the writer. base: added to the numbers of the run. number: the next one expected of this run; below
            0 when so many records of the run before are missing. before: why they are.

    Attributes:
        number: of the next record expected, counted in this run. records: how many wait for the next block.
        broken: what was wrong with a chunk or frame; what came before it is kept, nothing behind it is taken.
        repeated: records dropped because a former writer has them on disk.

    Raises:
        ConfigError: the codec's library is missing.
    """

    __slots__ = (
        "_base",
        "_before",
        "_bytes",
        "_bytes_max",
        "_first",
        "_lost",
        "_press",
        "_records_max",
        "_regions",
        "_starts",
        "_times",
        "broken",
        "number",
        "records",
        "repeated",
    )

    def __init__(
        self, options: JournalOptions, *, base: int = 0, number: int = 0, before: str = BEFORE
    ) -> None:
        self._press = _Press(options)
        self._base = base
        self._before = before
        self._records_max = options.block_records
        self._bytes_max = min(options.block_bytes, BLOCK_MAX_BYTES)
        self.number = number
        self.broken: ProtocolError | None = None
        self.repeated = 0
        self._clear()

    def _clear(self) -> None:
        self._regions: list[bytes | bytearray | memoryview] = []
        self._starts: list[list[int]] = []
        self._times: list[tuple[int, int]] = []
        self._first = self.number
        self._bytes = self._lost = self.records = 0

    def add(self, chunk: Chunk, now_ns: int) -> list[EncodedBlock]:
        """Take a chunk; the blocks that are complete with it.

        Args:
            chunk: whole, or its begin when the stream ended inside it.
            now_ns: dates records that no TIME mark follows.
        """
        done: list[EncodedBlock] = []
        if self.broken is not None:
            return done
        if chunk.first > self.number and not self._complete(done):
            return done
        walk = Walk(chunk.data, now_ns)
        if chunk.whole and (walk.end != len(chunk.data) or len(walk.starts) != chunk.records):
            self.broken = ProtocolError(
                f"chunk of {chunk.records} records and {len(chunk.data)} bytes announced, "
                f"{len(walk.starts)} records and {walk.end} bytes seen, from the recorder"
            )
        if chunk.first > self.number:
            self._gap(chunk, walk.times[0][1] if walk.times else now_ns)
        self._take(chunk, walk)
        if self.records >= self._records_max or self._bytes >= self._bytes_max:
            self._complete(done)
        return done

    def build(self) -> EncodedBlock | None:
        """A block of all that waits; None when nothing does."""
        if not self.records:
            return None
        frames = b"".join((*self._regions, _SPARE))
        counts = [len(starts) for starts in self._starts]
        sizes = np.array([len(region) for region in self._regions], np.int64)
        starts = np.fromiter((at for each in self._starts for at in each), np.int64, self.records)
        starts += np.repeat(np.cumsum(sizes) - sizes, counts)
        dated = [count for count, _ in self._times]
        ts = np.repeat(np.array([ns for _, ns in self._times], np.int64), dated)
        block, good = self._press.press(frames, starts, ts, self._base + self._first, self._lost)
        if good < self.records:
            self.broken = ProtocolError(
                f"record {self._first + good} of this run: its parts do not fit its frame, from the recorder"
            )
            self.number = self._first + good
        self._clear()
        return block

    def repeat(self, peers: PeerTable, next_seq: int, now_ns: int) -> EncodedBlock | None:
        """The block that introduces all live peers at a segment's begin; None without any."""
        return self._press.repeat(peers, next_seq, now_ns)

    def _complete(self, done: list[EncodedBlock]) -> bool:
        """Add the block that waits; False when a bad record ended it."""
        block = self.build()
        if block is not None:
            done.append(block)
        return self.broken is None

    def _gap(self, chunk: Chunk, ns: int) -> None:
        """A record in the place of the last one that was lost before ``chunk``."""
        lost = chunk.first - self.number
        why = self._before if self.number < 0 else CAUSES.get(chunk.cause, CAUSES[NOTHING_LOST])
        facts: dict[str, object] = {
            "records": lost,
            "first": self._base + self.number,
            "last": self._base + chunk.first - 1,
            "cause": why,
        }
        self.number = chunk.first
        self._lost = lost
        self._keep(
            chunk.first - 1, mark(STATE, 0, IN, claimed=USERID_UNKNOWN) + note(GAP, facts), [0], [(1, ns)]
        )

    def _take(self, chunk: Chunk, walk: Walk) -> None:
        """Keep the records of a chunk that are new."""
        starts, times, end = walk.starts, walk.times, walk.end
        data: bytes | bytearray | memoryview = chunk.data
        skip = min(self.number - chunk.first, len(starts))
        last = min(len(starts), chunk.records)
        self.repeated += min(skip, last)
        if skip or last < len(starts):
            each = [ns for count, ns in times for _ in range(count)]
            end = starts[last] if last < len(starts) else end
            begin = starts[skip] if skip < last else end
            starts, times = [at - begin for at in starts[skip:last]], [(1, ns) for ns in each[skip:last]]
            data = memoryview(data)[begin:end]
        elif end < len(data):
            data = memoryview(data)[:end]
        if starts:
            self._keep(self.number, data, starts, times)
            self.number += len(starts)

    def _keep(
        self,
        first: int,
        data: bytes | bytearray | memoryview,
        starts: list[int],
        times: list[tuple[int, int]],
    ) -> None:
        if not self.records:
            self._first = first
        self._regions.append(data)
        self._starts.append(starts)
        self._times += times
        self._bytes += len(data)
        self.records += len(starts)
