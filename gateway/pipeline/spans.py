"""How far the journal may be read, and was, and which bytes of which segments lie between: what a task reads.

An offset is ``{writer: position}``: a stream's checkpoint has them, and what bronze holds stands in bronze itself,
committed with the rows. A position in the journal of one writer has one size, whatever the journal holds::

    {"seg": first number in the segment's name, "pos": end of a complete block, "next": number that follows,
     "first": number that the writer's journal began with}

``next`` tells, once the segment is deleted, whether everything in it had been read; ``first`` is where this writer's
journal began when the stream met it. A segment that another one of its writer follows is *sealed*: it is read to its
last byte. Of the last one, complete blocks are.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from broker.journal.layout import HEADER_BYTES, VERSION
from broker.journal.reading.blocks import Block, Damage, Damaged, SegmentFile, salvage, walk
from broker.journal.reading.records import gaps_of
from broker.journal.reading.segments import Segment, base_name, is_folder, listing, named, size_of
from gateway.pipeline.errors import Lost, PipelineError

Offset = dict[str, dict[str, int]]

DDL: Final = "pack string"
"""A DataFrame of packs (``as_pack``), one for each task."""
BATCH_ROWS: Final = 32_768
"""Rows decoded at once: enough for Parquet, and still in the cache of a core."""
BATCH_BYTES: Final = 64 << 20
"""A batch of rows with large payloads ends here: each core decodes one, in several times its memory."""
TASK_BYTES: Final = 64 << 20
"""What one task of the source reads; a longer segment is read by several."""
_LEAST_BYTES: Final = 1 << 20
_OPEN_BYTES: Final = 64 << 10
"""What a task reads at least, where there is so much, and as how many bytes opening a segment counts."""
_MANY: Final = 1 << 62
"""No limit of bytes."""
_KNOWN: Final = ("seg", "pos", "next")
"""What bronze knows of each writer."""


class Position(NamedTuple):
    """How far one writer's journal has been read."""

    seg: int
    pos: int
    next: int
    first: int

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Position:
        """From a stream's offset, or from what bronze knows, which is all but ``first``."""
        seg = int(fields["seg"])
        return cls(seg, int(fields["pos"]), int(fields["next"]), int(fields.get("first", seg)))


@dataclass(frozen=True)
class Loss:
    """Something that cannot be read; ``records`` None where their number is not known."""

    segment: str
    offset: int
    length: int
    why: str
    records: int | None = None

    def as_json(self) -> str:
        """For a row of ``_runs``."""
        return json.dumps({key: value for key, value in vars(self).items() if value is not None})

    def __str__(self) -> str:
        return f"{self.segment}: {self.why}"


class Unseen(PipelineError):
    """What was planned to be read is not to be seen here. Whether it was deleted only who planned it can say."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"this worker does not see the journal: {path}, {socket.gethostname()}: {why}; or it was deleted since the "
            "query began"
        )
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return PipelineError, (str(self),)


@dataclass(frozen=True)
class Span:
    """Whole blocks of one segment, ``start`` to ``end``; or a loss that has been found while planning."""

    path: str
    start: int = HEADER_BYTES
    end: int = HEADER_BYTES
    sealed: bool = False
    loss: Loss | None = None

    @property
    def name(self) -> str:
        """Name of the segment's file."""
        return base_name(self.path)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Span:
        """As ``asdict`` gave it."""
        loss = fields["loss"]
        return cls(**{**fields, "loss": loss and Loss(**loss)})

    def refuse(self, *, skip: bool) -> None:
        """Raise what was found while planning, unless it is to be skipped.

        Raises:
            Lost: with the segment.
        """
        if self.loss is not None and not skip:
            raise Lost(str(self.loss))


