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
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from broker.nfp.records import Forgotten
from broker.nfp.store.database import MEMORY, Schema, give_back, open_database
from broker.nfp.store.events import BEGUN, Clock, Event, EventLog, Kept, read
from broker.nfp.store.thread import CLOSE_S, StoreThread

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


class PeerStore(StoreThread[Any], Generic[View]):
    """See the module; all methods belong to the loop's thread, and only async ones wait for the disk.

    Args:
        path: of the file. None: a database in memory, nothing survives and nobody waits for it.
        retention: of what has ended. broken: told why nothing can be written, at each failure.

    Attributes:
        jobs: by uuid, in the order they were put.
        size: bytes of all bodies.
    """

    schema: ClassVar[Schema]
    ended: ClassVar[frozenset[str]]
    """States of what has ended, and still owes somebody a word."""
    settled: ClassVar[frozenset[str]]
    """States of what has ended for good."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        retention: Retention = Retention(),  # noqa: B008 - its values never change
        broken: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.jobs: dict[str, Known[View]] = {}
        self.size = 0
        self.retention = retention
        self._log = EventLog(clock)
        self._clock = self._log.clock
        self._wall = self._clock.wall
        self._survives = path is not None
        self._over: dict[str, None] = {}
        self._owing: dict[str, None] = {}
        self._flush: asyncio.Handle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        super().__init__(
            partial(open_database, MEMORY if path is None else path, self.schema),
            self._log.write,
            asyncio.get_running_loop(),
            on_failed=None if broken is None else lambda text, ops: (broken(text), ops)[1],
            tidy=give_back,
            name=self.schema.what,
        )

    @abstractmethod
    def begin(self, uuid: str, submitted_s: float, values: dict[str, Any], body: bytes) -> View:
        """What a job looks like that was just put; ``submitted_s`` is wall clock."""

    def follow(self, view: View, kind: str, values: dict[str, Any], body: bytes) -> View:
        """What it looks like after an event: its values are fields, and its body is the one of the name of its kind."""
        before: Any = view  # a NamedTuple
        if kind in before._fields:
            values = {**values, kind: body}
        after: View = before._replace(**values)
        return after

    # -- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin.

        Raises:
            ConfigError: another process uses the file (EBUSY), it is damaged, of another version, or cannot be written.
        """
        found = await self.start(self._read_all)
        for uuid, at, wall, values, body, size, events in found:
            self._begin(uuid, at, wall, values, body, size)
            for event in events:
                self._apply(uuid, *event)
        for group in (self._over, self._owing):  # oldest end first
            ordered = sorted(group, key=lambda uuid: self.jobs[uuid].ended_at)
            group.clear()
            group.update(dict.fromkeys(ordered))
        self._sweep()

    def _read_all(self, connection: sqlite3.Connection) -> list[Kept]:
        self._log.load(connection)
        return list(read(connection))

    async def durable(self) -> None:
        """Return once all that was put so far is on disk.

        Raises:
            NotStored: it cannot be written at present; it stays queued.
        """
        if self._survives:
            await super().durable()

    async def close(self, timeout_s: float = CLOSE_S) -> int:
        """See ``StoreThread.close``."""
        for handle in (self._flush, self._sweeper):
            if handle is not None:
                handle.cancel()
        return await super().close(timeout_s)

    # -- jobs ----------------------------------------------------------------------------------

    def put_job(self, uuid: str, values: dict[str, Any], body: bytes) -> None:
        """Write down a job; one of this uuid must not be here."""
        self._write(Event(uuid, BEGUN, values, body))
        self._begin(uuid, self._clock.now(), self._wall(), values, b"", len(body))

    def put_event(
        self, uuid: str, kind: str, body: bytes = b"", *, latest: bool = False, **values: Any
    ) -> None:
        """Write down an event, see ``events.Event`` and ``follow``; of a job that is not here it changes nothing."""
        known = self.jobs.get(uuid)
        if known is None:
            return
        self._write(Event(uuid, kind, values, body, latest))
        self._apply(uuid, kind, self._clock.now(), values, b"", len(body))
        if known.ended_at >= 0:
            self._sweep()

    def _begin(
        self, uuid: str, at: float, wall: float, values: dict[str, Any], body: bytes, size: int
    ) -> None:
        self.size += size
        self.jobs[uuid] = Known(self.begin(uuid, wall, values, body), at, size)

    def _apply(self, uuid: str, kind: str, at: float, values: dict[str, Any], body: bytes, size: int) -> None:
        known = self.jobs[uuid]
        known.view = self.follow(known.view, kind, values, body)
        known.size += size
        self.size += size
        state = known.view.state
        if state not in self.ended and state not in self.settled:
            return
        if known.ended_at < 0:
            known.ended_at = at
        if state in self.settled:
            self._owing.pop(uuid, None)
            self._over.setdefault(uuid)
        else:
            self._owing.setdefault(uuid)

    def state(self, uuid: str) -> str:
        """The state of a job; "" for one that is not here."""
        known = self.jobs.get(uuid)
        return known.view.state if known is not None else ""

    def drop(self, uuid: str) -> None:
        """Forget a job."""
        known = self.jobs.pop(uuid, None)
        if known is None:
            return
        self._over.pop(uuid, None)
        self._owing.pop(uuid, None)
        self.size -= known.size
        self._write(Forgotten(uuid))

    async def whole(self, uuids: Sequence[str]) -> list[View]:
        """These jobs, with their bodies, in the order they were put.

        Raises:
            NotStored: the file cannot be read.
        """
        found = await self.ask(lambda base: list(read(base, uuids))) if uuids else []
        views = []
        for kept in found:
            view = self.begin(kept.uuid, kept.wall, kept.values, kept.body)
            for event in kept.events:
                view = self.follow(view, event.kind, event.values, event.body)
            views.append(view)
        return views

    def age_s(self, uuid: str) -> float:
        """Since it was put here; no step of the wall clock changes it."""
        return max(0.0, self._clock.now() - self.jobs[uuid].at)

    # -- retention -----------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Drop what is too old or too much."""
        now, keep_s = self._clock.now(), self.retention.keep_s
        due = []
        for group, kept_s in ((self._over, keep_s), (self._owing, max(keep_s, KEEP_UNSETTLED_S))):
            while group:
                first = next(iter(group))
                left_s = self.jobs[first].ended_at + kept_s - now
                if left_s > 0:
                    due.append(left_s)
                    break
                self.drop(first)
        while self._crowded() and (first := next(iter(self._over or self._owing), "")):
            self.drop(first)
        if due and self._sweeper is None:
            self._sweeper = self._loop.call_later(max(SWEEP_MIN_S, min(due)), self._swept)

    def _crowded(self) -> bool:
        ended = len(self._over) + len(self._owing)
        return self.size > self.retention.keep_bytes or ended > self.retention.keep_jobs

    def _swept(self) -> None:
        self._sweeper = None
        self._sweep()

    # -- the file ------------------------------------------------------------------------------

    def _write(self, op: Any) -> None:
        self.put(op)
        if self._flush is None:
            self._flush = self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Who waits for it has said so (``durable``); the rest may share a commit with what comes next."""
        self._flush = None
        self.commit(waited=False)
