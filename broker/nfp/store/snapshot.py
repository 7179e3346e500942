"""What a broker finds at its start: rows -> ``Snapshot``; bodies and results of closed jobs are read on demand."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from sys import intern
from typing import Any, Final

import msgspec

from broker.nfp.names import Dialect
from broker.nfp.records import ClosedRow, JobAdded, JobRow, PartRow, Pinned, Snapshot, WorkerSeen
from broker.nfp.store.schema import LOST, STATES
from broker.nfp.targets import Kind, Target

_OPEN: Final = "SELECT id FROM jobs EXCEPT SELECT job FROM closed ORDER BY 1"
_CLOSED: Final = """
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
    ids = [row[0] for row in connection.execute(_OPEN)]
    return Snapshot(
        tuple(_rows(connection, ids, now)),
        tuple(
            WorkerSeen(name, service, Dialect(dialect), key, bool(lost))
            for name, service, dialect, key, lost in connection.execute(_WORKERS)
        ),
        tuple(Pinned(*row) for row in connection.execute(_PINS)),
        tuple(ClosedRow(_job(row[:15], {}, now), *row[15:]) for row in connection.execute(_CLOSED)),
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
