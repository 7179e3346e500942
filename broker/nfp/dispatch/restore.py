"""After a restart: what the store kept becomes jobs and workers again (NFP, "Reliability"); closed jobs stay there.

Nothing is given to anybody here: no worker is there yet. Those of the snapshot are expected for one hold time; what
they had stays theirs until then, and is settled when they register. Queued requests wait a whole queue ttl from now
on: that nobody came to a broker that was not there tells nothing about a service.
"""

# compiled: mypyc

from __future__ import annotations

from broker.nfp.access import Access
from broker.nfp.dispatch.closed_jobs import fill
from broker.nfp.dispatch.jobs import Jobs
from broker.nfp.dispatch.liveness import Liveness
from broker.nfp.dispatch.machine import ACCEPT, ADOPT, FINAL, LOSE
from broker.nfp.dispatch.model import BODY_KEPT_BYTES, OPEN, PART_BYTES, Job, Part, WorkerEntry
from broker.nfp.principal import Principal
from broker.nfp.records import ClosedRow, JobRow, PartRow, Snapshot


class Restore:
    """Rebuilds the tables, once."""

    def __init__(self, jobs: Jobs, liveness: Liveness) -> None:
        self._jobs = jobs
        self._liveness = liveness

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Everything in ``snapshot``."""
        registry = self._jobs.registry
        for name in snapshot.known:
            registry.remember(name, now)
        for seen in snapshot.workers:
            service = registry.service(seen.service, now)
            worker = WorkerEntry(seen.name, service, seen.dialect, seen.key, now)
            self._liveness.expect(worker, now, lost=seen.lost)
        rows = [*(closed.job for closed in snapshot.closed), *snapshot.jobs]
        rows.sort(key=lambda row: row.age_s, reverse=True)
        for row in rows:
            self._jobs.by_uuid[row.added.uuid] = self._order(row, now)
        for closed in snapshot.closed:
            self._remember(closed, now)
        for row in snapshot.jobs:
            fill(self._jobs.by_uuid[row.added.uuid], row)
        for row in rows:
            if row.state == OPEN:
                self._resume(row, now)

    def _remember(self, row: ClosedRow, now: float) -> None:
        """A closed job, which stays in the store."""
        job = self._jobs.by_uuid[row.job.added.uuid]
        job.closed_at, job.state = now - row.job.closed_age_s, row.job.state
        job.dropped = row.body_bytes if row.body_bytes > BODY_KEPT_BYTES else 0
        job.size += row.parts * PART_BYTES + row.result_bytes + row.body_bytes - job.dropped
        job.leave_to_store()
        self._jobs.closed_jobs.keep(job)

    def _order(self, row: JobRow, now: float) -> Job:
        added, access = row.added, self._jobs.access
        client = self._jobs.clients.absent(added.client, added.holder, added.dialect)
        principal = _principal(added.holder, access) if row.state == OPEN else None
        return Job(added, client, principal, now - row.age_s)

    def _resume(self, row: JobRow, now: float) -> None:
        jobs = self._jobs
        job = jobs.by_uuid[row.added.uuid]
        job.client.open += 1
        jobs.open_jobs += 1
        jobs.tasks.submitted(job, counted=False)
        jobs.open_parts += job.open
        jobs.open_bytes += job.size

        if not job.parts:
            self._jobs.gather(job, now)
        for each in row.parts:
            self._resume_part(job.parts[each.part], each, now)
        if job.state != OPEN:
            return  # it must not be run again, and has just ended
        if job.parts and not job.open:
            self._jobs.close(job, now)
        else:
            self._jobs.watch(job, now)

    def _resume_part(self, part: Part, row: PartRow, now: float) -> None:
        if row.state == FINAL:
            return
        if row.state == "waiting":
            self._jobs.place(part, now)
            return
        registry = self._jobs.registry
        worker = registry.workers.get(row.worker)
        gone = worker is None
        if worker is None:
            service = registry.service(part.job.service, now)
            worker = WorkerEntry(row.worker, service, part.job.dialect, "", now)
        attempt = self._jobs.begin(part, worker, row.attempt, ADOPT, now)
        if row.state == "accepted":
            attempt.once = True
            self._jobs.move(attempt, ACCEPT)
        if gone:
            self._jobs.give_back(attempt, LOSE, "has left", now)
            registry.tidy(worker.service)


def _principal(holder: str, access: Access) -> Principal | None:
    """Who the holder is by the present rules; None where the name alone does not tell (a userid)."""
    kind, _, name = holder.partition(":")
    if kind == "key":
        return access.principal_of(name, "")
    return access.principal_of("", name) if kind == "peer" else None
