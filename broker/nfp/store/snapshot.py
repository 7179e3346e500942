"""What a broker finds at its start: rows -> ``Snapshot``; closed jobs are read afterwards, some at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from broker.nfp.names import Dialect
from broker.nfp.records import JobAdded, JobRow, Pinned, SlotRow, Snapshot, WorkerSeen
from broker.nfp.store.intake import encode
from broker.nfp.store.schema import STATES, TAKEN_ONCE
from broker.nfp.targets import Kind, Target

_OPEN: Final = "SELECT id FROM jobs EXCEPT SELECT job FROM closed ORDER BY 1"
_CLOSED: Final = (
    "SELECT j.uuid FROM closed c CROSS JOIN jobs j ON j.id = c.job ORDER BY c.at DESC, c.job DESC"
)
_NAMED: Final = "SELECT j.id FROM json_each(?) o CROSS JOIN jobs j ON j.uuid = o.value"
_JOBS: Final = """
SELECT j.id, j.uuid, j.service, j.task, j.target, j.body, j.client, j.dialect, j.holder, j.userid, j.ttl_s,
    j.submitted_s, j.at, c.state, c.at
FROM json_each(?) o CROSS JOIN jobs j ON j.id = o.value LEFT JOIN closed c ON c.job = j.id
"""
_SLOTS: Final = """
SELECT s.job, s.id, s.slot, s.worker, s.attempt, s.state, s.earlier, s.owner,
    r.worker, r.attempt, r.status, r.body
FROM json_each(?) o CROSS JOIN slots s ON s.job = o.value LEFT JOIN results r ON r.slot = s.id
"""
_PINS: Final = "SELECT name, key FROM pins ORDER BY at, name"
_WORKERS: Final = "SELECT name, service, dialect, key FROM workers WHERE gone IS NULL"
_KNOWN: Final = "SELECT name FROM workers WHERE gone IS NOT NULL ORDER BY gone, name"
_target = msgspec.json.Decoder(tuple[Kind, tuple[str, ...]])
"""Not of Target: a NamedTuple that is compiled keeps no annotations to decode by."""
_earlier = msgspec.json.Decoder(list[tuple[str, int]])


def read(connection: sqlite3.Connection, now: float) -> Snapshot:
    """Everything but closed jobs, with ages at ``now`` (store clock)."""
    ids = [row[0] for row in connection.execute(_OPEN)]
    return Snapshot(
        tuple(_rows(connection, ids, now)),
        tuple(
            WorkerSeen(name, service, Dialect(dialect), key)
            for name, service, dialect, key in connection.execute(_WORKERS)
        ),
        tuple(Pinned(*row) for row in connection.execute(_PINS)),
        tuple(row[0] for row in connection.execute(_CLOSED)),
        tuple(row[0] for row in connection.execute(_KNOWN)),
    )


def named(connection: sqlite3.Connection, now: float, uuids: Iterable[str]) -> list[JobRow]:
    """Those of these jobs that are there."""
    ids = [row[0] for row in connection.execute(_NAMED, (encode(list(uuids)).decode(),))]
    return _rows(connection, ids, now)


def _rows(connection: sqlite3.Connection, ids: Sequence[int], now: float) -> list[JobRow]:
    """The jobs ``ids``, in this order."""
    asked = (encode(ids).decode(),)
    slots: dict[int, list[tuple[int, SlotRow]]] = {}
    for job, number, *row in connection.execute(_SLOTS, asked):
        slots.setdefault(job, []).append((number, _slot(*row)))
    found = {}
    for row in connection.execute(_JOBS, asked):
        mine = sorted(slots.pop(row[0], ()), key=_number)
        found[row[0]] = _job(row, tuple(slot for _, slot in mine), now)
    return [found[each] for each in ids]


def _number(entry: tuple[int, SlotRow]) -> int:
    return entry[0]


def _job(row: tuple[Any, ...], slots: tuple[SlotRow, ...], now: float) -> JobRow:
    (
        uuid,
        service,
        task,
        target,
        body,
        client,
        dialect,
        holder,
        userid,
        ttl_s,
        submitted_s,
        at,
        state,
        ended,
    ) = row[1:]
    added = JobAdded(
        uuid, service, task, Target(*_target.decode(target)), body, bytes.fromhex(client), Dialect(dialect), holder,
        userid, ttl_s,
    )  # fmt: skip
    closed_age_s = 0.0 if ended is None else max(0.0, now - ended)
    return JobRow(added, submitted_s, max(0.0, now - at), state or "open", closed_age_s, slots)


def _slot(slot: str, worker: str, attempt: int, step: int, earlier: str, owner: str, *result: Any) -> SlotRow:
    given = tuple(_earlier.decode(earlier)) + (((worker, attempt),) if attempt else ())
    by, at, status, body = result
    if by is None:
        once = step == TAKEN_ONCE
        return SlotRow(slot, worker, attempt, STATES[step], workers=given, owner=owner, repeat=not once)
    return SlotRow(slot, by, at, STATES[step], status, body, given, owner)
