"""Files by ``nf://`` URL (NFP, "Broker File Sharing Service"): who has it, what is here already, fetch the rest.

All workers of the file service are asked for details at once. Those that hold the same content, the one most of them
have, take turns when one of them fails in the middle: the next goes on where it stopped.

The worker streams the first chunk unasked and one more for each PUT ``{"offset": N}``; up to ``PIPELINE`` offsets are
asked for ahead. STREAM carries no offset, so order is checked by size: every chunk but the last is as large as was
asked for, and the digest of the whole decides in the end. Bytes are written to ``.NAME.DIGEST.part`` beside the
destination, so that what is continued later belongs to the same content. Who writes that file holds a lock on it, and
others that fetch the same content to the same place wait until it is there, in this process and in others.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import glob
import hashlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from broker.errors import LinkError, Overrun
from broker.nfp.client.errors import FetchFailed, JobError, JobTimeout
from broker.nfp.names import FILESHARING
from broker.nfp.outcome import DONE, last_line, result_state
from broker.nfp.urls import Unsafe, names_of
from broker.tasks import checked_seconds

if TYPE_CHECKING:
    from broker.nfp.client.client import NfpClient

CHUNK_BYTES: Final = 256_000
"""As deployed NorFab's clients ask for."""
PIPELINE: Final = 10
"""Chunks asked for ahead, as there."""
TRIES: Final = 6
"""Attempts for one file, with all workers together; one that brought bytes does not count."""
DETAILS_S: Final = 60.0
"""How long the workers may take to read and hash a file that nobody has asked for before."""
MARK_CHARS: Final = 16
"""Digits of the digest in names of partial files."""
_STEM_BYTES: Final = 255 - len("..") - MARK_CHARS - len(".part")
_PAUSE_S: Final = 0.5
"""Between attempts that brought nothing."""
_PART: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
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

    def hash(self, path: Path) -> Any:
        """Return the hash of what is in the file ``path``."""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, self.hasher)


class Fetched(NamedTuple):
    """A file that is here now."""

    path: Path
    size_bytes: int
    digest: str
    """SHA-256 where the workers tell it, else MD5; hexadecimal."""
    worker: str
    """Who sent the last part; "" for a copy that was here."""
    cached: bool
    """The copy here was the same already, or another brought it at the same time: nothing was sent to us."""


def path_of(url: str) -> tuple[str, ...]:
    """Return the names of a file below the shared folder.

    Raises:
        FetchFailed: EINVAL, no ``nf://`` URL of a file, or one that leads out of the folder.

    >>> path_of("nf://configs/a.txt")
    ('configs', 'a.txt')
    """
    try:
        names = names_of(url)
    except Unsafe:
        names = ()
    if not names:
        raise FetchFailed(f"{url[:64]!r} is no nf:// URL of a file, such as nf://folder/name", errno.EINVAL)
    return names


def destination_of(url: str, to: str | os.PathLike[str] | None, folder: Path) -> Path:
    """Return where a file goes: ``to``, or into it when it is a folder; None: its path below ``folder``."""
    names = path_of(url)
    if to is None:
        return folder.joinpath(*names)
    path = Path(to)
    return path / names[-1] if path.is_dir() or str(to).endswith(os.sep) else path


def part_of(destination: Path, details: Details) -> Path:
    """Return where bytes are kept until all are here."""
    return destination.with_name(f"{_stem(destination)}{details.mark[:MARK_CHARS]}.part")


def _stem(destination: Path) -> str:
    """What the names of its partial files begin with; a disk has no room for all of a long one."""
    return f".{os.fsencode(destination.name)[:_STEM_BYTES].decode(errors='ignore')}."


def matches(path: Path, details: Details) -> bool:
    """Return True when the file ``path`` is what ``details`` describes; it reads all of it."""
    try:
        same: bool = (
            path.stat().st_size == details.size_bytes and details.hash(path).hexdigest() == details.mark
        )
    except OSError:
        return False  # not there, or not readable: whether it can be replaced will turn out
    return same


def delete(folder: Path, pattern: str) -> dict[str, list[str]]:
    """Remove what ``pattern`` matches below ``folder``, and tell it as deployed NorFab does.

    Raises:
        ValueError: the pattern leaves the folder, or is none.
    """
    names = Path(pattern).parts
    if not names or Path(pattern).is_absolute() or ".." in names:
        raise ValueError(f"pattern {pattern[:64]!r}: expected one of names below the folder of fetched files")
    said: dict[str, list[str]] = {"deleted": [], "errors": []}
    home = folder.resolve()
    if names[-1] == "**":  # folders alone before Python 3.13, files, too, from there on
        pattern = f"{pattern}/*"
    for path in sorted(folder.glob(pattern), key=lambda path: -len(path.parts)):
        if not path.parent.resolve().is_relative_to(home):  # the folder itself, or behind a link
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            said["errors"].append(f"{path}: {error.strerror}")
        else:
            said["deleted"].append(str(path))
    return said


