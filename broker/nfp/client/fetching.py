"""Files by ``nf://`` URL (NFP, "Broker File Sharing Service"): who has it, what is here already, fetch the rest.

All workers of the file service are asked for details at once. Those that hold the same content, the one most of them
have, take turns when one of them fails in the middle: the next goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.nfp.client.errors import FetchFailed, JobError, JobTimeout
from broker.nfp.client.transfer import CHUNK_BYTES, Details, FileTransfer, Progress, matches
from broker.nfp.names import FILESHARING
from broker.nfp.urls import Unsafe, names_of
from broker.tasks import checked_seconds

if TYPE_CHECKING:
    from broker.nfp.client.client import NfpClient

TRIES: Final = 6
"""Attempts for one file, with all workers together; one that brought bytes does not count."""
DETAILS_S: Final = 60.0
"""How long the workers may take to read and hash a file that nobody has asked for before."""
_PAUSE_S: Final = 0.5
"""Between attempts that brought nothing."""


Place = str | os.PathLike[str] | Callable[[Details], Path] | None
"""Where a file goes: a file or folder, or what says so for its content; None: its path below the usual folder."""


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


class Fetching:
    """Fetches files for one client.

    Args:
        folder: where files go when nothing else is said.
    """

    def __init__(self, client: NfpClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._turn = 0

    async def fetch(
        self,
        url: str,
        to: Place,
        *,
        progress: Progress | None,
        timeout_s: float,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Fetched:
        """See ``NfpClient.fetch``."""
        path = None if callable(to) else destination_of(url, to, self._folder)
        deadline = asyncio.get_running_loop().time() + checked_seconds(timeout_s)
        details, workers = await self.find(url, min(timeout_s, DETAILS_S))
        destination = to(details) if callable(to) else path
        assert destination is not None
        worker = ""
        if not await asyncio.to_thread(matches, destination, details):
            transfer = FileTransfer(destination, details, chunk_bytes, progress)
            try:
                worker = await self._fetch_alone(url, transfer, workers, deadline)
            except JobTimeout:  # a TimeoutError, and so an OSError
                raise
            except OSError as error:
                raise FetchFailed(f"{destination}: {error.strerror}", error.errno) from error
            finally:
                transfer.close()
        if not worker and progress is not None:
            progress(details.size_bytes, details.size_bytes)
        return Fetched(destination, details.size_bytes, details.mark, worker, cached=not worker)

    async def _fetch_alone(
        self, url: str, transfer: FileTransfer, workers: list[str], deadline: float
    ) -> str:
        """Fetch it, and return who sent the last part; "" when another fetched the same file meanwhile."""
        try:
            async with asyncio.timeout_at(deadline):
                mine = await transfer.open()
        except TimeoutError:
            text = f"{url}: another program that fetches the same file to {transfer.destination} did not end in time"
            raise FetchFailed(text) from None
        return await self._fetch_from_workers(url, transfer, workers, deadline) if mine else ""

    async def find(self, url: str, timeout_s: float) -> tuple[Details, list[str]]:
        """Return the content that most workers have, and who has it.

        Raises:
            FetchFailed: ENOENT, nobody has it.
        """
        answers = await self._ask("file_details", url, timeout_s)
        found = {worker: details for worker, answer in answers.items() if (details := _details(answer))}
        if not found:
            why = _first_error(answers) or "no worker has it"
            raise FetchFailed(f"{url}: {why.removeprefix(repr(url)).lstrip(' -:')}", errno.ENOENT)
        content, _count = Counter(found[worker] for worker in sorted(found)).most_common(1)[0]
        workers = [worker for worker in sorted(found) if found[worker] == content]
        self._turn += 1
        at = self._turn % len(workers)
        return content, workers[at:] + workers[:at]

    async def _ask(self, task: str, url: str, timeout_s: float) -> Mapping[str, Any]:
        """Return what every worker answers; one that does not in time is left out, unless none does."""
        try:
            return await self._client.run(
                FILESHARING, task, kwargs={"url": url}, target="all", timeout_s=timeout_s
            )
        except JobTimeout as error:
            if not error.results:
                raise
            return error.results

    async def _fetch_from_workers(
        self, url: str, transfer: FileTransfer, workers: list[str], deadline: float
    ) -> str:
        """Fetch until all bytes are here and are the right ones, and return who sent the last."""
        clock = asyncio.get_running_loop().time
        left = TRIES
        at = 0
        while True:
            worker = workers[at % len(workers)]
            before = transfer.have
            try:
                if not transfer.complete:
                    await self._fetch_from(url, transfer, worker, deadline - clock())
                transfer.keep()
                return worker
            except (FetchFailed, JobError) as error:
                if isinstance(error, JobTimeout):
                    raise
                if isinstance(error, FetchFailed) and error.errno != FetchFailed.errno:
                    raise  # our own disk is the trouble: another worker would not help
                left -= transfer.have <= before
                if not left or clock() >= deadline:
                    raise FetchFailed(f"{url}: {error}") from error
                if transfer.have <= before:
                    await asyncio.sleep(_PAUSE_S)
            at += 1

    async def _fetch_from(self, url: str, transfer: FileTransfer, worker: str, timeout_s: float) -> None:
        kwargs = {"url": url, "chunk_size": transfer.chunk_bytes, "offset": transfer.have}
        job = await self._client.submit(
            FILESHARING, "fetch_file", kwargs=kwargs, target=[worker], timeout_s=timeout_s, keep=False
        )
        transfer.begin(job, worker)
        try:
            await transfer.finished()
        finally:
            if not job.done:
                await job.cancel()

    async def names(self, url: str, timeout_s: float) -> list[str]:
        """See ``NfpClient.list_files``."""
        answers = await self._ask("list_files", url, timeout_s)
        found: set[str] = set()
        heard = False
        for answer in answers.values():
            listed = _result(answer)
            if isinstance(listed, list):
                heard = True
                found.update(str(name) for name in listed)
        if not heard:
            raise FetchFailed(f"{url}: {_first_error(answers) or 'nobody answered'}", errno.ENOENT)
        return sorted(found)


def _result(answer: Any) -> Any:
    return answer.get("result") if isinstance(answer, dict) and not answer.get("failed") else None


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
    for answer in answers.values():
        errors = answer.get("errors") if isinstance(answer, dict) else None
        if isinstance(errors, list) and errors and (text := str(errors[0]).strip().rsplit("\n", 1)[-1][:300]):
            return text
    return ""
