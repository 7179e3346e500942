"""The tables of the broker's store: operations -> rows, and rows -> what a broker starts from.

A row that holds a body is written once and never updated (SQLite would rewrite the whole body): what changes lives in
``parts``, and ``closed`` says that a job has ended. A part is final when it has a row in ``results``; one that was
never given to anybody stands in ``jobs.parts`` alone, a JSON array of names. ``parts.earlier`` is a JSON array of the
[worker, attempt] pairs that it was given to before the present one, ``parts.owner`` who a client was told has it.
``workers.gone`` is when a worker left, NULL while it is there, ``LOST`` while its connection is broken. Times are of
the store's clock (see ``clock``), but for ``jobs.submitted_s``.

Operations are written one after the other as they were put. A part that has its result stays as it is; an acceptance
counts for the attempt that is under way; the first owner and the first result of a part and the first end of a job are
the ones recorded. An operation for a job that is not there changes nothing. Bodies and results of closed jobs are read
on demand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from sys import intern
from typing import Any, Final

import msgspec

from broker.nfp import records
from broker.nfp.names import Dialect
from broker.nfp.records import (
    KNOWN_MAX,
    ClosedRow,
    JobAdded,
    JobRow,
    Op,
    PartRow,
    Pinned,
    Snapshot,
    WorkerSeen,
)
from broker.nfp.store import clock as clocks
from broker.nfp.store.clock import StoreClock
from broker.nfp.store.database import Schema
from broker.nfp.targets import Kind, Target

WAITING, DISPATCHED, ACCEPTED = range(3)
"""``parts.state``; what a final part was in before stays there."""
STATES: Final = ("waiting", "dispatched", "accepted")

LOST: Final = -1.0
"""``workers.gone``; the store's clock has no such time."""

_TABLES: Final = f"""
{clocks.TABLE}
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, service TEXT NOT NULL, task TEXT NOT NULL, target TEXT NOT NULL,
    client TEXT NOT NULL, dialect TEXT NOT NULL, holder TEXT NOT NULL, userid INTEGER NOT NULL, ttl_s REAL NOT NULL,
    submitted_s REAL NOT NULL, at REAL NOT NULL, body BLOB NOT NULL, parts TEXT NOT NULL);
CREATE TABLE parts (
    id INTEGER PRIMARY KEY, job INTEGER NOT NULL, part TEXT NOT NULL, worker TEXT NOT NULL, attempt INTEGER NOT NULL,
    state INTEGER NOT NULL, earlier TEXT NOT NULL DEFAULT '[]', owner TEXT NOT NULL DEFAULT '', UNIQUE (job, part));
CREATE TABLE results (
    part INTEGER PRIMARY KEY, worker TEXT NOT NULL, attempt INTEGER NOT NULL, status INTEGER NOT NULL,
    body BLOB NOT NULL);
CREATE TABLE closed (job INTEGER PRIMARY KEY, state TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE workers (
    name TEXT PRIMARY KEY, service TEXT NOT NULL, dialect TEXT NOT NULL, key TEXT NOT NULL, gone REAL) WITHOUT ROWID;
CREATE TABLE pins (name TEXT PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID
"""

SCHEMA: Final = Schema("broker store", int.from_bytes(b"NFPb"), 5, _TABLES)


# -- operations -> rows ------------------------------------------------------------------------------

