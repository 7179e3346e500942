"""What a client asks of its broker, from the request to the last answer: jobs, and questions.

A *job* goes to workers. Until the broker has answered its POST, the POST is sent again under the same uuid. At every
new session with a broker that has OPEN, every unfinished job is POSTed again: it is known there (then the broker tells
its state anew) or it is not (then it runs). A deployed NorFab broker remembers no job, so what its workers have is
asked for with GET, and only what nobody has confirmed is POSTed again. A DELETE that could not be sent, or whose answer
was lost with the connection, goes out in front of everything else at the next session, and its job is not posted again.

A *question* is answered by the broker itself, at once: management, inventory, events, the jobs of its store (NFP,
"MMI"). One whose answer was lost with the connection is asked again in the next session, except where that would be
done twice (``Question.once``).

Each has one timer, for whichever of deadline, resend and poll comes first.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from broker.errors import HeadgateError, LinkBroken, LinkClosed, LinkRefused
from broker.nfp import bodies
from broker.nfp.client.errors import JobFailed, JobTimeout, RequestFailed
from broker.nfp.client.events import Subscriptions
from broker.nfp.client.job import Job, JobOwner, Question, Submission
from broker.nfp.client.limits import Limits
from broker.nfp.client.store import ENDS, ClientStore, StoredJob, error_of, restore
from broker.nfp.frames import Packet
from broker.nfp.names import MMI_BROKER, Code, Command, Sender
from broker.nfp.opening import DIALECT, broker_of
from broker.nfp.outcome import worker_of
from broker.nfp.peer.channel import Channel
from broker.nfp.peer.liveness import BrokerLiveness
from broker.nfp.targets import ANY, Target
from broker.tasks import Tasks, awaited_seconds, within

log = logging.getLogger("headgate")
PUSH: Final = "push"
ONCE: Final = frozenset({"restart", "shutdown", "disconnect"})
"""Tasks of management that end connections: their answers may well be lost with them."""
RETRY_S: Final = 0.05
"""Until a full outbox is tried again."""
_LOST: Final = "the connection was lost before the answer; it may have been done, and is not asked again"
_CANCELLED: Final = "cancelled"


class ClientSession(JobOwner):
    """Implements ``peer.channel.Receiver`` for one client.

    Args:
        channel: to the broker.

    Attributes:
        broker: address of the one we talk to, or talked to last. opened: what it said in its OPEN; None: deployed
            NorFab's, or not connected yet.
        jobs: the unfinished ones by uuid, in the order they were submitted. questions: those without an answer.
        subscriptions: to events, over this session.
        unknown: packets about jobs that are not here, dropped.
    """

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self.broker = ""
        self.opened: dict[str, Any] | None = None
        self.limits = limits
        self.jobs: dict[str, Job] = {}
        self.questions: dict[str, Question] = {}
        self.subscriptions = Subscriptions(self.ask, limits)
        self.unknown = 0
        self._channel = channel
        self._store: ClientStore | None = None
        self._loop: asyncio.AbstractEventLoop
        self._liveness: BrokerLiveness
        self._started = self._closed = False
        self._connected = asyncio.Event()
        self._refusal: LinkRefused | None = None
        self._pushes = False
        self._epoch = ""
        self._message_bytes = 0
        self._deleted: dict[str, Job] = {}
        """Deleted here, and the broker does not know yet; oldest first."""
        self._unasked: deque[Question] = deque()
        self._waiting: deque[Job] = deque()
        self._at_broker: set[str] = set()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._probe_uuid = uuid4().hex
        self._tasks = Tasks()

    # -- life -------------------------------------------------------------------------------------

    def start(self, store: ClientStore | None) -> None:
        """Connect; ``store`` keeps the jobs, None: they are not kept."""
        self._store, self._started = store, True
        self._loop = asyncio.get_running_loop()
        self._liveness = BrokerLiveness(self._channel, self._awaits, self._probe, self._loop)
        self._channel.start(self, self._open_body)

    async def close(self) -> None:
        """Leave: whatever waits raises LinkClosed, and what is kept on disk stays unfinished there. Harmless twice."""
        self._closed = True
        if self.is_connected:
            self._end_session()
        for job in (*self.questions.values(), *self.jobs.values()):
            job.finish(LinkClosed(f"{job.title}: the client was closed"))
        self.subscriptions.close(LinkClosed("the client was closed"))
        self._deleted.clear()
        await self._tasks.stop()
        await self._channel.close()

    def check_open(self) -> None:
        """Raise LinkClosed unless the client is in use."""
        if self._closed:
            raise LinkClosed("the client was closed")
        if not self._started:
            raise LinkClosed("the client is not open: use `async with NfpClient(...)`")

    @property
    def is_connected(self) -> bool:
        """True while there is a session with a broker."""
        return self._connected.is_set()

    async def wait_connected(self, timeout_s: float | None) -> str:
        """Wait for a session and return the broker's address.

        Raises:
            LinkBroken: there was none within ``timeout_s``; the text says why. LinkRefused: see ``on_refused``.
        """
        try:
            async with within(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            why = self._channel.trouble or "no answer"
            text = f"{self._channel.broker}: not connected within {timeout_s:g} s: {why}"
            raise LinkBroken(text) from None
        if self._refusal is not None:
            raise self._refusal
        return self.broker

    # -- what is asked ----------------------------------------------------------------------------

    def submit(self, submission: Submission, earlier: StoredJob | None = None) -> Job:
        """Begin to look after a job; it is posted as soon as possible. ``earlier``: what came before a restart.

        One of this uuid that is looked after already is returned as it is: somebody may have asked for it while the
        caller waited for the disk or the broker.

        Raises:
            LinkClosed: the client is not open. HeadgateError: EAGAIN, too many are unfinished.
        """
        if (known := self.jobs.get(submission.uuid)) is not None:
            return known
        self._check_room(len(self.jobs), "jobs are unfinished")
        job = Job(submission, self)
        if earlier is not None:
            restore(job, earlier)
        self.jobs[job.uuid] = job
        job.known = not submission.body or earlier is not None
        self._waiting.append(job)
        self._pump()
        self._arm(job, submission.deadline)
        return job

    def take_up(self, stored: StoredJob) -> Job:
        """Go on with a job that was kept; one that is over ends as it did."""
        if stored.state not in ENDS:
            return self.submit(stored.submission, stored)
        job = Job(stored.submission, self)
        restore(job, stored)
        job.finish(error_of(job, stored))
        return job

    def question(self, submission: Submission, *, once: bool) -> Question:
        """Ask, now or when there is a connection; ``once``: not again when that one is lost, see ``Question``.

        Raises:
            LinkClosed: the client is not open. HeadgateError: EAGAIN, too many wait for answers.
        """
        self._check_room(len(self.questions), "questions wait")
        question = self.questions[submission.uuid] = Question(submission, self, once=once)
        self._unasked.append(question)
        self._pump()
        self._arm(question, submission.deadline)
        return question

    async def ask(
        self,
        service: str,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        target: Target = ANY,
        timeout_s: float,
    ) -> Any:
        """Ask, and return the answer, read from JSON. What is in ``ONCE`` is not asked again on another connection.

        Raises:
            RequestFailed: the answer is an error. TimeoutError: none came within ``timeout_s``. LinkClosed: the client
            is not open. LinkBroken: the connection was lost before the answer to a question asked once, which may have
            been done. LinkRefused: no broker lets us in, because of keys. HeadgateError: EAGAIN, too many wait.
            ValueError: ``timeout_s`` is nan.
        """
        body = bodies.request(task, args, kwargs or {}, None)
        deadline = asyncio.get_running_loop().time() + awaited_seconds(timeout_s)
        submission = Submission(uuid4().hex, service, task, target, body, timeout_s, deadline)
        question = self.question(submission, once=task in ONCE)
        try:
            await question.wait()
        finally:
            question.give_up()
        if isinstance(question.error, JobFailed):
            raise RequestFailed(str(question.error), question.error.status)
        if isinstance(question.error, JobTimeout):
            raise TimeoutError(str(question.error))
        if question.error is not None:
            raise question.error
        return question.value

    def _check_room(self, waiting: int, what: str) -> None:
        self.check_open()
        if waiting >= self.limits.jobs:
            raise HeadgateError(f"{waiting} {what}, that is the limit", errno.EAGAIN)

    # -- the connection (peer.channel.Receiver) ---------------------------------------------------

    def _open_body(self) -> dict[str, Any]:
        return {"name": self._channel.name, "dialect": DIALECT, "features": [PUSH]}

    def on_connect(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Note that a session begins: what has no answer is asked again, and every unfinished job made known."""
        again, said = self.is_connected, broker_of(opened or {})
        self.broker, self.opened, self._refusal = broker, opened, None
        self._connected.set()
        self._liveness.begin(opened)
        self._pushes = PUSH in said.features
        self._message_bytes = said.message_bytes
        self._unasked = deque(each for each in self.questions.values() if not (each.once and each.sent))
        if self._pushes or not again:
            self._waiting = deque(self.jobs.values())
            self._at_broker.clear()
            self._deleted |= {job.uuid: job for job in self._waiting if job.cancelling is not None}
            if opened is not None:
                self._reopen(said.epoch)
        self._pump()
        if len(self.subscriptions):
            self._tasks.spawn(f"events of {self._channel.name}", self._subscribe_again())

    def _reopen(self, epoch: str) -> None:
        """A broker that remembers jobs is posted all of them, and says what it knows."""
        for job in self.jobs.values():
            # one that does not know our jobs counts their time from now on, as their POST says; see ``_due``
            job.moved |= bool(self._epoch) and epoch != self._epoch
            if job.submission.body:
                job.outcome.reopen()
        self._epoch = epoch

    async def _subscribe_again(self) -> None:
        try:
            await self.subscriptions.resubscribe()
        except (TimeoutError, HeadgateError) as error:
            text = "%s: the broker did not take the subscription; tried again when it is back: %s"
            log.warning(text, self._channel.name, error)

    def on_packet(self, packet: Packet) -> None:
        """Hand on a packet of the broker.

        Deployed NorFab's answers a question twice, as RESPONSE and as MMI; the first one counts.
        """
        if packet.uuid == self._probe_uuid:
            return
        if packet.command is Command.EVENT and self.subscriptions.take(packet):
            return
        question = self.questions.get(packet.uuid)
        if question is not None:
            question.take(packet)
        elif packet.command is not Command.MMI:
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is None:
            self.unknown += 1
            return
        job.heard = self._loop.time()
        error = packet.command is Command.RESPONSE and packet.status >= Code.UNKNOWN
        if error and self._is_passing(job, packet):
            return
        job.take(packet)
        if packet.command is Command.EVENT and not self._pushes and not job.done:
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
        if self._pushes or not job.workers or job.cancelling is not None:
            return False
        if packet.status == Code.NOT_FOUND:
            worker = worker_of(packet.data)
            known = worker in job.outcome.outstanding
            return known and self._post(job, self._loop.time(), worker)
        return packet.status == Code.UNKNOWN

    def on_disconnect(self, why: str) -> None:
        """Note that the session is over; deadlines go on, and what must not be asked twice is given up."""
        log.info("%s: %s", self._channel.name, why)
        self._end_session()
        for question in list(self.questions.values()):
            if question.once and question.sent:
                question.finish(LinkBroken(f"{question.service}: {_LOST}"))

    def _end_session(self) -> None:
        self._connected.clear()
        self._liveness.end()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def on_refused(self, error: LinkRefused) -> None:
        """Tell who waits, and end what no broker can have: none lets us in, and none ever has.

        The channel tries on, so that a new attempt of the caller goes well once the keys are right.
        """
        self._refusal = error
        self._connected.set()  # wakes who waits now
        self._connected.clear()
        for job in (*self.questions.values(), *self.jobs.values()):
            if not job.known:
                job.finish(LinkRefused(str(error), error.errno))

    def _awaits(self) -> bool:
        return bool(self.questions or self.jobs or len(self.subscriptions))

    def _probe(self) -> None:
        """Send what the broker answers at once: ours every OPEN, whatever its rules, deployed NorFab's only MMI."""
        if self.opened is not None:
            packet = Packet(Sender.CLIENT, Command.OPEN, body=msgspec.json.encode(self._open_body()))
        else:
            body = bodies.request("show_broker_version", (), {}, None)
            packet = Packet(Sender.CLIENT, Command.MMI, service=MMI_BROKER, target=ANY, body=body)
            packet.uuid = self._probe_uuid
        self._channel.send(packet)

    # -- sending ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Hand over what waits while there is room in the outbox, and jobs while the broker takes more of them."""
        if self.is_connected and not (self._send_deletes() and self._send_questions() and self._send_jobs()):
            self._retry_later()

    def _send_deletes(self) -> bool:
        """Send what DELETEs there are; False when there was no room for all, as the next two."""
        for uuid, job in list(self._deleted.items()):
            if not self.send(job, Command.DELETE, job.submission.body or b"{}"):
                return False
            del self._deleted[uuid]
        return True

    def _send_questions(self) -> bool:
        waiting = self._unasked
        while waiting:
            question = waiting[0]
            if not question.done and not self._refuse_too_large(question):
                if not self.send(question, Command.MMI, question.submission.body):
                    return False
                question.sent = True
            waiting.popleft()
        return True

    def _send_jobs(self) -> bool:
        waiting = self._waiting
        while waiting and len(self._at_broker) < self.limits.at_broker_msgs:
            job = waiting.popleft()
            if job.done or job.uuid in self._at_broker or job.cancelling is not None:
                continue
            if self._refuse_too_large(job):
                continue
            if not self._hand_over(job):
                waiting.appendleft(job)
                return False
            self._at_broker.add(job.uuid)
        return True

    def _retry_later(self) -> None:
        """The outbox is full: go on once it is shorter."""
        if self._retry_timer is None:
            self._retry_timer = self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._pump()

    def _refuse_too_large(self, job: Job) -> bool:
        """End what the broker would end the connection for, each time that it comes; False: it is not too large."""
        size, most = len(job.submission.body), self._message_bytes
        if not most or size <= most:
            return False
        text = f"the request has {size} bytes, the broker takes {most} (nfp.message_bytes_max)"
        job.finish(JobFailed(text, Code.UNKNOWN, job.uuid))
        return True

    def _hand_over(self, job: Job) -> bool:
        now = self._loop.time()
        if not job.submission.body or (job.outcome.acknowledged and job.workers):  # "": somebody else's POST
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

    def send(self, job: Job, command: Command, body: bytes, target: Target | None = None) -> bool:
        """Send a command about ``job``; ``target`` None: as it was submitted."""
        if not self.is_connected:
            return False
        return self._channel.send(job.packet(command, body, target))

    # -- time -------------------------------------------------------------------------------------

    def _patience_s(self, job: Job) -> float:
        """After how long a silence a job is asked for; nothing is pushed about other people's."""
        if not job.submission.body:
            return self.limits.poll_attached_s
        return self.limits.poll_pushed_s if self._pushes else self.limits.poll_s

    def _arm(self, job: Job, due: float) -> None:
        """One timer a job, at the earliest thing that may be due; what is due is decided when it fires."""
        if job.done:
            return
        due = min(due, job.submission.deadline)
        if job.timer is not None:
            if job.timer.when() <= due and not job.timer.cancelled():
                return
            job.timer.cancel()
        job.timer = self._loop.call_at(due, self._due, job)

    def _due(self, job: Job) -> None:
        job.timer = None
        now = self._loop.time()
        deadline = job.submission.deadline
        if now >= deadline:
            job.expire(self._channel.trouble)
            if job.moved:
                self._delete(job)  # this broker would still have it run
            return
        next_at = deadline
        if self.is_connected and job.uuid in self._at_broker and job.cancelling is None:
            next_at = self._ask_again(job, now)
        self._arm(job, max(next_at, now + 0.001))

    def _ask_again(self, job: Job, now: float) -> float:
        """POST or GET when it is time; returns when to look again."""
        if job.submission.body and not job.outcome.acknowledged:
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

    # -- the end ----------------------------------------------------------------------------------

    def keep_progress(self, job: Job) -> None:
        """Keep what has come; who works on it is worth keeping at a broker that remembers no job."""
        if self._store is not None:
            if not self._pushes:
                self._store.keep_workers(job.uuid, job.workers)
            self._store.keep_results(job)

    async def cancel(self, job: Job) -> bool:
        """See ``Job.cancel``."""
        if job.done:
            return False
        if not job.known:
            job.give_up()  # nobody else knows of it
            return True
        if job.cancelling is None:
            job.cancelling = self._loop.create_future()
        try:
            self._delete(job)
            async with asyncio.timeout(self.limits.answer_s):
                return await asyncio.shield(job.cancelling)
        except TimeoutError:
            return False
        finally:
            job.cancelling = None
            job.finish(job.cancellation())

    def abandon(self, job: Job) -> None:
        """Tell the broker that nobody waits for ``job`` any more; its answer does not matter."""
        if job.known:
            self._delete(job)

    def _delete(self, job: Job) -> None:
        """Have the broker end it: now, or when it can be told."""
        self._deleted[job.uuid] = job
        if len(self._deleted) > self.limits.jobs:
            del self._deleted[next(iter(self._deleted))]
        self._pump()

    def forget(self, job: Job) -> None:
        """Forget what is over; a job that waits may take its place at the broker."""
        if job.timer is not None:
            job.timer.cancel()
        if self.questions.pop(job.uuid, None) is not None or self.jobs.pop(job.uuid, None) is None:
            return  # no job, or one that was over when it was found again
        self._at_broker.discard(job.uuid)
        if job.cancelling is not None and not job.cancelling.done():
            job.cancelling.set_result(job.status == _CANCELLED)
        if self._store is not None and not self._closed:
            self._store.end(job.uuid, job.status, str(job.error or ""))
        if self._waiting and not self._closed:
            self._pump()
