"""The counts of all worker processes of one gateway, told by whichever of them a scrape reaches.

Each worker is asked (``gateway.fleet``); and it writes what it counted into ``NAME.json``, in the directory that all
share, every ``SAVE_S`` and when it leaves. A worker that was killed cannot be asked, so its file speaks for it. When
the supervisor has reaped it, it adds the file's counters to ``ended.json``, which names the workers it holds: a reader
that sees both the file and the name in ``ended.json`` counts it once, so a sum never goes back nor counts anything
twice. What a killed worker counted in its last second is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from broker import atomic
from broker.obstacles import obstacle
from gateway.web.metrics import Snapshot, counters_only, merged

log = logging.getLogger("headgate")

SAVE_S: Final = 1.0
"""How often a worker writes its counts: what a kill -9 may lose."""
ENDED: Final = "ended.json"
NAMES: Final = 1024
"""Workers that it names: more than end while somebody waits for an answer."""


class _Ended(msgspec.Struct):
    """Counters of workers that are gone."""

    names: list[str] = []
    samples: Snapshot = []


class WorkerCounts:
    """The counts of one worker and of its siblings.

    Args:
        folder: the directory they share; it exists, mode 0700.
        name: of this worker, different for each incarnation.
        own: makes this worker's counts.
        ask: name -> what each other worker answers that is asked for its own, `encoded`; b"": nothing.
    """

    def __init__(
        self,
        folder: str,
        name: str,
        own: Callable[[], Snapshot],
        ask: Callable[[], Awaitable[Mapping[str, bytes]]],
    ) -> None:
        self._folder = Path(folder)
        self._name = name
        self._own = own
        self._ask = ask
        self._saving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to save them.

        Raises:
            ConfigError: the directory cannot be used. NotReady: not now: the disk is full, say.
        """
        try:
            self._save()
        except OSError as error:
            raise obstacle(f"{self._folder}: {error}", error) from error
        self._saving = asyncio.get_running_loop().create_task(self._save_often(), name="save counts")

    async def stop(self) -> None:
        """Leave the last counts behind."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        with contextlib.suppress(OSError):
            self._save()

    async def snapshots(self) -> list[Snapshot]:
        """The counts of every worker that lives, and the counters of those that ended."""
        names = [path.stem for path in self._folder.glob("*.json") if path.name != ENDED]
        told = await self._ask()
        others = {
            name: _snapshot(told[name])
            if told.get(name)
            else counters_only(_saved(self._folder / f"{name}.json"))
            for name in names
            if name != self._name
        }
        ended = _ended(self._folder)  # behind the others: what is folded meanwhile is told apart by its name
        kept = [samples for name, samples in others.items() if name not in ended.names]
        return [self._own(), *kept, ended.samples]

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            try:
                self._save()
            except OSError as error:
                log.warning("counts cannot be saved: %s", error)

    def _save(self) -> None:
        atomic.write(self._folder / f"{self._name}.json", encoded(self._own()))


def encoded(snapshot: Snapshot) -> bytes:
    """As a worker tells its counts."""
    return msgspec.json.encode(snapshot)


def fold(folder: str, name: str) -> None:
    """For the supervisor: ``name`` has ended; keep its counters and remove its file.

    Raises:
        OSError: that is not to be had; its file goes on speaking for it.
    """
    place = Path(folder)
    ended = _ended(place)
    samples = merged([ended.samples, counters_only(_saved(place / f"{name}.json"))])
    # the sum first, then the file: whoever reads between sees the name in both, and counts it once
    atomic.write(place / ENDED, msgspec.json.encode(_Ended([*ended.names, name][-NAMES:], samples)))
    (place / f"{name}.json").unlink(missing_ok=True)


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
