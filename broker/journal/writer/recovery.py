"""What a former writer left: its torn tail is cut, its numbers go on.

A torn tail is what stands behind the last complete block and is no complete block itself. A block that has all its
bytes and a wrong CRC is damaged, not torn: it stays, for ``headgate journal verify`` to show. So does damage in front
of a good block.
"""

from __future__ import annotations

import logging
import os
import re
from typing import Final, NamedTuple

from broker.journal.layout import HEADER_BYTES, SUFFIX
from broker.journal.premises import check_version
from broker.journal.reading.blocks import Block, Damage, Segment, SegmentFile
from broker.journal.writer.retention import Kept, kept

log = logging.getLogger("headgate")

BEGUN: Final = ".begun"
"""How the name of a segment without its first block ends."""
DAMAGED: Final = ".damaged"
"""Added to the name of a segment in which no block can be read: its number is needed for another one."""


class Found(NamedTuple):
    """Where a writer goes on."""

    base: int
    """Added to the numbers of the run."""
    next_seq: int
    """Number of the next record on disk; ``next_seq - base`` in the run."""
    lost: int = 0
    """Numbers of this run that no record but a gap record has. Below 0 as long as records of the run before have none:
    ``base`` is that much above ``next_seq``, and the first gap record tells of them, too.
    """
    used: int = 0
    """The number behind the last one that a record had, on disk or not."""
    errno: int = 0
    """Why those that are not on disk are not there."""


class Noted(NamedTuple):
    """What ``Notes`` keeps; fields as in ``Found``."""

    following: int = 0
    run: str = ""
    base: int = 0
    lost: int = 0
    used: int = 0
    errno: int = 0


class Notes:
    """What is known of the numbers without any segment: one line in the file that the writer locks.

    ``NEXT RUN BASE LOST USED ERRNO``, of fixed width, so that it is replaced in place, which a full disk allows.
    Retention may delete every segment; the numbers go on all the same, and no file is named twice.

    Args:
        fd: the lock file, open for reading and writing.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> Noted:
        """What was noted; zeros when nothing was."""
        words = os.pread(self._fd, 200, 0).decode("ascii", "replace").split()
        try:
            following, run, base, lost, used, number = words
            return Noted(int(following), run, int(base), int(lost), int(used), int(number))
        except ValueError:
            return Noted()

    def write(self, noted: Noted) -> None:
        """Replace the line; an error is only told: the segments say the same, but for what is not in them."""
        following, run, base, lost, used, number = noted
        line = f"{following:020d} {run} {base:020d} {lost:020d} {used:020d} {number:05d}\n"
        try:
            os.pwrite(self._fd, line.encode(), 0)
        except OSError as error:
            log.warning("journal: the number of the next record cannot be noted: %s", error.strerror)


def hidden(name: str) -> str:
    """The name of a segment that has no block yet."""
    return f".{name}{BEGUN}"


def recover(directory: str, writer: str, run: str, notes: Notes) -> Found:
    """Cut the torn tail of the last segment, remove what was only begun, find the numbers.

    Raises:
        ConfigError: the last segment is of another version. OSError: the disk refuses.
    """
    check_version(directory, writer)
    begun = re.compile(re.escape(f".{writer}-") + r"\d{20}" + re.escape(SUFFIX + BEGUN))
    for name in os.listdir(directory):
        if begun.fullmatch(name):
            os.unlink(os.path.join(directory, name))
    noted = notes.read()
    following = noted.following
    segments = kept(directory, writer)
    latest = _latest(segments)
    if segments:
        following = max(following, _mend(segments[-1]))
    used = max(following, noted.used)
    if noted.run == run:
        return Found(noted.base, following, noted.lost, used, noted.errno)
    if latest is not None and latest.run == run:  # the notes are gone
        return Found(latest.base, following, 0, following)
    return Found(used, following, following - used, used, noted.errno)


def _latest(segments: list[Kept]) -> Segment | None:
    """The last one whose header is in order."""
    looked = (Segment(each.path) for each in reversed(segments))
    return next((segment for segment in looked if segment.damage is None), None)


def _mend(segment: Kept) -> int:
    """Cut what is torn; returns the number behind the last record.

    Which bytes behind damage are a block and which are payload depends on where the file ends (`reading.blocks`). So
    what would be left is read, too: a tail without which a block could not be read any more stays, and a number may be
    skipped, never given out twice.
    """
    with SegmentFile(segment.path) as file:
        file.refresh()
        size = file.size()
        end, following, blocks = _extent(file, segment.first_seq, size)
        if following > segment.first_seq and end < size:
            _end, behind, left = _extent(file, segment.first_seq, end)
            following = max(following, behind)
            if blocks <= left:
                log.warning(
                    "journal: %s: a torn tail of %d bytes is cut at %d", segment.path, size - end, end
                )
                _cut(segment.path, end)
    if following == segment.first_seq:
        log.error("journal: %s: no block can be read; it becomes *%s", segment.path, DAMAGED)
        os.rename(segment.path, segment.path + DAMAGED)
    return following


def _cut(path: str, end: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.ftruncate(fd, end)
        os.fsync(fd)
    finally:
        os.close(fd)


def _extent(file: SegmentFile, following: int, size: int) -> tuple[int, int, set[int]]:
    """In the first ``size`` bytes: where the last complete block ends, the number behind its last record (``following``
    when it has none), and where blocks that can be read begin.

    A block with a wrong CRC has used up its numbers, too, if they are those that follow.
    """
    end, blocks = HEADER_BYTES, set()
    for found in file.salvage(HEADER_BYTES, size):
        whole = isinstance(found, Block)
        head = None if isinstance(found, Damage) and found.torn else file.head_at(found.offset, size)
        if head is None:
            continue  # nothing there says how long it is
        if whole:
            blocks.add(found.offset)
        end = found.offset + found.length
        if head.numbered and (whole or head.first_seq == following):
            following = max(following, head.first_seq + head.records)
    return end, following, blocks
