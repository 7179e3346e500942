"""The session of a client with its broker: whether there is one, who gets what it brings, and questions.

Questions are for services that the broker answers itself, at once: management, inventory, events, jobs (NFP, "MMI").
Deployed NorFab's broker answers each twice, as RESPONSE and as MMI; the first one counts. A question whose answer was
lost with the connection is asked again in the next session, except where that would be done twice (``ONCE``, and what
is asked ``once``). One that is submitted as a job is such a question: a job's POST is sent again until somebody
confirms it, a question such as "restart" must not be.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from broker.errors import HeadgateError, LinkBroken, LinkClosed, LinkRefused
from broker.nfp import bodies
from broker.nfp.client.errors import JobCancelled, JobFailed, JobTimeout, RequestFailed
from broker.nfp.client.job import Job, JobOwner, Submission
from broker.nfp.client.limits import Limits
from broker.nfp.client.liveness import BrokerLiveness
from broker.nfp.client.subscription import Subscriptions
from broker.nfp.client.tracker import PUSH, JobTracker
from broker.nfp.frames import Packet
from broker.nfp.names import MMI_BROKER, MMI_WORKER, Code, Command, Sender
from broker.nfp.opening import DIALECT, read_any
from broker.nfp.outcome import error_text
from broker.nfp.peer.channel import Channel
from broker.nfp.targets import ANY, Target
from broker.tasks import within

log = logging.getLogger("headgate")
ONCE: Final = frozenset({"restart", "shutdown", "disconnect"})
"""Tasks of management that end connections: their answers may well be lost with them."""
BROKER: Final = "broker"
"""Whose result the answer of a service of the broker is; ``mmi.service.worker`` answers with names of workers."""
_LOST: Final = "the connection was lost before the answer; it may have been done, and is not asked again"


class _Question:
    """One without an answer; ``once``: not asked again when it was ``sent``."""

    __slots__ = ("answer", "once", "packet", "sent")

    def __init__(self, packet: Packet, once: bool) -> None:
        self.packet = packet
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.once = once
        self.sent = False

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ClientSession(JobOwner):
    """Implements ``peer.channel.Receiver`` for one client, and looks after its questions.

    Attributes:
        broker: address of the one we session to, or talked to last. opened: what it said in its OPEN; None: deployed
            NorFab's, or not connected yet.
        jobs: questions that were submitted as jobs and have no answer, by uuid.
        subscriptions: to events, over this session.
    """

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self.broker = ""
        self.opened: dict[str, Any] | None = None
        self.limits = limits
        self.jobs: dict[str, Job] = {}
        self.subscriptions = Subscriptions(self._ask_events, limits)
        self._channel = channel
        self._tracker: JobTracker
        self._liveness: BrokerLiveness
        self._questions: dict[str, _Question] = {}
        self._probe_uuid = uuid4().hex
        self._connected = asyncio.Event()
        self._refusal: LinkRefused | None = None
        self._tasks: dict[object, asyncio.Task[None]] = {}

    def start(self, tracker: JobTracker) -> None:
        """Connect; the jobs of ``tracker`` go over this session."""
        self._tracker = tracker
        self._liveness = BrokerLiveness(self._channel, self._awaits, self._probe, asyncio.get_running_loop())
        self._channel.start(self, self._open_body)

    async def close(self, error: LinkClosed) -> None:
        """End the session; what waits for an answer gets ``error``."""
        for job in list(self.jobs.values()):
            job.finish(LinkClosed(f"{job.service} {job.task}: {error}"))
        for question in self._questions.values():
            question.fail(LinkClosed(str(error)))
        self.subscriptions.close(error)
        if self.is_connected:
            self._liveness.end()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._channel.close()

    def _run(self, key: object, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do ``work`` in the background, until the session is closed at most; ``key`` is like no other."""
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(lambda _task: self._tasks.pop(key, None))

    @property
    def is_connected(self) -> bool:
        """True while there is a session."""
        return self._connected.is_set()

    async def wait_connected(self, timeout_s: float | None) -> str:
        """Wait for a session and return the broker's address.

        Raises:
            LinkBroken: there was none within ``timeout_s``; the text says why. LinkRefused: see ``refused``.
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

    def refused(self, error: LinkRefused) -> None:
        """Tell who waits, and end jobs that no broker can have: none lets us in, and none ever has.

        The channel tries on, so that a new attempt of the caller goes well once the keys are right.
        """
        self._refusal = error
        self._connected.set()  # wakes who waits now
        self._connected.clear()
        for question in self._questions.values():
            question.fail(LinkRefused(str(error), error.errno))
        self._tracker.refused(error)

    def _open_body(self) -> dict[str, Any]:
        return {"name": self._channel.name, "dialect": DIALECT, "features": [PUSH]}

    def _awaits(self) -> bool:
        return bool(self._questions or self._tracker.jobs or len(self.subscriptions))

    def _probe(self) -> None:
        """Send what the broker answers at once: ours every OPEN, whatever its rules, deployed NorFab's only MMI."""
        if self.opened is not None:
            packet = Packet(Sender.CLIENT, Command.OPEN, body=msgspec.json.encode(self._open_body()))
        else:
            packet = Packet(
                Sender.CLIENT,
                Command.MMI,
                service=MMI_BROKER,
                target=ANY,
                uuid=self._probe_uuid,
                body=bodies.request("show_broker_version", (), {}, None),
            )
        self._channel.send(packet)

    # -- peer.channel.Receiver --------------------------------------------------------------------

    def received(self, packet: Packet) -> None:
        """Hand on a packet of the broker."""
        if packet.uuid == self._probe_uuid:
            return
        if packet.command is Command.EVENT and self.subscriptions.received(packet):
            return
        question = self._questions.get(packet.uuid)
        if question is not None:
            _answer(question, packet)
        elif packet.command is not Command.MMI:
            self._tracker.received(packet)

    def lost(self, why: str) -> None:
        """Note that the session is over; what must not be asked twice is given up."""
        log.info("%s: %s", self._channel.name, why)
        self._connected.clear()
        self._liveness.end()
        self._tracker.lost()
        for question in self._questions.values():
            if question.once and question.sent:
                question.fail(LinkBroken(f"{question.packet.service}: {_LOST}"))

    def connected(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Note that a session begins: what has no answer is asked, or asked again."""
        self.broker, self.opened, self._refusal = broker, opened, None
        self._connected.set()
        self._liveness.begin(opened)
        for question in self._questions.values():
            question.sent = question.sent and question.once
            self._send(question)
        self._tracker.began(opened)
        if len(self.subscriptions):
            self._run(object(), self._subscribe_again(), f"events of {self._channel.name}")

    async def _subscribe_again(self) -> None:
        try:
            await self.subscriptions.resubscribe()
        except (TimeoutError, LinkClosed):
            log.warning(
                "%s: the broker did not take the subscription; tried again when it is back",
                self._channel.name,
            )

    # -- questions --------------------------------------------------------------------------------

    async def ask(
        self,
        service: str,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        target: Target = ANY,
        timeout_s: float,
        uuid: str = "",
        once: bool = False,
    ) -> Any:
        """Ask, and return the answer, read from JSON; ``uuid`` is the question's, "" a new one.

        A question that is to be asked ``once``, as all of ``ONCE`` are, is not sent again on another connection.

        Raises:
            RequestFailed: the answer is an error. TimeoutError: none came within ``timeout_s``. LinkClosed: the client
            was closed. LinkBroken: the connection was lost before the answer to a question asked once, which may have
            been done. LinkRefused: no broker lets us in, because of keys.
        """
        uuid = uuid or uuid4().hex
        body = bodies.request(task, args, kwargs or {}, None)
        packet = Packet(Sender.CLIENT, Command.MMI, service=service, target=target, uuid=uuid, body=body)
        question = self._questions[uuid] = _Question(packet, once or task in ONCE)
        try:
            async with within(timeout_s):
                while self.is_connected and not self._send(question):
                    await self._channel.writable()
                return await question.answer
        except TimeoutError as error:
            why = f": {self._channel.trouble}" if self._channel.trouble else ""
            raise TimeoutError(f"{service} {task}: no answer within {timeout_s:g} s{why}") from error
        finally:
            del self._questions[uuid]

    def _send(self, question: _Question) -> bool:
        """Whether it is on its way; it may have been sent already, as the session began."""
        question.sent = question.sent or self._channel.send(question.packet)
        return question.sent

    async def _ask_events(self, service: str, task: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        answer = await self.ask(service, task, (), kwargs, timeout_s=self.limits.answer_s)
        if not isinstance(answer, dict):
            raise RequestFailed(f"{service}: {str(answer)[:200]}", 400)
        return answer

    # -- questions as jobs ------------------------------------------------------------------------

    def add(self, submission: Submission, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """Ask, once, now or when there is a connection, and return a job that ends with the answer.

        Raises:
            HeadgateError: EAGAIN, too many wait for answers.
        """
        if len(self.jobs) >= self.limits.jobs:
            raise HeadgateError(f"{len(self.jobs)} questions wait, that is the limit", errno.EAGAIN)
        job = self.jobs[submission.uuid] = Job(submission, self)
        self._run(job, self._ask(job, args, kwargs), f"question {job.uuid}")
        return job

    async def _ask(self, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        means: dict[str, Any] = {"target": job.target, "timeout_s": job.timeout_s, "uuid": job.uuid}
        try:
            value = await self.ask(job.service, job.task, args, kwargs, once=True, **means)
        except RequestFailed as error:
            job.finish(JobFailed(str(error), error.status, job.uuid))
        except TimeoutError as error:
            job.finish(JobTimeout(str(error), job.uuid))
        except Exception as error:
            job.finish(error)
        else:
            named = job.service == MMI_WORKER and isinstance(value, dict)
            job.outcome.results.update(value if named else {BROKER: value})
            job.finish(None)

    async def cancel(self, job: Job) -> bool:
        """Wait no more; what was asked for may be done all the same, so the cancellation is not confirmed."""
        self.abandon(job)
        return False

    def abandon(self, job: Job, error: Exception | None = None) -> None:
        """Wait no more; the job ends with ``error``, None: cancelled."""
        job.finish(error or JobCancelled(f"job {job.uuid} was cancelled", job.uuid))

    def ended(self, job: Job) -> None:
        """Forget a job that is over."""
        self.jobs.pop(job.uuid, None)
        task = self._tasks.get(job)
        if task is not None and task is not asyncio.current_task():
            task.cancel()


def _answer(question: _Question, packet: Packet) -> None:
    """Take the first answer that is final."""
    if packet.status in (Code.ACCEPTED, Code.PENDING, Code.CREATED) or question.answer.done():
        return
    data = packet.data
    value = read_any(data, data.decode("utf-8", "replace")) if data else None
    if packet.status >= Code.UNKNOWN:
        text = error_text(packet.status, value if isinstance(value, dict) else {})
        question.fail(RequestFailed(f"{question.packet.service}: {text}", packet.status))
    else:
        question.answer.set_result(value)
