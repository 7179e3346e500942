"""The broker's operations -> rows of its tables (see ``schema``), one after the other as they were put.

A part that has its result stays as it is; an acceptance counts for the attempt that is under way; the first owner and
the first result of a part and the first end of a job are the ones recorded. An operation for a job that is not there
changes nothing.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from broker.nfp import records
from broker.nfp.records import Op
from broker.nfp.store.clock import StoreClock
from broker.nfp.store.schema import ACCEPTED, DISPATCHED, LOST, WAITING

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
_USED: Final = """
INSERT INTO usage
VALUES (:holder, :key, :service, :jobs, :failed, :bytes_in, :bytes_out, :busy_s, :expired, :cancelled)
ON CONFLICT (holder, key, service) DO UPDATE SET
    jobs = jobs + excluded.jobs, failed = failed + excluded.failed, bytes_in = bytes_in + excluded.bytes_in,
    bytes_out = bytes_out + excluded.bytes_out, busy_s = busy_s + excluded.busy_s,
    expired = expired + excluded.expired, cancelled = cancelled + excluded.cancelled
"""
_UNUSED: Final = "DELETE FROM usage WHERE holder = :holder AND key = :key AND service = :service"

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
    records.Used: (_USED,),
    records.Unused: (_UNUSED,),
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
