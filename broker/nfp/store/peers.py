"""Jobs of a worker or of a client on disk: their events, what these make of a job, retention.

The loop's thread applies each event to what it knows of the job (small), and decides everything; a start applies those
in the file again. Bodies are in the file alone, read when somebody asks. What is put goes into a commit by itself, a
few milliseconds later unless somebody waits for it (``durable``): a job that begins, ends and is recorded meanwhile
costs one commit.

Retention. A job that is *settled* is dropped ``keep_s`` after its end, or earlier, the oldest first, while there
are more than ``keep_jobs`` or ``keep_bytes``. One that has ended but is not settled (a result nobody has confirmed)
has a day at least, and makes room only when no settled one is left. What has not ended stays.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from broker.nfp.records import Forgotten
from broker.nfp.store.clock import Clock, StoreClock
from broker.nfp.store.database import MEMORY, Schema, Sync, give_back, open_database
from broker.nfp.store.events import Kept, Operations
from broker.nfp.store.thread import StoreThread

KEEP_S: Final = 24 * 3600.0
"""Results of yesterday can be asked for, unless a worker's ``keep_s`` or a client's says otherwise."""
KEEP_UNSETTLED_S: Final = KEEP_S
"""What has ended and is not settled has so long at least: a broker that was away still waits for the result."""
KEEP_BYTES: Final = 256 * 1024 * 1024
KEEP_JOBS: Final = 10_000
"""What is known of them is in memory: a few megabytes."""
NEVER: Final = -1.0
SWEEP_MIN_S: Final = 1.0
"""Between two looks at what is too old."""


class _View(Protocol):
    @property
    def state(self) -> str: ...


View = TypeVar("View", bound=_View)


class Retention(NamedTuple):
    """How much of what has ended is kept."""

    keep_s: float = KEEP_S
    keep_bytes: int = KEEP_BYTES
    keep_jobs: int = KEEP_JOBS


class Known(msgspec.Struct, Generic[View]):
    """What is known of a job."""

    view: View
    """What the party makes of its events, without bodies."""
    at: float
    """Store clock, when it was put here."""
    size: int = 0
    """Bytes of all its bodies."""
    ended_at: float = NEVER
    """Store clock."""


class PeerStore(ABC, Generic[View]):
    """See the module; all methods belong to the loop's thread, and only async ones wait for the disk.

    Args:
        path: of the file. None: a database in memory, nothing survives and nobody waits for it.
        retention: of what has ended. broken: told why nothing can be written, at each failure.

    Attributes:
        jobs: by uuid, in the order they were put.
        size: bytes of all bodies.
    """

    schema: ClassVar[Schema]
    operations: ClassVar[Operations]
    ended: ClassVar[frozenset[str]]
    """States of what has ended, and still owes somebody a word."""
    settled: ClassVar[frozenset[str]]
    """States of what has ended for good."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        retention: Retention = Retention(),  # noqa: B008 - its values never change
        sync: Sync = "normal",
        broken: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.jobs: dict[str, Known[View]] = {}
        self.size = 0
        self.retention = retention
        self._loop = asyncio.get_running_loop()
        self._clock = StoreClock(clock)
        self._wall = (clock or Clock()).wall
        self._survives = path is not None
        self._settled: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        self._flush: asyncio.Handle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._thread: StoreThread[Any] = StoreThread(
            partial(open_database, MEMORY if path is None else path, self.schema, sync),
            partial(self.operations.write, self._clock),
            self._loop,
            on_failed=None if broken is None else lambda text, ops: (broken(text), ops)[1],
            tidy=give_back,
            name=self.schema.what,
        )

    @abstractmethod
    def begin(self, added: Any, submitted_s: float) -> View:
        """What a job looks like that was just put; ``submitted_s`` is wall clock."""

    @abstractmethod
    def follow(self, view: View, op: Any) -> View:
        """What it looks like after an event."""

    @property
    def broken(self) -> str:
        """Why nothing can be written at present, or ""."""
        return self._thread.broken

    # -- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin.

        Raises:
            ConfigError: another process uses the file (EBUSY), it is damaged, of another version, or cannot be written.
        """
        found = await self._thread.start(self._read_all)
        for kept in found:
            uuid = kept.added.uuid
            self.jobs[uuid] = self._begun(kept.added, kept.at, kept.wall, kept.size)
            for event in kept.events:
                self._apply(uuid, event.op, event.at, event.size)
        for group in (self._settled, self._ended):  # oldest end first
            ordered = sorted(group, key=lambda uuid: self.jobs[uuid].ended_at)
            group.clear()
            group.update(dict.fromkeys(ordered))
        self._sweep()

    def _read_all(self, connection: sqlite3.Connection) -> list[Kept]:
        self._clock.load(connection)
        return list(self.operations.read(connection))

    async def durable(self) -> None:
        """Return once all that was put so far is on disk.

        Raises:
            NotStored: it cannot be written at present; it stays queued.
        """
        if self._survives:
            await self._thread.durable()

    async def close(self) -> None:
        """Write what is left and end."""
        for handle in (self._flush, self._sweeper):
            if handle is not None:
                handle.cancel()
        await self._thread.close()

    # -- jobs ----------------------------------------------------------------------------------

    def put_job(self, added: Any) -> None:
        """Write down a job; one of this uuid must not be here."""
        self._write(added)
        light = added._replace(body=b"")
        self.jobs[added.uuid] = self._begun(light, self._clock.now(), self._wall(), len(added.body))

    def put_event(self, op: Any) -> None:
        """Write down an event; of a job that is not here it changes nothing."""
        known = self.jobs.get(op.uuid)
        if known is None:
            return
        self._write(op)
        body = getattr(op, "body", b"")
        self._apply(op.uuid, op._replace(body=b"") if body else op, self._clock.now(), len(body))
        if known.ended_at >= 0:
            self._sweep()

    def _begun(self, added: Any, at: float, wall: float, size: int) -> Known[View]:
        self.size += size
        return Known(self.begin(added, wall), at, size)

    def _apply(self, uuid: str, op: Any, at: float, size: int) -> None:
        known = self.jobs[uuid]
        known.view = self.follow(known.view, op)
        known.size += size
        self.size += size
        state = known.view.state
        if state not in self.ended and state not in self.settled:
            return
        if known.ended_at < 0:
            known.ended_at = at
        if state in self.settled:
            self._ended.pop(uuid, None)
            self._settled.setdefault(uuid)
        else:
            self._ended.setdefault(uuid)

    def state(self, uuid: str) -> str:
        """The state of a job; "" for one that is not here."""
        known = self.jobs.get(uuid)
        return known.view.state if known is not None else ""

    def drop(self, uuid: str) -> None:
        """Forget a job."""
        known = self.jobs.pop(uuid, None)
        if known is None:
            return
        self._settled.pop(uuid, None)
        self._ended.pop(uuid, None)
        self.size -= known.size
        self._write(Forgotten(uuid))

    async def whole(self, uuids: Sequence[str]) -> list[View]:
        """These jobs, with their bodies, in the order they were put.

        Raises:
            NotStored: the file cannot be read.
        """
        kept = await self._thread.ask(lambda base: list(self.operations.read(base, uuids))) if uuids else []
        views = []
        for each in kept:
            view = self.begin(each.added, each.wall)
            for event in each.events:
                view = self.follow(view, event.op)
            views.append(view)
        return views

    def age_s(self, uuid: str) -> float:
        """Since it was put here; no step of the wall clock changes it."""
        return max(0.0, self._clock.now() - self.jobs[uuid].at)

    # -- retention -----------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Drop what is too old or too much."""
        now = self._clock.now()
        for uuid in list(self._too_old(now)):
            self.drop(uuid)
        while self.size > self.retention.keep_bytes or self._count() > self.retention.keep_jobs:
            first = next(iter(self._settled or self._ended), None)
            if first is None:
                break
            self.drop(first)
        due = [self.jobs[next(iter(group))].ended_at + keep_s for group, keep_s in self._groups() if group]
        if due and self._sweeper is None:
            self._sweeper = self._loop.call_later(max(SWEEP_MIN_S, min(due) - now), self._swept)

    def _swept(self) -> None:
        self._sweeper = None
        self._sweep()

    def _count(self) -> int:
        return len(self._settled) + len(self._ended)

    def _groups(self) -> tuple[tuple[dict[str, None], float], ...]:
        """What has ended, and how long that is kept."""
        keep_s = self.retention.keep_s
        return (self._settled, keep_s), (self._ended, max(keep_s, KEEP_UNSETTLED_S))

    def _too_old(self, now: float) -> Iterator[str]:
        for group, keep_s in self._groups():
            for uuid in group:
                if now - self.jobs[uuid].ended_at < keep_s:
                    break
                yield uuid

    # -- the file ------------------------------------------------------------------------------

    def _write(self, op: Any) -> None:
        self._thread.put(op)
        if self._flush is None:
            self._flush = self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Who waits for it has said so (``durable``); the rest may share a commit with what comes next."""
        self._flush = None
        self._thread.commit(waited=False)
