"""Jobs of a worker or of a client on disk: rows with a state, bodies attached to them, retention.

The loop's thread knows all rows (small) and decides everything; the file only repeats what it is told. Bodies are in
the file alone, read when somebody asks. What is put goes into a commit by itself, a few milliseconds later unless
somebody waits for it (``durable``): a job that begins, ends and is recorded meanwhile costs one commit.

Retention. A row that is *settled* is dropped ``keep_s`` after its end, or earlier, the oldest first, while there
are more than ``keep_jobs`` or ``keep_bytes``. One that has ended but is not settled (a result nobody has confirmed)
has a day at least, and makes room only when no settled one is left. What has not ended stays.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from broker.nfp.store import clock as clocks
from broker.nfp.store.clock import Clock, StoreClock
from broker.nfp.store.database import MEMORY, Schema, Sync, give_back, open_database
from broker.nfp.store.thread import StoreThread

KEEP_S: Final = 24 * 3600.0
"""Results of yesterday can be asked for, unless a worker's ``keep_s`` or a client's says otherwise."""
KEEP_UNSETTLED_S: Final = KEEP_S
"""What has ended and is not settled has so long at least: a broker that was away still waits for the result."""
KEEP_BYTES: Final = 256 * 1024 * 1024
KEEP_JOBS: Final = 10_000
"""Their rows are in memory: a few megabytes."""
NEVER: Final = -1.0
SWEEP_MIN_S: Final = 1.0
"""Between two looks at what is too old."""

_TABLES: Final = f"""
{clocks.TABLE}
CREATE TABLE cards (
    number INTEGER PRIMARY KEY, uuid TEXT NOT NULL, service TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL,
    settled INTEGER NOT NULL, submitted_s REAL NOT NULL, at REAL NOT NULL, ended_at REAL NOT NULL, more TEXT NOT NULL);
CREATE TABLE bodies (
    id INTEGER PRIMARY KEY, number INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (number, name))
