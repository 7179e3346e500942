"""Closed jobs, and a restart: what the store keeps becomes jobs again (NFP, "Reliability").

The latest closed jobs stay in memory. Of the others it has the job alone, without body, parts and results: who speaks
of one has it read at once, and it is left to the store again when that is done. While the store cannot be read this is
refused: a job that is submitted again must not be run again.

After a restart nothing is given to anybody: no worker is there yet. Those of the snapshot are expected for one hold
time; what they had stays theirs until then, and is settled when they register. Queued requests wait a whole queue ttl
from now on: that nobody came to a broker that was not there tells nothing about a service.
"""

# compiled: mypyc

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.nfp.contract import NotStored
from broker.nfp.jobs import told
from broker.nfp.jobs.model import BODY_KEPT_BYTES, JOB_BYTES, PART_BYTES, Client, Job, Part, WorkerEntry
from broker.nfp.records import (
    Accepted,
    ClosedJob,
    Dispatched,
    Finished,
    Forgotten,
    Owned,
    Returned,
    StoredJob,
)

if TYPE_CHECKING:
    from broker.nfp.jobs.schedule import Jobs

PAY_AGAIN_S: Final = 1.0
"""Between two attempts at sending what a client is owed while the store cannot be read."""


# -- remembered -------------------------------------------------------------------------------------


def keep(jobs: Jobs, job: Job) -> None:
    """A closed job is remembered; the oldest make room."""
    config, by_end = jobs.config, jobs.by_end
    by_end.append(job)
    jobs.kept_bytes += job.size
    job.client.kept += 1
    if job.state != "stored":
        jobs.recent.append(job)
        jobs.recent_bytes += job.size
    while by_end[0] is not job and (
        jobs.kept_bytes > config.results_max_bytes or len(by_end) > config.results_max_jobs
    ):
        forget(jobs, by_end.popleft())


def end_turn(jobs: Jobs, now: float) -> float:
    """Leave what need not be in memory to the store, as soon as it is durable, and forget what was kept long enough.

    Returns when to be called again at the latest, inf for no need.
    """
    config, journal, recent = jobs.config, jobs.journal, jobs.recent
    while len(recent) > config.recent_max_jobs or jobs.recent_bytes > config.recent_max_bytes:
        if journal.broken or recent[0].after > journal.committed:
            break
        job = recent.popleft()
        jobs.recent_bytes -= job.size
        job.leave_to_store()
    if now >= jobs.pay_at:
        jobs.pay_at = inf
        for client in list(jobs.unpaid):
            pay(jobs, client, now)
    while jobs.by_end:
        due = jobs.by_end[0].closed_at + config.result_ttl_s
        if due > now:
            return min(due, jobs.pay_at)
        forget(jobs, jobs.by_end.popleft())
    return jobs.pay_at


def forget(jobs: Jobs, job: Job) -> None:
    """``job``, which is not in ``by_end`` any more, is forgotten."""
    if jobs.recent and jobs.recent[0] is job:
        jobs.recent.popleft()
        jobs.recent_bytes -= job.size
    del jobs.by_uuid[job.uuid]
    jobs.counts.forgotten += 1
    jobs.journal.put(Forgotten(job.uuid))
    _keep_no_more(jobs, job)


def remove(jobs: Jobs, job: Job) -> None:
    """A closed job that never was, in no table of jobs any more."""
    jobs.by_end.remove(job)
    jobs.recent.remove(job)
    jobs.recent_bytes -= job.size
    _keep_no_more(jobs, job)


def _keep_no_more(jobs: Jobs, job: Job) -> None:
    jobs.kept_bytes -= job.size
    job.client.kept -= 1
    jobs.owe_nothing(job)


# -- read -------------------------------------------------------------------------------------------


def read(jobs: Jobs, uuid: str) -> Job | None:
    """The job, with all of it in memory until ``put_back``; None: it is not known.

    Raises:
        NotStored: it is in the store only, which cannot be read.
    """
    job = jobs.by_uuid.get(uuid)
    if job is None or job.state != "stored":
        return job
    found = jobs.journal.find_closed(uuid)
    if found is None:  # somebody else has been at the file
        jobs.by_end.remove(job)
        forget(jobs, job)
        return None
    size = job.size
    job.step("read")
    apply(job, found)
    job.drop_body()
    job.size = size
    jobs.read.append(job)
    return job


def put_back(jobs: Jobs) -> None:
    """What was read has been spoken of."""
    if jobs.read:
        for job in jobs.read:
            job.leave_to_store()
        jobs.read.clear()


