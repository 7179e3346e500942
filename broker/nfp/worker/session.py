"""What a worker says to its broker and hears from it: that it is there, and its jobs, until somebody has their results.

Two kinds of brokers are served. Ours answered OPEN with the feature ``recorded``: results are pushed with RESPONSE 200
and kept until the broker says that it has them (``200 RECORDED``). Deployed NorFab gets what its own workers send: 201,
a ``starting`` event, a ``result_ready`` event, and the result when it asks. A result that is not safe yet is offered
again in each new conversation.

When a task may be entered. A job may be somebody else's by now, or cancelled, whenever its broker was not there to say
so. Therefore what has not begun when a connection is lost, or when the worker itself ends, is held back, is listed in
the next OPEN, and begins when the broker confirms it ("200 CONFIRMED") or gives it anew. A job that must not be run
twice is stored and accepted first, begins when the broker has confirmed that this is on record, and that it has begun
is on disk before its task is entered. Jobs of deployed NorFab, which confirms nothing, carry no attempt: they begin
unasked.

201 says that a job runs: one that may be run twice is stored and accepted when it takes longer than ``ACCEPT_AFTER_S``,
since until then the broker gives it to another worker anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.frames import Packet, status_text
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.opening import BrokerOpen, broker_of, read_any
from broker.nfp.peer.channel import Channel
from broker.nfp.peer.liveness import BrokerLiveness
from broker.nfp.threads import Threads
from broker.nfp.worker.run import (
    ENDED,
    HELD,
    PUTS_MAX,
    RUNNING,
    WAITING,
    JobContext,
    JobRun,
    Result,
    TaskContext,
    ThreadContext,
    encode,
    failure,
)
from broker.nfp.worker.shared_loop import contain, enter_job
from broker.nfp.worker.store import FINISHED, RunStore, StoredRun
from broker.nfp.worker.tasks import Arguments, Task
from broker.safe_text import about
from broker.tasks import Tasks

log = logging.getLogger("headgate")
UNFINISHED_MAX: Final = 10_000
"""Jobs without result that a worker holds; a broker with credits sends one at a time, deployed NorFab sends all."""
UNRECORDED_MAX: Final = 10_000
"""Results that nobody has taken: a client of deployed NorFab that is gone for good never asks for its own."""
UNRECORDED_BYTES: Final = 256 << 20
"""Bytes of these; beyond, the oldest is given up, except that the store still has it."""
FETCH_S: Final = 3.0
"""How long a leaving worker waits until its last results are recorded, or deployed NorFab has asked for them."""
ACCEPT_AFTER_S: Final = 0.05
"""Jobs that may be run twice and are shorter than this cost no 201 and no place in the store before their end."""
CANCELLED_STATUS: Final = 417
"""Status of a deleted job's end: the client does not get what it was expecting (NFP, "Status Frames")."""
RECORDED_FEATURE: Final = "recorded"
Manage = Callable[[Packet], bytes]
"""Answers a request to ``mmi.service.worker`` with JSON."""
Localise = Callable[[Task, list[Any], dict[str, Any]], Awaitable[Arguments]]
"""Brings the files that arguments name."""


