"""How far the journal may be read, and which bytes lie between two offsets: ``{writer: position}`` (``spans``).

A stream's checkpoint has its offsets; what bronze holds stands in bronze itself, committed with the rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.journal.layout import HEADER_BYTES
from broker.journal.reading.segments import base_name, listing, size_of
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
        reached = _advance(at, left, until, room)
        if reached != at or writer in offset:
            offset[writer] = reached._asdict()
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
    left = room.bytes - (end - at.pos)
    if left < 0 or following is None:
        found = spans.ends(path, at.pos, end)
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
            found = spans.ends(path, begin, end)
            missing = following is not None and first > following
            if missing and not spans.gap_is_recorded(path, following or 0):
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
    return spans.deleted(f"{writer}-{seg:020d}.fj", records=records)
