"""The folder that is shared, and nothing else (NFP, "Broker File Sharing Service").

Theory of operation. A URL ``nf://a/b`` is a list of names below the root. Each name is opened relative to the folder
opened before it and never through a link, so neither ``..`` nor a link nor a folder moved meanwhile leads out. A file
must be a regular one, checked before and after opening it (a FIFO would block, a device might act). What matches the
deny list, hidden names and the broker's own state are treated as if they were not there, wherever they were put: state
is recognised by device and inode, so a second name for it does not help.

Digests are remembered while a file stays the same. MD5 is what deployed NorFab's clients compare.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Final

from broker.nfp.urls import DEPTH_MAX, url_of

DENY_ALWAYS: Final = ("*.key_secret", "*.db*", "private_keys", "__norfab__")
"""Names never served whatever the settings say: secret keys, stores with what lies beside them, deployed NorFab's."""
DENY_DEFAULT: Final = (".*", "__*__")
"""Besides them, by default: hidden names, folders like deployed NorFab's."""
ENTRIES_MAX: Final = 100_000
"""Names in one listing or walk."""
FILE_MAX_BYTES: Final = 4 << 30
"""A larger file is not served: its digest alone would keep a disk busy for a minute."""
DIGESTS_MAX: Final = 4096
"""Files whose digests are remembered: about 1 MiB."""
BLOCK_BYTES: Final = 1 << 20
"""Read at a time."""
_SETTLED_NS: Final = 1_000_000_000
"""Disks keep times in ticks: the digests of what was changed later than this ago are not remembered."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Missing(FileNotFoundError):
    """Nothing that may be served is there."""


class TooLarge(OSError):
    """A file or a listing is larger than is served."""


class Changed(OSError):
    """The file was written to while it was read."""


Key = tuple[int, int, int, int, int]


def key_of(facts: os.stat_result) -> Key:
    """What stays the same while a file does: device, inode, size and the times of its last changes."""
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


class OpenFile:
    """A regular file, which is closed when nobody holds it any more.

    A descriptor that was closed while a thread reads from it could be another file's by then.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.facts = os.fstat(fd)

    def check_unchanged(self) -> None:
        """Check that it is as it was when it was opened.

        Raises:
            Changed: it is not.
        """
        if key_of(os.fstat(self.fd)) != key_of(self.facts):
            raise Changed("the file was changed while it was read")

    def __del__(self) -> None:
        os.close(self.fd)