@dataclass(eq=False)
class Session:
    """One life of a worker at its brokers (``peer.channel.Receiver``); ordinary functions run in threads.

    Attributes:
        channel: to the broker. service: what the worker offers. tasks: by name. store: where jobs are kept.
        slots: jobs at a time. manage: see ``Manage``. localise: see ``Localise``. inventory: shown to tasks.
        worker: its name. registered: READY was sent in this conversation.
        opened: the broker's OPEN, as JSON; None: deployed NorFab's. said: what it says. pushes_results: the broker
            takes results unasked and says when it has them. keepalives_sent, keepalives_received: since the start.
        jobs: those that go on, and ended ones until their result is safe elsewhere. unrecorded: the latter, oldest
            first. done, failed: ended ones since the start. running: those with a slot.
        draining: no new jobs are run. stopping: what runs is ended. accept_after_s: ``ACCEPT_AFTER_S``.
    """

    channel: Channel
    service: str
    tasks: dict[str, Task]
    store: RunStore
    slots: int
    manage: Manage
    localise: Localise
    inventory: dict[str, Any]
    # the connection
    registered: bool = False
    opened: dict[str, Any] | None = None
    said: BrokerOpen = field(default_factory=BrokerOpen)
    pushes_results: bool = False
    keepalives_sent: int = 0
    keepalives_received: int = 0
    _beat: asyncio.TimerHandle | None = None
    _heard_at: float = 0.0
    _sent_at: float = 0.0
    _interval_s: float = 0.0
    # jobs
    jobs: dict[str, JobRun] = field(default_factory=dict)
    unrecorded: dict[str, JobRun] = field(default_factory=dict)
    running: dict[str, JobRun] = field(default_factory=dict)
    done: int = 0
    failed: int = 0
    draining: bool = False
    stopping: bool = False
    accept_after_s: float = ACCEPT_AFTER_S
    _paused: bool = True
    _waiting: dict[str, JobRun] = field(default_factory=dict)
    """For a slot, in the order in which they came."""
    _unrecorded_bytes: int = 0
    _unsent: dict[str, JobRun] = field(default_factory=dict)
    """Results that this conversation has not taken yet, in order."""
    _sending: bool = False
    _safe: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever results became safe."""
    _runs: Tasks = field(default_factory=Tasks)
    _background: Tasks = field(default_factory=Tasks)

    def __post_init__(self) -> None:
        self.worker = self.channel.name
        self.loop = asyncio.get_running_loop()
        self.threads = Threads(f"task of {self.worker}", self.slots, self.loop)
        # it says KEEPALIVE by itself: something is always awaited of the broker, and it need not be asked
        self._liveness = BrokerLiveness(self.channel, lambda: True, lambda: None, self.loop)
        contain(self.loop)

    # -- a connection begins and ends (peer.channel.Receiver) -------------------------------------

    def on_connect(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Register, and bring what an earlier broker or connection may not have got."""
        self.opened, self.said = opened, broker_of(opened or {})
        self.pushes_results = RECORDED_FEATURE in self.said.features
        if self.draining:
            return
        self._liveness.begin(opened)
        self._interval_s = self.said.keepalive_ms / 1000
        self._heard_at = self._sent_at = self.loop.time()
        self._arm()
        if not self.registered:  # else the broker's OPEN comes late
            self.registered = True
            self.channel.send(Packet(Sender.WORKER, Command.READY, service=self.service))
            # a job without an attempt came from a broker that confirms nothing
            for job in [job for job in self.jobs.values() if job.state == HELD and not job.attempt]:
                self._release(job)
            self._paused = False
            self._start_waiting()
            for job in self.running.values():
                if job.context is not None:
                    job.context.repeat_question()
        self._unsent = dict(self.unrecorded)
        self._send_unsent()

    def on_disconnect(self, why: str) -> None:
        """The channel looks for a broker; running jobs go on, others wait for a new word of it."""
        self.unregister()
        waiting, self._waiting = self._waiting, {}
        for job in waiting.values():
            self._hold(job)
        for job in self.jobs.values():
            job.repost = None
            if job.state != RUNNING:
                job.confirmed = False

    def unregister(self) -> None:
        """The conversation is over. Harmless twice."""
        self.registered = False
        self._liveness.end()
        if self._beat is not None:
            self._beat.cancel()

    def disconnect(self) -> None:
        """Say goodbye: no further jobs."""
        if self.registered:
            body = b"shutdown" if self.opened is not None else None  # deployed NorFab writes and expects none
            self.channel.send(Packet(Sender.WORKER, Command.DISCONNECT, service=self.service, body=body))
        self.unregister()

    # -- signs of life (NFP, "Keepaliving") -------------------------------------------------------

    @property
    def hold_s(self) -> float:
        """How long the broker may still be silent without having given us up: by the clock, also of the time in which
        we were stopped; 0 and less: it may have.
        """
        silence_s = self._interval_s * self.said.multiplier
        return self._heard_at + silence_s - self.loop.time() if self.registered else 0.0

    def _arm(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._beat = self.loop.call_at(self._sent_at + self._interval_s, self._tick)

    def _tick(self) -> None:
        """What else was sent is as good, except to deployed NorFab, whose broker counts only these."""
        if self.opened is None or self.loop.time() - self._sent_at >= self._interval_s:
            self._keep_alive(self.channel.send)
        self._arm()

    def beat_from_thread(self) -> None:
        """The loop is blocked: say in its place that the worker is there, when that is due; see ``LoopWatch``."""
        send = getattr(self.channel, "send_from_thread", None)
        if self.registered and send is not None and self.loop.time() - self._sent_at >= self._interval_s:
            self._keep_alive(send)

    def _keep_alive(self, send: Callable[[Packet], bool]) -> None:
        self._sent_at = self.loop.time()
        send(Packet(Sender.WORKER, Command.KEEPALIVE, service=self.service))
        self.keepalives_sent += 1

    # -- what is said to the broker ---------------------------------------------------------------

    def send(
        self, to: JobRun | Packet, status: int, body: bytes, command: Command = Command.RESPONSE
    ) -> bool:
        """Send something about a job, or an answer to a packet, the way it came; False when it was not taken."""
        if not self.registered:
            return False
        packet = Packet(
            Sender.WORKER,
            command,
            dialect=to.dialect,
            service="" if to.client is not None else to.service or self.service,
            client=to.client,
            uuid=to.uuid,
            status=status,
            status_text=status_text(status, to.dialect),
            body=body,
        )
        sent = self.channel.send(packet)
        if sent:
            self._sent_at = self.loop.time()
        return sent

    def _refuse(self, packet: Packet, status: int, error: str) -> None:
        """Answer that it cannot be done."""
        self.send(packet, status, bodies.failed(status, packet.uuid, self.service, self.worker, error))

    def too_large(self, size: int) -> str:
        """Why the broker does not take a body of ``size`` bytes, "" when it does."""
        most = self.said.message_bytes
        return f"{size} bytes, the broker takes {most} (nfp.message_bytes_max)" if 0 < most < size else ""

    def event(self, job: JobRun, kind: str, message: str, status: str, **more: Any) -> bytes:
        """The body of an event about ``job``; ``more`` as ``bodies.event`` takes it."""
        more |= {"worker": self.worker, "service": self.service, "uuid": job.uuid, "task": job.task}
        return bodies.event(kind, message=message, status=status, timestamp=event_time(), **more)

    def _send_event(self, job: JobRun, kind: str, message: str, status: str) -> bool:
        return self.send(job, 200, self.event(job, kind, message, status), Command.EVENT)

    # -- what the broker says ---------------------------------------------------------------------

    def on_packet(self, packet: Packet) -> None:
        """Do what the broker says; any packet of it says that it is there."""
        self._heard_at = self.loop.time()
        match packet.command:
            case Command.POST:
                self._post(packet)
            case Command.RESPONSE if packet.status_text == bodies.RECORDED:
                self._recorded(bodies.read_uuids(packet.data) or [packet.uuid])
            case Command.RESPONSE if packet.status_text == bodies.CONFIRMED:
                self._confirmed(bodies.read_uuids(packet.data) or [packet.uuid])
            case Command.KEEPALIVE:
                self.keepalives_received += 1
            case Command.GET:
                self._get(packet)
            case Command.PUT:
                self._put(packet)
            case Command.DELETE:
                self._delete(packet)
            case Command.MMI:
                self.send(packet, 200, self.manage(packet))

    def _get(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is None:
            self._background.spawn(f"get {packet.uuid}", self._get_elsewhere(packet))
        elif not job.ended:
            said: dict[str, Any] = {"worker": self.worker, "uuid": job.uuid, "service": self.service}
            said["status"] = job.as_stored().shown
            if job.question is not None:
                said["input_request"] = job.question
            asking = job.question is not None and packet.dialect is Dialect.NORFAB
            self.send(packet, 102 if asking else 300, bodies.write(said))
        elif self._answer(packet, job) and not self.pushes_results:
            self._recorded([job.uuid])

    async def _get_elsewhere(self, packet: Packet) -> None:
        found = await self._find(packet.uuid)
        if found is not None:
            self.send(packet, found.status, found.result)
        else:
            self._unknown(packet)

    def _unknown(self, packet: Packet) -> None:
        self._refuse(packet, 404, f"worker {self.worker} does not know the job {packet.uuid[:64]}")

    def _put(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is None or job.ended or len(job.puts) >= PUTS_MAX:
            return
        said = read_any(packet.data, packet.data)
        if job.context is not None:
            job.context.take(said)
        else:
            job.puts.append(said)

    def _delete(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is None:
            if self.store.state(packet.uuid) not in FINISHED:
                self._unknown(packet)
        elif job.repost is not None:
            job.repost = None
            self._unknown(packet)
        elif job.ended:
            return
        elif not bodies.unless_begun(packet.data):
            self._cancel(job)
        elif job.state not in (HELD, WAITING):
            self._send_accepted(job)
        else:  # somebody else has a place for it
            self._waiting.pop(job.uuid, None)
            job.stop_timer()
            self._remove(job)
            if job.stored:
                self.store.drop(job.uuid)
            self._unknown(packet)

    def _cancel(self, job: JobRun) -> None:
        """``job`` was deleted: end it at once when it waits, else what it waits for; a thread is only told."""
        job.cancelled = True
        if job.running is None:
            self._waiting.pop(job.uuid, None)
            self._finish(job, job.cancellation())
        elif job.waiting is not None:
            # behind its first step: without one it would keep its slot, and have no result
            self.loop.call_soon(job.waiting.cancel)

    # -- a job comes ------------------------------------------------------------------------------

    def _post(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is not None and job.cancelled and job.idempotent:
            job.repost = packet  # it was somebody else's for a while, and is this worker's again
            return
        if job is not None:
            self._duplicate(job, packet)
            return
        if self.draining:
            return  # DISCONNECT follows: the broker gives it to another
        if self.open >= UNFINISHED_MAX:
            self._refuse(packet, 500, f"worker {self.worker} holds {UNFINISHED_MAX} jobs already")
            return
        job = JobRun(packet.uuid, packet.client, packet.service, packet.dialect, packet.data)
        task = self.tasks.get(job.task)
        job.idempotent = task is None or task.idempotent
        self.jobs[job.uuid] = job
        if self.store.state(job.uuid) or not self.pushes_results:
            self._background.spawn(f"admit {job.uuid}", self._admit(job))
            return
        self._wait_for_slot(job)

    @property
    def open(self) -> int:
        """How many jobs have no result."""
        return len(self.jobs) - len(self.unrecorded)

    def _duplicate(self, job: JobRun, packet: Packet) -> None:
        """A duplicate is answered by state, not run twice."""
        if job.stored and packet.client != job.client:
            self.store.readdressed(job.uuid, packet.client)  # a later life answers under this attempt
        job.client, job.service, job.dialect = packet.client, packet.service, packet.dialect
        if job.ended:
            self._send_result(job)
        elif not self._release(job) and job.accepted:
            self._send_accepted(job)

    async def _admit(self, job: JobRun) -> None:
        """Let the job wait for its slot unless it has ended before; for deployed NorFab store and accept it first."""
        if self.store.state(job.uuid) and await self._ended_before(job):
            return
        if not self.pushes_results:
            try:
                await self._accept(job)
            except HeadgateError as error:
                self._finish(job, self._not_stored(error), 500)
        if not job.ended:
            self._wait_for_slot(job)

    async def _ended_before(self, job: JobRun) -> bool:
        """Whether the store says that the job has ended before; its result is sent then."""
        state, found = self.store.state(job.uuid), await self._find(job.uuid)
        if job.ended:
            return True  # a DELETE came meanwhile
        if state not in ("done", "recorded") and (job.idempotent or state == "accepted"):
            self.store.drop(job.uuid)  # cancelled before, and wanted after all
            return False
        if found is None or not found.result:
            error = f"job {job.uuid} was {state} here before, and there is no result to be read"
            self._finish(job, failure(error), 417 if state == "cancelled" else 500)
            return True
        job.stored = job.accepted = True
        self._close(job, found.status, found.result, failed=found.failed)
        self._send_result(job)
        return True

    async def _find(self, uuid: str) -> StoredRun | None:
        """An ended job that only the store knows, with its result."""
        if self.store.state(uuid) not in ("done", "recorded"):
            return None
        try:
            return await self.store.find(uuid)
        except HeadgateError as error:
            log.warning("%s: job %s cannot be read: %s", self.worker, uuid, error)
            return None

    async def _accept(self, job: JobRun) -> None:
        """Store the job and say 201.

        Raises:
            HeadgateError: it cannot be stored.
        """
        self.store.accepted(job.as_stored())
        job.stored = True
        if job.state == RUNNING:
            self.store.started(job.uuid)
        await self.store.durable()
        if not job.ended:
            job.accepted = True
            self._send_accepted(job)

    def _send_accepted(self, job: JobRun) -> None:
        """Say 201: the job is in hand."""
        self.send(job, 201, bodies.accepted(job.uuid, self.service, self.worker))

    # -- it waits for the broker's word -----------------------------------------------------------

    def _hold(self, job: JobRun) -> None:
        """``job`` does not begin until its broker has said that it may, and ends at its deadline."""
        job.step("hold")
        job.confirmed = False
        job.stop_timer()
        error = f"no broker said within {job.timeout_s:g} s that {self.worker} may run the job"
        job.timer = self.loop.call_later(max(0.0, job.left_s), self._finish, job, failure(error), 408)

    def _release(self, job: JobRun) -> bool:
        """A job that was held back waits for its slot; False when it was not."""
        if job.state != HELD:
            return False
        job.stop_timer()
        self._wait_for_slot(job)
        return True

    def _confirmed(self, uuids: list[str]) -> None:
        """The broker says that these jobs are this worker's."""
        for uuid in uuids:
            job = self.jobs.get(uuid)
            if job is None or job.state in (RUNNING, ENDED):
                continue
            job.confirmed = True
            if not self._release(job) and job.confirmation is not None and not job.confirmation.done():
                job.confirmation.set_result(None)

    # -- it waits for its slot, and runs ----------------------------------------------------------

    def _wait_for_slot(self, job: JobRun) -> None:
        job.step("wait")
        self._waiting[job.uuid] = job
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Fill free slots, in the order in which the jobs came; before the first connection they stay free."""
        while self._waiting and len(self.running) < self.slots and not self._paused:
            job = self._waiting.pop(next(iter(self._waiting)))
            job.step("start")
            task = self.tasks.get(job.task)
            kind = JobContext if task is None or task.asynchronous else ThreadContext
            job.context = context = kind(job, self)
            self.running[job.uuid] = job
            job.running = job.waiting = self._runs.spawn(f"job {job.uuid}", self._run(job, task, context))

    async def _run(self, job: JobRun, task: Task | None, context: TaskContext) -> None:
        """``job`` in its slot: whatever its task leaves, it has a result when its slot is free again."""
        result, status = None, 200
        enter_job()
        try:
            if await self._may_begin(job):
                job.step("enter")
                job.started_s = time.time()
                result = self._no_task(job) if task is None else await job.bring(task, context, self)
        except HeadgateError as error:  # of the store
            result, status = self._not_stored(error), 500
        except asyncio.CancelledError:
            if not job.cancelled:  # the worker ends: the job has no result
                raise
            result = job.cancellation()
        except BaseException as error:  # of what the task left, something does what nobody thought of
            result = _odd(job, "what the task left cannot be read", error)
        finally:
            self.running.pop(job.uuid, None)
            job.running = job.waiting = job.context = None
        try:
            if result is not None:
                self._finish(job, result, status)
        except Exception as error:
            self._finish(job, _odd(job, "the result cannot be kept", error))
        finally:
            self._start_waiting()

    async def _may_begin(self, job: JobRun) -> bool:
        """Return when the task of ``job``, which has its slot, may be entered; False: it is held back.

        What must not be run twice is confirmed first, and that it has begun is on disk.

        Raises:
            HeadgateError: it cannot be stored.
        """
        if job.attempt and not job.confirmed and self.hold_s <= 0:
            self._hold(job)
            return False
        if job.idempotent:
            if self.pushes_results:
                job.timer = self.loop.call_later(self.accept_after_s, self._accept_late, job)
            if job.stored:
                self.store.started(job.uuid)
        else:
            if job.attempt and not job.confirmed:
                job.confirmation = self.loop.create_future()
                await self._accept(job)
                try:
                    async with asyncio.timeout(max(0.0, job.left_s)):
                        await job.confirmation
                except TimeoutError:
                    return True  # it is over: its context says so before the task is entered
            self.store.started(job.uuid)
            await self.store.durable()
            if job.attempt and not job.confirmed:
                self._hold(job)  # the connection was lost meanwhile, and the broker's word with it
                return False
        if not self.pushes_results:
            self._send_event(job, "progress", "starting", "running")
        return True

    def _accept_late(self, job: JobRun) -> None:
        """A job that may be run twice is still there after a while: now its broker is told that it is in hand."""

        async def accept() -> None:
            if job.ended:
                return  # it was deleted in this very moment, and nobody wants to find it
            try:
                await self._accept(job)
            except HeadgateError as error:
                log.warning("%s: job %s is not stored: %s", self.worker, job.uuid, error)

        self._background.spawn(f"accept {job.uuid}", accept())

    def _no_task(self, job: JobRun) -> Result:
        said = f"no task {job.task[:64]!r}, expected one of {', '.join(sorted(self.tasks))}"
        if not job.task:
            said = 'the body names no task, expected JSON with "task", "args" and "kwargs"'
        return failure(said, LookupError(said))

    def _not_stored(self, error: HeadgateError) -> Result:
        return failure(f"worker {self.worker} cannot store the job: {error}")

    # -- it has its result ------------------------------------------------------------------------

    def _finish(self, job: JobRun, result: Result, status: int = 200) -> None:
        """``job`` ends with ``result``: store it, send it. Harmless when it has ended."""
        if job.ended:
            return
        body = self._written(job, result)
        fitting = self._fitting(job, body)
        failed = result.failed or fitting is not body
        self._close(job, CANCELLED_STATUS if job.cancelled else status, fitting, failed=failed)
        if job.cancelled:
            # the broker has closed it: told once that the slot is free, it needs the result no more
            if job.stored and job.started_s:
                self.store.cancelled(job.uuid)
            elif job.stored:
                self.store.drop(job.uuid)  # its task was not entered: it may be given to this worker again
            self._try_result(job)
            self._remove(job)
            if job.repost is not None:
                self._post(job.repost)
            return
        self.store.done(job.as_stored())
        job.stored = True
        if self.pushes_results:
            self._send_result(job)
        else:
            self._background.spawn(f"result of {job.uuid}", self._send_stored_result(job))

    def _written(self, job: JobRun, result: Result) -> bytes:
        """The body of the final RESPONSE: ``result``, with what it does not say of its job."""
        result.task = result.task or f"{self.worker}:{job.task}"
        result.juuid = result.juuid or job.uuid
        result.service = self.service
        result.status = result.status or ("failed" if result.failed else "completed")
        result.task_started = result.task_started or time.ctime(job.started_s or None)
        result.task_completed = time.ctime()
        return encode(self.worker, result)

    def _fitting(self, job: JobRun, body: bytes) -> bytes:
        """``body``, or in its place one that tells why this broker does not take it: it would end the connection."""
        why = self.too_large(len(body))
        if not why:
            return body
        error = f"the result has {why}: return less, stream it, or share it as a file"
        log.error("%s: job %s: %s", self.worker, job.uuid, error)
        return self._written(job, failure(error))

    def _close(self, job: JobRun, status: int, body: bytes, *, failed: bool) -> None:
        """``job`` has its result, which is offered until it is removed, or too many others are."""
        job.end(status, body, failed=failed)
        self.failed += failed
        self.done += not failed
        self.unrecorded[job.uuid] = job
        self._unrecorded_bytes += job.size
        while len(self.unrecorded) > UNRECORDED_MAX or (
            self._unrecorded_bytes > UNRECORDED_BYTES and len(self.unrecorded) > 1
        ):
            self._remove(next(iter(self.unrecorded.values())))

    def _remove(self, job: JobRun) -> None:
        """Forget ``job``: it was given back before it began, or its result is safe or of no use. Harmless twice."""
        self.jobs.pop(job.uuid, None)
        if self.unrecorded.pop(job.uuid, None) is not None:
            self._unrecorded_bytes -= job.size

    async def _send_stored_result(self, job: JobRun) -> None:
        """Deployed NorFab asks for a result once it is told that there is one, so it is stored before."""
        try:
            await self.store.durable()
        except HeadgateError as error:
            log.warning("%s: the result of job %s is not stored: %s", self.worker, job.uuid, error)
        self._send_result(job)

    def _send_result(self, job: JobRun) -> None:
        """Send a result, or say that there is one; later when the outbox is full."""
        if not self._try_result(job):
            self._unsent[job.uuid] = job
            self._send_unsent()

    def _try_result(self, job: JobRun) -> bool:
        if self.pushes_results:
            return self._answer(job, job)
        return self._send_event(job, "result_ready", "completed", "completed")

    def _answer(self, to: JobRun | Packet, job: JobRun) -> bool:
        return self.send(to, job.status, self._fitting(job, job.result or b""))

    def _send_unsent(self) -> None:
        """One task at a time does it; what is added or begun anew meanwhile is its work as well."""
        if self._unsent and not self._sending and self.registered:
            self._sending = True
            self._background.spawn("offer results", self._send_all_unsent())

    async def _send_all_unsent(self) -> None:
        """As fast as the outbox takes them."""
        try:
            while self._unsent and self.registered:
                uuid, job = next(iter(self._unsent.items()))
                if self.jobs.get(uuid) is not job or self._try_result(job):
                    self._unsent.pop(uuid, None)
                else:
                    await self.channel.writable()
        finally:
            self._sending = False

    def _recorded(self, uuids: list[str]) -> None:
        """These results are where they belong."""
        known = [self.unrecorded[uuid] for uuid in uuids if uuid in self.unrecorded]
        for job in known:
            self._remove(job)
        if known:
            self.store.recorded([job.uuid for job in known])
            self._safe.set()

    # -- a life begins and ends -------------------------------------------------------------------

    def restore(self, unrecorded: list[StoredRun]) -> None:
        """Take up what the store has: offer results, hold back what has not begun, end what must not begin again.

        What had begun and may be run twice is forgotten: a broker that confirms sees that it is gone, and gives it to
        somebody as a new attempt. Deployed NorFab gives it to nobody, so its jobs are run again here.
        """
        for each in unrecorded:
            job = JobRun.restored(each)
            if each.state == "started" and each.idempotent and job.attempt:
                self.store.drop(job.uuid)
                continue
            self.jobs[job.uuid] = job
            if each.state == "done":
                self._close(job, each.status, each.result, failed=each.failed)
            elif each.state == "accepted" or each.idempotent:
                self._hold(job)
            else:
                error = f"worker {self.worker} ended while it ran {job.task}, which must not be run twice"
                self._finish(job, failure(error))

    def listed(self) -> dict[str, list[Any]]:
        """For OPEN: what this worker holds, uuid to attempt and state."""
        states = {RUNNING: "running", ENDED: "done"}
        return {job.uuid: [job.attempt, states.get(job.state, "waiting")] for job in self.jobs.values()}

    def known_jobs(self) -> list[StoredRun]:
        """The jobs in the store, at most ``LISTED``, and those that go on, newest first, without bodies and results."""
        known = {job.uuid: job for job in reversed(self.store.listing())}
        known.update((job.uuid, job.as_stored()) for job in self.jobs.values())
        return list(reversed(known.values()))

    @property
    def busy(self) -> bool:
        """Whether something goes on in the background."""
        return len(self._background) > 0

    async def drain(self, seconds: float) -> None:
        """Finish what runs, within ``seconds``, then say goodbye; ordinary functions are left to themselves.

        DISCONNECT comes last: a broker sends nothing after it, and deployed NorFab's even drops the results.
        """
        self.draining = self._paused = True
        try:
            async with asyncio.timeout(seconds):
                while self.busy or len(self._runs):
                    await self._runs.idle()
                    await self._background.idle()
        except TimeoutError:
            log.warning("%s: left with %d running jobs after %g s", self.worker, len(self.running), seconds)
        if self.registered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, FETCH_S)):
                    while self.unrecorded:
                        self._safe.clear()
                        await self._safe.wait()
        self.disconnect()
        self.stopping = True
        await self._runs.stop()
        self.threads.close()
        await self._background.stop()


def _odd(job: JobRun, what: str, error: BaseException) -> Result:
    """A failed result that says so; the log has no traceback, which might not be readable either."""
    said = f"{what}: {about(error)}"
    log.error("job %s: %s", job.uuid, said)
    return failure(said, error)


def event_time() -> str:
    """Now as events carry it: ``dd-Mon-YYYY HH:MM:SS.mmm``, local time, English in every locale as ``ctime`` is."""
    now = time.time()
    _, month, day, clock, year = time.ctime(now).split()
    return f"{day:0>2}-{month}-{year} {clock}.{int(now * 1000) % 1000:03d}"
