"""A segment's header and name, the segments of a directory, and what is torn or damaged in one.

Segments lie in a folder of this machine, or in a store that a URL names (``s3://bucket/folder``). A place is a text,
and so is a segment in it; only this module knows which of the two it is.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from broker.errors import ConfigError, HeadgateError
from broker.journal import stores
from broker.journal.layout import HEADER_BYTES, SEGMENT_HEADER, SEGMENT_MAGIC, SUFFIX, VERSION
from broker.secret import masked


class File(Protocol):
    """A segment, open: it can be read on after its name is gone, as far as the place allows it."""

    def size(self) -> int:
        """Present size, bytes."""

    def read(self, size: int, offset: int) -> bytes:
        """Read ``size`` bytes at ``offset``, fewer where the file ends."""

    def deleted(self) -> bool:
        """Whether the file has been deleted; it can be read all the same."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""


class LocalFile:
    """A file of this machine.

    Raises:
        OSError: it cannot be opened.
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        """Bytes now."""
        return os.fstat(self._fd).st_size

    def read(self, size: int, offset: int) -> bytes:
        """So many bytes from there on, fewer where the file ends."""
        data = os.pread(self._fd, size, offset)
        while 0 < len(data) < size:  # Linux reads at most 2 GiB at once
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def deleted(self) -> bool:
        """Whether it has no name any more."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Give it back; again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_file(path: str) -> File:
    """The segment at ``path``, which may be a URL.

    Raises:
        OSError: it is gone, or cannot be read.
    """
    return stores.StoredFile(path) if stores.is_url(path) else LocalFile(path)


def names(folder: str) -> list[str]:
    """The files of a folder or store, in no order.

    Raises:
        OSError: there is no such place, or it may not be read.
    """
    if stores.is_url(folder):
        return list(stores.Store(folder).sizes())
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file()]


def base_name(path: str) -> str:
    """The file's name without its place."""
    return os.path.basename(path.partition("?")[0] if stores.is_url(path) else path)


def size_of(path: str) -> int:
    """Bytes of a file.

    Raises:
        OSError: it is gone, or cannot be read.
    """
    return stores.size_of(path) if stores.is_url(path) else os.stat(path).st_size


def is_folder(place: str) -> bool:
    """Whether segments lie in it, rather than that it is one."""
    return not base_name(place).endswith(SUFFIX) if stores.is_url(place) else os.path.isdir(place)


class Damage(NamedTuple):
    """``length`` bytes from ``offset`` on that are no complete block."""

    path: str
    offset: int
    length: int
    why: str
    torn: bool = False
    """The segment ends within this block: what a writer leaves that was killed, or has not finished yet."""

    def __str__(self) -> str:
        name = base_name(self.path)
        return f"{name}: {self.length} bytes at {self.offset}: {self.why}"


class Damaged(HeadgateError):
    """A segment cannot be read on; ``damage`` says where and why.

    Attributes:
        damage: the extent, from the first byte that is wrong to where a reader would look next.
    """

    errno = errno.EBADMSG

    def __init__(self, path: str, offset: int, length: int, why: str, torn: bool = False) -> None:
        self.damage = Damage(path, offset, length, why, torn)
        super().__init__(str(self.damage))

    def __reduce__(self) -> tuple[Any, ...]:
        return Damaged, tuple(self.damage)  # it crosses processes


_NAME: Final = re.compile(rf"(.+)-(\d{{20}}){re.escape(SUFFIX)}", re.DOTALL)
_CRC_AT: Final = 60
_LOCKS: Final = "/proc/locks"


