"""Blocks of all writers as they come, over rotation, retention and restarts.

A follower keeps the segment open that it is at, so that what retention deletes meanwhile is read to its end all the
same. Nothing tells it of news: whoever follows polls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final, Literal, NamedTuple

from broker.errors import ConfigError
from broker.journal.layout import HEADER_BYTES
from broker.journal.reading.blocks import Block, Damage, SegmentFile
from broker.journal.reading.records import gaps_of
from broker.journal.reading.segments import listing

POLL_S: Final = 0.1
Start = Literal["begin", "newest", "end"]


class Missed(NamedTuple):
    """Numbers ``first`` to ``last`` of a writer: their segments were deleted before they could be read."""

    writer: str
    first: int
    last: int


News = Block | Damage | Missed


class Follower:
    """All writers of a directory, or one.

    Args:
        directory: may be empty, or hold nothing yet.
        writer: follow this one only.
        start: what the first ``poll`` gives of what is there: all of it (``begin``), the two newest segments of each
            writer (``newest``), or nothing (``end``).
    """

    def __init__(
        self, directory: str | os.PathLike[str], writer: str | None = None, *, start: Start = "begin"
    ) -> None:
        self._directory = os.fspath(directory)
        self._writer = writer
        self._start: Start = start
        self._lines: dict[str, _Line] = {}

    def poll(self) -> Iterator[News]:
        """What has come since the last time, of each writer in order.

        Raises:
            ConfigError: the directory is gone, or it or a segment may not be read.
        """
        there = {
            writer: [(first, path) for path, _writer, first in some]
            for writer, some in groupby(listing(self._directory, self._writer), key=lambda each: each[1])
        }
        for writer in there:
            if writer not in self._lines:
                # a writer that appears later is read from its begin: all of it is news
                self._lines[writer] = _Line(writer, self._start)
        self._start = "begin"
        for writer, line in self._lines.items():
            yield from line.poll(there.get(writer, []))

    def blocks(self, stop: Callable[[], bool], poll_s: float = POLL_S) -> Iterator[News]:
        """Yield what comes until ``stop`` returns True; sleeps ``poll_s`` seconds whenever nothing has come."""
        while not stop():
            came = False
            for news in self.poll():
                came = True
                yield news
            if not came:
                time.sleep(poll_s)

    def close(self) -> None:
        """Close the files."""
        for line in self._lines.values():
            line.close()


def _opened(path: str) -> SegmentFile | None:
    """A segment; None when it was deleted since the listing.

    Raises:
        ConfigError: it may not be read.
    """
    try:
        return SegmentFile(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"segment {path}: {error.strerror}", error.errno) from None


class _Line:
    """Where the follower is with one writer."""

    def __init__(self, writer: str, start: Start) -> None:
        self._writer = writer
        self._start: Start = start
        self._file: SegmentFile | None = None
        self._first = -1
        """Number in the name of the segment that is open; of those in front of it no more is read."""
        self._offset = HEADER_BYTES
        self._told = False
        """Damage of this segment's header was given out."""
        self._next: int | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def poll(self, there: list[tuple[int, str]]) -> Iterator[News]:
        later = [each for each in there if each[0] > self._first]
        start, self._start = self._start, "begin"
        if start == "end":
            self._skip_all(later)
            return
        if start == "newest":
            later = later[-2:]
        if self._file is not None:
            yield from self._read(sealed=bool(later))
        for at, (first, path) in enumerate(later):
            file = _opened(path)
            if file is None:
                continue  # the numbers of the next one tell what is missed
            self.close()
            self._file, self._first, self._offset, self._told = file, first, HEADER_BYTES, False
            yield from self._read(sealed=at < len(later) - 1)

    def _skip_all(self, there: list[tuple[int, str]]) -> None:
        """Go to the end of the newest segment without giving anything out."""
        for first, path in reversed(there):
            self._file = _opened(path)
            if self._file is None:
                continue
            self._first = first
            for _passed in self._read(sealed=False):
                pass
            break

    def _read(self, *, sealed: bool) -> Iterator[News]:
        """What is complete behind the place reached; of a sealed segment what is not complete, too, as damage."""
        file = self._file
        assert file is not None
        file.refresh()
        header = file.segment.damage
        if header is not None and header.torn and not sealed:
            return  # not written yet
        if header is not None and not self._told:
            self._told = True
            yield header
        end = file.size()
        held: Damage | None = None
        for found in file.salvage(self._offset, end):
            if held is not None:
                yield held
                held = None
            if isinstance(found, Damage):
                if found.offset >= HEADER_BYTES:
                    held = found  # at the end of a segment that grows it may be a block that is not finished
                continue
            self._offset = found.end
            if found.numbered:
                if self._next is not None and found.first_seq > self._next:
                    yield from self._missed(found)
                self._next = found.first_seq + found.count
            yield found
        if held is not None and sealed:
            self._offset = held.offset + held.length
            yield held

    def _missed(self, block: Block) -> Iterator[News]:
        """Numbers missing in front of a segment stood in segments that are gone, unless the writer tells of them."""
        assert self._next is not None
        if block.first_seq == block.segment.first_seq > self._next:
            gap = gaps_of(block).get(block.first_seq)
            if gap is None or gap.first > self._next:
                yield Missed(self._writer, self._next, block.first_seq - 1)