# -- what the workers say -------------------------------------------------------------------------


async def list_names(client: NfpClient, url: str, timeout_s: float) -> list[str]:
    """See ``NfpClient.list_files``."""
    answers = await _ask(client, "list_files", url, timeout_s)
    listed = [names for names in map(_result, answers.values()) if isinstance(names, list)]
    if not listed:
        raise FetchFailed(f"{url}: {_first_error(answers) or 'nobody answered'}", errno.ENOENT)
    return sorted({str(name) for names in listed for name in names})


async def find(client: NfpClient, url: str, timeout_s: float) -> tuple[Details, list[str]]:
    """Return the content that most workers have, and who has it, in the order in which they are to be asked.

    Raises:
        FetchFailed: ENOENT, nobody has it.
    """
    answers = await _ask(client, "file_details", url, timeout_s)
    found = {worker: details for worker, answer in answers.items() if (details := _details(answer))}
    if not found:
        why = _first_error(answers) or "no worker has it"
        raise FetchFailed(f"{url}: {why.removeprefix(repr(url)).lstrip(' -:')}", errno.ENOENT)
    content, _count = Counter(found[worker] for worker in sorted(found)).most_common(1)[0]
    workers = [worker for worker in found if found[worker] == content]
    return content, random.sample(workers, len(workers))  # so that they share the work of many files


async def _ask(client: NfpClient, task: str, url: str, timeout_s: float) -> Mapping[str, Any]:
    """Return what every worker answers; one that does not in time is left out, unless none does."""
    try:
        return await client.run(FILESHARING, task, kwargs={"url": url}, target="all", timeout_s=timeout_s)
    except JobTimeout as error:
        if not error.results:
            raise
        return error.results


def _result(answer: Any) -> Any:
    return answer.get("result") if isinstance(answer, dict) and result_state(answer) == DONE else None


def _details(answer: Any) -> Details | None:
    found = _result(answer)
    if not isinstance(found, dict) or not found.get("exists"):
        return None
    size, md5 = found.get("size_bytes"), found.get("md5hash")
    sha256 = found.get("sha256") or ""
    if not isinstance(size, int) or not isinstance(md5, str) or not isinstance(sha256, str):
        return None
    return Details(size, md5, sha256)


def _first_error(answers: Mapping[str, Any]) -> str:
    """What the first worker that says why says, its last line; "" when none does."""
    said = (last_line(answer.get("errors"))[:300] for answer in answers.values() if isinstance(answer, dict))
    return next(filter(None, said), "")


# -- one file -------------------------------------------------------------------------------------


async def fetch(
    client: NfpClient,
    url: str,
    to: str | os.PathLike[str] | None,
    folder: Path,
    *,
    progress: Progress | None,
    timeout_s: float,
) -> Fetched:
    """See ``NfpClient.fetch``; ``folder`` is where it goes when ``to`` does not say."""
    destination = destination_of(url, to, folder)
    deadline = asyncio.get_running_loop().time() + checked_seconds(timeout_s)
    details, workers = await find(client, url, min(timeout_s, DETAILS_S))
    try:
        worker = await FileTransfer(client, url, destination, details, progress).run(workers, deadline)
    except JobTimeout:  # a TimeoutError, and so an OSError
        raise
    except OSError as error:
        raise FetchFailed(f"{destination}: {error.strerror}", error.errno) from error
    if not worker and progress is not None:
        progress(details.size_bytes, details.size_bytes)
    return Fetched(destination, details.size_bytes, details.mark, worker, cached=not worker)


