"""What one gateway process knows of its brokers: collected, kept over a restart, and answered.

``gateway.series``, ``gateway.calls`` and ``gateway.ranks``, so that all pages together ask the brokers what one does.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker import atomic
from broker.errors import RpcError
from gateway.trends.answers import Figures
from gateway.trends.collector import Collector
from gateway.trends.rings import COARSE_S, FINE, FINE_S, KEPT_BYTES, Rings
from gateway.upstream.upstream import UNREACHABLE

if TYPE_CHECKING:
    from gateway.events.fanout import Fanout
    from gateway.settings.schema import GatewaySettings
    from gateway.upstream.upstream import Upstream

log = logging.getLogger("headgate")

FILE: Final = "trends.bin"
"""In the gateway's ``statedir``, mode 0600: what ``Rings.kept`` gives, so that charts outlive a restart."""
FIGURES_MAX: Final = 16
"""Figures of one question that count, and answers that are kept."""
SAVE_S: Final = 300.0
"""From one writing of the file to the next."""


class Trends:
    """Figures over time.

    Args:
        behind: the brokers. settings: ``[history]`` counts.
        sessions, fanout: of this process: how many there are, and how many events are delivered, is charted, too.
        clock: monotonic seconds. wall: seconds since 1970.
        keeps: of several worker processes, the one that writes the file.

    Attributes:
        rings: what is known.
    """

    def __init__(
        self,
        behind: Upstream,
        settings: GatewaySettings,
        sessions: Sized,
        fanout: Fanout,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        keeps: bool,
    ) -> None:
        self.rings = Rings()
        self._sessions = sessions
        self._fanout = fanout
        self._clock = clock
        self._wall = wall
        self._path = Path(settings.gateway.statedir) / FILE if settings.history.charts_file else None
        self._keeps = keeps
        self._charts = settings.history.charts
        self._behind = behind
        rings = self.rings if self._charts else None
        self._collector = Collector(rings, behind, self._own, wall, clock)
        self._read: dict[tuple[int, tuple[str, ...]], tuple[int, Mapping[str, Any]]] = {}
        self._delivered = fanout.deliveries
        self._at = clock()

    async def run(self) -> None:
        """Collect until it is cancelled."""
        if self._path is not None:
            await asyncio.to_thread(load, self.rings, self._path)
        self.rings.mark(self._wall(), "the gateway began")
        saving = asyncio.get_running_loop().create_task(self._save_again(), name="save charts")
        try:
            await self._collector.run()
        finally:
            saving.cancel()
            await asyncio.gather(saving, self._collector.stop(), return_exceptions=True)

    async def _save_again(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            if self._path is not None and self._keeps:
                await asyncio.to_thread(write, self.rings.kept(), self._path)

    def save(self) -> None:
        """Write the file, where one is wanted; it waits for the disk, so at the end only."""
        if self._path is not None and self._keeps:
            write(self.rings.kept(), self._path)

    def _own(self) -> Figures:
        now, delivered = self._clock(), self._fanout.deliveries
        seconds, rise = now - self._at, delivered - self._delivered
        self._at, self._delivered = now, delivered
        figures = {"sessions": float(len(self._sessions))}
        return figures | ({"events": rise / seconds} if seconds > 0 else {})

    def series(self, range_s: int, figures: Sequence[str]) -> Mapping[str, Any]:
        """Figures over time (``Rings.read``); one of long ago is read once for all who ask within the time of a value.

        Raises:
            RpcError: ENOSYS, no charts are kept.
        """
        if not self._charts:
            raise RpcError(errno.ENOSYS, "no charts are kept here (history.charts)")
        self._collector.note_watcher()
        now = int(self._wall())
        if range_s <= FINE * FINE_S:
            return self.rings.read(now, range_s, figures)
        asked = (range_s, tuple(figures[:FIGURES_MAX]))
        at, answer = self._read.get(asked, (-1, {}))
        if at != now // COARSE_S:
            answer = self.rings.read(now, *asked)
            if len(self._read) >= FIGURES_MAX:
                self._read.clear()
            self._read[asked] = (now // COARSE_S, answer)
        return answer

    async def calls(self, rank: int | None, *, trusted: bool) -> Mapping[str, Any]:
        """How calls fare, by method, at one broker or at all (``Calls.answer``).

        Raises:
            RpcError: EHOSTUNREACH, the gateway has no broker.
        """
        await self._asked()
        why = self._collector.why
        return {"at": self._wall(), **self._collector.calls.answer(rank, trusted), "why": why}

    async def ranks(self, after: int, *, clients: bool, owner: bool) -> Mapping[str, Any]:
        """The brokers, what changed since the answer whose ``next`` was ``after`` (``Ranks.answer``). Links by kind,
        and who is attached where ``clients`` are wanted, are told to the owner only, as brokers do.

        Raises:
            RpcError: EHOSTUNREACH, the gateway has no broker.
        """
        await self._asked()
        behind, overlay, ranks = self._behind, self._collector.overlay, self._collector.ranks
        answer = {
            "at": self._wall(),
            "size": behind.size,
            "version": behind.version,
            "headgate": behind.headgate,
            **ranks.answer(after, self._clock(), owner),
            "why": overlay.why,
        }
        if not after:
            answer["hostlist"] = overlay.hostlist
        return answer | ({"clients": ranks.clients()} if clients and owner else {})

    async def _asked(self) -> None:
        await self._collector.wait_fresh()
        if self._behind.asked is None:
            raise RpcError(errno.EHOSTUNREACH, UNREACHABLE)


def write(data: bytes, path: Path) -> None:
    """Put what rings keep in the place of the file; a line in the log where that cannot be."""
    try:
        atomic.write(path, data)
    except OSError as error:
        log.error("%s: the figures of the charts cannot be kept: %s", path, error.strerror)


def load(rings: Rings, path: Path) -> None:
    """Take up what was written; nothing where there is none, or it is broken."""
    try:
        with open(path, "rb") as file:
            rings.restore(file.read(KEPT_BYTES + 1))
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s: the figures of the charts cannot be read, and begin anew: %s", path, error)