_JOB_ADDED: Final = """
INSERT INTO jobs
    (uuid, service, task, target, client, dialect, holder, userid, ttl_s, submitted_s, at, body, parts)
VALUES (:uuid, :service, :task, :target, :client, :dialect, :holder, :userid, :ttl_s, :wall, :now, :body, :parts)
ON CONFLICT (uuid) DO NOTHING
"""
_PART_ADDED: Final = f"""
INSERT INTO parts (job, part, worker, attempt, state) SELECT id, :part, '', 0, {WAITING} FROM jobs WHERE uuid = :uuid
ON CONFLICT (job, part) DO NOTHING
"""  # noqa: S608 - our own words only, in all of these
_DISPATCHED: Final = f"""
INSERT INTO parts (job, part, worker, attempt, state)
SELECT id, :part, :worker, :attempt, {DISPATCHED} FROM jobs WHERE uuid = :uuid
ON CONFLICT (job, part) DO UPDATE SET
    earlier = CASE WHEN attempt > 0 THEN json_insert(earlier, '$[#]', json_array(worker, attempt)) ELSE earlier END,
    worker = excluded.worker, attempt = excluded.attempt, state = excluded.state
WHERE NOT EXISTS (SELECT 1 FROM results r WHERE r.part = parts.id)
"""  # noqa: S608
_ACCEPTED: Final = f"""
UPDATE parts SET state = {ACCEPTED}
WHERE job = (SELECT id FROM jobs WHERE uuid = :uuid) AND part = :part AND attempt = :attempt AND state = {DISPATCHED}
"""  # noqa: S608
_RETURNED: Final = f"""
UPDATE parts SET state = {WAITING} WHERE job = (SELECT id FROM jobs WHERE uuid = :uuid) AND part = :part
"""  # noqa: S608
_OWNED: Final = f"""
INSERT INTO parts (job, part, worker, attempt, state, owner)
SELECT id, '', '', 0, {WAITING}, :worker FROM jobs WHERE uuid = :uuid
ON CONFLICT (job, part) DO UPDATE SET owner = excluded.owner WHERE owner = ''
"""  # noqa: S608
_FINISHED: Final = """
INSERT INTO results (part, worker, attempt, status, body)
SELECT p.id, :worker, :attempt, :status, :body
FROM jobs j CROSS JOIN parts p ON p.job = j.id AND p.part = :part WHERE j.uuid = :uuid
ON CONFLICT (part) DO NOTHING
"""
_CLOSED: Final = """
INSERT INTO closed (job, state, at) SELECT id, :closes, :now FROM jobs WHERE uuid = :uuid AND :closes <> ''
ON CONFLICT (job) DO NOTHING
"""
_FORGOTTEN: Final = (
    (
        "DELETE FROM results WHERE part IN"
        " (SELECT p.id FROM jobs j CROSS JOIN parts p ON p.job = j.id WHERE j.uuid = :uuid)"
    ),
    "DELETE FROM parts WHERE job = (SELECT id FROM jobs WHERE uuid = :uuid)",
    "DELETE FROM closed WHERE job = (SELECT id FROM jobs WHERE uuid = :uuid)",
    "DELETE FROM jobs WHERE uuid = :uuid",
)
_WORKER_SEEN: Final = f"""
INSERT OR REPLACE INTO workers VALUES (:name, :service, :dialect, :key, CASE WHEN :lost THEN {LOST} END)
"""  # noqa: S608
_WORKER_LOST: Final = f"UPDATE workers SET gone = {LOST} WHERE name = :name AND gone IS NULL"  # noqa: S608
_WORKER_LEFT: Final = f"UPDATE workers SET gone = :now WHERE name = :name AND (gone IS NULL OR gone = {LOST})"  # noqa: S608
_PINNED: Final = (
    "DELETE FROM pins WHERE name = :name",
    "INSERT INTO pins SELECT :name, :key, :now WHERE :key <> ''",
)

_STATEMENTS: Final[dict[type, tuple[str, ...]]] = {
    records.JobAdded: (_JOB_ADDED,),
    records.PartAdded: (_PART_ADDED,),
    records.Dispatched: (_DISPATCHED,),
    records.Accepted: (_ACCEPTED,),
    records.Returned: (_RETURNED,),
    records.Owned: (_OWNED,),
    records.Finished: (_CLOSED,),  # behind what ``write`` does
    records.Forgotten: _FORGOTTEN,
    records.WorkerSeen: (_WORKER_SEEN,),
    records.WorkerLost: (_WORKER_LOST,),
    records.WorkerLeft: (_WORKER_LEFT,),
    records.Pinned: _PINNED,
}
"""What is executed for an operation, with its fields and the time by their names."""
_encode: Final = msgspec.json.Encoder().encode


def write(connection: sqlite3.Connection, operations: list[Op], clock: StoreClock) -> None:
    """Write ``operations`` within the transaction of the caller.

    Raises:
        sqlite3.Error: the disk fails, or a value cannot be held. KeyError, UnicodeError: it is no operation.
    """
    moment = clock.save(connection)
    execute = connection.execute
    for op in operations:
        statements = _STATEMENTS[type(op)]
        values = op._asdict()
        values["now"] = moment.at
        if isinstance(op, records.JobAdded):
            values |= {"target": _encode(op.target).decode(), "parts": _encode(op.parts).decode()}
            values |= {"client": op.client.hex(), "dialect": op.dialect.value, "wall": moment.wall}
        elif isinstance(op, records.WorkerSeen):
            values["dialect"] = op.dialect.value
        elif isinstance(op, records.Finished) and not execute(_FINISHED, values).rowcount:
            execute(_PART_ADDED, values)  # it was never given to anybody, and has no row yet
            execute(_FINISHED, values)
        for statement in statements:
            execute(statement, values)


# -- rows -> what a broker starts from ---------------------------------------------------------------

