"""Where segments lie: in a folder of this machine, or in a store that a URL names (``s3://bucket/folder``).

A place is a text, and so is a segment in it; only this module knows which of the two it is.
"""

from __future__ import annotations

import os
from typing import Protocol

from broker.journal import stores
from broker.journal.layout import SUFFIX


class File(Protocol):
    """A segment, open: it can be read on after its name is gone, as far as the place allows it."""

    def size(self) -> int:
        """Bytes now."""

    def read(self, size: int, offset: int) -> bytes:
        """So many bytes from there on, fewer where the file ends."""

    def deleted(self) -> bool:
        """Whether it has no name any more."""

    def close(self) -> None:
        """Give it back; again does nothing."""


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
