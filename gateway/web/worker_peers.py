"""The counts of all worker processes of one gateway, asked for by whichever of them a scrape reaches; and their
sessions, which an admin sees and ends through any of them.

Each worker answers on a UNIX socket in a directory that only the gateway's user enters: ``NAME.sock``, and writes what
it counted into ``NAME.json`` every ``SAVE_S`` and when it leaves. A worker that was killed cannot be asked, so its file
speaks for it. When the supervisor has reaped it, it adds the file's counters to ``ended.json``, which names the
workers it holds: a reader that sees both the file and the name in ``ended.json`` counts it once, so a sum never goes
back nor counts anything twice. What a killed worker counted in its last second is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from broker import atomic
from broker.obstacles import obstacle
from gateway.web.metrics import Snapshot, counters_only, merged

log = logging.getLogger("headgate")

SAVE_S: Final = 1.0
"""How often a worker writes its counts: what a kill -9 may lose."""
ASK_S: Final = 2.0
"""How long another worker may take to answer: its loop stands still no longer, or its file speaks."""
ENDED: Final = "ended.json"
_GONE: Final = (ConnectionRefusedError, FileNotFoundError)
"""Nobody listens: that worker has ended, and its sessions with it."""


class _Ended(msgspec.Struct):
    """Counters of workers that are gone."""

    names: list[str] = []
    samples: Snapshot = []


class WorkerPeers:
    """One worker among its peers.

    Args:
        folder: the directory they share; it exists, mode 0700.
        name: of this worker, different for each incarnation.
        own: makes this worker's counts.
        answer: to what another worker asks about this worker's sessions (``Administration.answered``).
    """

    def __init__(
        self,
        folder: str,
        name: str,
        own: Callable[[], Snapshot],
        answer: Callable[[bytes], bytes] = lambda _question: b"",
    ) -> None:
        self._answered = answer
        self._folder = Path(folder)
        self._name = name
        self._own = own
        self._server: asyncio.Server | None = None
        self._saving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer other workers.

        Raises:
            ConfigError: the directory cannot be used. NotReady: not now: the disk is full, say.
        """
        try:
            self._server = await asyncio.start_unix_server(self._answer, self._folder / f"{self._name}.sock")
            self._save()
        except OSError as error:
            raise obstacle(f"{self._folder}: {error}", error) from error
        self._saving = asyncio.get_running_loop().create_task(self._save_often(), name="save counts")

    async def stop(self) -> None:
        """Leave the last counts behind and answer no more."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        with contextlib.suppress(OSError):
            self._save()
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                (self._folder / f"{self._name}.sock").unlink()

    async def snapshots(self) -> list[Snapshot]:
        """The counts of every worker that lives, and the counters of those that ended."""
        others = self._others()
        found = await asyncio.gather(*(self._ask(name) for name in others))
        ended = _ended(self._folder)  # behind the others: what is folded meanwhile is told apart by its name
        kept = [each for name, each in zip(others, found, strict=True) if name not in ended.names]
        return [self._own(), *kept, ended.samples]

    async def ask(self, question: bytes) -> list[bytes]:
        """What every other worker that lives answers to ``question``; b"" for one that does not answer in time."""
        found = await asyncio.gather(
            *(self._hear(name, question) for name in self._others()), return_exceptions=True
        )
        return [each if isinstance(each, bytes) else b"" for each in found if not isinstance(each, _GONE)]

    def _others(self) -> list[str]:
        names = [path.stem for path in self._folder.glob("*.json") if path.name != ENDED]
        return [name for name in names if name != self._name]

    async def _ask(self, name: str) -> Snapshot:
        try:
            return _snapshot(await self._hear(name, b""))
        except (OSError, TimeoutError, ValueError):
            return counters_only(_saved(self._folder / f"{name}.json"))

    async def _hear(self, name: str, question: bytes) -> bytes:
        """What another worker answers; no question asks for its counts."""
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_unix_connection(self._folder / f"{name}.sock")
            try:
                writer.write(question)
                writer.write_eof()
                return await reader.read(-1)
            finally:
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                question = await reader.read(-1)
                writer.write(self._answered(question) if question else msgspec.json.encode(self._own()))
                await writer.drain()
        except (
            OSError,
            TimeoutError,
            ValueError,
        ) as error:  # ValueError: no question, or one that has no answer
            log.debug("another worker was not answered: %s", error)
        finally:
            writer.close()

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            try:
                self._save()
            except OSError as error:
                log.warning("counts cannot be saved: %s", error)

    def _save(self) -> None:
        atomic.write(self._folder / f"{self._name}.json", msgspec.json.encode(self._own()))


def fold(folder: str, name: str) -> None:
    """For the supervisor: ``name`` has ended; keep its counters and remove its files."""
    place = Path(folder)
    ended = _ended(place)
    samples = merged([ended.samples, counters_only(_saved(place / f"{name}.json"))])
    still = [each for each in ended.names if (place / f"{each}.json").exists()]
    # the sum first, then the files: whoever reads between sees the name in both, and counts it once
    atomic.write(place / ENDED, msgspec.json.encode(_Ended([*still, name], samples)))
    for suffix in ("json", "sock"):
        with contextlib.suppress(FileNotFoundError):
            (place / f"{name}.{suffix}").unlink()


def _ended(folder: Path) -> _Ended:
    try:
        return msgspec.json.decode((folder / ENDED).read_bytes(), type=_Ended)
    except (OSError, ValueError):
        return _Ended()


def _saved(path: Path) -> Snapshot:
    try:
        return _snapshot(path.read_bytes())
    except (OSError, ValueError):
        return []  # it ended before it counted anything


def _snapshot(data: bytes) -> Snapshot:
    return msgspec.json.decode(data, type=Snapshot)
