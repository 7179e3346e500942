"""After a restart: what the store kept becomes jobs and workers again (NFP, "Reliability"); closed jobs stay there.

Nothing is given to anybody here: no worker is there yet. Those of the snapshot are expected for one hold time; what
they had stays theirs until then, and is settled when they register. Queued requests wait a whole queue ttl from now
on: that nobody came to a broker that was not there tells nothing about a service.
"""

# compiled: mypyc

from __future__ import annotations

from broker.nfp.access import Access
from broker.nfp.dispatch.liveness import Liveness
from broker.nfp.dispatch.model import (
    ACCEPTED,
    BODY_KEPT_BYTES,
    DISPATCHED,
    FINAL,
    OPEN,
    PART_BYTES,
    Order,
    Part,
    WorkerEntry,
)
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.scheduler import Scheduler
from broker.nfp.dispatch.state import State
from broker.nfp.dispatch.stored_jobs import fill
from broker.nfp.principal import Principal
from broker.nfp.records import ClosedRow, JobRow, PartRow, Snapshot


class Restore:
    """Rebuilds the tables, once."""

    def __init__(
        self,
        state: State,
        results: Results,
        scheduler: Scheduler,
        liveness: Liveness,
    ) -> None:
        self._state = state
        self._results = results
        self._scheduler = scheduler
        self._liveness = liveness

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Everything in ``snapshot``."""
        registry = self._state.registry
        for name in snapshot.known:
            registry.remember(name, now)
        for seen in snapshot.workers:
            service = registry.service(seen.service, now)
            worker = WorkerEntry(seen.name, service, seen.dialect, seen.key, now)
            self._liveness.expect(worker, now, lost=seen.lost)
        rows = [*(closed.job for closed in snapshot.closed), *snapshot.jobs]
        rows.sort(key=lambda row: row.age_s, reverse=True)
        for row in rows:
            self._state.orders[row.added.uuid] = self._order(row, now)
        for closed in snapshot.closed:
            self._remember(closed, now)
        for row in snapshot.jobs:
            fill(self._state.orders[row.added.uuid], row)
        for row in rows:
            if row.state == OPEN:
                self._resume(row, now)

    def _remember(self, row: ClosedRow, now: float) -> None:
        """A closed job, which stays in the store."""
        order = self._state.orders[row.job.added.uuid]
        order.closed_at, order.state = now - row.job.closed_age_s, row.job.state
        order.dropped = row.body_bytes if row.body_bytes > BODY_KEPT_BYTES else 0
        order.size += row.parts * PART_BYTES + row.result_bytes + row.body_bytes - order.dropped
        order.leave_to_store()
        self._results.keep(order)

    def _order(self, row: JobRow, now: float) -> Order:
        added, access = row.added, self._state.access
        client = self._state.clients.absent(added.client, added.holder, added.dialect)
        principal = _principal(added.holder, access) if row.state == OPEN else None
        return Order(added, client, principal, now - row.age_s)

    def _resume(self, row: JobRow, now: float) -> None:
        state = self._state
        order = state.orders[row.added.uuid]
        order.client.open += 1
        state.open_orders += 1
        state.tasks.submitted(order, counted=False)
        state.open_parts += order.open
        state.open_bytes += order.size

        if not order.parts:
            self._scheduler.gather(order, now)
        for each in row.parts:
            self._resume_part(order.parts[each.part], each, now)
        if order.state != OPEN:
            return  # it must not be run again, and has just ended
        if order.parts and not order.open:
            self._results.close(order, now)
        else:
            self._state.check_in_time(order, now)

    def _resume_part(self, part: Part, row: PartRow, now: float) -> None:
        if row.state == FINAL:
            return
        if row.state not in (DISPATCHED, ACCEPTED):
            self._scheduler.place(part, now)
            return
        registry = self._state.registry
        worker = registry.workers.get(row.worker)
        gone = worker is None
        if worker is None:
            service = registry.service(part.order.service, now)
            worker = WorkerEntry(row.worker, service, part.order.dialect, "", now)
        run = self._scheduler.bind(part, worker, row.attempt, now)
        part.state, part.repeat = row.state, row.state != ACCEPTED
        if gone:
            self._scheduler.give_back(run, "has left", now)
            registry.tidy(worker.service)


def _principal(holder: str, access: Access) -> Principal | None:
    """Who the holder is by the present rules; None where the name alone does not tell (a userid)."""
    kind, _, name = holder.partition(":")
    if kind == "key":
        return access.principal_of(name, "")
    return access.principal_of("", name) if kind == "peer" else None