@dataclass(slots=True, eq=False)
class FileTransfer:
    """Takes the bytes of one file, from one worker after the other, until all are here.

    Attributes:
        destination: the file to make. details: what its workers say about it.
        progress: called with (bytes here, bytes in all); None: nobody is told.
        part: the file that has bytes until all are here. have: how many.
    """

    client: NfpClient
    url: str
    destination: Path
    details: Details
    progress: Progress | None
    part: Path = field(init=False)
    file: IO[bytes] = field(init=False)
    hasher: Any = field(init=False)
    have: int = 0

    def __post_init__(self) -> None:
        self.part = part_of(self.destination, self.details)
        self.hasher = self.details.hasher()

    async def run(self, workers: list[str], deadline: float) -> str:
        """Have the file in its place, and return who sent the last bytes; "" when it is there, or another brings it.

        Raises:
            FetchFailed: another still writes it at the ``deadline``, or nobody could send it in ``TRIES`` attempts.
            JobTimeout: nobody did before the ``deadline``. OSError: our own disk is the trouble. What the callback for
            progress raised.
        """
        if await self._is_there():
            return ""
        self.part.parent.mkdir(parents=True, exist_ok=True)
        try:
            async with asyncio.timeout_at(deadline):
                while (file := self._locked()) is None:  # noqa: ASYNC110 - another process tells nobody when it is done
                    await asyncio.sleep(_LOCK_S)
        except TimeoutError:
            text = f"another program that fetches the same file to {self.destination} did not end in time"
            raise FetchFailed(f"{self.url}: {text}") from None
        with file:
            if await self._is_there():
                self.part.unlink(missing_ok=True)  # ours alone: whoever waits for it sees that it is gone
                return ""
            self.file = file
            await self._take_up()
            return await self._fetch(workers, deadline)

    async def _is_there(self) -> bool:
        return await asyncio.to_thread(matches, self.destination, self.details)

    def _locked(self) -> IO[bytes] | None:
        """Open the partial file for us alone; None while another has it, or has just put it in its place."""
        file = os.fdopen(os.open(self.part, _PART | os.O_CREAT, 0o644), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(self.part)):
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        file.close()
        return None

    async def _take_up(self) -> None:
        """Go on with what an earlier attempt left."""
        size = os.fstat(self.file.fileno()).st_size
        if size > self.details.size_bytes:
            self._restart()
        elif size:
            self.hasher = await asyncio.to_thread(self.details.hash, self.part)
            self.have = size
            self.file.seek(size)
        self._report()

    def _restart(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.hasher = self.details.hasher()
        self.have = 0

    async def _fetch(self, workers: list[str], deadline: float) -> str:
        clock = asyncio.get_running_loop().time
        left, at = TRIES, 0
        while True:
            worker, before = workers[at % len(workers)], self.have
            try:
                if self.have < self.details.size_bytes:
                    await self._fetch_from(worker, deadline - clock())
                if self._keep():
                    await asyncio.to_thread(self._drop_other_parts)
                return worker
            except JobTimeout:
                raise
            except (FetchFailed, JobError, Overrun) as error:
                fruitless = self.have <= before
                left -= fruitless
                if not left or clock() >= deadline:
                    raise FetchFailed(f"{self.url}: {error}") from error
                if fruitless:
                    await asyncio.sleep(_PAUSE_S)
            at += 1

    async def _fetch_from(self, worker: str, timeout_s: float) -> None:
        kwargs = {"url": self.url, "chunk_size": CHUNK_BYTES, "offset": self.have}
        job = await self.client.submit(
            FILESHARING, "fetch_file", kwargs=kwargs, target=[worker], timeout_s=timeout_s, keep=False
        )
        asked_to = self.have + CHUNK_BYTES
        try:
            async for chunk in job.stream:
                self._take(worker, chunk)
                limit = min(self.details.size_bytes, self.have + PIPELINE * CHUNK_BYTES)
                with suppress(LinkError):  # its timeout ends the job: the next attempt goes on from here
                    while asked_to < limit:
                        job.put({"offset": asked_to}, worker=worker)
                        asked_to += CHUNK_BYTES
            result = (await job.result()).get(worker)
        finally:
            job.give_up()
        if not isinstance(result, dict) or result_state(result) != DONE:
            errors = result.get("errors") if isinstance(result, dict) else None
            raise FetchFailed(f"{worker}: {str(errors or result)[:300]}")
        if self.have < self.details.size_bytes:
            raise FetchFailed(f"{worker}: {self.have} bytes came, expected {self.details.size_bytes}")

    def _take(self, worker: str, data: bytes) -> None:
        wanted = min(CHUNK_BYTES, self.details.size_bytes - self.have)
        if len(data) != wanted:
            raise FetchFailed(f"{worker}: a chunk of {len(data)} bytes at {self.have}, expected {wanted}")
        self.file.write(data)
        self.hasher.update(data)
        self.have += len(data)
        self._report()

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.have, self.details.size_bytes)

    def _keep(self) -> bool:
        """Check the whole and put it where it belongs; when the digest is another one, begin again. Returns whether
        there was a file.
        """
        found = self.hasher.hexdigest()
        if found != self.details.mark:
            self._restart()
            raise FetchFailed(f"{self.destination.name}: digest {found}, expected {self.details.mark}")
        self.file.flush()
        replaces = self.destination.exists()
        os.replace(self.part, self.destination)
        return replaces

    def _drop_other_parts(self) -> None:
        """What came of other contents of a file that changes would stay for ever, but for what somebody writes."""
        name = glob.escape(_stem(self.destination)) + "[0-9a-f]" * MARK_CHARS + ".part"
        for part in self.destination.parent.glob(name):
            with suppress(OSError), os.fdopen(os.open(part, _PART), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
