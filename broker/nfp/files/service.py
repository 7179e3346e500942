"""The file service as a worker: ``filesharing`` as deployed NorFab names it, and the text's ``fss.service.broker``.

Tasks as deployed: ``list_files(url)``, ``walk(url)``, ``file_details(url | [urls])`` and ``fetch_file(url, chunk_size,
offset, chunk_timeout)``, which has a ``length``, too. The broker runs both services in its own process over channels
without a socket; the same runs as a worker of its own elsewhere, next to the files it shares.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.nfp.files.sharing import CHUNK_BYTES, CHUNK_TIMEOUT_S, Outcome, Sharing
from broker.nfp.files.tree import DENY_DEFAULT, FILE_MAX_BYTES, Tree
from broker.nfp.names import FILESHARING, FSS
from broker.nfp.worker.context import JobContext
from broker.nfp.worker.results import Result
from broker.nfp.worker.threads import Threads
from broker.nfp.worker.worker import Worker

if TYPE_CHECKING:
    from broker.nfp.peer.channel import Channel

T = TypeVar("T")
DISK_THREADS: Final = 4
"""Reads at a time: digests of large files take long, and others want their chunks meanwhile."""
TRANSFERS_MAX: Final = 64
"""Jobs at a time of one worker: a transfer mostly waits for its client."""
LOCAL: Final = ((FILESHARING, "broker-files"), (FSS, "broker-fss"))
"""Services that the broker offers itself, and what their workers are called."""


class FileService:
    """A shared folder, and the tasks over it.

    Args:
        root, deny, own, file_max_bytes: see ``Tree``.

    Raises:
        OSError: the folder cannot be made or opened.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        deny: Iterable[str] = DENY_DEFAULT,
        own: Iterable[str | os.PathLike[str]] = (),
        file_max_bytes: int = FILE_MAX_BYTES,
    ) -> None:
        self.tree = Tree(root, deny=deny, own=own, file_max_bytes=file_max_bytes)
        self.sharing = Sharing(self.tree, self._disk)
        self._threads: Threads | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def close(self) -> None:
        """Nothing is served any more; what a thread is reading it reads to its end. Harmless twice."""
        self._closed = True
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        self.tree.close()

    def _disk(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Threads belong to the loop that runs now: a worker that starts anew may bring another."""
        loop = asyncio.get_running_loop()
        if self._threads is None or self._loop is not loop:
            if self._threads is not None:
                self._threads.close()
            self._threads, self._loop = Threads("files", DISK_THREADS, loop), loop
        return self._threads.run(function)

    # -- tasks ------------------------------------------------------------------------------------

    async def list_files(self, url: str) -> Result:
        """List the files and folders in a shared folder."""
        return _result(await self.sharing.list_files(url))

    async def walk(self, url: str) -> Result:
        """List the URLs of all files below a shared folder."""
        return _result(await self.sharing.walk(url))

    async def file_details(self, job: JobContext, url: str | list[str]) -> Result:
        """Tell size, MD5 and SHA-256 of one shared file or of several."""
        return _result(await self.sharing.file_details(url, lambda: self._closed or job.cancelled))

    async def fetch_file(
        self,
        job: JobContext,
        url: str,
        chunk_size: int = CHUNK_BYTES,
        offset: int = 0,
        chunk_timeout: float = CHUNK_TIMEOUT_S,
        length: int = 0,
    ) -> Result:
        """Stream a shared file in chunks, the next one for each offset that the client sends.

        The broker gives a client of the text, which has no STREAM, all of it as the result: ``length`` bytes at most.
        """
        outcome = await self.sharing.fetch_file(
            job, url, chunk_size=chunk_size, offset=offset, chunk_timeout=chunk_timeout, length=length
        )
        return _result(outcome)

    # -- workers ----------------------------------------------------------------------------------

    def worker(self, service: str = FILESHARING, **means: Any) -> Worker:
        """A worker of ``service`` with these tasks; ``means`` as ``Worker`` takes them (name, broker, channel, ...).

        Raises:
            ConfigError: as ``Worker``.
        """
        # files=False: the URLs in these tasks' arguments are what they are about
        worker = Worker(service, files=False, **{"jobs_at_a_time": TRANSFERS_MAX, **means})
        for task in (self.list_files, self.walk, self.file_details, self.fetch_file):
            worker.task(task)
        return worker

    def local_workers(self, channel: Callable[[str], Channel]) -> list[Worker]:
        """The two that a broker runs itself; ``channel`` makes theirs by name."""
        return [self.worker(service, name=name, channel=channel(name)) for service, name in LOCAL]


def _result(outcome: Outcome) -> Result:
    return Result(result=outcome.result, failed=outcome.failed, errors=list(outcome.errors))
