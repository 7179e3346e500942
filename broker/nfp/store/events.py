"""The schema of our stores, which is the same for a broker, a worker and a client: jobs, what happened to them, names.

A job is written down as it came (``jobs``), and each event of its life behind it (``events``); nothing of it changes
until all of it is deleted. Whoever starts from a file applies the events again, in their order. A body stands apart
from what else is known of a job or an event, so that a start need not read it. What belongs to no job is kept by its
kind and name, the latest only (``names``). Times are of the store's clock (see ``clock``), but for ``jobs.wall``.

Operations are written one after the other as they were put, their values as MessagePack. A uuid that is there stays as
it is, and an event of a job that is not there changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from broker.nfp.records import Forgotten
from broker.nfp.store import clock as clocks
from broker.nfp.store.clock import StoreClock

TABLES: Final = f"""
{clocks.TABLE}
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, at REAL NOT NULL, wall REAL NOT NULL,
    data BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
    data BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX events_of_job ON events (job);
CREATE TABLE names (
    kind TEXT NOT NULL, name TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (kind, name)) WITHOUT ROWID
"""

_ADD: Final = (
    "INSERT INTO jobs (uuid, at, wall, data, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (uuid) DO NOTHING"
)
_HAPPEN: Final = """
INSERT INTO events (job, at, kind, data, body) SELECT number, ?, ?, ?, ? FROM jobs WHERE uuid = ?
"""
_REPLACE: Final = "DELETE FROM events WHERE job = (SELECT number FROM jobs WHERE uuid = ?) AND kind = ?"
_FORGET: Final = (
    "DELETE FROM events WHERE job = (SELECT number FROM jobs WHERE uuid = ?)",
    "DELETE FROM jobs WHERE uuid = ?",
)
_NAME: Final = "INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)"
_UNNAME: Final = "DELETE FROM names WHERE kind = ? AND name = ?"
_JOBS: Final = "SELECT number, uuid, at, wall, data, x'', length(body) FROM jobs ORDER BY number"
_NAMED_JOBS: Final = """
SELECT number, uuid, at, wall, data, body, length(body) FROM json_each(?) o CROSS JOIN jobs ON uuid = o.value
ORDER BY number
"""
_EVENTS: Final = "SELECT kind, at, data, {} FROM events WHERE job = ? AND kind {} ORDER BY seq"
_NAMES: Final = "SELECT name, data FROM names WHERE kind = ? ORDER BY at, name"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class Added(NamedTuple):
    """A job begins."""

    uuid: str
    values: Any
    body: bytes


class Event(NamedTuple):
    """Something happens to a job; ``latest``: of this kind the job keeps the last one only."""

    uuid: str
    kind: str
    values: Any
    body: bytes = b""
    latest: bool = False


class Named(NamedTuple):
    """``values`` are kept under a name from now on, in place of others; None: nothing is."""

    kind: str
    name: str
    values: Any


class Happened(NamedTuple):
    """An event as it is in a file."""

    kind: str
    at: float
    values: Any
    body: bytes
    """b"" where bodies are not asked for."""
    size: int
    """Of the body."""


class Kept(NamedTuple):
    """A job as it is in a file."""

    uuid: str
    at: float
    wall: float
    values: Any
    body: bytes
    """b"" where bodies are not asked for."""
    size: int
    """Of the body."""
    events: list[Happened]


def write(
    clock: StoreClock,
    connection: sqlite3.Connection,
    operations: Iterable[Added | Event | Forgotten | Named],
) -> None:
    """Write ``operations`` within the transaction of the caller.

    Raises:
        sqlite3.Error: the disk fails, or a value cannot be held. Exception: it is no operation.
    """
    moment = clock.save(connection)
    execute = connection.execute
    for op in operations:
        if isinstance(op, Event):
            if op.latest:
                execute(_REPLACE, (op.uuid, op.kind))
            execute(_HAPPEN, (moment.at, op.kind, _encode(op.values), op.body, op.uuid))
        elif isinstance(op, Added):
            execute(_ADD, (op.uuid, moment.at, moment.wall, _encode(op.values), op.body))
        elif isinstance(op, Forgotten):
            for statement in _FORGET:
                execute(statement, op)
        elif op.values is None:
            execute(_UNNAME, (op.kind, op.name))
        else:
            execute(_NAME, (op.kind, op.name, moment.at, _encode(op.values)))


def read(
    connection: sqlite3.Connection, uuids: Iterable[str] | None = None, *, only: str = ""
) -> Iterator[Kept]:
    """All jobs without their bodies, or those of ``uuids`` with theirs, in the order they were added.

    ``only``: their events of this kind, "": all.
    """
    kinds = f"= '{only}'" if only else "<> ''"
    if uuids is None:
        jobs, events = connection.execute(_JOBS), _EVENTS.format("x'', length(body)", kinds)
    else:
        names = msgspec.json.encode(list(uuids)).decode()
        jobs, events = connection.execute(_NAMED_JOBS, (names,)), _EVENTS.format("body, length(body)", kinds)
    for number, uuid, at, wall, data, body, size in jobs:
        happened = [
            Happened(kind, happened_at, _decode(more), its, its_size)
            for kind, happened_at, more, its, its_size in connection.execute(events, (number,))
        ]
        yield Kept(uuid, at, wall, _decode(data), body, size, happened)


def names_of(connection: sqlite3.Connection, kind: str) -> list[tuple[str, list[Any]]]:
    """What is kept by name, the earliest first."""
    return [(name, _decode(data)) for name, data in connection.execute(_NAMES, (kind,))]
