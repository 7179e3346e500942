"""A group of operations -> rows of the intake (see ``schema``); runs in the store's thread.

The interpreter's lock is held here, and the loop waits for it: one look at each operation, no object made for most.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.nfp import records
from broker.nfp.records import Op
from broker.nfp.store.clock import StoreClock
from broker.nfp.store.database import transaction
from broker.nfp.store.intake import PORTION_BYTES, Bodies, column, encode
from broker.nfp.store.schema import ADDED, BACK, ENDED, GIVEN, TAKE_IN, TAKEN, TAKEN_ONCE

TTL_MAX_S: Final = 1e12
"""JSON has no infinity."""


class Portion:
    """What one statement writes."""

    __slots__ = (
        "bodies", "closed", "forgotten", "gone", "jobs", "owned", "pins", "results", "seen", "steps", "used",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bodies = Bodies()
        self.jobs: list[tuple[Any, ...]] = []
        self.steps: list[tuple[int, tuple[Any, ...]]] = []
        self.results: list[tuple[Any, ...]] = []
        self.closed: list[records.Closed] = []
        self.forgotten: dict[str, None] = {}
        self.used: list[records.Used] = []
        self.seen: dict[str, records.WorkerSeen] = {}
        self.gone: dict[str, None] = {}
        self.pins: dict[str, records.Pinned] = {}
        self.owned: list[records.Owned] = []

    def row(self) -> tuple[str | bytes | None, ...]:
        """The columns of the intake behind those of the clock."""
        pinned = [pin for pin in self.pins.values() if pin.key]
        unpinned = [pin.name for pin in self.pins.values() if not pin.key]
        lists: tuple[list[Any], ...] = (
            self.jobs, self.steps, self.results, self.closed, list(self.forgotten), self.used,
            list(self.seen.values()), list(self.gone), pinned, unpinned, self.owned,
        )  # fmt: skip
        return self.bodies.joined(), *map(column, lists)


def _job_added(portion: Portion, op: records.JobAdded) -> None:
    target = encode(op.target).decode()
    ttl_s = min(op.ttl_s, TTL_MAX_S)
    about = (op.uuid, op.service, op.task, target, op.client.hex(), op.dialect, op.holder, op.userid, ttl_s)
    portion.jobs.append((*about, *portion.bodies.place(op.body)))


def _slot_added(portion: Portion, op: records.SlotAdded) -> None:
    portion.steps.append((ADDED, op))


def _dispatched(portion: Portion, op: records.Dispatched) -> None:
    portion.steps.append((GIVEN, op))


def _accepted(portion: Portion, op: records.Accepted) -> None:
    portion.steps.append((TAKEN if op.repeat else TAKEN_ONCE, op))


def _returned(portion: Portion, op: records.Returned) -> None:
    portion.steps.append((BACK, op))


def _owned(portion: Portion, op: records.Owned) -> None:
    portion.owned.append(op)


def _finished(portion: Portion, op: records.Finished) -> None:
    portion.steps.append((ENDED, op[:4]))
    portion.results.append((*op[:5], *portion.bodies.place(op.body)))


def _closed(portion: Portion, op: records.Closed) -> None:
    portion.closed.append(op)


def _forgotten(portion: Portion, op: records.Forgotten) -> None:
    portion.forgotten[op.uuid] = None


def _worker_seen(portion: Portion, op: records.WorkerSeen) -> None:
    portion.seen[op.name] = op
    portion.gone.pop(op.name, None)


def _worker_left(portion: Portion, op: records.WorkerLeft) -> None:
    portion.gone[op.name] = None


def _pinned(portion: Portion, op: records.Pinned) -> None:
    portion.pins[op.name] = op


def _used(portion: Portion, op: records.Used) -> None:
    portion.used.append(op)


_SORT: Final[dict[type, Callable[[Portion, Any], None]]] = {
    records.JobAdded: _job_added,
    records.SlotAdded: _slot_added,
    records.Dispatched: _dispatched,
    records.Accepted: _accepted,
    records.Returned: _returned,
    records.Owned: _owned,
    records.Finished: _finished,
    records.Closed: _closed,
    records.Forgotten: _forgotten,
    records.WorkerSeen: _worker_seen,
    records.WorkerLeft: _worker_left,
    records.Pinned: _pinned,
    records.Used: _used,
}


def portions(operations: list[Op]) -> Iterator[Portion]:
    """Operations sorted by kind; a new portion begins where sorting would change what the order means.

    That is at a job that is added again behind its being forgotten, and at ``PORTION_BYTES``.
    """
    portion = Portion()
    for op in operations:
        again = isinstance(op, records.JobAdded) and op.uuid in portion.forgotten
        if again or portion.bodies.size >= PORTION_BYTES:
            yield portion
            portion = Portion()
        _SORT[type(op)](portion, op)
    yield portion


def write(connection: sqlite3.Connection, operations: list[Op], clock: StoreClock) -> None:
    """Make ``operations`` durable, all or none.

    Raises:
        sqlite3.Error: the disk fails, or a value cannot be held. KeyError, UnicodeError: it is no operation.
    """
    moment = clock.moment()
    parts = list(portions(operations))
    if len(parts) == 1:
        connection.execute(TAKE_IN, moment + parts[0].row())
        return
    with transaction(connection):
        for part in parts:
            connection.execute(TAKE_IN, moment + part.row())
