"""What a former writer left: its torn tail is cut, its numbers go on; and which sealed segments go, by bytes and age.

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

log = logging.getLogger("headgate")

SHARE: Final = 10
"""All writers of a folder keep one part in so many of its file system, where nothing else is said,"""
SHARE_BYTES: Final = 4 << 30
"""and no more than this."""
_NUMBER: Final = re.compile(rf"-(\d{{20}}){re.escape(SUFFIX)}$")


class Kept(NamedTuple):
    """A segment as its directory shows it."""

    path: str
    first_seq: int
    size: int
    written_s: float
    """When it was written to last, seconds since 1970."""


def kept(directory: str, writer: str) -> list[Kept]:
    """The segments of one writer, oldest first.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _NUMBER.fullmatch(entry.name.removeprefix(writer))
            if match is None or not entry.name.startswith(writer):
                continue
            if not entry.is_file(follow_symlinks=False):
                continue  # no segment, whatever its name says
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # somebody deleted it in between
            found.append(Kept(entry.path, int(match[1]), status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: each.first_seq)


def fair_share(directory: str, writer: str) -> int:
    """Bytes that one writer keeps where no setting says it: an equal part for each that has segments in the folder.

    Raises:
        OSError: the directory cannot be read.
    """
    names = {name[: match.start()] for name in os.listdir(directory) if (match := _NUMBER.search(name))}
    system = os.statvfs(directory)
    return min(system.f_frsize * system.f_blocks // SHARE, SHARE_BYTES) // len(names | {writer})


def surplus(segments: list[Kept], open_path: str, keep_bytes: int, keep_s: float, now_s: float) -> list[Kept]:
    """The segments to be deleted, oldest first; never the open one.

    Args:
        segments: all of a writer, oldest first.
        open_path: the one that is written to; "" for none.
        keep_bytes: what all of them together may take; 0 for any.
        keep_s: how old a sealed one may become, counted from its last block; 0 for any.
        now_s: seconds since 1970.
    """
    total = sum(each.size for each in segments)
    gone = []
    for each in segments:
        if each.path == open_path:
            continue
        if (keep_bytes and total > keep_bytes) or (keep_s and now_s - each.written_s >= keep_s):
            gone.append(each)
            total -= each.size
    return gone


def sweep(
    directory: str, writer: str, open_path: str, *, keep_bytes: int, keep_s: float, now_s: float
) -> tuple[int, list[str]]:
    """Delete what is surplus.

    Returns:
        bytes that are left, and the paths that are gone. What cannot be deleted stays, with a word in the log.

    Raises:
        OSError: the directory cannot be read.
    """
    segments = kept(directory, writer)
    left = sum(each.size for each in segments)
    gone = []
    for each in surplus(segments, open_path, keep_bytes, keep_s, now_s):
        try:
            os.unlink(each.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("journal: %s cannot be deleted: %s", each.path, error.strerror)
            continue
        left -= each.size
        gone.append(each.path)
    return left, gone


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
