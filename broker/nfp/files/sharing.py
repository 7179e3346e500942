"""What the file service does, apart from how it is asked: answers as deployed NorFab's, transfers by credits.

Transfer (NFP.md of the deployed service): the first chunk is streamed at once; each ``{"offset": n}`` the client sends
asks for one more, so it decides how much is under way; chunks carry no offset and stay in the order they were asked
for. A transfer is over when the end of the file was streamed. It may begin at any offset: that is how one resumes.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from broker.nfp.files.digests import Changed, Digests
from broker.nfp.files.reading import Reading
from broker.nfp.files.tree import Missing, TooLarge, Tree
from broker.nfp.urls import Unsafe, names_of

T = TypeVar("T")

CHUNK_BYTES: Final = 256_000
"""As deployed NorFab's clients ask."""
CHUNK_MAX_BYTES: Final = 8 << 20
"""A larger one would hold up everything else on the connection."""
CHUNK_TIMEOUT_S: Final = 5.0
CHUNK_TIMEOUT_MAX_S: Final = 60.0
"""How long a silent client may keep a file open."""
URLS_MAX: Final = 1000
"""Files in one ``file_details``."""


class Outcome(NamedTuple):
    """What a task brings: ``failed`` and ``errors`` as in a result of deployed NorFab."""

    result: Any
    failed: bool = False
    errors: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As an entry of a list of results."""
        return {"result": self.result, "failed": self.failed, "errors": list(self.errors)}


def _failed(text: str, result: Any = None) -> Outcome:
    return Outcome(result, True, (text,))


class Disk(Protocol):
    """Runs a function that waits for a disk where it holds up nobody, and brings what it returns or raises."""

    def __call__(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run ``function``."""


class Transfer(Protocol):
    """The client's side of a fetch."""

    async def stream(self, chunk: bytes) -> None:
        """Send a chunk."""

    async def next_offset(self, timeout_s: float) -> int | None:
        """The next one asked for; None when none came in time."""


