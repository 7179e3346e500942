"""What is in each segment of a journal, by its block headers alone (``contents``: no body is read, no CRC checked); and
every torn or damaged block, every gap in its numbers with its cause (``verify``). Without numpy.

Not damage: what a writer counted as lost (records of topic ``gap``), segments that retention deleted in front of the
oldest one, and the unfinished end of the segment that a living writer is at. Damage: blocks that are none, entries that
point out of their block, numbers that go back, and numbers that are missing where nobody says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

import msgspec

from broker.errors import DecodeError
from broker.journal.layout import BOTH_ENDS, ENTRY, FLUX, HEADER_BYTES, PAYLOADS, VERSION
from broker.journal.reading.blocks import Block, Damage, Damaged, Head, SegmentFile
from broker.journal.reading.bodies import Place, located, overflows
from broker.journal.reading.records import Gap, check, gaps_of
from broker.journal.reading.segments import Segment, live_writers, segments

_FLAGS_AT: Final = 3

Progress = Callable[[int, int], None]
"""Called with what is done and all there is to do: segments of ``contents``, bytes of ``verify``."""


class _Counted(msgspec.Struct, kw_only=True):
    """One segment, and what the headers of its blocks add up to."""

    path: str
    writer: str
    run: str
    rank: int
    first_seq: int
    size: int
    open: bool
    """A living writer is at it."""
    records: int = 0
    """Numbered ones."""
    first_ts: int | None = None
    last_ts: int | None = None
    codecs: list[int] = []

    def add(self, block: Block | Head) -> None:
        """Count one block in."""
        count = block.count if isinstance(block, Block) else block.records
        if block.numbered:
            self.records += count
        if count:
            first, last = self.first_ts, self.last_ts
            self.first_ts = block.first_ts if first is None else min(first, block.first_ts)
            self.last_ts = block.last_ts if last is None else max(last, block.last_ts)
        if block.codec not in self.codecs:
            self.codecs = [*self.codecs, block.codec]


def _named(segment: Segment, is_open: bool) -> dict[str, Any]:
    """What a segment says of itself, for ``_Counted``."""
    names = ("path", "writer", "run", "rank", "first_seq", "size")
    return {**{name: getattr(segment, name) for name in names}, "open": is_open}


# -- by headers alone ----------------------------------------------------------------------------


class Contents(_Counted):
    """One segment, as its headers tell."""

    payloads: bool
    both: bool
    """Deliveries were captured, too."""
    version: int = VERSION
    """Of the segment; of another one nothing else is known."""
    damaged: bool = False
    """The segment's header, or a block's, is not in order. A torn end is damage where nobody is writing."""


def contents(
    directory: str | os.PathLike[str], writer: str | None = None, progress: Progress | None = None
) -> list[Contents]:
    """The segments of a directory, sorted by writer and number.

    Raises:
        ConfigError: no such directory.
    """
    theirs = segments(directory, writer)
    living = live_writers(directory)
    newest = {segment.writer: segment.path for segment in theirs}
    listed = []
    for at, segment in enumerate(theirs):
        is_open = segment.writer in living and newest[segment.writer] == segment.path
        try:
            with SegmentFile(segment.path) as file:
                listed.append(_of(file, is_open))
        except FileNotFoundError:
            continue  # retention was faster
        if progress is not None:
            progress(at + 1, len(theirs))
    return listed


def _of(file: SegmentFile, is_open: bool) -> Contents:
    segment, flags = file.segment, file.segment.flags
    torn = segment.damage is not None and segment.damage.torn
    found = Contents(
        **_named(segment, is_open),
        payloads=bool(flags & PAYLOADS),
        both=bool(flags & BOTH_ENDS),
        version=segment.version,
        damaged=segment.damage is not None and not (torn and is_open),
    )
    for head in () if segment.foreign else file.heads():
        if isinstance(head, str):
            found.damaged = found.damaged or not is_open
            break
        found.add(head)
    return found


# -- everything ----------------------------------------------------------------------------------


class Extent(msgspec.Struct):
    """Bytes that are no complete block."""

    offset: int
    length: int
    why: str
    torn: bool = False


class Checked(_Counted):
    """One segment, every block of it read."""

    blocks: int = 0
    next_seq: int = 0
    """Number behind its last record."""
    damages: list[Extent] = []
    unfinished: Extent | None = None
    """The end of a segment that is being written."""


class Run(msgspec.Struct):
    """The numbers one run of a writer has used."""

    writer: str
    run: str
    first: int
    last: int


class Report(msgspec.Struct):
    """A directory."""

    directory: str
    segments: list[Checked] = []
    gaps: list[Gap] = []
    runs: list[Run] = []
    removed: dict[str, int] = {}
    """Writer -> records in front of its oldest segment, which retention has deleted."""

    @property
    def records(self) -> int:
        """All that can be read."""
        return sum(each.records for each in self.segments)

    @property
    def ok(self) -> bool:
        """Nothing is damaged, and every gap has a cause."""
        return not any(each.damages for each in self.segments) and all(
            gap.why == "counted" for gap in self.gaps
        )

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return {"ok": self.ok, "records": self.records, **values}


def verify(directory: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Read every block of every segment and say what is wrong.

    Raises:
        ConfigError: no such directory, or the library of a codec is not installed.
    """
    theirs = segments(directory)
    living = live_writers(directory)
    report = Report(os.fspath(directory))
    whole, done = sum(segment.size for segment in theirs), 0
    for writer, some in groupby(theirs, key=lambda segment: segment.writer):
        line = _Line(writer, report)
        of_writer = list(some)
        for segment in of_writer:
            is_open = writer in living and segment is of_writer[-1]
            try:
                with SegmentFile(segment.path) as file:
                    for size in line.read(file, is_open):
                        if progress is not None:
                            progress(done + size, whole)
            except FileNotFoundError:
                continue  # retention was faster
            done += segment.size
    return report


