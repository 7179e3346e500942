"""How far the journal may be read, and which bytes lie between two offsets: ``{writer: position}`` (``spans``).

A stream's checkpoint has its offsets; what bronze holds stands in bronze itself, committed with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.journal.layout import HEADER_BYTES
from broker.journal.reading.files import base_name, size_of
from broker.journal.reading.segments import listing
from gateway.pipeline import spans
from gateway.pipeline.spans import Loss, Position, Span

Offset = dict[str, dict[str, int]]
_MANY: Final = 1 << 62
"""No limit."""


_KNOWN: Final = ("seg", "pos", "next")
"""What bronze knows of each writer."""


def as_numbers(offset: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """An offset as a commit of bronze has it (``done``)."""
    return {f"{name}:{writer}": at[name] for writer, at in offset.items() for name in _KNOWN}


def committed(done: Callable[[str], int], writers: Iterable[str]) -> Offset:
    """How far bronze has some writers; those that it knows nothing of are missing."""
    found = {writer: {name: done(f"{name}:{writer}") for name in _KNOWN} for writer in writers}
    return {writer: at for writer, at in found.items() if at["pos"] >= 0}


def place(offset: Mapping[str, Mapping[str, int]], writer: str) -> str:
    """How far a writer is read, for people, and to compare."""
    at = offset.get(writer)
    return f"{writer}-{at['seg']:020d} byte {at['pos']}" if at else "its begin"


@dataclass
class Limits:
    """What one batch may read at most; at least one block of one writer is read, or a stream would stand still."""

    files: int = _MANY
    bytes: int = _MANY
    taken: bool = False
    """Something is read already."""

    @property
    def used_up(self) -> bool:
        """Whether nothing more fits."""
        return self.files <= 0 or self.bytes <= 0

    def within(self, start: int, ends: list[int]) -> int:
        """The last of the ends that fits; the first one where nothing is read yet; ``start`` where none does."""
        fitting = [end for end in ends if end - start <= self.bytes]
        return fitting[-1] if fitting else start if self.taken else ends[0]


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
    limits: Limits | None = None,
    target: Mapping[str, Any] | None = None,
) -> Offset:
    """The next offset: as far as the journal goes, as ``limits`` allow, never beyond ``target``.

    Writers whose backlog is largest come first, so that a limit starves nobody.

    Raises:
        ConfigError: there is no such directory.
        PipelineError: a segment is of a newer version.
    """
    allowed = limits or Limits()
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
        reached = _advance(at, left, until, allowed)
        if reached != at or writer in offset:
            offset[writer] = reached._asdict()
    return offset


def _backlog(segments: list[tuple[int, str]]) -> int:
    total = 0
    for _first, path in segments:
        try:
            total += size_of(path)
        except FileNotFoundError:
            continue
    return total


def _advance(
    at: Position, segments: list[tuple[int, str]], until: Position | None, limits: Limits
) -> Position:
    """One writer: on through its segments, block by block where a limit falls into one."""
    for index, (first, path) in enumerate(segments):
        if limits.used_up:
            return at
        if first > at.seg:
            # its journal went on in another segment; what was deleted in between is looked at by `plan`
            at = Position(first, HEADER_BYTES, at.next if at.seg < first else first, at.first)
        try:
            at = _within(at, path, index + 1 < len(segments), until, limits)
        except FileNotFoundError:
            continue
    return at


def _within(at: Position, path: str, sealed: bool, until: Position | None, limits: Limits) -> Position:
    """On within one segment."""
    spans.refuse_newer(path)
    following: int | None = None
    if until is not None and until.seg == at.seg:
        end, following = until.pos, until.next
    elif sealed:
        end = size_of(path)
    else:
        end, following = spans.reach(path, at.pos)
    if end <= at.pos:
        return at
    cut = end - at.pos > limits.bytes
    if cut or following is None:
        bounds = spans.bounds(path, at.pos, end)
        following = bounds.next
        if cut and bounds.clean:
            end = limits.within(at.pos, bounds.ends)
            if end == at.pos:
                limits.bytes = 0
                return at
            following = spans.bounds(path, at.pos, end).next
    limits.files -= 1
    limits.bytes = (
        0 if cut else limits.bytes - (end - at.pos)
    )  # the rest of a segment comes before the next one
    limits.taken = True
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
        since = (
            Position.of(start[writer])
            if writer in start
            else Position(to.first, HEADER_BYTES, to.first, to.first)
        )
        if since != to:
            planned += _between(writer, since, to, there.get(writer, []))
    return planned


def _between(writer: str, since: Position, to: Position, there: list[tuple[int, str]]) -> list[Span]:
    planned: list[Span] = []
    following: int | None = since.next
    last = since.seg
    for first, path in there:
        if not since.seg <= first <= to.seg:
            continue
        if following is not None and first > following and not _told(path, following):
            planned.append(Span(path, loss=_missing(writer, last, following, first)))
        begin = since.pos if first == since.seg else HEADER_BYTES
        last = first
        try:
            size = size_of(path)
            limit = to.pos if first == to.seg else size
            if size < limit:
                why = f"{size} bytes, blocks up to {limit} expected: it was cut"
                planned.append(Span(path, loss=Loss(base_name(path), size, limit - size, why)))
                limit = max(begin, size)
            seen = spans.bounds(path, begin, limit)
        except FileNotFoundError:
            following = following if begin == limit else None
            continue
        if limit > begin:
            planned.append(Span(path, begin, limit, first < to.seg))
        if seen.next is not None or not seen.clean:
            following = seen.next if seen.clean else None
    if to.seg not in (first for first, _path in there) and to.next > since.next:
        missing = since.next if last == since.seg and not planned else following
        lost = _missing(writer, to.seg, to.next if missing is None else missing, to.next)
        planned.append(Span("", loss=lost))
    return planned


def _told(path: str, missing_from: int) -> bool:
    try:
        return spans.gap_is_recorded(path, missing_from)
    except FileNotFoundError:
        return True  # the span that is planned for it will say so


def _missing(writer: str, seg: int, first: int, behind: int) -> Loss:
    return spans.deleted(f"{writer}-{seg:020d}.fj", 0, 0, behind - first)
