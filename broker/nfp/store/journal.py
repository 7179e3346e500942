"""The broker's store, and the one that stores nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from functools import lru_cache, partial
from sys import intern
from typing import Any, Final

import msgspec

from broker.nfp import records
from broker.nfp.contract import NotStored
from broker.nfp.names import Dialect
from broker.nfp.records import (
    KNOWN_MAX,
    Finished,
    JobAdded,
    Op,
    Pinned,
    Snapshot,
    StoredEvent,
    StoredJob,
    WorkerSeen,
)
from broker.nfp.store import events, upgrade
from broker.nfp.store.database import Schema, Sync, give_back, open_database, open_reader
from broker.nfp.store.events import BEGUN, TABLES, Clock, Event, EventLog, Happened, Kept, Named, names_of
from broker.nfp.store.thread import CLOSE_S, RETRY_S, StoreThread
from broker.nfp.targets import Kind, Target

log = logging.getLogger("headgate")
SCHEMA: Final = Schema("broker store", int.from_bytes(b"NFPb"), 7, TABLES, upgrade.BROKER)
_WORKER: Final = "worker"
_PIN: Final = "pin"
_FINISHED: Final = "Finished"
_EVENTS: Final[dict[str, Any]] = {
    cls.__name__: cls
    for cls in (records.PartAdded, records.Dispatched, records.Accepted, records.Returned, records.Owned)
}
_LEFT: Final = msgspec.msgpack.encode(())
"""The data of a worker's name behind ``WorkerLeft``."""
_FORGET_WORKERS: Final = """
DELETE FROM names WHERE kind = :kind AND name IN (
    SELECT name FROM names WHERE kind = :kind AND data = :left ORDER BY at DESC, name DESC LIMIT -1 OFFSET :most)
"""


class Store(StoreThread[Op]):
    """Journal of a broker in a SQLite file (NFP, "Job Persistence" and "Reliability").

    What was put is durable, all of a group or nothing, once ``on_commit`` is called with the ``position`` it had.
    Ages in the snapshot come from a clock that never goes back (see ``events``): a step of the wall clock extends no
    deadline. What the operations mean for the file, ``events`` says.

    Args:
        path: of the file; it and its folder are made when they are missing.
        loop: where callbacks happen.
        sync: "normal": commits survive kill -9 at any point; "full": power loss, too.
        on_commit: called with the number of a commit that is done.
        on_failed: called with the reason and all operations that are not written, at each failure; returns those to
            keep and try again each second. For an operation that can never be written (a body above SQLite's 1 GB)
            it is called with that one alone, and what it returns is ignored. Default: keeps all.
        on_stuck: called when the disk does not answer and ``broken`` says so.
        clock: the machine's; tests bring their own.

    Attributes:
        position, committed, broken, lost: as of ``StoreThread``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loop: asyncio.AbstractEventLoop,
        *,
        sync: Sync = "normal",
        on_commit: Callable[[int], None] | None = None,
        on_failed: Callable[[str, list[Op]], list[Op]] | None = None,
        on_stuck: Callable[[], None] | None = None,
        clock: Clock | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.path = os.fspath(path)
        self._log = EventLog(clock)
        self._reader: sqlite3.Connection | None = None
        self._readable = True
        super().__init__(
            partial(open_database, path, SCHEMA, sync),
            self._write,
            loop,
            on_commit=on_commit,
            on_failed=on_failed,
            on_stuck=on_stuck,
            tidy=self._clean_up,
            name="nfp store",
            retry_s=retry_s,
        )

    async def open(self) -> Snapshot:
        """Open the file and return what is in it, but for the bodies and results of closed jobs (see ``find_closed``).

        Raises:
            ConfigError: another broker uses it, it is damaged, of another version, not ours, or cannot be written.
        """
        found = await self.start(self._read_all)
        self._reader = open_reader(self.path)
        return found

    async def close(self, timeout_s: float = CLOSE_S) -> int:
        """See ``StoreThread.close``; nothing can be read any more."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        return await super().close(timeout_s)

    def find_closed(self, uuid: str) -> StoredJob | None:
        """This closed job, if it is durable, read at once.

        Raises:
            NotStored: the disk hangs, the file cannot be read, or what it has is no job.
        """
        if self.hangs or self._reader is None:
            raise NotStored(self.broken or "nfp store: closed, nothing can be read")
        try:
            now = self._log.clock.now()
            found = next((_stored(kept, now) for kept in events.read(self._reader, [uuid])), None)
        except Exception as error:  # besides a failing disk: what is no job
            if self._readable:
                log.exception("closed jobs cannot be read")
            self._readable = False
            raise NotStored(f"{self.path}: {error}") from error
        self._readable = True
        return found

    # -- in the thread -------------------------------------------------------------------------

    def _write(self, connection: sqlite3.Connection, operations: list[Op]) -> None:
        self._log.write(connection, map(_written, operations))

    def _read_all(self, connection: sqlite3.Connection) -> Snapshot:
        self._log.load(connection)
        return read(connection, self._log.clock.now())

    def _clean_up(self, connection: sqlite3.Connection) -> bool:
        forget_workers(connection)
        return give_back(connection)


