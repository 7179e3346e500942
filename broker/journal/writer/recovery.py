"""What a former writer left: its torn tail is cut, its numbers go on.

A torn tail is what stands behind the last complete block and is no complete block itself. A block that has all its
bytes and a wrong CRC is damaged, not torn: it stays, for ``headgate journal verify`` to show. So does damage in front
of a good block.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.journal.layout import (
    ALIGN,
    BLOCK_CRC_FROM,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    CODECS,
    ENTRY,
    HEADER_BYTES,
    JUMP_MAX,
    SEGMENT_HEADER,
    SEGMENT_MAGIC,
    SUFFIX,
    UNNUMBERED,
    VERSION,
    padded,
)
from broker.journal.premises import check_version
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
    told = next(filter(None, (_head(segment.path) for segment in reversed(segments))), None)
    if segments:
        following = max(following, _mend(segments[-1]))
    used = max(following, noted.used)
    if noted.run == run:
        return Found(noted.base, following, noted.lost, used, noted.errno)
    if told is not None and told[0] == run:  # the notes are gone
        return Found(told[1], following, 0, following)
    return Found(used, following, following - used, used, noted.errno)


def _head(path: str) -> tuple[str, int] | None:
    """Run and base of a segment; None when its header is damaged."""
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    magic, version, _flags, _rank, run, _first, _created, base, crc = SEGMENT_HEADER.unpack(head)
    if magic != SEGMENT_MAGIC or version != VERSION or crc != zlib.crc32(head[:-4]):
        return None
    return run.hex(), base


def _mend(segment: Kept) -> int:
    """Cut what is torn; returns the number behind the last record."""
    fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        end, following = _extent(fd, size, segment.first_seq)
        if following > segment.first_seq and end < size:
            log.warning("journal: %s: a torn tail of %d bytes is cut at %d", segment.path, size - end, end)
            os.ftruncate(fd, end)
            os.fsync(fd)
    finally:
        os.close(fd)
    if following == segment.first_seq:
        log.error("journal: %s: no block can be read; it becomes *%s", segment.path, DAMAGED)
        os.rename(segment.path, segment.path + DAMAGED)
    return following


def _extent(fd: int, size: int, following: int) -> tuple[int, int]:
    """Where the last complete block ends, and the number behind its last record: ``following`` when it has none."""
    if size < 2 * HEADER_BYTES:
        return 0, following
    at, highest = HEADER_BYTES, 0
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as data:
        while at < size:
            length = _length(data, at)
            if not length:
                highest = highest or _highest(data, at, following)
                if resumed := _resumed(data, at, following):
                    at = resumed
                    continue
            if not length or at + length > size:
                break  # torn
            first, behind = _numbers(data, at)
            if first == following or (first < following + JUMP_MAX and _sound(data, at, length)):
                following = max(following, behind)
            at += length
    return at, max(following, highest)


def _length(data: mmap.mmap, at: int) -> int:
    """What a block's header says, if it agrees with its counts to the byte; 0 when there is no such header."""
    if at + HEADER_BYTES > len(data) or data[at : at + len(BLOCK_MAGIC)] != BLOCK_MAGIC:
        return 0
    fields = BLOCK_HEADER.unpack_from(data, at)
    length, codec, version, count, stored = fields[1], fields[3], fields[4], fields[6], fields[12]
    told = (
        codec < len(CODECS)
        and version == VERSION
        and length == padded(HEADER_BYTES + ENTRY.size * count + stored)
    )
    return length if told else 0


def _sound(data: mmap.mmap, at: int, length: int) -> bool:
    with memoryview(data) as view, view[at + BLOCK_CRC_FROM : at + length] as covered:
        found = zlib.crc32(covered)
    return bool(found == BLOCK_HEADER.unpack_from(data, at)[2])


def _numbers(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The first number of a block, and the one behind its records: the same where they have none."""
    _magic, _length, _crc, _codec, _version, flags, count, _bodies, first, *_ = BLOCK_HEADER.unpack_from(
        data, at
    )
    return first, first if flags & UNNUMBERED else first + count


def _candidates(data: mmap.mmap, at: int) -> Iterator[tuple[int, int]]:
    """Where blocks seem to begin behind ``at``, and their lengths."""
    candidate = data.find(BLOCK_MAGIC, at + 1)
    while candidate >= 0:
        if candidate % ALIGN == 0 and (length := _length(data, candidate)):
            yield candidate, length
        candidate = data.find(BLOCK_MAGIC, candidate + 1)


def _highest(data: mmap.mmap, at: int, following: int) -> int:
    """The number behind all records that whoever reads may find behind ``at``, now or once the torn tail is cut.

    Which of the blocks there are blocks and which are payload depends on where the file ends. So every one counts whose
    numbers go on: a number may be skipped, never given out twice.
    """
    budget = 2 * (len(data) - at)
    for candidate, length in _candidates(data, at):
        first, behind = _numbers(data, candidate)
        if candidate + length > len(data) or first >= following + JUMP_MAX or behind <= following:
            continue
        budget -= length  # many long blocks may be said to begin within each other: then their word is taken
        if budget < 0 or _sound(data, candidate, length):
            following = behind
    return following


def _resumed(data: mmap.mmap, at: int, following: int) -> int:
    """Where blocks begin again behind a damaged header; 0 when they do not.

    A payload may hold blocks, by chance or by intent. So that place counts from which headers lead to the end; else,
    when more is damaged, the first whole block whose numbers go on.
    """
    second = 0
    for candidate, length in _candidates(data, at):
        if _leads_to_the_end(data, candidate):
            return candidate
        if not second and candidate + length <= len(data) and _goes_on(data, candidate, following):
            second = candidate if _sound(data, candidate, length) else 0
    return second


def _leads_to_the_end(data: mmap.mmap, at: int) -> bool:
    """Headers lead to the end of the file or beyond it, to a torn block: the rule of ``reading.blocks``."""
    while length := _length(data, at):
        at += length
        if at >= len(data):
            return True
    return False


def _goes_on(data: mmap.mmap, at: int, following: int) -> bool:
    return following <= _numbers(data, at)[0] < following + JUMP_MAX