def ends(path: str, start: int, limit: int) -> list[tuple[int, int | None]]:
    """Where blocks of a stretch end, by their headers alone, each with the number that follows it, None where no block
    up to there has numbers; as far as headers lead.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    found: list[tuple[int, int | None]] = []
    end, following = start, None
    with SegmentFile(path) as file:
        for head in file.heads(start, limit):
            if isinstance(head, str):
                break
            end += head.length
            following = head.first_seq + head.records if head.numbered else following
            found.append((end, following))
    return found


def refuse_newer(path: str) -> None:
    """Raise for a segment of a version that is not known here: skipping it would lose all of it without a word.

    Raises:
        PipelineError: with the version.
        FileNotFoundError: it is gone.
    """
    segment = Segment(path)
    if segment.version > VERSION:
        raise PipelineError(
            f"{segment.name}: segment of version {segment.version}; this program knows versions up to "
            f"{VERSION}: update it"
        )


def split(span: Span, limit: int = TASK_BYTES) -> list[Span]:
    """Cut a long span at ends of blocks; one whose headers do not lead through it stays whole."""
    if span.size <= limit:
        return [span]
    found = [end for end, _following in ends(span.path, span.start, span.end)]
    if not found or found[-1] != span.end:
        return [span]
    parts, start = [], span.start
    for end in found:
        if end - start >= limit or end == span.end:
            parts.append(replace(span, start=start, end=end, sealed=span.sealed and end == span.end))
            start = end
    return parts


def packed(spans: Iterable[Span], tasks: int, most: int = _MANY) -> list[list[Span]]:
    """Spans for up to so many tasks, about as many bytes for each, neighbours together; for more tasks where that would
    be above ``most`` bytes for one.
    """
    given = list(spans)
    total = sum(each.size + _OPEN_BYTES for each in given)
    share = min(most, max(_LEAST_BYTES, -(-total // tasks)))
    packs: list[list[Span]] = [[]]
    filled = 0
    for span in given:
        for piece in split(span, share):
            size = piece.size + _OPEN_BYTES
            if packs[-1] and filled + size // 2 > share:
                packs.append([])
                filled = 0
            packs[-1].append(piece)
            filled += size
    return [pack for pack in packs if pack]


def as_pack(given: Iterable[Span], offset: Any = None) -> str:
    """Spans for one task, and where a stream's batch begins and ends, as text."""
    return json.dumps({"spans": [asdict(each) for each in given], "offset": offset})


def of_pack(text: str) -> tuple[list[Span], Any]:
    """What ``as_pack`` was given."""
    told = json.loads(text)
    return [Span.of(each) for each in told["spans"]], told["offset"]


def whole(place: str) -> list[Span]:
    """All that a directory, or one segment, holds now, for a batch: sealed segments to their last byte, of others the
    complete blocks.

    Raises:
        ConfigError: there is no such directory.
        PipelineError: a segment is of a newer version.
    """
    segments = listing(place) if is_folder(place) else [(place, *named(place))]
    spans: list[Span] = []
    for index, (path, writer, _first) in enumerate(segments):
        sealed = index + 1 < len(segments) and segments[index + 1][1] == writer
        try:
            refuse_newer(path)
            end = size_of(path) if sealed else reach(path, HEADER_BYTES)[0]
        except FileNotFoundError:
            continue  # retention was faster: as if this had looked a moment later
        if sealed or end > HEADER_BYTES:
            spans.append(Span(path, HEADER_BYTES, end, sealed))
    return spans


def reach(path: str, start: int) -> tuple[int, int | None]:
    """End of the last complete block of a segment that may grow, and the number that follows; CRCs are checked.

    Raises:
        FileNotFoundError: it is gone.
    """
    end, following = start, None
    for block in salvage(path, start):
        if isinstance(block, Block):
            end = block.end
            following = block.first_seq + block.count if block.numbered else following
    return end, following


def blocks(span: Span, *, skip: bool = False) -> Iterator[Block | Loss]:
    """The blocks of a span; damage is an error, or with ``skip`` a Loss.

    A sealed segment may end in a torn block: it never was complete, so it is a Loss in either case.

    Raises:
        Lost: the span is a loss that was found while planning.
        Unseen: the segment is not to be seen, or not all of it; whatever is to be skipped.
        Damaged: no block stands at ``start``, none ends at ``end``, or one is damaged.
    """
    span.refuse(skip=skip)
    if span.loss is not None:
        yield span.loss
        return
    try:
        if (size := size_of(span.path)) < span.end:
            raise Unseen(span.path, f"{size} bytes, blocks up to {span.end} expected")
        yield from _salvaged(span) if skip else _walked(span)
    except OSError as error:
        raise Unseen(span.path, error.strerror or str(error)) from None


