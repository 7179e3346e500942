"""Digests of open files, which are remembered while a file stays the same.

MD5 is what deployed NorFab's clients compare.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.nfp.files.tree import Changed, Key, OpenFile, key_of

REMEMBERED_MAX: Final = 4096
"""Files whose digests are remembered: about 1 MiB."""
BLOCK_BYTES: Final = 1 << 20
"""Read at a time."""
_TRIES: Final = 3
_SETTLED_NS: Final = 1_000_000_000
"""Disks keep times in ticks: what was changed later than this ago is not remembered."""


class Digest(NamedTuple):
    """Hexadecimal digits, and the bytes they cover."""

    md5: str
    sha256: str
    size_bytes: int


class Digests:
    """A bounded memory of digests; any thread may ask.

    Args:
        remembered_max: files, the one not asked for longest is forgotten first.
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._max = remembered_max
        self._known: dict[Key, Digest] = {}
        self._lock = threading.Lock()
        self.computed = 0
        """How many were not remembered."""

    def of(self, opened: OpenFile, stop: Callable[[], bool] = lambda: False) -> Digest:
        """The digests of an open file.

        Args:
            opened: the file; its position is not used.
            stop: asked between blocks; True gives up.

        Raises:
            Changed: it was written to each time it was read. InterruptedError: ``stop``. OSError: the disk.
        """
        facts = opened.facts
        for _ in range(_TRIES):
            key = key_of(facts)
            with self._lock:
                if (known := self._known.pop(key, None)) is not None:
                    self._known[key] = known  # the latest asked for comes last
                    return known
            digest = _compute(opened.fd, facts.st_size, stop)
            facts = os.fstat(opened.fd)
            if key_of(facts) == key and digest.size_bytes == facts.st_size:
                self._remember(key, digest)
                return digest
        raise Changed("the file was changed while it was read")

    def _remember(self, key: Key, digest: Digest) -> None:
        with self._lock:
            self.computed += 1
            if time.time_ns() - key[-1] < _SETTLED_NS:
                return  # it may change again without its times showing it
            self._known[key] = digest
            while len(self._known) > self._max:
                del self._known[next(iter(self._known))]


def _compute(fd: int, size_bytes: int, stop: Callable[[], bool]) -> Digest:
    """Of what is there, or of a little more than ``size_bytes``: a file may grow faster than it is read."""
    md5 = hashlib.md5(usedforsecurity=False)
    sha256 = hashlib.sha256()
    at = 0
    while True:
        if stop():
            raise InterruptedError("the job was cancelled")
        block = os.pread(fd, BLOCK_BYTES, at)
        if not block or at > size_bytes:
            return Digest(md5.hexdigest(), sha256.hexdigest(), at)
        md5.update(block)
        sha256.update(block)
        at += len(block)
