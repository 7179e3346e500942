"""What is in each segment, by its block headers alone: no body is read, no CRC checked."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from broker.journal.layout import BOTH_ENDS, PAYLOADS, VERSION
from broker.journal.reading.blocks import SegmentFile
from broker.journal.reading.segments import live_writers, segments


class Contents(msgspec.Struct):
    """One segment."""

    path: str
    writer: str
    rank: int
    run: str
    first_seq: int
    size: int
    payloads: bool
    both: bool
    """Deliveries were captured, too."""
    open: bool
    """A living writer is at it."""
    records: int = 0
    """Numbered ones."""
    first_ts: int | None = None
    last_ts: int | None = None
    codecs: list[int] = []
    version: int = VERSION
    """Of the segment; of another one nothing else is known."""
    damaged: bool = False
    """The segment's header, or a block's, is not in order. A torn end is damage where nobody is writing."""


def contents(
    directory: str | os.PathLike[str],
    writer: str | None = None,
    progress: Callable[[int, int], None] | None = None,
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
    segment = file.segment
    contents = Contents(
        segment.path,
        segment.writer,
        segment.rank,
        segment.run,
        segment.first_seq,
        segment.size,
        bool(segment.flags & PAYLOADS),
        bool(segment.flags & BOTH_ENDS),
        is_open,
    )
    torn = segment.damage is not None and segment.damage.torn
    contents.damaged = segment.damage is not None and not (torn and is_open)
    contents.version = segment.version
    if segment.foreign:
        return contents
    for head in file.heads():
        if isinstance(head, str):
            contents.damaged = contents.damaged or not is_open
            break
        if head.numbered:
            contents.records += head.records
        if head.records:
            contents.first_ts = min(
                head.first_ts, head.first_ts if contents.first_ts is None else contents.first_ts
            )
            contents.last_ts = max(
                head.last_ts, head.last_ts if contents.last_ts is None else contents.last_ts
            )
        if head.codec not in contents.codecs:
            contents.codecs = [*contents.codecs, head.codec]
    return contents
