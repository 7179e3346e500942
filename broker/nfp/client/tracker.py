"""All unfinished jobs of a client: when each is sent, sent again, asked for and given up.

How a job survives. Until the broker has answered its POST, the POST is sent again under the same uuid. At every new
session with a broker that has OPEN, every unfinished job is POSTed again: it is known there (then the broker tells
its state anew) or it is not (then it runs). A deployed NorFab broker remembers no job, so what its workers have is
asked for with GET, and only what nobody has confirmed is POSTed again. Each job has one timer, for whichever of
deadline, resend and poll comes first. A DELETE that could not be sent, or whose answer was lost with the connection,
goes out in front of everything else at the next session, and its job is not posted again.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import Any, Final

from broker.errors import HeadgateError, LinkClosed, LinkRefused
from broker.nfp import bodies
from broker.nfp.client.errors import JobCancelled, JobFailed
from broker.nfp.client.job import Job, JobOwner, Submission
from broker.nfp.client.limits import Limits
from broker.nfp.client.store import ENDS, ClientStore, StoredJob, error_of, restore
from broker.nfp.frames import Packet
from broker.nfp.names import Code, Command, Sender
from broker.nfp.opening import broker_of
from broker.nfp.outcome import worker_of
from broker.nfp.peer.channel import Channel
from broker.nfp.targets import Target

PUSH: Final = "push"
RETRY_S: Final = 0.05
"""Until a full outbox is tried again."""
_CANCELLED: Final = "cancelled"


class JobTracker(JobOwner):
    """See the module.

    Args:
        channel: for sending. store: None keeps nothing.

    Attributes:
        jobs: the unfinished ones by uuid, in the order they were submitted.
        unknown: packets about jobs that are not here, dropped.
    """

    def __init__(self, channel: Channel, limits: Limits, store: ClientStore | None = None) -> None:
        self.limits = limits
        self.jobs: dict[str, Job] = {}
        self.unknown = 0
        self.connected = False
        self.pushes = False
        self._channel = channel
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job] = deque()
        self._at_broker: set[str] = set()
        self._deleted: dict[str, Job] = {}
        """Deleted here, and the broker does not know yet; oldest first."""
        self._epoch = ""
        self._message_bytes = 0
        self._cancels: dict[str, asyncio.Future[bool]] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- jobs come and go -------------------------------------------------------------------------

    def add(self, submission: Submission, earlier: StoredJob | None = None) -> Job:
        """Begin to look after a job; it is posted as soon as possible. ``earlier``: what came before a restart.

        Raises:
            LinkClosed: the client is closed. HeadgateError: EAGAIN, too many are unfinished.
        """
        if self._closed:
            raise LinkClosed("the client was closed")
        if len(self.jobs) >= self.limits.jobs:
            raise HeadgateError(f"{len(self.jobs)} jobs are unfinished, that is the limit", errno.EAGAIN)
        job = Job(submission, self)
        if earlier is not None:
            restore(job, earlier)
        self.jobs[submission.uuid] = job
        if not submission.body:
            job.outcome.acknowledged = True  # somebody else's POST
        job.known = not submission.body or earlier is not None
        self._waiting.append(job)
        self._pump()
        self._arm(job, submission.deadline)
        return job

    def take_up(self, stored: StoredJob) -> Job:
        """A job that was kept: it goes on, or is over as it was."""
        if stored.state not in ENDS:
            return self.add(stored.submission, stored)
        job = Job(stored.submission, self)
        restore(job, stored)
        job.finish(error_of(job, stored))
        return job

    def progressed(self, job: Job) -> None:
        """Keep what has come; who works on it is worth keeping at a broker that remembers no job."""
        if self._store is not None:
            if not self.pushes:
                self._store.keep_workers(job.uuid, job.workers)
            self._store.keep_results(job)

    def ended(self, job: Job) -> None:
        """Forget a job that is over; one that waits may take its place at the broker."""
        uuid = job.uuid
        if self.jobs.pop(uuid, None) is None:
            return  # it was over when it was found again
        self._at_broker.discard(uuid)
        if job.timer is not None:
            job.timer.cancel()
        cancelling = self._cancels.get(uuid)
        if cancelling is not None and not cancelling.done():
            cancelling.set_result(job.status == _CANCELLED)
        if self._store is not None and not self._closed:
            self._store.end(uuid, job.status, str(job.error or ""))
        if self._waiting and not self._closed:
            self._pump()

    def close(self) -> None:
        """Everything that waits raises LinkClosed; what is kept on disk stays unfinished there."""
        self._closed = True
        self.lost()
        for job in list(self.jobs.values()):
            job.finish(LinkClosed(f"job {job.uuid}: the client was closed"))
        self._waiting.clear()
        self._deleted.clear()

    # -- the connection ---------------------------------------------------------------------------

    def began(self, opened: dict[str, Any] | None) -> None:
        """A session begins: every unfinished job is made known again."""
        said = broker_of(opened or {})
        again = self.connected
        self.connected = True
        self.pushes = PUSH in said.features
        self._message_bytes = said.message_bytes
        if again and not self.pushes:
            return
        self._at_broker.clear()
        self._deleted |= {uuid: self.jobs[uuid] for uuid in self._cancels if uuid in self.jobs}
        self._waiting = deque(self.jobs.values())
        if opened is not None:
            for job in self.jobs.values():
                # one that does not know our jobs counts their time from now on, as their POST says; see ``_due``
                job.moved |= bool(self._epoch) and said.epoch != self._epoch
                if job.submission.body:
                    job.outcome.reopen()
            self._epoch = said.epoch
        self._pump()

    def lost(self) -> None:
        """The session is over; deadlines go on."""
        self.connected = False
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def refused(self, error: LinkRefused) -> None:
        """No broker lets us in: jobs end that none can have."""
        for job in list(self.jobs.values()):
            if not job.known:
                job.finish(LinkRefused(str(error), error.errno))

    def _pump(self) -> None:
        """Hand over waiting jobs while there is room."""
        if self._deleted and self.connected and not self._send_deletes():
            self._retry_later()
            return
        waiting = self._waiting
        while waiting and self.connected and len(self._at_broker) < self.limits.at_broker_msgs:
            job = waiting[0]
            if job.done or job.uuid in self._at_broker or job.uuid in self._cancels:
                waiting.popleft()
            elif self._message_bytes and len(job.submission.body) > self._message_bytes:
                waiting.popleft()
                job.finish(self._too_large(job))
            elif self._hand_over(job):
                waiting.popleft()
                self._at_broker.add(job.uuid)
            else:
                self._retry_later()
                return

    def _too_large(self, job: Job) -> JobFailed:
        """The broker would end the connection for its POST, each time that it comes."""
        size = len(job.submission.body)
        text = f"the request has {size} bytes, the broker takes {self._message_bytes} (nfp.message_bytes_max)"
        return JobFailed(text, Code.UNKNOWN, job.uuid)

    def _hand_over(self, job: Job) -> bool:
        now = self._loop.time()
        if job.outcome.acknowledged and (job.workers or not job.submission.body):
            sent = self._get(job, now)
            self._arm(job, now + self._patience_s(job))
            return sent
        return self._post(job, now)

    def _post(self, job: Job, now: float, worker: str = "") -> bool:
        target = Target("list", (worker,)) if worker else None
        if not self.send(job, Command.POST, job.submission.body, target):
            return False
        job.posted, job.known = now, True
        self._arm(job, now + self.limits.resend_s)
        return True

    def _get(self, job: Job, now: float) -> bool:
        names = job.outcome.outstanding
        target = Target("list", names) if names and job.workers else None
        body = job.submission.body or bodies.request(job.task, (), {}, None)
        if not self.send(job, Command.GET, body, target):
            return False
        job.asked = now
        return True

    def _retry_later(self) -> None:
        """The outbox is full: go on once it is shorter."""
        if self._retry_timer is None and self.connected:
            self._retry_timer = self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._pump()

    def send(self, job: Job, command: Command, body: bytes, target: Target | None = None) -> bool:
        """Send a command about ``job``; ``target`` None: as it was submitted."""
        if not self.connected:
            return False
        packet = Packet(
            Sender.CLIENT,
            command,
            service=job.service,
            target=target or job.target,
            uuid=job.uuid,
            body=body,
        )
        return self._channel.send(packet)

    # -- time -------------------------------------------------------------------------------------

    def _patience_s(self, job: Job) -> float:
        """After how long a silence a job is asked for; nothing is pushed about other people's."""
        if not job.submission.body:
            return self.limits.poll_attached_s
        return self.limits.poll_pushed_s if self.pushes else self.limits.poll_s

    def _arm(self, job: Job, due: float) -> None:
        """One timer a job, at the earliest thing that may be due; what is due is decided when it fires."""
        due = min(due, job.submission.deadline)
        if job.timer is not None:
            if job.timer.when() <= due and not job.timer.cancelled():
                return
            job.timer.cancel()
        job.timer = self._loop.call_at(due, self._due, job)

    def _due(self, job: Job) -> None:
        job.timer = None
        now = self._loop.time()
        submission = job.submission
        if now >= submission.deadline:
            job.expire(self._channel.trouble)
            if job.moved:
                self._delete(job)  # this broker would still have it run
            return
        next_at = submission.deadline
        if self.connected and job.uuid in self._at_broker and job.uuid not in self._cancels:
            next_at = self._ask_again(job, now)
        self._arm(job, max(next_at, now + 0.001))

    def _ask_again(self, job: Job, now: float) -> float:
        """POST or GET when it is time; returns when to look again."""
        if not job.outcome.acknowledged:
            due = job.posted + self.limits.resend_s
            if now < due:
                return due
            self._post(job, now)
            return now + self.limits.resend_s
        due = max(job.heard, job.asked, job.posted) + self._patience_s(job)
        if now < due:
            return due
        self._get(job, now)
        return now + self._patience_s(job)

    # -- packets ----------------------------------------------------------------------------------

    def received(self, packet: Packet) -> None:
        """A packet with the uuid of a job."""
        job = self.jobs.get(packet.uuid)
        if job is None:
            self.unknown += 1
            return
        job.heard = self._loop.time()
        error = packet.command is Command.RESPONSE and packet.status >= Code.UNKNOWN
        if error and self._is_passing(job, packet):
            return
        job.received(packet)
        if packet.command is Command.EVENT and not self.pushes and not job.done:
            self._ask_if_ready(job, packet)

    def _ask_if_ready(self, job: Job, packet: Packet) -> None:
        """``result_ready``: at a broker that does not push, the result has to be asked for."""
        if bodies.event_kind(packet.data) != "result_ready":
            return
        worker = worker_of(packet.data)
        if worker and worker not in job.outcome.results:
            self.send(job, Command.GET, job.submission.body, Target("list", (worker,)))

    def _is_passing(self, job: Job, packet: Packet) -> bool:
        """Whether an error says no more than that a deployed NorFab broker cannot answer at present.

        Its 400 to a GET means that the worker is not connected now; 404 of a worker that it never got the job, which
        it is given again. Our broker does not answer so while a job may still end.
        """
        if self.pushes or not job.workers or job.uuid in self._cancels:
            return False
        if packet.status == Code.NOT_FOUND:
            worker = worker_of(packet.data)
            known = worker in job.outcome.outstanding
            return known and self._post(job, self._loop.time(), worker)
        return packet.status == Code.UNKNOWN

    # -- cancelling -------------------------------------------------------------------------------

    async def cancel(self, job: Job) -> bool:
        """See ``Job.cancel``."""
        if job.done:
            return False
        error = JobCancelled(f"job {job.uuid} was cancelled", job.uuid, job.outcome.results)
        if not job.known:
            job.finish(error)  # nobody else knows of it
            return True
        waiter = self._cancels.setdefault(job.uuid, self._loop.create_future())
        try:
            self._delete(job)
            async with asyncio.timeout(self.limits.answer_s):
                return await asyncio.shield(waiter)
        except TimeoutError:
            return False
        finally:
            self._cancels.pop(job.uuid, None)
            job.finish(error)

    def abandon(self, job: Job, error: Exception | None = None) -> None:
        """As ``cancel``, for somebody who cannot wait: the broker is told, its answer does not matter.

        ``error`` is how the job ends; None: cancelled.
        """
        if not job.done:
            text = f"job {job.uuid} was cancelled"
            job.finish(error or JobCancelled(text, job.uuid, job.outcome.results))
            if job.known:
                self._delete(job)

    def _delete(self, job: Job) -> None:
        """Have the broker end it: now, or when it can be told."""
        self._deleted[job.uuid] = job
        if len(self._deleted) > self.limits.jobs:
            del self._deleted[next(iter(self._deleted))]
        self._pump()

    def _send_deletes(self) -> bool:
        """Send what DELETEs there are; False when there was no room for all."""
        for uuid, job in list(self._deleted.items()):
            if not self.send(job, Command.DELETE, job.submission.body or b"{}"):
                return False
            del self._deleted[uuid]
        return True
