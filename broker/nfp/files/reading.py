"""An open file that a thread reads while the loop may give it up at any moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from broker.nfp.files.digests import Changed, key_of
from broker.nfp.files.tree import Opened, Tree


class Reading:
    """One file. ``open``, ``read`` and ``unchanged`` are called in threads, one at a time, ``close`` anywhere.

    A descriptor that is closed while a thread reads from it could be another file's by then: so whoever comes last
    closes it.
    """

    def __init__(self, tree: Tree, names: Sequence[str]) -> None:
        self._tree = tree
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._opened: Opened | None = None
        self._busy = False
        self._closed = False

    def open(self) -> int:
        """Open it; returns its size. Raises as ``Tree.open_file``."""
        with self._lock:
            self._busy = True
        try:
            self._opened = self._tree.open_file(self._names)
            return self._opened.facts.st_size
        finally:
            self._release()

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``.

        Raises:
            OSError: the disk, or it was closed.
        """
        fd = self._take().fd
        try:
            return os.pread(fd, size, offset)
        finally:
            self._release()

    def unchanged(self) -> None:
        """Check that it is as it was when it was opened.

        Raises:
            Changed: it is not.
        """
        opened = self._take()
        try:
            if key_of(os.fstat(opened.fd)) != key_of(opened.facts):
                raise Changed("the file was changed while it was read")
        finally:
            self._release()

    def close(self) -> None:
        """Give it up; never waits for the disk."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _take(self) -> Opened:
        with self._lock:
            if self._opened is None or self._closed:
                raise Changed("the file was given up")
            self._busy = True
            return self._opened

    def _release(self) -> None:
        with self._lock:
            self._busy = False
            if self._closed:
                self._let_go()

    def _let_go(self) -> None:
        if not self._busy and self._opened is not None:
            opened, self._opened = self._opened, None
            os.close(opened.fd)
