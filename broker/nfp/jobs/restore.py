"""After a restart: what the store kept becomes jobs and workers again (NFP, "Reliability"); closed jobs stay there.

Nothing is given to anybody here: no worker is there yet. Those of the snapshot are expected for one hold time; what
they had stays theirs until then, and is settled when they register. Queued requests wait a whole queue ttl from now
on: that nobody came to a broker that was not there tells nothing about a service.
"""

# compiled: mypyc

from __future__ import annotations

from broker.nfp.access import Access
from broker.nfp.jobs.closed_jobs import Holder, apply
from broker.nfp.jobs.liveness import Liveness
from broker.nfp.jobs.machine import ACCEPT, ADOPT, CLOSE, FINAL, LOSE, OPEN
from broker.nfp.jobs.model import BODY_KEPT_BYTES, PART_BYTES, Job, Part, WorkerEntry
from broker.nfp.jobs.schedule import Jobs, end_of
from broker.nfp.principal import Principal
from broker.nfp.records import ClosedJob, Snapshot, StoredJob


def restore(jobs: Jobs, liveness: Liveness, snapshot: Snapshot, now: float) -> None:
    """Rebuild the tables of everything in ``snapshot``; once."""
    for name in snapshot.known:
        jobs.registry.remember(name, now)
    for seen in snapshot.workers:
        service = jobs.registry.service(seen.service, now)
        worker = WorkerEntry(seen.name, service, seen.dialect, seen.key, now)
        liveness.expect(worker, now, lost=seen.lost)
    found = [*(closed.job for closed in snapshot.closed), *snapshot.jobs]
    for stored in sorted(found, key=lambda each: each.age_s, reverse=True):
        jobs.by_uuid[stored.added.uuid] = _job(jobs, stored, now)
    for closed in snapshot.closed:
        _remember(jobs, closed, now)
    for stored in snapshot.jobs:
        _resume(jobs, stored, now)


def _job(jobs: Jobs, stored: StoredJob, now: float) -> Job:
    added, access = stored.added, jobs.access
    client = jobs.clients.absent(added.client, added.holder, added.dialect)
    principal = _principal(added.holder, access) if stored.state == OPEN else None
    return Job(added, client, principal, now - stored.age_s)


def _remember(jobs: Jobs, closed: ClosedJob, now: float) -> None:
    """A closed job, which stays in the store."""
    job = jobs.by_uuid[closed.job.added.uuid]
    job.step(CLOSE)
    job.closed_at, job.ended = now - closed.job.closed_age_s, closed.job.state
    job.dropped = closed.body_bytes if closed.body_bytes > BODY_KEPT_BYTES else 0
    job.size += closed.parts * PART_BYTES + closed.result_bytes + closed.body_bytes - job.dropped
    job.leave_to_store()
    jobs.closed_jobs.keep(job)


def _resume(jobs: Jobs, stored: StoredJob, now: float) -> None:
    """An open job goes on where it was."""
    job = jobs.by_uuid[stored.added.uuid]
    holders = apply(job, stored)
    job.client.open += 1
    jobs.open_jobs += 1
    jobs.tasks.submitted(job, counted=False)
    jobs.open_parts += job.open
    jobs.open_bytes += job.size
    if not job.parts:
        jobs.gather(job, now)
    for part in list(job.parts.values()):
        holder = holders.get(part.name)
        if holder is not None:
            _hold(jobs, part, holder, now)
        elif part.state != FINAL:
            jobs.place(part, now)
    if job.state != OPEN:
        return  # it must not be run again, and has just ended
    if job.parts and not job.open:
        jobs.close(job, end_of(job), now)
    else:
        jobs.watch(job, now)


def _hold(jobs: Jobs, part: Part, holder: Holder, now: float) -> None:
    """A part stays its worker's, which is expected, or has left."""
    worker = jobs.registry.workers.get(holder.worker)
    gone = worker is None
    if worker is None:
        service = jobs.registry.service(part.job.service, now)
        worker = WorkerEntry(holder.worker, service, part.job.dialect, "", now)
    attempt = jobs.begin(part, worker, holder.attempt, ADOPT, now)
    if holder.once:
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