def gathered(blocks: Iterable[Block | Loss]) -> Iterator[list[Block] | Loss]:
    """Blocks put together to batches of ``BATCH_ROWS`` or so, ``BATCH_BYTES`` at most; a loss as soon as it is met."""
    waiting: list[Block] = []
    rows = size = 0
    for block in blocks:
        if isinstance(block, Loss):
            yield block
            continue
        waiting.append(block)
        rows, size = rows + block.count, size + block.length + block.bodies_len
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def deleted(name: str, start: int = 0, end: int = 0, records: int | None = None) -> Loss:
    """A segment that is not there any more."""
    rest = f"bytes {start} to {end}" if records is None else f"its last {records} records"
    return Loss(name, start, end - start, f"the segment was deleted before {rest} were read", records)


def _walked(span: Span) -> Iterator[Block | Loss]:
    try:
        yield from walk(span.path, span.start, span.end)
    except Damaged as error:
        if not (span.sealed and error.damage.torn):
            raise
        yield _loss(error.damage)


def _salvaged(span: Span) -> Iterator[Block | Loss]:
    """As ``salvage``; a loss comes out when the numbers of the next block tell how many records it was."""
    waiting: list[Loss] = []
    expected: int | None = None
    for block in salvage(span.path, span.start, span.end):
        if isinstance(block, Damage):
            waiting.append(_loss(block))
            continue
        if waiting and expected is not None:
            missing = max(0, block.first_seq - expected)
            waiting[-1] = Loss(**(vars(waiting[-1]) | {"records": missing}))
        yield from waiting
        waiting.clear()
        expected = block.first_seq + (block.count if block.numbered else 0)
        yield block
    yield from waiting


def _loss(damage: Damage) -> Loss:
    return Loss(base_name(damage.path), damage.offset, damage.length, damage.why)


# ---------------------------------------------------------------- numbers between segments


def gap_is_recorded(path: str, missing_from: int) -> bool:
    """Whether the segment begins with a ``gap`` record: the writer itself said that those before were lost."""
    for block in salvage(path):
        if isinstance(block, Block) and block.numbered:
            gap = gaps_of(block).get(block.first_seq)
            return gap is not None and gap.first <= missing_from
    return False


# ---------------------------------------------------------------- how far the journal may be read


