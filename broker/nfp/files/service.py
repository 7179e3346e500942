"""The file service: ``filesharing`` as deployed NorFab names it, and the text's ``fss.service.broker``.

Tasks as deployed: ``list_files(url)``, ``walk(url)``, ``file_details(url | [urls])`` and ``fetch_file(url, chunk_size,
offset, chunk_timeout)``, which has a ``length``, too. The broker runs both services in its own process over channels
without a socket; the same runs as a worker of its own elsewhere, next to the files it shares.

A transfer (NFP.md of the deployed service): the first chunk is streamed at once; each ``{"offset": n}`` the client
sends asks for one more, so it decides how much is under way; chunks carry no offset and stay in the order they were
asked for. A transfer is over when the end of the file was streamed. It may begin at any offset: so one resumes it.
Each has a thread of its worker's, as all ordinary tasks: who waits for a disk or a client holds up nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from broker.nfp.files.tree import Changed, Digests, Missing, TooLarge, Tree
from broker.nfp.names import FILESHARING, FSS
from broker.nfp.peer.channel import Channel
from broker.nfp.urls import Unsafe, names_of
from broker.nfp.worker.run import Result, ThreadContext
from broker.nfp.worker.worker import Worker

CHUNK_BYTES: Final = 256_000
"""As deployed NorFab's clients ask."""
CHUNK_MAX_BYTES: Final = 8 << 20
"""A larger one would hold up everything else on the connection."""
CHUNK_TIMEOUT_S: Final = 5.0
CHUNK_TIMEOUT_MAX_S: Final = 60.0
"""How long a silent client may keep a file open."""
URLS_MAX: Final = 1000
"""Files in one ``file_details``."""
TRANSFERS_MAX: Final = 64
"""Jobs at a time of one worker: a transfer mostly waits for its client."""
LOCAL: Final = ((FILESHARING, "broker-files"), (FSS, "broker-fss"))
"""Services that the broker offers itself, and what their workers are called."""


class FileService:
    """A shared folder, and the tasks over it.

    Args:
        tree: the folder, which ``close`` closes.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.digests = Digests()

    def close(self) -> None:
        """Nothing is served any more; what a thread is reading it reads to its end. Harmless twice."""
        self.tree.close()

    # -- tasks: listings and details --------------------------------------------------------------

    def list_files(self, url: str) -> Result:
        """List the files and folders in a shared folder."""
        return _listed(lambda: self.tree.list_folder(names_of(url)))

    def walk(self, url: str) -> Result:
        """List the URLs of all files below a shared folder."""
        return _listed(lambda: self.tree.walk(names_of(url)))

    def file_details(self, job: ThreadContext, url: str | list[str]) -> Result:
        """Tell size, MD5 and SHA-256 of one shared file or of several."""
        if isinstance(url, str):
            return self._details(job, url)
        if not _are_texts(url):
            return _failure("url is neither a text nor a list of texts")
        if len(url) > URLS_MAX:
            return _failure(f"{len(url)} URLs, expected at most {URLS_MAX}")
        found = {one: self._details(job, one) for one in dict.fromkeys(url)}
        # a list as such never fails: each entry says so itself
        return Result(
            result={
                one: {"result": each.result, "failed": each.failed, "errors": each.errors}
                for one, each in found.items()
            },
            errors=[error for each in found.values() for error in each.errors],
        )

    def _details(self, job: ThreadContext, url: str) -> Result:
        """Details of one file: {"md5hash", "sha256", "size_bytes", "exists"}."""
        try:
            file = self.tree.open_file(names_of(url))
            digests = self.digests.of(file, lambda: self.tree.closed or job.cancelled)
        except (Unsafe, OSError) as error:
            return _failure(_explain(url, error), _about(None, None, None))
        return Result(result=_about(*digests, file.facts.st_size))

    # -- tasks: transfers -------------------------------------------------------------------------

    def fetch_file(
        self,
        job: ThreadContext,
        url: str,
        chunk_size: int = CHUNK_BYTES,
        offset: int = 0,
        chunk_timeout: float = CHUNK_TIMEOUT_S,
        length: int = 0,
    ) -> Result:
        """Stream a shared file in chunks, the next one for each offset that the client sends.

        The broker gives a client of the text, which has no STREAM, all of it as the result: ``length`` bytes at most.
        """
        if wrong := _check_fetch(chunk_size, offset, chunk_timeout, length):
            return _failure(wrong)
        try:
            file = self.tree.open_file(names_of(url))
            size = min(file.facts.st_size, offset + length) if length else file.facts.st_size
            while offset < size:
                wanted = min(chunk_size, size - offset)
                chunk = os.pread(file.fd, wanted, offset)
                if len(chunk) < wanted:
                    raise Changed("the file became shorter while it was read")
                job.stream(chunk)
                if offset + wanted >= size:
                    break
                asked = job.next_offset(min(chunk_timeout, CHUNK_TIMEOUT_MAX_S))
                if asked is None:
                    return _failure(f"{chunk_timeout:g} s without a request for the next chunk")
                if asked < 0:
                    return _failure(f"offset {asked}, expected 0 or more")
                offset = asked
            file.check_unchanged()
        except (Unsafe, OSError) as error:
            return _failure(_explain(url, error))
        return Result(result=True)

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


def _failure(text: str, result: Any = None) -> Result:
    return Result(result=result, failed=True, errors=[text])


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _listed(listing: Callable[[], list[str]]) -> Result:
    try:
        return Result(result=listing())
    except Missing:
        return _failure("Directory Not Found")
    except Unsafe as error:
        return _failure(str(error))
    except OSError as error:
        return _failure(_error_text(error))


def _about(md5: str | None, sha256: str | None, size: int | None) -> dict[str, Any]:
    return {"md5hash": md5, "sha256": sha256, "size_bytes": size, "exists": size is not None}


def _check_fetch(chunk_size: Any, offset: Any, chunk_timeout: Any, length: Any) -> str:
    """What is wrong with the arguments of a fetch, or ""."""
    if type(chunk_size) is not int or not 1 <= chunk_size <= CHUNK_MAX_BYTES:
        return f"chunk_size {str(chunk_size)[:32]}, expected 1 to {CHUNK_MAX_BYTES}"
    for name, value in (("offset", offset), ("length", length)):
        if type(value) is not int or not 0 <= value < 1 << 62:
            return f"{name} {str(value)[:32]}, expected 0 or more"
    if isinstance(chunk_timeout, bool) or not isinstance(chunk_timeout, int | float) or not chunk_timeout > 0:
        return f"chunk_timeout {str(chunk_timeout)[:32]}, expected seconds above 0"
    return ""


def _explain(url: str, error: Unsafe | OSError) -> str:
    """Why the file ``url`` cannot be served."""
    if isinstance(error, Unsafe):
        return str(error)
    return f"'{url}' {'file not found' if isinstance(error, Missing) else _error_text(error)}"


def _error_text(error: OSError) -> str:
    """What an error says, without the path that it names."""
    own = isinstance(error, Changed | TooLarge | InterruptedError)
    return error.strerror or (str(error) if own else type(error).__name__)
