"""The broker's operations -> rows of its tables (see ``schema``), one after the other as they were put.

A part that has its result stays as it is; an acceptance counts for the attempt that is under way; the first owner and
the first result of a part and the first end of a job are the ones recorded. An operation for a job that is not there
changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from broker.nfp import records
from broker.nfp.records import Op
from broker.nfp.store.clock import Moment, StoreClock
from broker.nfp.store.schema import ACCEPTED, DISPATCHED, LOST, WAITING

_JOB_ADDED: Final = """
INSERT INTO jobs
    (uuid, service, task, target, client, dialect, holder, userid, ttl_s, submitted_s, at, body, parts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uuid) DO NOTHING
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
INSERT INTO closed (job, state, at) SELECT id, :closes, :at FROM jobs WHERE uuid = :uuid ON CONFLICT (job) DO NOTHING
"""
_FORGOTTEN: Final = (
    "DELETE FROM results WHERE part IN (SELECT p.id FROM jobs j CROSS JOIN parts p ON p.job = j.id WHERE j.uuid = ?)",
    "DELETE FROM parts WHERE job = (SELECT id FROM jobs WHERE uuid = ?)",
    "DELETE FROM closed WHERE job = (SELECT id FROM jobs WHERE uuid = ?)",
    "DELETE FROM jobs WHERE uuid = ?",
)
_WORKER_SEEN: Final = "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?)"
_WORKER_LOST: Final = f"UPDATE workers SET gone = {LOST} WHERE name = :name AND gone IS NULL"  # noqa: S608
_WORKER_LEFT: Final = f"UPDATE workers SET gone = :at WHERE name = :name AND (gone IS NULL OR gone = {LOST})"  # noqa: S608
_PINNED: Final = "INSERT OR REPLACE INTO pins VALUES (?, ?, ?)"
_UNPINNED: Final = "DELETE FROM pins WHERE name = ?"
_USED: Final = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (holder, key, service) DO UPDATE SET
    jobs = jobs + excluded.jobs, failed = failed + excluded.failed, bytes_in = bytes_in + excluded.bytes_in,
    bytes_out = bytes_out + excluded.bytes_out, busy_s = busy_s + excluded.busy_s,
    expired = expired + excluded.expired, cancelled = cancelled + excluded.cancelled
"""
_UNUSED: Final = "DELETE FROM usage WHERE holder = :holder AND key = :key AND service = :service"

_encode: Final = msgspec.json.Encoder().encode
_Execute = Callable[[str, Sequence[Any] | dict[str, Any]], sqlite3.Cursor]


def write(connection: sqlite3.Connection, operations: list[Op], clock: StoreClock) -> None:
    """Write ``operations`` within the transaction of the caller.

    Raises:
        sqlite3.Error: the disk fails, or a value cannot be held. KeyError, UnicodeError: it is no operation.
    """
    moment = clock.save(connection)
    execute = connection.execute
    for op in operations:
        statement = _PLAIN.get(type(op))
        if statement is not None:
            execute(statement, op._asdict())
        else:
            _WRITE[type(op)](execute, op, moment)


def _job_added(execute: _Execute, op: records.JobAdded, moment: Moment) -> None:
    who = (op.client.hex(), op.dialect.value, op.holder, op.userid)
    target, parts = _encode(op.target).decode(), _encode(op.parts).decode()
    times = (op.ttl_s, moment.wall, moment.at)
    execute(_JOB_ADDED, (op.uuid, op.service, op.task, target, *who, *times, op.body, parts))


def _finished(execute: _Execute, op: records.Finished, moment: Moment) -> None:
    result = op._asdict()
    if not execute(_FINISHED, result).rowcount:  # never given to anybody, it has no row of its own
        execute(_PART_ADDED, result)
        execute(_FINISHED, result)
    if op.closes:
        execute(_CLOSED, result | {"at": moment.at})


def _forgotten(execute: _Execute, op: records.Forgotten, _: Moment) -> None:
    for statement in _FORGOTTEN:
        execute(statement, op)


def _worker_seen(execute: _Execute, op: records.WorkerSeen, _: Moment) -> None:
    execute(_WORKER_SEEN, (op.name, op.service, op.dialect.value, op.key, LOST if op.lost else None))


def _worker_lost(execute: _Execute, op: records.WorkerLost, _: Moment) -> None:
    execute(_WORKER_LOST, {"name": op.name})


def _worker_left(execute: _Execute, op: records.WorkerLeft, moment: Moment) -> None:
    execute(_WORKER_LEFT, {"name": op.name, "at": moment.at})


def _used(execute: _Execute, op: records.Used, _: Moment) -> None:
    execute(_USED, op)


def _pinned(execute: _Execute, op: records.Pinned, moment: Moment) -> None:
    if op.key:
        execute(_PINNED, (*op, moment.at))
    else:
        execute(_UNPINNED, (op.name,))


_PLAIN: Final[dict[type, str]] = {
    records.PartAdded: _PART_ADDED,
    records.Dispatched: _DISPATCHED,
    records.Accepted: _ACCEPTED,
    records.Returned: _RETURNED,
    records.Owned: _OWNED,
    records.Unused: _UNUSED,
}
"""What takes the fields of an operation by their names."""
_WRITE: Final[dict[type, Callable[[_Execute, Any, Moment], None]]] = {
    records.JobAdded: _job_added,
    records.Finished: _finished,
    records.Forgotten: _forgotten,
    records.WorkerSeen: _worker_seen,
    records.WorkerLost: _worker_lost,
    records.WorkerLeft: _worker_left,
    records.Pinned: _pinned,
    records.Used: _used,
}