_OPEN_IDS: Final = "SELECT id FROM jobs EXCEPT SELECT job FROM closed ORDER BY 1"
_CLOSED_JOBS: Final = """
SELECT j.uuid, j.service, j.task, j.target, x'', j.client, j.dialect, j.holder, j.userid, j.ttl_s,
    j.submitted_s, j.at, '[]', c.state, c.at,
    (SELECT count(*) FROM parts p WHERE p.job = j.id), length(j.body),
    (SELECT ifnull(sum(length(r.body)), 0) FROM parts p CROSS JOIN results r ON r.part = p.id WHERE p.job = j.id)
FROM closed c CROSS JOIN jobs j ON j.id = c.job ORDER BY c.at, c.job
"""  # the length of a body stands before it: no body is read
_NAMED: Final = "SELECT j.id FROM json_each(?) o CROSS JOIN jobs j ON j.uuid = o.value"
_JOBS: Final = """
SELECT j.id, j.uuid, j.service, j.task, j.target, j.body, j.client, j.dialect, j.holder, j.userid, j.ttl_s,
    j.submitted_s, j.at, j.parts, c.state, c.at
FROM json_each(?) o CROSS JOIN jobs j ON j.id = o.value LEFT JOIN closed c ON c.job = j.id
"""
_PARTS: Final = """
SELECT p.job, p.part, p.worker, p.attempt, p.state, p.earlier, p.owner, r.worker, r.attempt, r.status, r.body
FROM json_each(?) o CROSS JOIN parts p ON p.job = o.value LEFT JOIN results r ON r.part = p.id
ORDER BY p.id
"""
_PINS: Final = "SELECT name, key FROM pins ORDER BY at, name"
_WORKERS: Final = f"""
SELECT name, service, dialect, key, gone IS NOT NULL FROM workers WHERE gone IS NULL OR gone = {LOST}
"""  # noqa: S608
_KNOWN: Final = f"SELECT name FROM workers WHERE gone IS NOT NULL AND gone <> {LOST} ORDER BY gone, name"  # noqa: S608
_kind_and_names = msgspec.json.Decoder(tuple[Kind, tuple[str, ...]])
"""Not of Target: a NamedTuple that is compiled keeps no annotations to decode by."""
_DIALECTS: Final = {dialect.value: dialect for dialect in Dialect}
_names = msgspec.json.Decoder(tuple[str, ...])
_earlier = msgspec.json.Decoder(list[tuple[str, int]])


def read(connection: sqlite3.Connection, now: float) -> Snapshot:
    """Everything but bodies and results of closed jobs, with ages at ``now`` (store clock)."""
    ids = [row[0] for row in connection.execute(_OPEN_IDS)]
    return Snapshot(
        tuple(_rows(connection, ids, now)),
        tuple(
            WorkerSeen(name, service, Dialect(dialect), key, bool(lost))
            for name, service, dialect, key, lost in connection.execute(_WORKERS)
        ),
        tuple(Pinned(*row) for row in connection.execute(_PINS)),
        tuple(ClosedRow(_job(row[:15], {}, now), *row[15:]) for row in connection.execute(_CLOSED_JOBS)),
        tuple(row[0] for row in connection.execute(_KNOWN)),
    )


def named(connection: sqlite3.Connection, now: float, uuids: Iterable[str]) -> list[JobRow]:
    """Return the jobs of these uuids that are in the file."""
    ids = [row[0] for row in connection.execute(_NAMED, (_array(uuids),))]
    return _rows(connection, ids, now)


def _array(values: Iterable[int | str]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _rows(connection: sqlite3.Connection, ids: Sequence[int], now: float) -> list[JobRow]:
    """The jobs ``ids``, in this order."""
    asked = (_array(ids),)
    parts: dict[int, dict[str, PartRow]] = {}
    for job, *row in connection.execute(_PARTS, asked):
        parts.setdefault(job, {})[row[0]] = _part(*row)
    found = {row[0]: _job(row[1:], parts.pop(row[0], {}), now) for row in connection.execute(_JOBS, asked)}
    return [found[each] for each in ids]


def _job(row: tuple[Any, ...], parts: dict[str, PartRow], now: float) -> JobRow:
    uuid, service, task, target, body, client, dialect, holder, userid, ttl_s = row[:10]
    submitted_s, at, names, state, ended = row[10:]
    who = (_identity(client), _DIALECTS[dialect], intern(holder), userid)
    added = JobAdded(
        uuid, intern(service), intern(task), _target(target), body, *who, ttl_s, _names.decode(names)
    )
    every = {name: PartRow(name, "", 0, STATES[0]) for name in added.parts} | parts if added.parts else parts
    closed_age_s = 0.0 if ended is None else max(0.0, now - ended)
    return JobRow(
        added, submitted_s, max(0.0, now - at), state or "open", closed_age_s, tuple(every.values())
    )


@lru_cache(1024)  # most jobs have the same few, and share them
def _target(text: str) -> Target:
    return Target(*_kind_and_names.decode(text))


@lru_cache(1024)
def _identity(text: str) -> bytes:
    return bytes.fromhex(text)


def _part(
    part: str, worker: str, attempt: int, state: int, earlier: str, owner: str, *result: Any
) -> PartRow:
    given = tuple(_earlier.decode(earlier)) + (((worker, attempt),) if attempt else ())
    by, at, status, body = result
    if by is None:
        return PartRow(part, worker, attempt, STATES[state], workers=given, owner=owner)
    return PartRow(part, by, at, "final", status, body, given, owner)


def forget_workers(connection: sqlite3.Connection, known_max: int = KNOWN_MAX) -> None:
    """Delete the names of workers that left first when there are too many."""
    count = connection.execute("SELECT count(*) FROM workers WHERE gone IS NOT NULL").fetchone()[0]
    if count > known_max:
        connection.execute(
            "DELETE FROM workers WHERE name IN"
            " (SELECT name FROM workers WHERE gone IS NOT NULL ORDER BY gone LIMIT ?)",
            (count - known_max,),
        )
