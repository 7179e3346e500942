"""A job on a worker, from its POST until somebody has its result for sure.

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
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.client.errors import JobCancelled
from broker.nfp.frames import Packet, status_text
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.opening import broker_of, read_any
from broker.nfp.peer.channel import Channel
from broker.nfp.threads import Threads
from broker.nfp.worker.context import JobContext, ThreadContext
from broker.nfp.worker.heartbeat import Heartbeat
from broker.nfp.worker.job_run import (
    ENDED,
    ENTER,
    HELD,
    HOLD,
    PUTS_MAX,
    RUNNING,
    START,
    WAIT,
    WAITING,
    JobRun,
    JobTable,
)
from broker.nfp.worker.results import (
    Result,
    encode,
    event_time,
    failure,
    normalise,
    trace_of,
    with_context,
)
from broker.nfp.worker.shared_loop import contain, enter_job
from broker.nfp.worker.store import FINISHED, RunStore, StoredRun
from broker.nfp.worker.tasks import Task
from broker.safe_text import about, text
from broker.tasks import Tasks

log = logging.getLogger("headgate")
UNFINISHED_MAX: Final = 10_000
"""Jobs without result that a worker holds; a broker with credits sends one at a time, deployed NorFab sends all."""
FETCH_S: Final = 3.0
"""How long a leaving worker waits until its last results are recorded, or deployed NorFab has asked for them."""
ACCEPT_AFTER_S: Final = 0.05
"""Jobs that may be run twice and are shorter than this cost no 201 and no place in the store before their end."""
CANCELLED_STATUS: Final = 417
"""Status of a deleted job's end: the client does not get what it was expecting (NFP, "Status Frames")."""
RECORDED_FEATURE: Final = "recorded"
Manage = Callable[[Packet], bytes]
"""Answers a request to ``mmi.service.worker`` with JSON."""
Localise = Callable[[Task, list[Any], dict[str, Any]], Awaitable[tuple[list[Any], dict[str, Any]]]]
"""Brings the files that arguments name."""


class _NotStarted(Exception):
    """The task of a job is not entered: the job ends with the error and status 500."""