# -- what clients are owed --------------------------------------------------------------------------


def pay(jobs: Jobs, client: Client, now: float) -> None:
    """Send ``client`` what it is owed, in order, as far as there is room for what can wait.

    The rest goes there when there is more room, or the store can be read again.
    """
    peer = client.peer
    jobs.unpaid.pop(client, None)
    if peer is None:
        return
    for uuid in list(client.owed):
        if not peer.has_spare_room():
            return
        try:
            job = read(jobs, uuid)
        except NotStored:
            jobs.unpaid[client] = None
            jobs.pay_at = now + PAY_AGAIN_S
            return
        if job is None:
            continue
        for name in list(client.owed_of(job)):
            if not peer.has_spare_room():
                return
            client.settle(job, [job.parts[name]])
            told.again(job.parts[name])
        put_back(jobs)


# -- a restart --------------------------------------------------------------------------------------


class Holder(NamedTuple):
    """Who had a part when the broker ended."""

    worker: str
    attempt: int
    once: bool
    """It may have begun, and must not be run again."""


def apply(job: Job, stored: StoredJob) -> dict[str, Holder]:
    """Make ``job`` what the events in the store make of it, and return who holds which part, by its name.

    A part that has its result stays as it is, and an acceptance counts for the attempt that is under way.
    """
    job.body, job.size, job.open = stored.added.body, JOB_BYTES + len(stored.added.body), 0
    holders: dict[str, Holder] = {}
    for name in stored.added.parts:
        job.parts[name] = Part(job, name, job.added_at)
    for event in stored.events:
        if isinstance(event, Owned):
            job.owner = job.owner or event.worker
            continue
        name = event.part
        part = job.parts.get(name)
        if part is None:
            part = job.parts[name] = Part(job, name, job.added_at)
        if part.state == "final":
            continue
        if isinstance(event, Dispatched):
            job.told_dispatched = True
            part.given[event.worker] = max(event.attempt, part.given.get(event.worker, 0))
            holders[name] = Holder(event.worker, event.attempt, False)
        elif isinstance(event, Accepted):
            holder = holders.get(name)
            if holder is not None and holder.attempt == event.attempt:
                holders[name] = holder._replace(once=True)
        elif isinstance(event, Returned):
            holders.pop(name, None)
        elif isinstance(event, Finished):
            holders.pop(name, None)
            if event.worker:
                part.given[event.worker] = max(event.attempt, part.given.get(event.worker, 0))
            part.settle(event.worker, event.status, event.body)
    for part in job.parts.values():
        job.size += PART_BYTES + len(part.body)
        job.open += part.state != "final"
    return holders


def remember(jobs: Jobs, job: Job, closed: ClosedJob, now: float) -> None:
    """A closed job, which stays in the store."""
    job.step("close")
    job.closed_at, job.ended = now - closed.job.closed_age_s, closed.job.state
    job.dropped = closed.body_bytes if closed.body_bytes > BODY_KEPT_BYTES else 0
    job.size += closed.parts * PART_BYTES + closed.result_bytes + closed.body_bytes - job.dropped
    job.leave_to_store()
    keep(jobs, job)


def resume(jobs: Jobs, job: Job, stored: StoredJob, now: float) -> None:
    """An open job goes on where it was."""
    holders = apply(job, stored)
    jobs.count_open(job, counted=False)
    jobs.open_parts += job.open
    if not job.parts:
        jobs.gather(job, now)
    for part in list(job.parts.values()):
        holder = holders.get(part.name)
        if holder is not None:
            _hold(jobs, part, holder, now)
        elif part.state != "final":
            jobs.place(part, now)
    if job.state != "open":
        return  # it must not be run again, and has just ended
    if job.parts and not job.open:
        jobs.close(job, job.end, now)
    else:
        jobs.watch(job, now)


def _hold(jobs: Jobs, part: Part, holder: Holder, now: float) -> None:
    """A part stays its worker's, which is expected, or has left."""
    worker = jobs.registry.workers.get(holder.worker)
    gone = worker is None
    if worker is None:
        service = jobs.registry.service(part.job.service, now)
        worker = WorkerEntry(holder.worker, service, part.job.dialect, "", now)
    attempt = jobs.begin(part, worker, holder.attempt, "adopt", now)
    if holder.once:
        attempt.once = True
        jobs.move(attempt, "accept")
    if gone:
        jobs.give_back(attempt, "lose", "has left", now)
        jobs.registry.tidy(worker.service)
