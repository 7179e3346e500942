"""The schema of our stores, which is the same for a broker, a worker and a client: jobs, what happened to them, names.

A job is written down as it came (``jobs``), and each event of its life behind it (``events``); nothing of it changes
until all of it is deleted. Whoever starts from a file applies the events again, in their order. A body stands apart
from what else is known of a job or an event, so that a start need not read it. What belongs to no job is kept by its
kind and name, the latest only (``names``). Times are of the store's clock (see ``clock``), but for ``jobs.wall``.

Operations are NamedTuples, whose classes ``Operations`` knows: those about a job begin with its uuid, and may have a
field ``body``; the other fields are written as MessagePack. They are written one after the other as they were put. A
uuid that is there stays as it is, and an event of a job that is not there changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
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
_JOBS: Final = "SELECT number, uuid, at, wall, data, length(body) FROM jobs ORDER BY number"
_NAMED_JOBS: Final = """
SELECT j.number, j.uuid, j.at, j.wall, j.data, j.body FROM json_each(?) o CROSS JOIN jobs j ON j.uuid = o.value
ORDER BY j.number
"""
_EVENTS: Final = "SELECT kind, at, data, {} FROM events WHERE job = ? AND kind {} ORDER BY seq"
_NAMES: Final = "SELECT name, data FROM names WHERE kind = ? ORDER BY at, name"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class Named(NamedTuple):
    """``values`` are kept under a name from now on, in place of others; None: nothing is."""

    kind: str
    name: str
    values: tuple[Any, ...] | None


class Event(NamedTuple):
    """Something that happened to a job, as it is in a file."""

    op: Any
    at: float
    size: int
    """Bytes of its body, whether that was read or not."""


class Kept(NamedTuple):
    """A job as it is in a file; bodies are b"" unless they were asked for."""

    added: Any
    at: float
    wall: float
    size: int
    """Bytes of its body."""
    events: list[Event]


class Operations:
    """What a party writes down about jobs.

    Args:
        added: begins a job. events: happen to it. latest: those of them of which a job keeps the last one only, so that
            they take no room however often they happen. names: of operations that are about no job, what each keeps.
    """

    def __init__(
        self,
        added: type,
        *events: type,
        latest: frozenset[type] = frozenset(),
        names: Mapping[type, Callable[[Any], Named]] = MappingProxyType({}),
    ) -> None:
        self._added = added
        self._latest = latest
        self._names = names
        self._classes = {cls.__name__: cls for cls in events}
        self._bodies = {cls: _place_of_body(cls) for cls in (added, *events)}

    def write(self, clock: StoreClock, connection: sqlite3.Connection, operations: Iterable[Any]) -> None:
        """Write ``operations`` within the transaction of the caller.

        Raises:
            sqlite3.Error: the disk fails, or a value cannot be held. KeyError, UnicodeError: it is no operation.
        """
        moment = clock.save(connection)
        execute = connection.execute
        for op in operations:
            cls = type(op)
            if cls in self._names:
                kind, name, kept = self._names[cls](op)
                if kept is None:
                    execute(_UNNAME, (kind, name))
                else:
                    execute(_NAME, (kind, name, moment.at, _encode(kept)))
                continue
            if cls is Forgotten:
                for statement in _FORGET:
                    execute(statement, op)
                continue
            place = self._bodies[cls]
            values = list(op[1:])
            body = values.pop(place) if place is not None else b""
            if cls is self._added:
                execute(_ADD, (op.uuid, moment.at, moment.wall, _encode(values), body))
                continue
            if cls in self._latest:
                execute(_REPLACE, (op.uuid, cls.__name__))
            execute(_HAPPEN, (moment.at, cls.__name__, _encode(values), body, op.uuid))

    def read(
        self, connection: sqlite3.Connection, uuids: Iterable[str] | None = None, *, only: str = ""
    ) -> Iterator[Kept]:
        """All jobs without their bodies, or those of ``uuids`` with theirs, in the order they were added.

        ``only``: their events of this kind, "": all.
        """
        kinds = f"= '{only}'" if only else "<> ''"
        if uuids is None:
            jobs, events = connection.execute(_JOBS), _EVENTS.format("length(body)", kinds)
        else:
            names = msgspec.json.encode(list(uuids)).decode()
            jobs, events = connection.execute(_NAMED_JOBS, (names,)), _EVENTS.format("body", kinds)
        for number, uuid, at, wall, data, body in jobs:
            happened = [
                Event(self._made(self._classes[kind], uuid, more, its), happened_at, _size(its))
                for kind, happened_at, more, its in connection.execute(events, (number,))
            ]
            yield Kept(self._made(self._added, uuid, data, body), at, wall, _size(body), happened)

    def _made(self, cls: type, uuid: str, data: bytes, body: bytes | int) -> Any:
        values = _decode(data)
        place = self._bodies[cls]
        if place is not None:
            values.insert(place, body if isinstance(body, bytes) else b"")
        return cls(uuid, *values)


def _place_of_body(cls: Any) -> int | None:
    """Where a body stands behind the uuid."""
    return cls._fields.index("body") - 1 if "body" in cls._fields else None


def _size(body: bytes | int) -> int:
    return len(body) if isinstance(body, bytes) else body


def names_of(connection: sqlite3.Connection, kind: str) -> list[tuple[str, list[Any]]]:
    """What is kept by name, the earliest first."""
    return [(name, _decode(data)) for name, data in connection.execute(_NAMES, (kind,))]