class _Line:
    """The numbers of one writer, segment by segment."""

    def __init__(self, writer: str, report: Report) -> None:
        self._writer = writer
        self._report = report
        self._next: int | None = None
        self._hurt = False
        """Damage since the last block that was in order."""
        self._fresh = True
        """No block of this segment yet."""

    def read(self, file: SegmentFile, is_open: bool) -> Iterator[int]:
        """Check one segment; gives the offset reached, again and again."""
        segment = file.segment
        checked = Checked(**_named(segment, is_open))
        self._report.segments.append(checked)
        self._fresh = True
        end = file.size()
        if self._next is None:
            self._next = segment.first_seq
            if segment.first_seq:
                self._report.removed[self._writer] = segment.first_seq
        for found in file.salvage(HEADER_BYTES, end):
            if isinstance(found, Damage):
                self._damage(checked, found, is_open and found.offset + found.length >= end)
                yield found.offset + found.length
            else:
                self._block(checked, found)
                yield found.end
        checked.next_seq = self._next or segment.first_seq
        self._run(segment)

    def _damage(self, checked: Checked, damage: Damage, at_open_end: bool) -> None:
        extent = Extent(damage.offset, damage.length, damage.why, damage.torn)
        if at_open_end and damage.torn:
            checked.unfinished = extent
            return
        checked.damages.append(extent)
        self._hurt = True

    def _block(self, checked: Checked, block: Block) -> None:
        try:
            gaps = gaps_of(block)
            _check_entries(block)
        except Damaged as error:
            self._damage(checked, error.damage, False)
            return
        checked.blocks += 1
        checked.add(block)
        if block.numbered:
            self._number(checked, block, gaps)

    def _number(self, checked: Checked, block: Block, gaps: dict[int, Gap]) -> None:
        due = self._next if self._next is not None else block.first_seq
        if block.first_seq < due:
            text = f"numbers from {block.first_seq} on, {due} expected: they went back"
            checked.damages.append(Extent(block.offset, block.length, text))
        elif block.first_seq > due and ((told := gaps.get(block.first_seq)) is None or told.first > due):
            # a ``gap`` record has the number of the last one lost, and would have told of all that is missing
            self._report.gaps.append(self._hole(due, block.first_seq - 1))
        self._report.gaps += gaps.values()
        self._next = max(due, block.first_seq + block.count)
        self._hurt = self._fresh = False

    def _hole(self, first: int, last: int) -> Gap:
        if self._hurt:
            return Gap(self._writer, first, last, "they stood in a damaged block", "damaged")
        if self._fresh:
            return Gap(self._writer, first, last, "a segment is missing", "missing segment")
        return Gap(self._writer, first, last, "nothing tells why", "unknown")

    def _run(self, segment: Segment) -> None:
        last = (self._next or 0) - 1
        runs = self._report.runs
        if runs and runs[-1].writer == segment.writer and runs[-1].run == segment.run:
            runs[-1].last = last
        else:
            runs.append(Run(segment.writer, segment.run, segment.first_seq, last))


# -- one block -----------------------------------------------------------------------------------


def _check_entries(block: Block) -> None:
    """Every entry must point into the block, topic and origin into the body.

    Raises:
        Damaged: one does not.
    """
    bodies = block.bodies()
    for index, fields in enumerate(ENTRY.iter_unpack(block.entries)):
        offset, length = fields[1], fields[2]
        place = Place(*fields[4:9])
        try:
            if offset + length > len(bodies):
                raise DecodeError(f"body of {length} bytes at {offset}, the block has {len(bodies)}")
            if overflows(*place):
                flags = fields[15][_FLAGS_AT] if fields[9] == FLUX else 0
                place = located(bodies[offset : offset + length], fields[9], flags)
            check(place, length)
        except DecodeError as error:
            raise block.damaged(f"record {index} of the block: {error}") from None
