"""What a broker finds at its start: rows -> ``Snapshot``.

Three cursors walk jobs, slots and results side by side in the order of jobs, so that no row is held twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from broker.nfp.names import Dialect
from broker.nfp.records import JobAdded, JobRow, Pinned, SlotRow, Snapshot, WorkerSeen
from broker.nfp.store.schema import STATES
from broker.nfp.targets import Target

_JOBS = """
SELECT j.id, j.uuid, j.service, j.task, j.target, j.body, j.client, j.dialect, j.holder, j.userid, j.ttl_s,
    j.submitted_s, j.at, c.state, c.at
FROM jobs j LEFT JOIN closed c ON c.job = j.id ORDER BY j.id
"""
_SLOTS = """
SELECT s.job, s.slot, s.worker, s.attempt, s.state, s.earlier, r.worker, r.attempt, r.status, r.status_text, r.body
FROM slots s LEFT JOIN results r ON r.slot = s.id ORDER BY s.job, s.id
"""
_target = msgspec.json.Decoder(Target)
_earlier = msgspec.json.Decoder(list[tuple[str, int]])


def read(connection: sqlite3.Connection, now: float) -> Snapshot:
    """Everything, with ages at ``now`` (store clock)."""
    return Snapshot(
        tuple(jobs(connection, now)),
        tuple(
            WorkerSeen(name, service, Dialect(dialect), key)
            for name, service, dialect, key in connection.execute(
                "SELECT name, service, dialect, key FROM workers"
            )
        ),
        tuple(Pinned(*row) for row in connection.execute("SELECT name, key FROM pins")),
    )


def jobs(connection: sqlite3.Connection, now: float) -> Iterator[JobRow]:
    """The jobs in the order they were added."""
    slots = _slots(connection)
    ahead = next(slots, None)
    for row in connection.execute(_JOBS):
        mine: list[SlotRow] = []
        while ahead is not None and ahead[0] <= row[0]:
            if ahead[0] == row[0]:
                mine.append(ahead[1])
            ahead = next(slots, None)
        yield _job(row, tuple(mine), now)


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
        uuid, service, task, _target.decode(target), body, bytes.fromhex(client), Dialect(dialect), holder,
        userid, ttl_s,
    )  # fmt: skip
    closed_age_s = 0.0 if ended is None else max(0.0, now - ended)
    return JobRow(added, submitted_s, max(0.0, now - at), state or "open", closed_age_s, slots)


def _slots(connection: sqlite3.Connection) -> Iterator[tuple[int, SlotRow]]:
    for job, slot, worker, attempt, step, earlier, *result in connection.execute(_SLOTS):
        given = tuple(_earlier.decode(earlier)) + (((worker, attempt),) if attempt else ())
        if result[0] is None:
            yield job, SlotRow(slot, worker, attempt, STATES[step], workers=given)
        else:
            by, at, status, text, body = result
            yield job, SlotRow(slot, by, at, STATES[step], status, text, body, given)
