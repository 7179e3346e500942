"""One file on its way: chunks in order, credits, a partial file that survives an interruption.

The worker streams the first chunk unasked and one more for each PUT ``{"offset": N}``; up to ``PIPELINE`` offsets are
asked for ahead. STREAM carries no offset, so order is checked by size: every chunk but the last is as large as was
asked for, and the digest of the whole decides in the end. Bytes are written to ``.NAME.DIGEST.part`` beside the
destination, so that what is continued later belongs to the same content. Who writes that file holds a lock on it, and
others that fetch the same content to the same place wait until it is there, in this process and in others.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from broker.errors import LinkError
from broker.nfp.client.errors import FetchFailed
from broker.nfp.client.job import Job

CHUNK_BYTES: Final = 256_000
"""As deployed NorFab's clients ask for."""
PIPELINE: Final = 10
"""Chunks asked for ahead, as there."""
_READ_BYTES: Final = 1 << 20
MARK_CHARS: Final = 16
"""Digits of the digest in names of files and folders."""
_LOCK_S: Final = 0.1
"""How often a partial file that another writes is looked at."""

Progress = Callable[[int, int], None]
"""Is called with (bytes here, bytes in all)."""


class Details(NamedTuple):
    """What the workers say about a file."""

    size_bytes: int
    md5: str
    sha256: str = ""
    """"" when they do not tell it, as deployed NorFab's do not."""

    @property
    def mark(self) -> str:
        """The digest that tells this content from others."""
        return self.sha256 or self.md5

    def hasher(self) -> Any:
        """Return a new hash of the kind that is compared."""
        return hashlib.sha256() if self.sha256 else hashlib.md5(usedforsecurity=False)


def matches(path: Path, details: Details) -> bool:
    """Return True when the file ``path`` is what ``details`` describes; it reads all of it."""
    try:
        if path.stat().st_size != details.size_bytes:
            return False
        return hashed(path, details).hexdigest() == details.mark  # type: ignore[no-any-return]
    except OSError:
        return False  # not there, or not readable: whether it can be replaced will turn out


def hashed(path: Path, details: Details) -> Any:
    """Return the hash of what is in the file ``path``; an absent file has nothing in it."""
    hasher = details.hasher()
    try:
        with open(path, "rb") as file:
            while block := file.read(_READ_BYTES):
                hasher.update(block)
    except FileNotFoundError:
        pass
    return hasher


def part_of(destination: Path, details: Details) -> Path:
    """Return where bytes are kept until all are here."""
    return destination.with_name(f".{destination.name}.{details.mark[:MARK_CHARS]}.part")


class FileTransfer:
    """Takes the bytes of one file, from one worker after the other, until all are here.

    Args:
        destination: the file to make. details: what its workers say about it. chunk_bytes: what is asked for at a time.
        progress: called with (bytes here, bytes in all); None: nobody is told.

    Attributes:
        have: bytes in the partial file.
    """

    def __init__(
        self, destination: Path, details: Details, chunk_bytes: int, progress: Progress | None
    ) -> None:
        self.details = details
        self.destination = destination
        self.have = 0
        self._part = part_of(destination, details)
        self.chunk_bytes = chunk_bytes
        self._progress = progress
        self._hasher = details.hasher()
        self._file: IO[bytes]
        self._job: Job
        self._is_open = False
        self._worker = ""
        self._asked_to = 0

    @property
    def complete(self) -> bool:
        """True when all bytes are here."""
        return self.have >= self.details.size_bytes

    async def open(self) -> bool:
        """Take up what an earlier attempt left, once nobody else writes it.

        It returns False when another has brought the file meanwhile, and there is nothing to do.
        """
        self._part.parent.mkdir(parents=True, exist_ok=True)
        while (file := self._locked()) is None:  # noqa: ASYNC110 - another process tells nobody when it is done
            await asyncio.sleep(_LOCK_S)
        self._file, self._is_open = file, True
        if await asyncio.to_thread(matches, self.destination, self.details):
            self._part.unlink(missing_ok=True)  # ours alone: whoever waits for it sees that it is gone
            return False
        await self._take_up()
        return True

    def _locked(self) -> IO[bytes] | None:
        """Open the partial file for us alone; None while another has it, or has just put it in its place."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.fdopen(os.open(self._part, flags, 0o644), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(self._part)):
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        file.close()
        return None

    async def _take_up(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size > self.details.size_bytes:
            self._restart()
        elif size:
            self._hasher = await asyncio.to_thread(hashed, self._part, self.details)
            self.have = size
            self._file.seek(size)
        self._report()

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._hasher = self.details.hasher()
        self.have = 0

    def begin(self, job: Job, worker: str) -> None:
        """Take the bytes of ``job``, which ``worker`` runs, from ``have`` on."""
        self._job, self._worker = job, worker
        self._asked_to = self.have + self.chunk_bytes
        job.divert_stream(self._chunk)

    async def finished(self) -> None:
        """Wait for the job; the last byte comes in front of its result.

        Raises:
            FetchFailed: a chunk was wrong, or the worker says why it ended. What the callback for progress raised.
        """
        results = await self._job.result()
        result = results.get(self._worker)
        if not isinstance(result, dict) or result.get("failed"):
            errors = result.get("errors") if isinstance(result, dict) else None
            raise FetchFailed(f"{self._worker}: {str(errors or result)[:300]}")
        if not self.complete:
            expected = self.details.size_bytes
            raise FetchFailed(f"{self._worker}: {self.have} bytes came, expected {expected}")

    def _chunk(self, data: bytes) -> None:
        """A chunk came; whatever is wrong with it ends the job."""
        try:
            self._take(data)
        except OSError as error:
            self._job.give_up(FetchFailed(f"{self._part}: {error.strerror}", error.errno))
        except Exception as error:
            self._job.give_up(error)
        else:
            self._ask()

    def _take(self, data: bytes) -> None:
        wanted = min(self.chunk_bytes, self.details.size_bytes - self.have)
        if len(data) != wanted:
            raise FetchFailed(
                f"{self._worker}: a chunk of {len(data)} bytes at {self.have}, expected {wanted}"
            )
        self._file.write(data)
        self._hasher.update(data)
        self.have += len(data)
        self._report()

    def _ask(self) -> None:
        """Keep ``PIPELINE`` chunks on their way."""
        limit = min(self.details.size_bytes, self.have + PIPELINE * self.chunk_bytes)
        while self._asked_to < limit:
            try:
                self._job.put({"offset": self._asked_to}, worker=self._worker)
            except LinkError:
                return  # its timeout ends the job; the next attempt goes on from here
            self._asked_to += self.chunk_bytes

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self.have, self.details.size_bytes)

    def keep(self) -> None:
        """Check the whole and put it where it belongs.

        Raises:
            FetchFailed: the digest is another one; the partial file is emptied.
        """
        found = self._hasher.hexdigest()
        if found != self.details.mark:
            self._restart()
            raise FetchFailed(f"{self.destination.name}: digest {found}, expected {self.details.mark}")
        self._file.flush()
        os.replace(self._part, self.destination)

    def close(self) -> None:
        """Leave the partial file as it is."""
        if self._is_open:
            self._file.close()