def as_numbers(offset: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """An offset as a commit of bronze has it (``done``)."""
    return {f"{name}:{writer}": at[name] for writer, at in offset.items() for name in _KNOWN}


def committed(done: Callable[[str], int], writers: Iterable[str]) -> Offset:
    """How far bronze has some writers; those that it knows nothing of are missing."""
    found = {writer: {name: done(f"{name}:{writer}") for name in _KNOWN} for writer in writers}
    return {writer: at for writer, at in found.items() if at["pos"] >= 0}


def reached(offset: Mapping[str, Mapping[str, int]], writer: str) -> str:
    """How far a writer is read, for people, and to compare."""
    at = offset.get(writer)
    return f"{writer}-{at['seg']:020d} byte {at['pos']}" if at else "its begin"


@dataclass
class _Room:
    """What a batch may still read; one block of one writer it does at least, or a stream would stand still."""

    bytes: int
    taken: bool = False
    """Something is read already."""


def by_writer(directory: str) -> dict[str, list[tuple[int, str]]]:
    """First number and path of each segment, by writer.

    Raises:
        ConfigError: there is no such directory.
    """
    segments: dict[str, list[tuple[int, str]]] = {}
    for path, writer, first in listing(directory):
        segments.setdefault(writer, []).append((first, path))
    return segments


def latest(
    directory: str,
    start: Mapping[str, Any],
    most_bytes: int | None = None,
    target: Mapping[str, Any] | None = None,
) -> Offset:
    """The next offset: as far as the journal goes, ``most_bytes`` at most, never beyond ``target``.

    Writers whose backlog is largest come first, so that a limit starves nobody.

    Raises:
        ConfigError: there is no such directory.
        PipelineError: a segment is of a newer version.
    """
    room = _Room(_MANY if most_bytes is None else most_bytes)
    offset: Offset = {writer: dict(position) for writer, position in start.items()}
    ahead = []
    for writer, segments in by_writer(directory).items():
        if target is not None and writer not in target:
            continue
        first = segments[0][0]
        at = Position.of(start[writer]) if writer in start else Position(first, HEADER_BYTES, first, first)
        until = Position.of(target[writer]) if target is not None else None
        left = [each for each in segments if each[0] >= at.seg and (until is None or each[0] <= until.seg)]
        ahead.append((_backlog(left), writer, at, left, until))
    for _backlog_bytes, writer, at, left, until in sorted(ahead, key=lambda each: -each[0]):
        to = _advance(at, left, until, room)
        if to != at or writer in offset:
            offset[writer] = to._asdict()
    return offset


def _backlog(segments: list[tuple[int, str]]) -> int:
    total = 0
    for _first, path in segments:
        with contextlib.suppress(FileNotFoundError):
            total += size_of(path)
    return total


def _advance(at: Position, segments: list[tuple[int, str]], until: Position | None, room: _Room) -> Position:
    """One writer: on through its segments, block by block where the limit falls into one."""
    for index, (first, path) in enumerate(segments):
        if room.bytes <= 0:
            break
        if first > at.seg:  # what was deleted in between is looked at by `plan`
            at = at._replace(seg=first, pos=HEADER_BYTES)
        with contextlib.suppress(FileNotFoundError):
            at = _within(at, path, index + 1 < len(segments), until, room)
    return at


def _within(at: Position, path: str, sealed: bool, until: Position | None, room: _Room) -> Position:
    """On within one segment."""
    refuse_newer(path)
    following: int | None = None
    if until is not None and until.seg == at.seg:
        end, following = until.pos, until.next
    elif sealed:
        end = size_of(path)
    else:
        end, following = reach(path, at.pos)
    if end <= at.pos:
        return at
    left = room.bytes - (end - at.pos)
    if left < 0 or following is None:
        found = ends(path, at.pos, end)
        if found and left < 0 and found[-1][0] == end:
            found = [each for each in found if each[0] - at.pos <= room.bytes] or found[: not room.taken]
            end = found[-1][0] if found else at.pos
        following = found[-1][1] if found else None
    room.bytes = left  # below 0 the rest of this segment comes before the next one
    room.taken = True
    return at._replace(pos=end, next=at.next if following is None else following)


def plan(directory: str, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Span]:
    """The spans between two offsets; a segment that should be there and is not, or was cut, becomes a span with a loss.

    Raises:
        ConfigError: there is no such directory.
    """
    there = by_writer(directory)
    planned: list[Span] = []
    for writer, position in sorted(end.items()):
        to = Position.of(position)
        begin = Position(to.first, HEADER_BYTES, to.first, to.first)
        since = Position.of(start[writer]) if writer in start else begin
        if since != to:
            planned += _between(writer, since, to, there.get(writer, []))
    return planned


def _between(writer: str, since: Position, to: Position, there: list[tuple[int, str]]) -> list[Span]:
    planned: list[Span] = []
    following: int | None = since.next  # None: what stands there says no number
    last, seen = since.seg, False
    for first, path in there:
        if not since.seg <= first <= to.seg:
            continue
        begin = since.pos if first == since.seg else HEADER_BYTES
        try:
            size = size_of(path)
            limit = to.pos if first == to.seg else size
            end = max(begin, min(size, limit))
            found = ends(path, begin, end)
            missing = following is not None and first > following
            if missing and not gap_is_recorded(path, following or 0):
                planned.append(Span(path, loss=_missing(writer, last, following, first)))
        except FileNotFoundError:
            continue  # retention was faster: as if it had not been listed
        last, seen = first, first == to.seg
        if size < limit:
            why = f"{size} bytes, blocks up to {limit} expected: it was cut"
            planned.append(Span(path, loss=Loss(base_name(path), size, limit - size, why)))
        if end > begin:
            planned.append(Span(path, begin, end, first < to.seg))
        if end != (found[-1][0] if found else begin):
            following = None
        elif found and found[-1][1] is not None:
            following = found[-1][1]
    if not seen and to.next > since.next:
        planned.append(Span("", loss=_missing(writer, to.seg, following, to.next)))
    return planned


def _missing(writer: str, seg: int, first: int | None, behind: int) -> Loss:
    records = 0 if first is None else behind - first
    return deleted(f"{writer}-{seg:020d}.fj", records=records)
