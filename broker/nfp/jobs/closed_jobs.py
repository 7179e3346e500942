"""Closed jobs: how long they are remembered, and those that are in the store only (NFP, "Reliability").

The latest stay in memory. Of the others it has the job alone, without body, parts and results: who speaks of one has it
read at once, and it is left to the store again when that is done. While the store cannot be read this is refused: a job
that is submitted again must not be run again.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.nfp.contract import NotStored, Peer
from broker.nfp.jobs.machine import FINAL, READ, STORED
from broker.nfp.jobs.model import JOB_BYTES, PART_BYTES, Client, Job, Part
from broker.nfp.records import Accepted, Dispatched, Finished, Forgotten, Owned, Returned, StoredJob

if TYPE_CHECKING:
    from broker.nfp.jobs.schedule import Jobs

PAY_AGAIN_S: Final = 1.0
"""Between two attempts at sending what a client is owed while the store cannot be read."""


class ClosedJobs:
    """Keeps, reads and forgets them, and sends what clients are owed.

    Attributes:
        by_end: all of them, the one that is forgotten next first. recent: those that are not in the store only.
        kept_bytes, recent_bytes: what these cost, see ``Job.size``.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self.by_end: deque[Job] = deque()
        self.recent: deque[Job] = deque()
        self.kept_bytes = self.recent_bytes = 0
        self._read: list[Job] = []
        self._unpaid: dict[Client, None] = {}
        self._pay_at = inf

    # -- remembered -----------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """A job has just been closed."""
        self.recent.append(job)
        self.recent_bytes += job.size
        self.keep(job)

    def keep(self, job: Job) -> None:
        """A closed job is remembered; the oldest make room."""
        config = self._jobs.config
        self.by_end.append(job)
        self.kept_bytes += job.size
        job.client.kept += 1
        while self.by_end[0] is not job and (
            self.kept_bytes > config.results_max_bytes or len(self.by_end) > config.results_max_jobs
        ):
            self._forget(self.by_end.popleft())

    def end_turn(self, now: float) -> float:
        """Forget what was kept long enough, and leave what need not be in memory to the store.

        Returns when to be called again at the latest, inf for no need.
        """
        self._leave_to_store()
        if now >= self._pay_at:
            self._pay_at = inf
            for client in list(self._unpaid):
                self.pay(client, now)
        while self.by_end:
            due = self.by_end[0].closed_at + self._jobs.config.result_ttl_s
            if due > now:
                return min(due, self._pay_at)
            self._forget(self.by_end.popleft())
        return self._pay_at

    def _leave_to_store(self) -> None:
        """All but the latest closed jobs leave their room in memory, as soon as they are durable."""
        config, journal, recent = self._jobs.config, self._jobs.journal, self.recent
        while len(recent) > config.recent_max_jobs or self.recent_bytes > config.recent_max_bytes:
            if journal.broken or recent[0].after > journal.committed:
                return
            job = recent.popleft()
            self.recent_bytes -= job.size
            job.leave_to_store()

    def _forget(self, job: Job) -> None:
        """``job`` is in no table of closed ones any more."""
        jobs = self._jobs
        if self.recent and self.recent[0] is job:
            self.recent.popleft()
            self.recent_bytes -= job.size
        del jobs.by_uuid[job.uuid]
        jobs.counts.forgotten += 1
        jobs.journal.put(Forgotten(job.uuid))
        self._keep_no_more(job)

    def remove(self, job: Job) -> None:
        """A job that never was, in no table of jobs any more."""
        self.by_end.remove(job)
        self.recent.remove(job)
        self.recent_bytes -= job.size
        self._keep_no_more(job)

    def _keep_no_more(self, job: Job) -> None:
        self.kept_bytes -= job.size
        job.client.kept -= 1
        self.owe_nothing(job)

    def owe_nothing(self, job: Job) -> None:
        """The job's client is owed nothing because of it any more."""
        job.client.owed.pop(job.uuid, None)
        self._jobs.clients.tidy(job.client)

    # -- read -----------------------------------------------------------------------------------

    def read(self, uuid: str) -> Job | None:
        """The job, with all of it in memory until ``put_back``; None: it is not known.

        Raises:
            NotStored: it is in the store only, which cannot be read.
        """
        job = self._jobs.by_uuid.get(uuid)
        if job is None or job.state != STORED:
            return job
        found = self._jobs.journal.find_closed(uuid)
        if found is None:  # somebody else has been at the file
            self.by_end.remove(job)
            self._forget(job)
            return None
        size = job.size
        job.step(READ)
        apply(job, found)
        job.drop_body()
        job.size = size
        self._read.append(job)
        return job

    def put_back(self) -> None:
        """What was read has been spoken of."""
        if self._read:
            for job in self._read:
                job.leave_to_store()
            self._read.clear()

    # -- what clients are owed ------------------------------------------------------------------

    def pay(self, client: Client, now: float) -> None:
        """Send ``client`` what it is owed, in order, as far as there is room for what can wait.

        The rest goes there when there is more room, or the store can be read again.
        """
        peer = client.peer
        self._unpaid.pop(client, None)
        if peer is None:
            return
        for uuid in list(client.owed):
            if not peer.has_spare_room():
                return
            try:
                job = self.read(uuid)
            except NotStored:
                self._unpaid[client] = None
                self._pay_at = now + PAY_AGAIN_S
                return
            if job is not None and not self._pay_for(job, peer):
                return

    def _pay_for(self, job: Job, peer: Peer) -> bool:
        """Send what ``peer`` is owed of one job; False: there was no room for all of it."""
        client = job.client
        for name in list(client.owed_of(job)):
            if not peer.has_spare_room():
                return False
            part = job.parts[name]
            client.settle(job, [part])
            self._jobs.responders.of(client).delivered_again(part)
        self.put_back()
        return True


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
        if part.state == FINAL:
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
        job.open += part.state != FINAL
    return holders