class Digests:
    """A bounded memory of digests, of which the one not asked for longest goes first; any thread may ask."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def of(self, file: OpenFile, stop: Callable[[], bool] = lambda: False) -> tuple[str, str]:
        """MD5 and SHA-256 of an open file, in hexadecimal digits; its position is not used.

        ``stop`` is asked between blocks, and gives up when it says True.

        Raises:
            Changed: it was written to while it was read. InterruptedError: ``stop``. OSError: the disk.
        """
        key = key_of(file.facts)
        with self._lock:
            found = self._known.pop(key, None)
        if found is None:
            found = _compute(file, stop)
            file.check_unchanged()
            if time.time_ns() - file.facts.st_ctime_ns < _SETTLED_NS:
                return found  # it may change again without its times showing it
        with self._lock:
            self._known[key] = found
            while len(self._known) > DIGESTS_MAX:
                del self._known[next(iter(self._known))]
        return found


def _compute(file: OpenFile, stop: Callable[[], bool]) -> tuple[str, str]:
    md5, sha256, at = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    while at <= file.facts.st_size:  # it may grow faster than it is read
        if stop():
            raise InterruptedError("the job was cancelled")
        block = os.pread(file.fd, BLOCK_BYTES, at)
        if not block:
            break
        md5.update(block)
        sha256.update(block)
        at += len(block)
    return md5.hexdigest(), sha256.hexdigest()


class Tree:
    """The shared folder.

    Args:
        root: it; made when it is not there.
        deny: patterns (``fnmatch``, without regard to case) of names that are not served on any level, besides
            ``DENY_ALWAYS``.
        own: files and folders of the broker's state: not served even when they lie inside, or under a second name. A
            store's journals, which SQLite keeps beside it, are meant with it.

    Raises:
        OSError: the root cannot be made or opened.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        deny: Iterable[str] = DENY_DEFAULT,
        own: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        os.makedirs(root, mode=0o755, exist_ok=True)
        self._deny = tuple(pattern.casefold() for pattern in (*DENY_ALWAYS, *deny))
        self._own = tuple(
            os.fspath(path) + beside for path in own for beside in ("", "-wal", "-shm", "-journal")
        )
        # the administrator may point the root itself anywhere, so only here a link is followed
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def closed(self) -> bool:
        """Whether nothing can be opened any more."""
        return self._root < 0

    def close(self) -> None:
        """Nothing can be opened any more; what is being read is read to its end. Twice does no harm."""
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)

    # -- opening ----------------------------------------------------------------------------------

    def open_file(self, names: Sequence[str]) -> OpenFile:
        """Open a regular file for reading.

        Raises:
            Missing: it is not there, or is not served. TooLarge: more than ``FILE_MAX_BYTES``. OSError: the disk.
        """
        if not names or self._denies(names):
            raise Missing(errno.ENOENT, "file not found")
        own = self._find_own()
        with self._open_folder(names[:-1], own) as folder, _absent_is_missing():
            _check_regular(os.stat(names[-1], dir_fd=folder, follow_symlinks=False), own)
            file = OpenFile(os.open(names[-1], _FILE, dir_fd=folder))
        _check_regular(file.facts, own)
        size = file.facts.st_size
        if size > FILE_MAX_BYTES:
            raise TooLarge(errno.EFBIG, f"{size} bytes, at most {FILE_MAX_BYTES} are served")
        return file

    @contextmanager
    def _open_folder(self, names: Sequence[str], own: frozenset[tuple[int, int]]) -> Iterator[int]:
        """A folder opened name by name."""
        if self._root < 0:
            raise Missing(errno.ENOENT, "the shared folder was closed")
        fd = os.dup(self._root)
        try:
            for name in names:
                with _absent_is_missing():
                    below = os.open(name, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
                if _inode(os.fstat(fd)) in own:
                    raise Missing(errno.ENOENT, "file not found")
            yield fd
        finally:
            os.close(fd)

    def _denies(self, names: Iterable[str]) -> bool:
        return any(fnmatchcase(name.casefold(), pattern) for name in names for pattern in self._deny)

    def _find_own(self) -> frozenset[tuple[int, int]]:
        """Asked each time: a store's journal comes and goes."""
        found = set()
        for path in self._own:
            try:
                found.add(_inode(os.stat(path)))
            except OSError:
                continue  # not there, so it cannot be served either
        return frozenset(found)

    # -- listing ----------------------------------------------------------------------------------

    def list_folder(self, names: Sequence[str]) -> list[str]:
        """Names of the files and folders in a folder, sorted, without those that are not served.

        Raises:
            Missing: no such folder. TooLarge: more than ``ENTRIES_MAX`` names. OSError: the disk.
        """
        files, folders = self._read_folder(names, self._find_own(), ENTRIES_MAX)
        return sorted(files + folders)

    def walk(self, names: Sequence[str]) -> list[str]:
        """URLs of all files below a folder, sorted; folders deeper than ``DEPTH_MAX`` are left out.

        Raises:
            As ``list_folder``.
        """
        own = self._find_own()
        found: list[str] = []
        waiting = [tuple(names)]
        room = ENTRIES_MAX
        while waiting:
            at = waiting.pop()
            try:
                files, folders = self._read_folder(at, own, room)
            except TooLarge:
                raise
            except OSError:
                if at == tuple(names) or self._root < 0:
                    raise
                continue  # it was removed meanwhile, or we may not read it
            room -= len(files) + len(folders)
            found += [url_of((*at, name)) for name in files]
            if len(at) + 1 < DEPTH_MAX:
                waiting += [(*at, name) for name in folders]
        return sorted(found)

    def _read_folder(
        self, names: Sequence[str], own: frozenset[tuple[int, int]], room: int
    ) -> tuple[list[str], list[str]]:
        """Names of regular files, and of folders, at most ``room``."""
        if self._denies(names):
            raise Missing(errno.ENOENT, "folder not found")
        files: list[str] = []
        folders: list[str] = []
        with self._open_folder(names, own) as folder, os.scandir(folder) as entries:
            for entry in entries:
                if self._denies((entry.name,)) or not _is_text(entry.name):
                    continue
                try:
                    facts = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed meanwhile
                if _inode(facts) in own:
                    continue
                if stat.S_ISREG(facts.st_mode):
                    files.append(entry.name)
                elif stat.S_ISDIR(facts.st_mode):
                    folders.append(entry.name)
                if len(files) + len(folders) > room:
                    raise TooLarge(errno.EFBIG, f"more than {ENTRIES_MAX} names, ask for a folder below")
        return files, folders


def _inode(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _is_text(name: str) -> bool:
    """Names that are not UTF-8 cannot be written into a URL."""
    return name.encode(errors="ignore").decode() == name


def _check_regular(facts: os.stat_result, own: frozenset[tuple[int, int]]) -> None:
    if not stat.S_ISREG(facts.st_mode) or _inode(facts) in own:
        raise Missing(errno.ENOENT, "file not found")


_ABSENT: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EACCES, errno.EPERM}
)
"""Not there, a link, no folder, a name no disk takes, a socket, not ours to read: the same answer for all."""


@contextmanager
def _absent_is_missing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise Missing(errno.ENOENT, "file not found") from error
        raise