"""
_PUT_ROW: Final = "INSERT OR REPLACE INTO cards VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_BODY: Final = """
INSERT INTO bodies (number, name, body) VALUES (?, ?, ?)
ON CONFLICT (number, name) DO UPDATE SET body = excluded.body
"""


More = TypeVar("More", bound=msgspec.Struct)


def schema(what: str, application: bytes) -> Schema:
    """The schema of such a file, marked with four bytes of its own."""
    return Schema(what, int.from_bytes(application), 1, _TABLES)


class Retention(NamedTuple):
    """How much of what has ended is kept."""

    keep_s: float = KEEP_S
    keep_bytes: int = KEEP_BYTES
    keep_jobs: int = KEEP_JOBS


class Row(NamedTuple, Generic[More]):
    """What is known of a job without its bodies."""

    number: int
    uuid: str
    service: str
    task: str
    state: str
    settled: bool
    submitted_s: float
    """Wall clock, for people."""
    at: float
    """Store clock, when it was put here."""
    ended_at: float
    """Store clock."""
    more: More
    """What the owner keeps besides; JSON in the file."""


class _Body(NamedTuple):
    number: int
    name: str
    body: bytes


class _Dropped(NamedTuple):
    number: int


_Op = Row[Any] | _Body | _Dropped


class PeerStore(Generic[More]):
    """See the module; all methods belong to the loop's thread, and only async ones wait for the disk.

    Args:
        path: of the file. None: a database in memory, nothing survives and nobody waits for it.
        schema: of ``schema()``. more: the type of ``Row.more``. retention: of what has ended.
        broken: told why nothing can be written, at each failure.

    Attributes:
        rows: by uuid, in the order they were put.
        size: bytes of all bodies.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        schema: Schema,
        more: type[More],
        *,
        retention: Retention = Retention(),  # noqa: B008 - its values never change
        sync: Sync = "normal",
        broken: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.rows: dict[str, Row[More]] = {}
        self.size = 0
        self.retention = retention
        self._more = more
        self._loop = asyncio.get_running_loop()
        self._clock = StoreClock(clock)
        self._wall = (clock or Clock()).wall
        self._number = 0
        self._sizes: dict[int, dict[str, int]] = {}
        self._survives = path is not None
        self._settled: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        self._flush: asyncio.Handle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._thread: StoreThread[_Op] = StoreThread(
            partial(open_database, MEMORY if path is None else path, schema, sync),
            partial(_write, self._clock),
            self._loop,
            on_failed=None if broken is None else lambda text, ops: (broken(text), ops)[1],
            tidy=give_back,
            name=schema.what,
        )

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
        rows, sizes = await self._thread.start(partial(_read_all, self._clock, self._more))
        for row in rows:
            self.rows[row.uuid] = row
            self._number = max(self._number, row.number)
        for row in sorted(rows, key=lambda row: row.ended_at):
            self._file_away(row)
        for number, name, size in sizes:
            self._sizes.setdefault(number, {})[name] = size
            self.size += size
        self._sweep()

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

    # -- rows ----------------------------------------------------------------------------------

    def new(self, uuid: str, service: str, task: str, state: str, more: More) -> None:
        """Put a new row; one of this uuid must not be there."""
        self._number += 1
        times = (self._wall(), self._clock.now(), NEVER)
        row = self.rows[uuid] = Row(self._number, uuid, service, task, state, False, *times, more)
        self._put(row)

    def change(
        self, uuid: str, state: str, *, ends: bool = False, settled: bool = False, **more: Any
    ) -> None:
        """Put another state, and other values of ``Row.more``; ``settled`` says that it has ended, too.

        An unknown uuid changes nothing.
        """
        row = self.rows.get(uuid)
        if row is None:
            return
        ended_at = self._clock.now() if ends or (settled and row.ended_at < 0) else row.ended_at
        row = self.rows[uuid] = row._replace(
            state=state,
            settled=settled or row.settled,
            ended_at=ended_at,
            more=msgspec.structs.replace(row.more, **more),
        )
        self._put(row)
        self._file_away(row)
        if ended_at >= 0:
            self._sweep()

    def state(self, uuid: str) -> str:
        """The state of a job; "" for one that is not here."""
        row = self.rows.get(uuid)
        return row.state if row is not None else ""

    def attach(self, uuid: str, name: str, body: bytes) -> None:
        """Put a body, over an earlier one of this name. An unknown uuid changes nothing."""
        row = self.rows.get(uuid)
        if row is None:
            return
        number = row.number
        sizes = self._sizes.setdefault(number, {})
        self.size += len(body) - sizes.get(name, 0)
        sizes[name] = len(body)
        self._put(_Body(number, name, body))

    def drop(self, uuid: str) -> None:
        """Forget a job."""
        row = self.rows.pop(uuid, None)
        if row is None:
            return
        self._settled.pop(uuid, None)
        self._ended.pop(uuid, None)
        self.size -= sum(self._sizes.pop(row.number, {}).values())
        self._put(_Dropped(row.number))

    async def bodies(self, rows: Sequence[Row[More]]) -> list[dict[str, bytes]]:
        """The bodies of each of these, by name.

        Raises:
            NotStored: the file cannot be read.
        """
        if not rows:
            return []
        return await self._thread.ask(partial(_read_bodies, [row.number for row in rows]))

    def age_s(self, row: Row[More]) -> float:
        """Since it was put here; no step of the wall clock changes it."""
        return max(0.0, self._clock.now() - row.at)

    # -- retention -----------------------------------------------------------------------------

    def _file_away(self, row: Row[More]) -> None:
        if row.settled:
            self._ended.pop(row.uuid, None)
            self._settled.setdefault(row.uuid)
        elif row.ended_at >= 0:
            self._ended.setdefault(row.uuid)

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
        due = [self.rows[next(iter(group))].ended_at + keep_s for group, keep_s in self._groups() if group]
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
                if now - self.rows[uuid].ended_at < keep_s:
                    break
                yield uuid

    # -- the file ------------------------------------------------------------------------------

    def _put(self, op: _Op) -> None:
        self._thread.put(op)
        if self._flush is None:
            self._flush = self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Who waits for it has said so (``durable``); the rest may share a commit with what comes next."""
        self._flush = None
        self._thread.commit(waited=False)


def _write(clock: StoreClock, connection: sqlite3.Connection, operations: list[_Op]) -> None:
    """A group, sorted by kind: numbers are never used twice. Of a row only the latest state is written."""
    clock.save(connection)
    rows = {op.number: op for op in operations if type(op) is Row}
    encode = msgspec.json.encode
    connection.executemany(_PUT_ROW, ((*row[:-1], encode(row.more).decode()) for row in rows.values()))
    connection.executemany(_PUT_BODY, [op for op in operations if type(op) is _Body])
    dropped = [op for op in operations if type(op) is _Dropped]
    connection.executemany("DELETE FROM bodies WHERE number = ?", dropped)
    connection.executemany("DELETE FROM cards WHERE number = ?", dropped)


def _read_all(
    clock: StoreClock, more: type[More], connection: sqlite3.Connection
) -> tuple[list[Row[More]], list[tuple[int, str, int]]]:
    clock.load(connection)
    read = msgspec.json.Decoder(more).decode
    found = connection.execute("SELECT * FROM cards ORDER BY number")
    rows: list[Row[More]] = [Row._make((*row[:-1], read(row[-1]))) for row in found]
    return rows, connection.execute("SELECT number, name, length(body) FROM bodies").fetchall()


def _read_bodies(numbers: list[int], connection: sqlite3.Connection) -> list[dict[str, bytes]]:
    ask = "SELECT name, body FROM bodies WHERE number = ?"
    return [dict(connection.execute(ask, (number,)).fetchall()) for number in numbers]
