"""A store of segments that a URL names, through ``pyarrow.fs``: ``s3://``, ``gs://``, ``abfs://``, ``hdfs://``, ``file://``.

    s3://bucket/folder                                                credentials and region as AWS has them
    s3://bucket/folder?endpoint_override=127.0.0.1:9000&scheme=http   another server that speaks S3
    file:///mnt/journals                                              a mount

What is in it is a folder of segments, as a writer leaves them: the path of one is the URL with its name added. Only
segments that were put whole have such a name (`Store.put`).
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from broker.errors import ConfigError
from broker.extras import lacking
from broker.secret import SecretPlace, masked

AHEAD_BYTES: Final = 256 << 10
"""Read at once where less was asked for: a request takes tens of milliseconds, whatever its size."""
COPY_BYTES: Final = 8 << 20
"""How much of a file is sent or read back at a time."""
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_UNFINISHED: Final = ".part"
"""Suffix of the name of an upload that is not complete yet."""


def is_url(place: str) -> bool:
    """Whether a place is a store rather than a folder of this machine."""
    return _URL.match(place) is not None


def joined(place: str, name: str) -> str:
    """The path of a file or folder in a folder or store.

    >>> joined("s3://b/j?scheme=http", "rank0.fj"), joined("/j", "rank0.fj")
    ('s3://b/j/rank0.fj?scheme=http', '/j/rank0.fj')
    """
    if not is_url(place):
        return os.path.join(place, name)
    path, mark, query = place.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


@lru_cache(maxsize=64)
def filesystem(url: str) -> tuple[Any, str]:
    """Pyarrow's file system of a URL, and the path in it.

    Raises:
        ConfigError: nothing here speaks that scheme, or the URL is none.
    """
    try:
        from pyarrow import fs
    except ModuleNotFoundError:
        raise ConfigError(f"{masked(url)}: {lacking('pyarrow')}") from None
    try:
        opened: tuple[Any, str] = fs.FileSystem.from_uri(url)
    except (ValueError, OSError) as error:  # an unknown scheme, a host that is missing, no libhdfs
        raise ConfigError(f"{masked(url)}: {line_of(error, url)}") from None
    return opened


def line_of(error: Exception, url: str) -> str:
    """What a store or pyarrow said, in one line and without the secrets in its ``url``."""
    return " ".join(SecretPlace(url).masked_in(str(error)).split())[:500]


class StoredFile:
    """A segment in a store, open.

    Raises:
        OSError: it is gone, or the store does not answer.
    """

    def __init__(self, path: str) -> None:
        self._system, self._path = filesystem(path)
        self._file = self._system.open_input_file(self._path)
        self._size: int = self._file.size()
        self._ahead = b""
        self._ahead_at = 0

    def size(self) -> int:
        """Size of the file when it was opened, bytes: files in a store do not grow."""
        return self._size

    def read(self, size: int, offset: int) -> bytes:
        """Read ``size`` bytes at ``offset``, fewer where the file ends."""
        if size >= AHEAD_BYTES:
            data: bytes = self._file.read_at(size, offset)
            return data
        at = offset - self._ahead_at
        if at < 0 or at + size > len(self._ahead):
            self._ahead, self._ahead_at, at = self._file.read_at(AHEAD_BYTES, offset), offset, 0
        return self._ahead[at : at + size]

    def deleted(self) -> bool:
        """Whether the file has been deleted."""
        return bool(self._system.get_file_info(self._path).size is None)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


class Store:
    """A folder in a store.

    Args:
        url: of it; it is made where the first segment is put.

    Raises:
        ConfigError: nothing here speaks that scheme, or the URL is none.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._system, self._folder = filesystem(url)
        self._made = False
        if not self._folder:
            raise ConfigError(f"{masked(url)}: a bucket or a folder is missing in it")

    def _inner(self, name: str) -> str:
        return f"{self._folder.rstrip('/')}/{name}"

    def sizes(self) -> dict[str, int]:
        """Bytes of each file by name.

        Raises:
            FileNotFoundError: there is no such folder.
            OSError: the store does not answer, or refuses.
        """
        from pyarrow import fs

        about = self._system.get_file_info(fs.FileSelector(self._folder))
        return {each.base_name: each.size for each in about if each.type is fs.FileType.File}

    def head(self, name: str, size: int) -> bytes:
        """The first bytes of a file.

        Raises:
            OSError: it is gone, or the store does not answer.
        """
        with self._system.open_input_file(self._inner(name)) as file:
            data: bytes = file.read_at(size, 0)
            return data

    def put(self, name: str, path: str) -> Iterator[int]:
        """Send a file; it has its name when all of it is there and reads as what was sent (CRC-32).

        Yields:
            bytes, as they go.

        Raises:
            OSError: the store does not answer, refuses, or does not hold what was sent; ``name`` is as it was.
        """
        # A store ends an upload where its stream is closed, by an error, too: so never under the final name.
        begun = self._inner(name + _UNFINISHED)
        if not self._made:
            self._system.create_dir(self._folder, recursive=True)
            self._made = True
        sent = size = 0
        with open(path, "rb", buffering=0) as file, self._system.open_output_stream(begun) as out:
            while data := file.read(COPY_BYTES):
                out.write(data)
                sent, size = zlib.crc32(data, sent), size + len(data)
                yield len(data)
        try:
            held, there = self._held(begun)
            if (held, there) != (sent, size):
                raise OSError(f"{name}: {size} bytes were sent, the store has {there} of another content")
            self._system.move(begun, self._inner(name))
        except OSError:
            with contextlib.suppress(OSError):
                if self._held(self._inner(name)) == (sent, size):
                    return  # somebody else sent the same at the same time
            raise

    def _held(self, inner: str) -> tuple[int, int]:
        """CRC-32 and size of what is there."""
        held = size = 0
        with self._system.open_input_stream(inner) as back:
            while data := back.read(COPY_BYTES):
                held, size = zlib.crc32(data, held), size + len(data)
        return held, size

    def discard(self, name: str) -> None:
        """Delete what an upload that failed left; nothing happens where it cannot be."""
        with contextlib.suppress(OSError):
            self._system.delete_file(self._inner(name + _UNFINISHED))


def size_of(path: str) -> int:
    """Bytes of a file.

    Raises:
        FileNotFoundError: it is gone.
        OSError: the store does not answer, or refuses.
    """
    system, inner = filesystem(path)
    size: int | None = system.get_file_info(inner).size
    if size is None:
        raise FileNotFoundError(2, os.strerror(2), masked(path))
    return size
