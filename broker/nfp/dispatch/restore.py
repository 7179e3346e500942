"""After a restart: what the store kept becomes jobs and workers again (NFP, "Reliability"); closed jobs later.

Nothing is given to anybody here: no worker is there yet. Those of the snapshot are expected for one hold time; what
they had stays theirs until then, and is settled when they register. Queued requests wait a whole queue ttl from now
on: that nobody came to a broker that was not there tells nothing about a service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.nfp.dispatch.job import ACCEPTED, DISPATCHED, FINAL, SLOT_BYTES, Job, Slot
from broker.nfp.dispatch.roster import Worker

if TYPE_CHECKING:
    from broker.nfp.dispatch.assignment import Assignment
    from broker.nfp.dispatch.clients import Clients
    from broker.nfp.dispatch.expiry import Deadlines
    from broker.nfp.dispatch.liveness import Liveness
    from broker.nfp.dispatch.results import Results
    from broker.nfp.dispatch.state import State
    from broker.nfp.principal import Principal
    from broker.nfp.records import JobRow, SlotRow, Snapshot


class Restore:
    """Rebuilds the tables, once."""

    __slots__ = ("_assignment", "_clients", "_deadlines", "_liveness", "_results", "_state")

    def __init__(
        self,
        state: State,
        clients: Clients,
        results: Results,
        assignment: Assignment,
        liveness: Liveness,
        deadlines: Deadlines,
    ) -> None:
        self._state = state
        self._clients = clients
        self._results = results
        self._assignment = assignment
        self._liveness = liveness
        self._deadlines = deadlines

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Everything in ``snapshot``."""
        roster = self._state.roster
        for name in snapshot.known:
            roster.remember(name, now)
        for seen in snapshot.workers:
            service = roster.service(seen.service, now)
            self._liveness.expect(Worker(seen.name, service, seen.dialect, seen.key, now), now)
        rows = sorted(snapshot.jobs, key=lambda row: row.age_s, reverse=True)
        for row in rows:
            self._state.jobs[row.added.uuid] = self._job(row, now)
        for row in rows:
            self._resume(row, now)

    def remember(self, row: JobRow, now: float) -> None:
        """A closed job; it is older than those that were remembered before."""
        job = self._job(row, now)
        job.drop_body()
        if not self._results.keep_earlier(job):
            self._clients.tidy(job.client)

    def _job(self, row: JobRow, now: float) -> Job:
        added = row.added
        client = self._clients.absent(added.client, added.holder, added.dialect)
        job = Job(added, client, self._principal(added.holder), now - row.age_s)
        job.state = row.state
        job.closed_at = now - row.closed_age_s
        job.told = any(each.workers for each in row.slots)
        for each in row.slots:
            job.slots[each.slot] = slot = Slot(job, each.slot, now)
            _fill(slot, each)
            job.owner = job.owner or each.owner
            job.size += SLOT_BYTES + len(slot.body)
            job.open += slot.state != FINAL
        return job

    def _principal(self, holder: str) -> Principal | None:
        """Who the holder is by the present rules; None where the name alone does not tell (a userid)."""
        kind, _, name = holder.partition(":")
        access = self._state.access
        if kind == "key":
            return access.principal_of(name, "")
        return access.principal_of("", name) if kind == "peer" else None

    def _resume(self, row: JobRow, now: float) -> None:
        state = self._state
        job = state.jobs[row.added.uuid]
        job.client.open += 1
        state.open_jobs += 1
        state.open_slots += job.open
        state.open_bytes += job.size

        if not job.slots:
            self._assignment.gather(job, now)
        for each in row.slots:
            self._resume_slot(job.slots[each.slot], each, now)
        if job.slots and not job.open:
            self._results.close(job, now)
        else:
            self._deadlines.watch(job, now)

    def _resume_slot(self, slot: Slot, row: SlotRow, now: float) -> None:
        if row.state == FINAL:
            return
        if row.state not in (DISPATCHED, ACCEPTED):
            self._assignment.place(slot, now)
            return
        roster = self._state.roster
        worker = roster.workers.get(row.worker)
        gone = worker is None
        if worker is None:
            service = roster.service(slot.job.service, now)
            worker = Worker(row.worker, service, slot.job.dialect, "", now)
        run = self._assignment.bind(slot, worker, row.attempt, now)
        slot.state, slot.repeat = row.state, row.repeat
        if gone:
            self._assignment.give_back(run, "has left", now)
            roster.tidy(worker.service)


def _fill(slot: Slot, row: SlotRow) -> None:
    """``slot`` as the store kept it, but for whose hands it is in."""
    for worker, attempt in (*row.workers, *(((row.worker, row.attempt),) if row.worker else ())):
        slot.given[worker] = max(attempt, slot.given.get(worker, 0))
    slot.attempt = max(slot.given.values(), default=row.attempt)
    if row.state == FINAL:
        slot.state = FINAL
        slot.worker, slot.status, slot.body = row.worker, row.status, row.body
