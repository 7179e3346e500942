"""After a restart: what the store kept becomes jobs and workers again (NFP, "Reliability"); closed jobs stay there.

Nothing is given to anybody here: no worker is there yet. Those of the snapshot are expected for one hold time; what
they had stays theirs until then, and is settled when they register. Queued requests wait a whole queue ttl from now
on: that nobody came to a broker that was not there tells nothing about a service.
"""

# compiled: mypyc

from __future__ import annotations

from broker.nfp.access import Access
from broker.nfp.dispatch.closed_jobs import fill
from broker.nfp.dispatch.jobs import Jobs, end_of
from broker.nfp.dispatch.liveness import Liveness
from broker.nfp.dispatch.machine import ACCEPT, ACCEPTED, ADOPT, CLOSE, FINAL, LOSE, OPEN, WAITING
from broker.nfp.dispatch.model import BODY_KEPT_BYTES, PART_BYTES, Job, Part, WorkerEntry
from broker.nfp.principal import Principal
from broker.nfp.records import ClosedRow, JobRow, PartRow, Snapshot


def restore(jobs: Jobs, liveness: Liveness, snapshot: Snapshot, now: float) -> None:
    """Rebuild the tables of everything in ``snapshot``; once."""
    for name in snapshot.known:
        jobs.registry.remember(name, now)
    for seen in snapshot.workers:
        service = jobs.registry.service(seen.service, now)
        worker = WorkerEntry(seen.name, service, seen.dialect, seen.key, now)
        liveness.expect(worker, now, lost=seen.lost)
    rows = [*(closed.job for closed in snapshot.closed), *snapshot.jobs]
    rows.sort(key=lambda row: row.age_s, reverse=True)
    for row in rows:
        jobs.by_uuid[row.added.uuid] = _job(jobs, row, now)
    for closed in snapshot.closed:
        _remember(jobs, closed, now)
    for row in snapshot.jobs:
        fill(jobs.by_uuid[row.added.uuid], row)
    for row in rows:
        if row.state == OPEN:
            _resume(jobs, row, now)


def _job(jobs: Jobs, row: JobRow, now: float) -> Job:
    added, access = row.added, jobs.access
    client = jobs.clients.absent(added.client, added.holder, added.dialect)
    principal = _principal(added.holder, access) if row.state == OPEN else None
    return Job(added, client, principal, now - row.age_s)


def _remember(jobs: Jobs, row: ClosedRow, now: float) -> None:
    """A closed job, which stays in the store."""
    job = jobs.by_uuid[row.job.added.uuid]
    job.step(CLOSE)
    job.closed_at, job.ended = now - row.job.closed_age_s, row.job.state
    job.dropped = row.body_bytes if row.body_bytes > BODY_KEPT_BYTES else 0
    job.size += row.parts * PART_BYTES + row.result_bytes + row.body_bytes - job.dropped
    job.leave_to_store()
    jobs.closed_jobs.keep(job)


def _resume(jobs: Jobs, row: JobRow, now: float) -> None:
    job = jobs.by_uuid[row.added.uuid]
    job.client.open += 1
    jobs.open_jobs += 1
    jobs.tasks.submitted(job, counted=False)
    jobs.open_parts += job.open
    jobs.open_bytes += job.size
    if not job.parts:
        jobs.gather(job, now)
    for each in row.parts:
        _resume_part(jobs, job.parts[each.part], each, now)
    if job.state != OPEN:
        return  # it must not be run again, and has just ended
    if job.parts and not job.open:
        jobs.close(job, end_of(job), now)
    else:
        jobs.watch(job, now)


def _resume_part(jobs: Jobs, part: Part, row: PartRow, now: float) -> None:
    if row.state == FINAL:
        return
    if row.state == WAITING:
        jobs.place(part, now)
        return
    worker = jobs.registry.workers.get(row.worker)
    gone = worker is None
    if worker is None:
        service = jobs.registry.service(part.job.service, now)
        worker = WorkerEntry(row.worker, service, part.job.dialect, "", now)
    attempt = jobs.begin(part, worker, row.attempt, ADOPT, now)
    if row.state == ACCEPTED:
        attempt.once = True
        jobs.move(attempt, ACCEPT)
    if gone:
        jobs.give_back(attempt, LOSE, "has left", now)
        jobs.registry.tidy(worker.service)


def _principal(holder: str, access: Access) -> Principal | None:
    """Who the holder is by the present rules; None where the name alone does not tell (a userid)."""
    kind, _, name = holder.partition(":")
    if kind == "key":
        return access.principal_of(name, "")
    return access.principal_of("", name) if kind == "peer" else None