class Segment:
    """What a segment says about itself. A damaged header is no error here: ``damage`` tells of it.

    Args:
        path: the file, or its URL in a store.
        file: the same, opened already: it may have been deleted since.

    Attributes:
        path: as given.
        writer: who wrote it (from the name).
        first_seq: number of its first record; from the name where the header is damaged.
        rank: whose records they are.
        run: uuid of the writer's run, 32 hex digits; empty where the header is damaged.
        created_ns: when it was begun, ns since 1970.
        flags: PAYLOADS, BOTH_ENDS.
        base: what was added to the numbers of the run.
        size: bytes when it was looked at.
        damage: what is wrong with the header, or None.
        version: as the header says, when it is in order; else that of this program.

    Raises:
        FileNotFoundError: it is gone.
        ValueError: the name is not that of a segment.
    """

    __slots__ = (
        "base",
        "created_ns",
        "damage",
        "first_seq",
        "flags",
        "path",
        "rank",
        "run",
        "size",
        "version",
        "writer",
    )

    def __init__(self, path: str | os.PathLike[str], file: File | None = None) -> None:
        self.path: str = os.fspath(path)
        self.writer, self.first_seq = named(self.path)
        self.rank = self.created_ns = self.flags = self.base = 0
        self.run = ""
        self.version = VERSION
        self.damage: Damage | None = None
        own = open_file(self.path) if file is None else file
        try:
            self.size: int = own.size()
            head = own.read(HEADER_BYTES, 0)
        finally:
            if file is None:
                own.close()
        self._parse(head)

    def _parse(self, head: bytes) -> None:
        if len(head) < HEADER_BYTES:
            why = f"a header of {HEADER_BYTES} bytes expected, the file ends after {len(head)}"
            self.damage = Damage(self.path, 0, len(head), why, torn=True)
            return
        magic, version, flags, rank, run, first, created, base, crc = SEGMENT_HEADER.unpack(head)
        if magic != SEGMENT_MAGIC:
            why = f"magic {magic.hex(' ')}, expected {SEGMENT_MAGIC.hex(' ')}"
        elif crc != zlib.crc32(head[:_CRC_AT]):
            why = f"CRC of the header {crc:08x}, computed {zlib.crc32(head[:_CRC_AT]):08x}"
        elif version != VERSION:
            self.version = version
            why = f"segment of version {version}, this program knows {VERSION}"
        else:
            self.rank, self.run, self.first_seq = rank, run.hex(), first
            self.created_ns, self.flags, self.base = created, flags, base
            return
        self.damage = Damage(self.path, 0, HEADER_BYTES, why)

    @property
    def foreign(self) -> bool:
        """Its version is another one: what its bytes mean is not known here."""
        return self.version != VERSION

    @property
    def name(self) -> str:
        """The file's name."""
        return base_name(self.path)

    def __repr__(self) -> str:
        return f"<segment {self.name} run={self.run[:8]} {self.size}B>"


def named(path: str) -> tuple[str, int]:
    """Writer and first number in a segment's name.

    Raises:
        ValueError: it is not ``WRITER-<20 digits>.fj``.

    >>> named("/var/j/rank0-00000000000000000042.fj")
    ('rank0', 42)
    """
    name = base_name(path)
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not WRITER-<20 digits>{SUFFIX}")
    return match[1], int(match[2])


def segments(directory: str | os.PathLike[str], writer: str | None = None) -> list[Segment]:
    """The segments of a directory by writer and number; of one writer only when it is named.

    Other files are passed over; so is one that retention deletes while this looks.

    Raises:
        ConfigError: there is no such directory, or it may not be read.
    """
    listed = []
    for path, _writer, _first in listing(directory, writer):
        try:
            listed.append(Segment(path))
        except FileNotFoundError:
            continue  # deleted between the listing and the look
        except OSError as error:
            raise ConfigError(f"segment {path}: {error.strerror or error}", error.errno) from None
    return sorted(listed, key=lambda segment: (segment.writer, segment.first_seq))


def listing(directory: str | os.PathLike[str], writer: str | None = None) -> list[tuple[str, str, int]]:
    """Path, writer and first number of each segment by name, none of them opened; sorted by writer and number.

    Raises:
        ConfigError: there is no such directory, or it may not be read.
    """
    folder = os.fspath(directory)
    try:
        matches = [match for name in names(folder) if (match := _NAME.fullmatch(name))]
    except OSError as error:
        where = masked(folder)
        raise ConfigError(f"journal directory {where}: {error.strerror or error}", error.errno) from None
    return sorted(
        (
            (stores.joined(folder, match[0]), match[1], int(match[2]))
            for match in matches
            if writer is None or match[1] == writer
        ),
        key=lambda each: each[1:],
    )


def live_writers(directory: str | os.PathLike[str]) -> set[str]:
    """Writers that hold the lock of their name, seen from this machine; without taking any lock.

    A directory that another machine writes to shows none.
    """
    try:
        held = Path(_LOCKS).read_text(encoding="ascii")
    except OSError:
        return set()
    # the inode alone: which device it is on shows differently in stat where file systems are stacked
    inodes = {line.split()[-3].rpartition(":")[2] for line in held.splitlines() if " FLOCK " in line}
    writers = set()
    for path in Path(directory).glob(".*.lock"):
        try:
            inode = str(path.stat().st_ino)
        except FileNotFoundError:
            continue
        if inode in inodes:
            writers.add(path.name[1 : -len(".lock")])
    return writers