class Sharing:
    """The tasks over a tree.

    Args:
        tree: what is shared.
        disk: see ``Disk``.
        digests: the memory of digests.
    """

    def __init__(self, tree: Tree, disk: Disk, digests: Digests | None = None) -> None:
        self.tree = tree
        self.digests = Digests() if digests is None else digests
        self._disk = disk

    async def list_files(self, url: Any) -> Outcome:
        """Names in a folder."""
        return await self._listed(lambda: self.tree.list_folder(names_of(url)))

    async def walk(self, url: Any) -> Outcome:
        """URLs of all files below a folder."""
        return await self._listed(lambda: self.tree.walk(names_of(url)))

    async def _listed(self, listing: Callable[[], list[str]]) -> Outcome:
        try:
            return Outcome(await self._disk(listing))
        except Missing:
            return _failed("Directory Not Found")
        except Unsafe as error:
            return _failed(str(error))
        except OSError as error:
            return _failed(_said(error))

    async def file_details(self, url: Any, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Sizes and digests.

        Returns: for one URL {"md5hash", "sha256", "size_bytes", "exists"}; for a list {url: {"result": that, "failed",
        "errors"}}, with all errors together in ``errors`` (the outcome of a list as such never fails).
        """
        if isinstance(url, str):
            return await self._details(url, stop)
        if not _texts(url):
            return _failed("url is neither a text nor a list of texts")
        if len(url) > URLS_MAX:
            return _failed(f"{len(url)} URLs, expected at most {URLS_MAX}")
        found = {one: await self._details(one, stop) for one in dict.fromkeys(url)}
        errors = tuple(error for entry in found.values() for error in entry.errors)
        return Outcome({one: entry.as_dict() for one, entry in found.items()}, False, errors)

    async def _details(self, url: str, stop: Callable[[], bool]) -> Outcome:
        absent = {"md5hash": None, "sha256": None, "size_bytes": None, "exists": False}
        try:
            return Outcome(await self._disk(lambda: self._digested(url, stop)))
        except Missing:
            return _failed(f"'{url}' file not found", absent)
        except Unsafe as error:
            return _failed(str(error), absent)
        except OSError as error:
            return _failed(f"'{url}' {_said(error)}", absent)

    def _digested(self, url: str, stop: Callable[[], bool]) -> dict[str, Any]:
        opened = self.tree.open_file(names_of(url))
        try:
            digest = self.digests.of(opened, stop)
        finally:
            os.close(opened.fd)
        return {
            "md5hash": digest.md5,
            "sha256": digest.sha256,
            "size_bytes": digest.size_bytes,
            "exists": True,
        }

    async def fetch_file(
        self,
        transfer: Transfer,
        url: str,
        *,
        chunk_size: int = CHUNK_BYTES,
        offset: int = 0,
        chunk_timeout: float = CHUNK_TIMEOUT_S,
        length: int = 0,
    ) -> Outcome:
        """Stream a file; ``result`` is True once its end has left.

        Args:
            transfer: the client's side.
            url: the file.
            chunk_size: bytes of a chunk, 1 to ``CHUNK_MAX_BYTES``.
            offset: where to begin.
            chunk_timeout: seconds to wait for each next offset, at most ``CHUNK_TIMEOUT_MAX_S``.
            length: bytes to stream at most; 0 for all there are.
        """
        wrong = _wrong(chunk_size, offset, chunk_timeout, length)
        if wrong:
            return _failed(wrong)
        try:
            reading = Reading(self.tree, names_of(url))
        except Unsafe as error:
            return _failed(str(error))
        try:
            size = await self._disk(reading.open)
            if length:
                size = min(size, offset + length)
            return await self._streamed(transfer, reading, size, chunk_size, offset, chunk_timeout)
        except Missing:
            return _failed(f"'{url}' file not found")
        except OSError as error:
            return _failed(f"'{url}' {_said(error)}")
        finally:
            reading.close()

    async def _streamed(
        self, transfer: Transfer, reading: Reading, size: int, chunk_size: int, offset: int, timeout_s: float
    ) -> Outcome:
        while True:
            length = min(chunk_size, size - offset)
            if length > 0:
                chunk = await self._disk(partial(reading.read, offset, length))
                if len(chunk) < length:
                    raise Changed("the file became shorter while it was read")
                await transfer.stream(chunk)
            if offset + length >= size or length <= 0:
                break
            wanted = await transfer.next_offset(min(timeout_s, CHUNK_TIMEOUT_MAX_S))
            if wanted is None:
                return _failed(f"{timeout_s:g} s without a request for the next chunk")
            if wanted < 0:
                return _failed(f"offset {wanted}, expected 0 or more")
            offset = wanted
        await self._disk(reading.unchanged)
        return Outcome(True)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _wrong(chunk_size: Any, offset: Any, chunk_timeout: Any, length: Any) -> str:
    """What is wrong with the arguments of a fetch, or ""."""
    if type(chunk_size) is not int or not 1 <= chunk_size <= CHUNK_MAX_BYTES:
        return f"chunk_size {str(chunk_size)[:32]}, expected 1 to {CHUNK_MAX_BYTES}"
    if type(offset) is not int or not 0 <= offset < 1 << 62:
        return f"offset {str(offset)[:32]}, expected 0 or more"
    if type(length) is not int or not 0 <= length < 1 << 62:
        return f"length {str(length)[:32]}, expected 0 or more"
    if isinstance(chunk_timeout, bool) or not isinstance(chunk_timeout, int | float) or not chunk_timeout > 0:
        return f"chunk_timeout {str(chunk_timeout)[:32]}, expected seconds above 0"
    return ""


def _said(error: OSError) -> str:
    """What an error says, without the path that it names."""
    if isinstance(error, Changed | TooLarge | InterruptedError):
        return error.strerror or str(error)
    return error.strerror or type(error).__name__