class Jobs:
    """All jobs of one worker (``peer.channel.Receiver``); ordinary functions run in threads (``nfp.threads``).

    Args:
        channel: to the broker. service: what the worker offers. tasks: by name. store: where jobs are kept.
        slots: jobs at a time. manage: see ``Manage``. localise: see ``Localise``. inventory: shown to tasks.

    Attributes:
        worker, service: who we are. table: the jobs that go on. heartbeat: whether the broker is there.
        opened: the broker's OPEN. pushes_results: it takes results unasked and says when it has them.
        message_bytes: the largest body that it takes; 0: it does not say.
        draining: no new jobs are run. accept_after_s: ``ACCEPT_AFTER_S``.
    """

    def __init__(
        self,
        channel: Channel,
        service: str,
        tasks: dict[str, Task],
        store: RunStore,
        *,
        slots: int,
        manage: Manage,
        localise: Localise,
        inventory: dict[str, Any],
    ) -> None:
        self.worker = channel.name
        self.service = service
        self.loop = asyncio.get_running_loop()
        self.table = JobTable()
        self.heartbeat = Heartbeat(channel, service, self.loop)
        self.opened: dict[str, Any] | None = None
        self.pushes_results = False
        self.message_bytes = 0
        self.draining = False
        self.accept_after_s: float = ACCEPT_AFTER_S
        self._channel = channel
        self._tasks = tasks
        self._store = store
        self._slots = slots
        self._manage = manage
        self._localise = localise
        self._inventory = inventory
        self._threads = Threads(f"task of {self.worker}", slots, self.loop)
        self._waiting: deque[JobRun] = deque()
        """For a slot."""
        self._running: dict[str, JobRun] = {}
        self._paused = True
        self._stopping = False
        self._unsent: dict[str, JobRun] = {}
        """Results that this conversation has not taken yet, in order."""
        self._sending = False
        self._safe = asyncio.Event()
        """Set whenever results became safe."""
        self._runs = Tasks()
        self._background = Tasks()
        self._commands: dict[Command, Callable[[Packet], None]] = {
            Command.POST: self._post,
            Command.GET: self._get,
            Command.PUT: self._put,
            Command.DELETE: self._delete,
            Command.RESPONSE: self._response,
            Command.MMI: self._mmi,
        }
        contain(self.loop)

    # -- the connection (peer.channel.Receiver) ---------------------------------------------------

    def on_connect(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Register, and bring what an earlier broker or connection may not have got."""
        self.opened = opened
        said = broker_of(opened or {})
        self.pushes_results = RECORDED_FEATURE in said.features
        self.message_bytes = said.message_bytes
        if self.draining:
            return
        again = self.heartbeat.registered
        self.heartbeat.register(opened)
        if not again:
            # a job without an attempt came from a broker that confirms nothing
            for job in [job for job in self.table if job.state == HELD and not job.attempt]:
                self._release(job)
            self._paused = False
            self._start_waiting()
            for job in self._running.values():
                if job.context is not None:
                    job.context.repeat_question()
        self._unsent = {job.uuid: job for job in self.table.unrecorded}
        self._send_unsent()

    def on_disconnect(self, why: str) -> None:
        """The channel looks for a broker; running jobs go on, others wait for a new word of it."""
        self.heartbeat.stop()
        waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            self._hold(job)
        for job in self.table:
            job.repost = None
            if job.state != RUNNING:
                job.confirmed = False

    def on_packet(self, packet: Packet) -> None:
        """Do what the broker says."""
        self.heartbeat.note_received(packet)
        command = self._commands.get(packet.command)
        if command is not None:
            command(packet)

    # -- what is said to the broker ---------------------------------------------------------------

    def send(self, to: JobRun | Packet, command: Command, status: int, body: bytes) -> bool:
        """Send something about a job, or an answer to a packet, the way it came; False when it was not taken."""
        if not self.heartbeat.registered:
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
        sent = self._channel.send(packet)
        if sent:
            self.heartbeat.note_sent()
        return sent

    def _say(self, packet: Packet, status: int, body: bytes) -> bool:
        """Answer a request; False when the answer was not taken."""
        return self.send(packet, Command.RESPONSE, status, body)

    def _refuse(self, packet: Packet, status: int, error: str) -> None:
        """Answer that it cannot be done."""
        self._say(packet, status, bodies.failed(status, packet.uuid, self.service, self.worker, error))

    async def writable(self) -> None:
        """Wait until the channel takes more."""
        await self._channel.writable()

    def too_large(self, size: int) -> str:
        """Why the broker does not take a body of ``size`` bytes, "" when it does."""
        if not self.message_bytes or size <= self.message_bytes:
            return ""
        return f"{size} bytes, the broker takes {self.message_bytes} (nfp.message_bytes_max)"

    def event(self, job: JobRun, kind: str, message: str, status: str, **more: Any) -> bytes:
        """The body of an event about ``job``; ``more`` as ``bodies.event`` takes it."""
        return bodies.event(
            kind,
            worker=self.worker,
            service=self.service,
            uuid=job.uuid,
            task=job.task,
            message=message,
            status=status,
            timestamp=event_time(),
            **more,
        )

    def _send_event(self, job: JobRun, kind: str, message: str, status: str) -> bool:
        return self.send(job, Command.EVENT, 200, self.event(job, kind, message, status))

    # -- a job comes ------------------------------------------------------------------------------

    def _post(self, packet: Packet) -> None:
        job = self.table.get(packet.uuid)
        if job is not None and job.cancelled and job.idempotent:
            job.repost = packet  # it was somebody else's for a while, and is this worker's again
            return
        if job is not None:
            self._duplicate(job, packet)
            return
        if self.draining:
            return  # DISCONNECT follows: the broker gives it to another
        if self.table.open >= UNFINISHED_MAX:
            self._refuse(packet, 500, f"worker {self.worker} holds {UNFINISHED_MAX} jobs already")
            return
        job = JobRun(packet.uuid, packet.client, packet.service, packet.dialect, packet.data)
        task = self._tasks.get(job.task)
        job.idempotent = task is None or task.idempotent
        self.table.add(job)
        if self._store.state(job.uuid) or not self.pushes_results:
            self._background.spawn(f"admit {job.uuid}", self._admit(job))
            return
        self._wait_for_slot(job)

    def _duplicate(self, job: JobRun, packet: Packet) -> None:
        """A duplicate is answered by state, not run twice."""
        if job.stored and packet.client != job.client:
            self._store.readdressed(job.uuid, packet.client)  # a later life answers under this attempt
        job.readdress(packet)
        if job.ended:
            self._send_result(job)
        elif not self._release(job) and job.accepted:
            self._send_accepted(job)

    async def _admit(self, job: JobRun) -> None:
        """Let the job wait for its slot unless it has ended before; for deployed NorFab store and accept it first."""
        if self._store.state(job.uuid) and await self._ended_before(job):
            return
        if not self.pushes_results:
            try:
                await self._accept(job)
            except HeadgateError as error:
                self._end_unstarted(job, f"worker {self.worker} cannot store the job: {error}", 500)
        if not job.ended:
            self._wait_for_slot(job)

    async def _ended_before(self, job: JobRun) -> bool:
        """Whether the store says that the job has ended before; its result is sent then."""
        state, found = self._store.state(job.uuid), await self._find(job.uuid)
        if job.ended:
            return True  # a DELETE came meanwhile
        if state not in ("done", "recorded") and (job.idempotent or state == "accepted"):
            self._store.drop(job.uuid)  # cancelled before, and wanted after all
            return False
        if found is None or not found.result:
            error = f"job {job.uuid} was {state} here before, and there is no result to be read"
            self._end_unstarted(job, error, 417 if state == "cancelled" else 500)
            return True
        job.end(found.status, found.result, failed=found.failed)
        job.stored = job.accepted = True
        self.table.close(job)
        self._send_result(job)
        return True

    async def _find(self, uuid: str) -> StoredRun | None:
        """An ended job that only the store knows, with its result."""
        if self._store.state(uuid) not in ("done", "recorded"):
            return None
        try:
            return await self._store.find(uuid)
        except HeadgateError as error:
            log.warning("%s: job %s cannot be read: %s", self.worker, uuid, error)
            return None

    async def _accept(self, job: JobRun) -> None:
        """Store the job and say 201.

        Raises:
            HeadgateError: it cannot be stored.
        """
        self._store.accepted(job.as_stored())
        job.stored = True
        if job.state == RUNNING:
            self._store.started(job.uuid)
        await self._store.durable()
        if not job.ended:
            job.accepted = True
            self._send_accepted(job)

    def _send_accepted(self, job: JobRun) -> None:
        """Say 201: the job is in hand."""
        self.send(job, Command.RESPONSE, 201, bodies.accepted(job.uuid, self.service, self.worker))

    # -- it waits for the broker's word -----------------------------------------------------------

    def _hold(self, job: JobRun) -> None:
        """``job`` does not begin until its broker has said that it may, and ends at its deadline."""
        job.step(HOLD)
        job.confirmed = False
        job.stop_timer()
        left_s = max(0.0, job.deadline - time.monotonic())
        job.timer = self.loop.call_later(left_s, self._never_confirmed, job)

    def _never_confirmed(self, job: JobRun) -> None:
        error = f"no broker said within {job.timeout_s:g} s that {self.worker} may run the job"
        self._end_unstarted(job, error, 408)

    def _release(self, job: JobRun) -> bool:
        """A job that was held back waits for its slot; False when it was not."""
        if job.state != HELD:
            return False
        job.stop_timer()
        self._wait_for_slot(job)
        return True

    def _confirmed(self, uuids: Iterable[str]) -> None:
        """The broker says that these jobs are this worker's."""
        for uuid in uuids:
            job = self.table.get(uuid)
            if job is None or job.ended or job.state == RUNNING:
                continue
            job.confirmed = True
            if job.confirmation is not None and not job.confirmation.done():
                job.confirmation.set_result(None)
            else:
                self._release(job)

    def _take_back(self, job: JobRun) -> bool:
        """Forget ``job``, for which somebody else has a place; False when it has its slot here."""
        if job.state not in (HELD, WAITING):
            return False
        self._stop_waiting(job)
        job.stop_timer()
        self.table.remove(job)
        if job.stored:
            self._store.drop(job.uuid)
        return True

    # -- it waits for its slot, and runs ----------------------------------------------------------

    @property
    def running(self) -> int:
        """How many jobs have a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    def told_as(self, task: asyncio.Task[Any] | None) -> str:
        """What a log says of the job that ``task`` runs; "" when it runs none. From any thread."""
        job = next((job for job in tuple(self._running.values()) if job.running is task), None)
        return f"task {job.task} of job {job.uuid}" if job is not None and task is not None else ""

    def remaining_s(self, task: asyncio.Task[Any] | None) -> float:
        """What is left to the job that ``task`` runs; to the last of all when it runs none. From any thread."""
        jobs = tuple(self._running.values())
        own = [job for job in jobs if task is not None and job.running is task]
        return max((job.deadline for job in own or jobs), default=0.0) - time.monotonic()

    def _wait_for_slot(self, job: JobRun) -> None:
        job.step(WAIT)
        self._waiting.append(job)
        self._start_waiting()

    def _stop_waiting(self, job: JobRun) -> None:
        """``job``, if it waits for a slot, is not to get one."""
        if job.state == WAITING:
            self._waiting.remove(job)

    def _start_waiting(self) -> None:
        """Fill free slots, in the order in which the jobs came; before the first connection they stay free."""
        while self._waiting and len(self._running) < self._slots and not self._paused:
            job = self._waiting.popleft()
            job.step(START)
            task = self._tasks.get(job.task)
            kind = JobContext if task is None or task.asynchronous else ThreadContext
            job.context = context = kind(job, self, self._inventory)
            self._running[job.uuid] = job
            job.running = self._runs.spawn(f"job {job.uuid}", self._run(job, task, context))

    async def _run(self, job: JobRun, task: Task | None, context: JobContext | ThreadContext) -> None:
        """``job`` in its slot: whatever its task leaves, it has a result when its slot is free again."""
        result, status = None, 200
        enter_job()
        try:
            if await self._may_begin(job):
                job.step(ENTER)
                job.started_s = time.time()
                result = await self._result(job, task, context)
        except _NotStarted as error:
            result, status = _failed(text(error)), 500
        except asyncio.CancelledError:
            if not job.cancelled:  # the worker ends: the job has no result
                raise
            result = _cancelled(job)
        except BaseException as error:  # of what the task left, something does what nobody thought of
            said = f"what the task left cannot be read: {about(error)}"
            log.error("job %s: %s", job.uuid, said)  # its traceback might not be readable either
            result = failure(error, said)
        finally:
            self._running.pop(job.uuid, None)
            job.running = job.context = None
        try:
            if result is not None:
                self._finish(job, result, status)
        except Exception as error:
            said = f"the result cannot be kept: {about(error)}"
            log.error("job %s: %s", job.uuid, said)
            if not job.ended:
                self._finish(job, failure(error, said))
        finally:
            self._start_waiting()

    async def _may_begin(self, job: JobRun) -> bool:
        """Return when the task of ``job``, which has its slot, may be entered; False: it is held back.

        Raises:
            _NotStarted: it cannot be stored.
        """
        if job.attempt and not job.confirmed and not self.heartbeat.broker_is_there:
            self._hold(job)
            return False
        try:
            if not job.idempotent:
                if not await self._begin_once(job):
                    return False
            elif self.pushes_results:
                job.timer = self.loop.call_later(self.accept_after_s, self._still_running, job)
        except HeadgateError as error:
            raise _NotStarted(f"worker {self.worker} cannot store the job: {error}") from error
        if job.idempotent and job.stored:
            self._store.started(job.uuid)
        if not self.pushes_results:
            self._send_event(job, "progress", "starting", "running")
        return True

    async def _begin_once(self, job: JobRun) -> bool:
        """What must not be run twice is confirmed first, and that it has begun is on disk; False: it is held back."""
        if job.attempt and not job.confirmed:
            job.confirmation = self.loop.create_future()
            await self._accept(job)
            try:
                async with asyncio.timeout(max(0.0, job.deadline - time.monotonic())):
                    await job.confirmation
            except TimeoutError:
                return True  # it is over: its context says so before the task is entered
        self._store.started(job.uuid)
        await self._store.durable()
        if job.attempt and not job.confirmed:
            self._hold(job)  # the connection was lost meanwhile, and the broker's word with it
            return False
        return True

    def _still_running(self, job: JobRun) -> None:
        """A job that may be run twice is still there after a while: now its broker is told that it is in hand."""
        job.timer = None
        self._background.spawn(f"accept {job.uuid}", self._accept_late(job))

    async def _accept_late(self, job: JobRun) -> None:
        if job.ended:
            return  # it was deleted in this very moment, and nobody wants to find it
        try:
            await self._accept(job)
        except HeadgateError as error:
            log.warning("%s: job %s is not stored: %s", self.worker, job.uuid, error)

    async def _result(self, job: JobRun, task: Task | None, context: JobContext | ThreadContext) -> Result:
        """What the task brings; an exception becomes a failed result."""
        try:
            if task is None:
                raise LookupError(self._no_task(job.task))
            value = await self._value(job, task, context)
        except JobCancelled as error:
            result = _cancelled(job) if job.cancelled else Result(failed=True, status="failed")
            result.errors = [text(error)]
            return with_context(result, context)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and (job.cancelled or self._stopping):
                raise  # else somebody in the user's code cancelled it, or said so
            late = isinstance(error, TimeoutError) and context.remaining_s <= 0
            said = text(error) if isinstance(error, LookupError) and task is None else trace_of(error)
            return with_context(failure(error, said, "timeout" if late else "error"), context)
        return with_context(normalise(value) if isinstance(value, Result) else Result(result=value), context)

    def _no_task(self, name: str) -> str:
        if not name:
            return 'the body names no task, expected JSON with "task", "args" and "kwargs"'
        return f"no task {name[:64]!r}, expected one of {', '.join(sorted(self._tasks))}"

    async def _value(self, job: JobRun, task: Task, context: JobContext | ThreadContext) -> Any:
        context.check()
        args, kwargs = await self._localise(task, job.args, job.kwargs)
        context.check()  # that may have taken a while
        if isinstance(context, ThreadContext):
            value = await asyncio.shield(self._threads.run(lambda: task.call(context, args, kwargs)))
            if not inspect.isawaitable(value):
                return value
            context.goes_on_in_loop()  # a decorator hides that the function is asynchronous
        else:
            value = task.call(context, args, kwargs)
        try:
            async with asyncio.timeout(max(0.0, context.remaining_s)) as limit:
                while inspect.isawaitable(value):
                    value = await value
                return value
        except TimeoutError:
            if limit.expired():
                context.check()  # says how long it took
            raise

    def _cancel(self, job: JobRun) -> None:
        """``job`` was deleted: end it at once when it waits or is asynchronous, else tell it."""
        job.cancelled = True
        if job.running is None:
            self._stop_waiting(job)
            self._finish(job, _cancelled(job))
        elif isinstance(job.context, ThreadContext) and job.state == RUNNING:
            job.context.interrupt()
        else:  # behind its first step: without one it would keep its slot, and have no result
            self.loop.call_soon(job.running.cancel)

    # -- it has its result ------------------------------------------------------------------------

    def _finish(self, job: JobRun, result: Result, status: int = 200) -> None:
        """``job`` ends with ``result``."""
        body = self._written(job, result)
        self._end(job, CANCELLED_STATUS if job.cancelled else status, body, failed=bool(result.failed))

    def _written(self, job: JobRun, result: Result) -> bytes:
        """The body of the final RESPONSE: ``result``, with what it does not say of its job."""
        result.task = result.task or f"{self.worker}:{job.task}"
        result.juuid = result.juuid or job.uuid
        result.service = self.service
        result.status = result.status or ("failed" if result.failed else "completed")
        result.task_started = result.task_started or time.ctime(job.started_s or None)
        result.task_completed = time.ctime()
        return encode(self.worker, result)

    def _end_unstarted(self, job: JobRun, error: str, status: int) -> None:
        """``job`` ends with ``error`` and its task is not entered; nothing happens when it has ended."""
        if not job.ended:
            self._finish(job, _failed(error), status)

    def _end(self, job: JobRun, status: int, body: bytes, *, failed: bool) -> None:
        """``job`` has its result: store it, send it."""
        job.end(status, body, failed=failed)
        self._shorten(job)
        self.table.close(job)
        if job.cancelled:
            # the broker has closed it: told once that the slot is free, it needs the result no more
            if job.stored:
                self._store.cancelled(job.uuid)
            self._try_result(job)
            self.table.remove(job)
            if job.repost is not None:
                self._post(job.repost)
            return
        self._store.done(job.as_stored())
        job.stored = True
        if self.pushes_results:
            self._send_result(job)
        else:
            self._background.spawn(f"result of {job.uuid}", self._send_stored_result(job))

    async def _send_stored_result(self, job: JobRun) -> None:
        """Deployed NorFab asks for a result once it is told that there is one, so it is stored before."""
        try:
            await self._store.durable()
        except HeadgateError as error:
            log.warning("%s: the result of job %s is not stored: %s", self.worker, job.uuid, error)
        self._send_result(job)

    def _send_result(self, job: JobRun) -> None:
        """Send a result, or say that there is one; later when the outbox is full."""
        if not self._try_result(job):
            self._unsent[job.uuid] = job
            self._send_unsent()

    def _try_result(self, job: JobRun) -> bool:
        self._shorten(job)
        if self.pushes_results:
            return self.send(job, Command.RESPONSE, job.status, job.result or b"")
        return self._send_event(job, "result_ready", "completed", "completed")

    def _send_unsent(self) -> None:
        """One task at a time does it; what is added or begun anew meanwhile is its work as well."""
        if self._unsent and not self._sending and self.heartbeat.registered:
            self._sending = True
            self._background.spawn("offer results", self._send_all_unsent())

    async def _send_all_unsent(self) -> None:
        """As fast as the outbox takes them."""
        try:
            while self._unsent and self.heartbeat.registered:
                uuid, job = next(iter(self._unsent.items()))
                if self.table.get(uuid) is not job or self._try_result(job):
                    self._unsent.pop(uuid, None)
                else:
                    await self._channel.writable()
        finally:
            self._sending = False

    def _shorten(self, job: JobRun) -> None:
        """Replace a result that the broker would end the connection for, again and again, by one that says so."""
        why = self.too_large(len(job.result or b""))
        if not why:
            return
        error = f"the result has {why}: return less, stream it, or share it as a file"
        log.error("%s: job %s: %s", self.worker, job.uuid, error)
        self.table.replace_result(job, self._written(job, _failed(error)))

    def _recorded(self, uuids: list[str]) -> None:
        """These results are where they belong."""
        known = []
        for uuid in uuids:
            job = self.table.get(uuid)
            if job is not None and job.ended:
                self.table.remove(job)
                known.append(uuid)
        if known:
            self._store.recorded(known)
            self._safe.set()

    # -- what else the broker says ----------------------------------------------------------------

    def _get(self, packet: Packet) -> None:
        job = self.table.get(packet.uuid)
        if job is None:
            self._background.spawn(f"get {packet.uuid}", self._get_elsewhere(packet))
        elif not job.ended:
            asking = job.question is not None and packet.dialect is Dialect.NORFAB
            said: dict[str, Any] = {"worker": self.worker, "uuid": job.uuid, "service": self.service}
            said["status"] = job.shown
            if job.question is not None:
                said["input_request"] = job.question
            self._say(packet, 102 if asking else 300, bodies.write(said))
        elif self._say(packet, job.status, job.result or b"") and not self.pushes_results:
            self._recorded([job.uuid])

    async def _get_elsewhere(self, packet: Packet) -> None:
        found = await self._find(packet.uuid)
        if found is not None:
            self._say(packet, found.status, found.result)
        else:
            self._unknown(packet)

    def _unknown(self, packet: Packet) -> None:
        self._refuse(packet, 404, f"worker {self.worker} does not know the job {packet.uuid[:64]}")

    def _put(self, packet: Packet) -> None:
        job = self.table.get(packet.uuid)
        if job is None or job.ended or len(job.puts) >= PUTS_MAX:
            return
        job.puts.append(read_any(packet.data, packet.data))
        if job.context is not None:
            job.context.put_came()

    def _delete(self, packet: Packet) -> None:
        job = self.table.get(packet.uuid)
        if job is None and self._store.state(packet.uuid) in FINISHED:
            return
        if job is None or job.repost is not None:
            self._unknown(packet)
            if job is not None:
                job.repost = None
        elif job.ended:
            return
        elif not bodies.unless_begun(packet.data):
            self._cancel(job)
        elif self._take_back(job):
            self._unknown(packet)
        else:
            self._send_accepted(job)

    def _response(self, packet: Packet) -> None:
        """What the broker says of jobs by their uuids."""
        if packet.status_text == bodies.RECORDED:
            self._recorded(bodies.read_uuids(packet.data) or [packet.uuid])
        elif packet.status_text == bodies.CONFIRMED:
            self._confirmed(bodies.read_uuids(packet.data) or [packet.uuid])

    def _mmi(self, packet: Packet) -> None:
        self._say(packet, 200, self._manage(packet))

    # -- a beginning and an end -------------------------------------------------------------------

    def restore(self, unrecorded: list[StoredRun]) -> None:
        """Take up what the store has: offer results, hold back what has not begun, end what must not begin again.

        What had begun and may be run twice is forgotten: a broker that confirms sees that it is gone, and gives it to
        somebody as a new attempt. Deployed NorFab gives it to nobody, so its jobs are run again here.
        """
        for each in unrecorded:
            job = JobRun.restored(each)
            if each.state == "started" and each.idempotent and job.attempt:
                self._store.drop(job.uuid)
                continue
            self.table.add(job)
            if each.state == "done":
                job.end(each.status, each.result, failed=each.failed)
                self.table.close(job)
            elif each.state == "accepted" or each.idempotent:
                self._hold(job)
            else:
                error = f"worker {self.worker} ended while it ran {job.task}, which must not be run twice"
                self._end_unstarted(job, error, 200)

    def listed(self) -> dict[str, list[Any]]:
        """For OPEN: what this worker holds, uuid to attempt and state."""
        states = {RUNNING: "running", ENDED: "done"}
        return {job.uuid: [job.attempt, states.get(job.state, "waiting")] for job in self.table}

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
            log.warning("%s: left with %d running jobs after %g s", self.worker, self.running, seconds)
        if self.heartbeat.registered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, FETCH_S)):
                    while self.table.unrecorded:
                        self._safe.clear()
                        await self._safe.wait()
        self.heartbeat.disconnect()
        self._stopping = True
        await self._runs.stop()
        self._threads.close()
        await self._background.stop()

    @property
    def busy(self) -> bool:
        """Whether something goes on in the background."""
        return len(self._background) > 0


def _failed(error: str) -> Result:
    return Result(failed=True, status="error", errors=[text(error)])


def _cancelled(job: JobRun) -> Result:
    return Result(failed=True, status="skipped", errors=[f"job {job.uuid} was cancelled"])
