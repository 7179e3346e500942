"""After a restart: what the store kept becomes jobs and workers again (NFP, "Reliability"); closed jobs later.

Nothing is given to anybody here: no worker is there yet. Those of the snapshot are expected for one hold time; what
they had stays theirs until then, and is settled when they register. Queued requests wait a whole queue ttl from now
on: that nobody came to a broker that was not there tells nothing about a service.
"""

from __future__ import annotations

from broker.nfp.dispatch.liveness import Liveness
from broker.nfp.dispatch.model import ACCEPTED, DISPATCHED, FINAL, OPEN, PART_BYTES, Order, Part, WorkerEntry
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.scheduler import Scheduler
from broker.nfp.dispatch.state import State
from broker.nfp.outcome import job_state
from broker.nfp.principal import Principal
from broker.nfp.records import JobRow, PartRow, Snapshot


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
            self._liveness.expect(WorkerEntry(seen.name, service, seen.dialect, seen.key, now), now)
        rows = sorted(snapshot.jobs, key=lambda row: row.age_s, reverse=True)
        for row in rows:
            self._state.orders[row.added.uuid] = self._order(row, now)
        for row in rows:
            self._resume(row, now)

    def remember(self, row: JobRow, now: float) -> None:
        """A closed job; it is older than those that were remembered before."""
        order = self._order(row, now)
        order.drop_body()
        if not self._results.keep_earlier(order):
            self._state.clients.tidy(order.client)

    def _order(self, row: JobRow, now: float) -> Order:
        added = row.added
        client = self._state.clients.absent(added.client, added.holder, added.dialect)
        order = Order(added, client, self._principal(added.holder), now - row.age_s)
        order.state = row.state
        order.closed_at = now - row.closed_age_s
        order.told = any(each.workers for each in row.parts)
        for each in row.parts:
            order.parts[each.part] = part = Part(order, each.part, now)
            _fill(part, each)
            order.owner = order.owner or each.owner
            order.size += PART_BYTES + len(part.body)
            order.open += part.state != FINAL
        if order.state != OPEN:  # an earlier version recorded every job with results as done
            order.state = job_state(part.ended for part in order.parts.values())
        return order

    def _principal(self, holder: str) -> Principal | None:
        """Who the holder is by the present rules; None where the name alone does not tell (a userid)."""
        kind, _, name = holder.partition(":")
        access = self._state.access
        if kind == "key":
            return access.principal_of(name, "")
        return access.principal_of("", name) if kind == "peer" else None

    def _resume(self, row: JobRow, now: float) -> None:
        state = self._state
        order = state.orders[row.added.uuid]
        order.client.open += 1
        state.open_orders += 1
        state.open_parts += order.open
        state.open_bytes += order.size

        if not order.parts:
            self._scheduler.gather(order, now)
        for each in row.parts:
            self._resume_part(order.parts[each.part], each, now)
        if order.parts and not order.open:
            self._results.close(order, now)
        else:
            self._state.look_in_time(order, now)

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


def _fill(part: Part, row: PartRow) -> None:
    """``part`` as the store kept it, but for whose hands it is in."""
    for worker, attempt in (*row.workers, *(((row.worker, row.attempt),) if row.worker else ())):
        part.given[worker] = max(attempt, part.given.get(worker, 0))
    part.attempt = max(part.given.values(), default=row.attempt)
    if row.state == FINAL:
        part.settle(row.worker, row.status, row.body)