def read(connection: sqlite3.Connection, now: float) -> Snapshot:
    """Everything but the bodies and events of closed jobs, with ages at ``now`` (store clock)."""
    closed, unread = [], []
    for kept in events.read(connection, only=_FINISHED):  # all that a closed job is known by
        job = _stored(kept, now, whole=False)
        if job.state == "open":
            unread.append(kept.uuid)
            continue
        results: dict[str, int] = {}
        for event in kept.events:
            results.setdefault(event.values[0], event.size)  # of each part the first one counts
        closed.append(records.ClosedJob(job, len(results), kept.size, sum(results.values())))
    closed.sort(key=lambda one: one.job.closed_age_s, reverse=True)
    workers = names_of(connection, _WORKER)
    return Snapshot(
        tuple(_stored(kept, now) for kept in events.read(connection, unread)),
        tuple(
            WorkerSeen(name, service, Dialect(dialect), *more)
            for name, (service, dialect, *more) in ((name, seen) for name, seen in workers if seen)
        ),
        tuple(Pinned(name, key) for name, (key,) in names_of(connection, _PIN)),
        tuple(closed),
        tuple(name for name, seen in workers if not seen),
    )


def _written(op: Op) -> Event | records.Forgotten | Named:
    """An operation as it is in the file."""
    if isinstance(op, records.Forgotten):
        return op
    if isinstance(op, JobAdded):
        uuid, service, task, target, body, *more = op
        return Event(uuid, BEGUN, (service, task, target, *more), body)
    if isinstance(op, Finished):
        uuid, part, worker, attempt, status, body, closes = op
        return Event(uuid, _FINISHED, (part, worker, attempt, status, closes), body)
    if isinstance(op, WorkerSeen):
        return Named(_WORKER, op.name, op[1:])
    if isinstance(op, records.WorkerLeft):
        return Named(_WORKER, op.name, ())  # the name stays known
    if isinstance(op, Pinned):
        return Named(_PIN, op.name, (op.key,) if op.key else None)
    return Event(op.uuid, type(op).__name__, op[1:])


def _stored(kept: Kept, now: float, *, whole: bool = True) -> StoredJob:
    """The opposite; ``whole`` False: without its events."""
    state, closed_age_s = "open", 0.0
    for event in kept.events:
        if event.kind == _FINISHED and event.values[-1]:
            state, closed_age_s = event.values[-1], max(0.0, now - event.at)
            break
    happened = tuple([_event(kept.uuid, event) for event in kept.events]) if whole else ()
    return StoredJob(_added(kept), kept.wall, max(0.0, now - kept.at), happened, state, closed_age_s)


def _event(uuid: str, event: Happened) -> StoredEvent:
    if event.kind == _FINISHED:
        part, worker, attempt, status, closes = event.values
        return Finished(uuid, part, worker, attempt, status, event.body, closes)
    made: StoredEvent = _EVENTS[event.kind](uuid, *event.values)
    return made


def _added(kept: Kept) -> JobAdded:
    """What many jobs have alike is one object."""
    service, task, (kind, names), client, dialect, holder, userid, ttl_s, parts = kept.values
    who = (client, Dialect(dialect), intern(holder), userid)
    target = _target(kind, tuple(names))
    return JobAdded(kept.uuid, intern(service), intern(task), target, kept.body, *who, ttl_s, tuple(parts))


@lru_cache(1024)
def _target(kind: Kind, workers: tuple[str, ...]) -> Target:
    return Target(kind, workers)


def forget_workers(connection: sqlite3.Connection, known_max: int = KNOWN_MAX) -> None:
    """Delete the names of workers that left first when there are too many."""
    connection.execute(_FORGET_WORKERS, {"kind": _WORKER, "left": _LEFT, "most": known_max})


class NoStore:
    """The store switched off: nothing waits, nothing is kept."""

    position = 0
    committed = -1
    broken = ""
    lost = 0

    async def open(self) -> Snapshot:
        """Nothing."""
        return Snapshot()

    def put(self, op: Op) -> None:
        """Forgets ``op``."""

    def commit(self, *, waited: bool = True) -> None:
        """Has nothing to do."""

    def find_closed(self, uuid: str) -> StoredJob | None:
        """Nothing was kept."""
        return None

    async def close(self, timeout_s: float = 0.0) -> int:
        """Nothing is left unwritten."""
        return 0
