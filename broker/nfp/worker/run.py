"""One job of a worker, from its POST to its result: its states, what its task sees of it, and what its task brings.

::

    coming     it may have ended here before, or has to be stored first
    held       until the broker says that it may begin
    waiting    for a slot
    starting   it has its slot; what must not be run twice waits for the disk, and for the broker's word
    running    its task is entered
    ended      it has its result

A task sees a ``JobContext`` when it is asynchronous, else a ``ThreadContext``. Both have the same names. In an ordinary
function every call returns when it is done; in an asynchronous one those that may wait are awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import uuid4

import msgspec

from broker.nfp import bodies
from broker.nfp.bodies import Request, read_request, read_token, token_client, write
from broker.nfp.client.errors import FetchFailed, JobCancelled
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect
from broker.nfp.states import Table, following
from broker.nfp.worker.store import StoredRun
from broker.nfp.worker.tasks import InvalidInput, Task
from broker.safe_text import about, text, texts
from broker.tasks import within

if TYPE_CHECKING:
    from broker.nfp.worker.session import Session

log = logging.getLogger("headgate")
T = TypeVar("T")
P = ParamSpec("P")

COMING: Final = "coming"
HELD: Final = "held"
WAITING: Final = "waiting"
STARTING: Final = "starting"
RUNNING: Final = "running"
ENDED: Final = "ended"

RUN: Final[Table] = {
    COMING: {"wait": WAITING, "hold": HELD, "end": ENDED},
    HELD: {"wait": WAITING, "end": ENDED},
    WAITING: {"start": STARTING, "hold": HELD, "end": ENDED},
    STARTING: {"enter": RUNNING, "hold": HELD, "end": ENDED},
    RUNNING: {"end": ENDED},
    ENDED: {},
}

TIMEOUT_S: Final = 600.0
"""Deadline of a job whose body says none; deployed NorFab's client assumes as much."""
ASK_S: Final = 120.0
"""How long a question waits for its answer."""
EVENTS_KEPT: Final = 100
"""Events of a job that ``job_details`` shows, the newest."""
PUTS_MAX: Final = 1000
"""Inputs of a client that a task has not read yet; further ones are dropped."""
ERROR_TEXT_CHARS: Final = 16_000
"""A traceback is cut to its last so many characters."""


@dataclass(slots=True, eq=False)
class JobRun:
    """One job on this worker.

    Attributes:
        uuid: its id. client: the address to echo, None in the text's form without one. service: of that form.
        dialect: how it was asked for. body: of the POST; request, task: what it says. idempotent: may be run twice.
        timeout_s: how long it may take in all. deadline: monotonic seconds. state: see the module; changed by ``step``.
        status, result, failed: of the end, result None before. confirmed: the broker has said that its task may be
            entered. confirmation: waits for that word. accepted: 201 was promised. stored: the store has it.
        cancelled: a DELETE came. repost: the POST that came after it, before the task had ended.
        question: the input it waits for, as events carry it. puts: what the client sent it. events: as ``job_details``
            shows them. received_s, started_s, ended_s: wall clock, 0 before. timer: of the 201 while it runs, of its
            deadline while it is held back.
        running, context: while it has its slot, what runs it and what its task sees of it. waiting: what its deletion
            ends: the run, or the call that an ordinary function waits for; None while such a function works.
    """

    uuid: str
    client: bytes | None
    service: str
    dialect: Dialect
    body: bytes
    idempotent: bool = True
    request: Request = field(init=False)
    task: str = ""
    timeout_s: float = TIMEOUT_S
    deadline: float = 0.0
    state: str = COMING
    status: int = 0
    result: bytes | None = None
    failed: bool = False
    confirmed: bool = False
    confirmation: asyncio.Future[None] | None = None
    accepted: bool = False
    stored: bool = False
    cancelled: bool = False
    repost: Packet | None = None
    question: dict[str, Any] | None = None
    puts: deque[Any] = field(default_factory=deque)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    received_s: float = field(default_factory=time.time)
    started_s: float = 0.0
    ended_s: float = 0.0
    timer: asyncio.TimerHandle | None = None
    running: asyncio.Task[None] | None = None
    context: TaskContext | None = None
    waiting: asyncio.Task[Any] | None = None

    def __post_init__(self) -> None:
        self.request = read_request(self.body)
        self.task, self.timeout_s = self.request.task, self.request.timeout_s or TIMEOUT_S
        self.deadline = time.monotonic() + self.timeout_s

    @classmethod
    def restored(cls, kept: StoredRun) -> JobRun:
        """The job that an earlier life of the worker has left in its store."""
        job = cls(kept.uuid, kept.client, kept.service, Dialect.NORFAB, kept.body, idempotent=kept.idempotent)
        job.stored = job.accepted = True
        job.received_s, job.started_s = kept.received_s, kept.started_s
        job.deadline -= kept.age_s
        return job

    def as_stored(self) -> StoredRun:
        """The job for the store, and for people."""
        state = "done" if self.ended else "accepted" if self.state != RUNNING else "started"
        return StoredRun(
            self.uuid,
            self.client,
            self.service,
            self.task,
            self.body,
            self.idempotent,
            "asking" if self.question is not None else state,
            self.status,
            self.result or b"",
            self.received_s,
            self.started_s,
            self.ended_s,
            write(list(self.events)) if self.events else b"",
            self.failed,
        )

    @property
    def left_s(self) -> float:
        """What is left of its time; negative when nobody waits any more."""
        return self.deadline - time.monotonic()

    @property
    def ended(self) -> bool:
        """True once there is a result."""
        return self.state == ENDED

    @property
    def size(self) -> int:
        """About how many bytes it holds; the request counts twice, as it came and as it was read."""
        return 2 * len(self.body) + len(self.result or b"")

    @property
    def attempt(self) -> int:
        """Which dispatch of our broker this is; 0 with deployed NorFab."""
        return read_token(self.client) if self.client is not None else 0

    def step(self, event: str) -> None:
        """Go on to the state that ``event`` leads to.

        Raises:
            IllegalEvent: it cannot happen now.
        """
        self.state = following(RUN, self.state, event)

    def end(self, status: int, result: bytes, *, failed: bool) -> None:
        """Set the final result."""
        self.step("end")
        self.status, self.result, self.failed = status, result, failed
        self.ended_s, self.question = time.time(), None
        self.puts.clear()
        self.stop_timer()

    def stop_timer(self) -> None:
        """Forget the timer. Harmless without one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # -- its task ---------------------------------------------------------------------------------

    async def bring(self, task: Task, context: TaskContext, session: Session) -> Result:
        """What the task brings; an exception becomes a failed result.

        Raises:
            asyncio.CancelledError: the job was deleted, or the worker ends.
        """
        try:
            value = await self._enter(task, context, session)
        except JobCancelled as error:
            result = self.cancellation() if self.cancelled else Result(failed=True, status="failed")
            result.errors = [text(error)]
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and (self.cancelled or session.stopping):
                raise  # else somebody in the user's code cancelled it, or said so
            late = isinstance(error, TimeoutError) and self.left_s <= 0
            result = failure(trace_of(error), error, status="timeout" if late else "error")
        else:
            result = tidied(value) if isinstance(value, Result) else Result(result=value)
        return completed(result, context)

    async def _enter(self, task: Task, context: TaskContext, session: Session) -> Any:
        context.check()
        args, kwargs = await session.localise(task, list(self.request.args), self.request.kwargs)
        context.check()  # that may have taken a while
        value: Any
        if task.asynchronous:
            value = task.call(context, args, kwargs)
        else:
            run, self.waiting = self.waiting, None
            value = await asyncio.shield(session.threads.run(lambda: task.call(context, args, kwargs)))
            if not inspect.isawaitable(value):
                return value
            self.waiting = run  # a decorator hides that the function is asynchronous
        try:
            async with asyncio.timeout(max(0.0, self.left_s)) as limit:
                while inspect.isawaitable(value):
                    value = await value
                return value
        except TimeoutError:
            if limit.expired():
                context.check()  # says how long it took
            raise

    def cancellation(self) -> Result:
        """The result of a job that was deleted."""
        return Result(failed=True, status="skipped", errors=[f"job {self.uuid} was cancelled"])


# -- what the task sees -----------------------------------------------------------------------------


class TaskContext:
    """What both have, and what happens in the loop's thread.

    Attributes:
        uuid, task: of the job. worker: the worker's name. timeout_s: how long the job may take in all.
    """

    def __init__(self, job: JobRun, session: Session) -> None:
        self._job = job
        self._session = session
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._more: asyncio.Event | None = None
        self.uuid = job.uuid
        self.task = job.task
        self.timeout_s = job.timeout_s
        self.worker = session.worker
        self.inventory = session.inventory
        self.resources: list[str] = []
        self.resources_failed: list[str] = []
        self.messages: list[str] = []
        self.errors: list[str] = []
        self.diff: Any = None
        self.dry_run = False

    @property
    def client(self) -> str:
        """The name of the client that asked for the job, for people."""
        return token_client(self._job.client)

    @property
    def attempt(self) -> int:
        """1 for the first dispatch of the job, more when it was given to a worker before; 0: not known."""
        return self._job.attempt

    @property
    def cancelled(self) -> bool:
        """True once the job was deleted; an ordinary function that takes long looks now and then."""
        return self._job.cancelled

    @property
    def remaining_s(self) -> float:
        """What is left of the job's time; negative when nobody waits any more."""
        return self._job.left_s

    def check(self) -> None:
        """To be called now and then by an ordinary function that takes long.

        Raises:
            JobCancelled: the job was deleted. TimeoutError: its time is over.
        """
        if self._job.cancelled:
            raise self._cancelled()
        if self._job.left_s <= 0:
            raise TimeoutError(f"job {self.uuid} took longer than its {self.timeout_s:g} s")

    def _cancelled(self) -> JobCancelled:
        return JobCancelled(f"job {self.uuid} was cancelled", self.uuid)

    def fail(self, error: str) -> None:
        """The result will be a failed one, with ``error`` among its errors."""
        self.errors.append(error)

    # -- events -----------------------------------------------------------------------------------

    def progress(
        self,
        message: str,
        *,
        resource: str | Iterable[str] = (),
        severity: str = "INFO",
        status: str = "running",
        **extras: Any,
    ) -> None:
        """Tell the client how far the task is. Not sent while the broker is away.

        Raises:
            ValueError: more than the broker takes in one message.
        """
        more: dict[str, Any] = {"resource": texts(resource), "extras": extras or None}
        self._tell("progress", message, status, severity=severity, **more)

    def _tell(self, kind: str, message: str, status: str, *, severity: str = "INFO", **more: Any) -> None:
        """Write it down where it is said, in the thread of the task, and keep and send it in the loop's."""
        said = {"message": text(message), "status": text(status), "severity": text(severity)}
        body = self._session.event(self._job, kind, **said, **more)
        if why := self._session.too_large(len(body)):
            raise ValueError(f"an event of {why}: say less, stream it, or share it as a file")
        self._in_loop(lambda: self._send({"event_type": kind, **said}, body))

    def _in_loop(self, call: Callable[[], None]) -> None:
        call()

    def _send(self, said: dict[str, Any], body: bytes) -> None:
        self._job.events.append(said)
        if not self._session.send(self._job, 200, body, Command.EVENT):
            log.debug("job %s: an event was not sent, the broker is away", self.uuid)

    # -- what may wait ----------------------------------------------------------------------------

    async def _ask(
        self, /, question: str, *, default: Any = False, timeout_s: float = ASK_S, **metadata: Any
    ) -> Any:
        """Ask the client; returns the value it answers.

        Raises:
            TimeoutError: no answer. JobCancelled: the client refuses to answer; in an ordinary function also: the job
            was deleted meanwhile.
        """
        job, question, uuid = self._job, text(question), uuid4().hex
        wanted = {"id": uuid, "question": question, "default": default, "timeout": max(1, round(timeout_s))}
        # it is written again, to whoever asks for the job
        asked = msgspec.json.decode(write({**wanted, "metadata": metadata}))
        self._put_question(asked)
        answer = self._answers[uuid] = self._session.loop.create_future()
        job.question = asked
        said: dict[str, Any] = {"input_id": uuid}
        status = "cancelled"
        try:
            async with within(timeout_s):
                response = await answer
            said["metadata"] = response.get("metadata") or {}
            status = "cancelled" if response.get("cancel") else "received"
        except TimeoutError:
            status = "timeout"
            raise TimeoutError(f"nobody answered {question!r} within {timeout_s:g} s") from None
        finally:
            del self._answers[uuid]
            job.question = None
            self._tell("input_response", question, status, extras={"input_response": said})
        if status == "cancelled":
            raise JobCancelled(f"the client cancelled the question {question!r}")
        return response.get("value", default)

    def _put_question(self, asked: dict[str, Any]) -> None:
        more = {"extras": {"input_request": asked}, "timeout_s": asked["timeout"]}
        self._tell("input_request", asked["question"], "waiting_client_input", **more)

    def repeat_question(self) -> None:
        """The question went to a broker that may not have told anybody: ask once more."""
        if self._job.question is not None:
            try:
                self._put_question(self._job.question)
            except ValueError as error:  # this broker takes less than the one before
                log.warning("job %s: its question cannot be asked again: %s", self.uuid, error)

    def take(self, said: Any) -> None:
        """A PUT: the answer to a question, or something for ``received`` (loop's thread)."""
        asked = said.get("input_id") if isinstance(said, dict) else None
        if not isinstance(asked, str):
            self._job.puts.append(said)
            if self._more is not None:
                self._more.set()
        elif (answer := self._answers.get(asked)) is not None and not answer.done():
            answer.set_result(said)  # else it comes too late, or for the second time

    async def _received(self, timeout_s: float) -> Any:
        """The next thing the client sent to this job with PUT, decoded, answers to questions excepted.

        Raises:
            TimeoutError: nothing came.
        """
        async with within(timeout_s):
            while not self._job.puts:
                self._more = asyncio.Event()
                await self._more.wait()
            return self._job.puts.popleft()

    async def _next_offset(self, timeout_s: float) -> int | None:
        """The next ``{"offset": n}`` of the client: a credit for one more chunk; None when none came in time."""
        with contextlib.suppress(TimeoutError):
            async with within(timeout_s):
                while True:
                    put = await self._received(timeout_s)
                    offset = put.get("offset") if isinstance(put, dict) else None
                    if type(offset) is int:
                        return offset
        return None

    async def _stream(self, data: bytes) -> None:
        """Send raw bytes to the client; waits while the outbox is full or the broker is away."""
        if self._job.dialect is Dialect.SEED:
            raise RuntimeError("the one-byte dialect has no STREAM: this broker cannot carry it")
        if why := self._session.too_large(len(data)):
            raise ValueError(f"a chunk of {why}: stream smaller ones")
        while not self._session.send(self._job, 200, data, Command.STREAM):
            await self._session.channel.writable()


class JobContext(TaskContext):
    """The job, for an asynchronous task.

    Attributes:
        resources: append the names of what the task works on. resources_failed: of what it failed on. messages: for
            people. errors: see ``fail``. diff, dry_run: of the result. inventory: the worker's, shared by all jobs.
    """

    ask = TaskContext._ask
    stream = TaskContext._stream
    received = TaskContext._received
    next_offset = TaskContext._next_offset


def _waits(
    method: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ThreadContext, P], T]:
    """The same for the thread of an ordinary function: the call waits for what the loop does."""

    @functools.wraps(method)
    def call(context: ThreadContext, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = context._unless_cancelled(method(context, *args, **kwargs))
        loop = context._session.loop
        if asyncio._get_running_loop() is loop:  # what an ordinary function returned awaits this there
            return work  # type: ignore[return-value]
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    return call


class ThreadContext(TaskContext):
    """The job, for an ordinary task, which runs in a thread; see ``JobContext``.

    When the function returns an awaitable, which runs in the loop, what may wait is awaited, as of ``JobContext``.
    """

    ask = _waits(TaskContext._ask)
    stream = _waits(TaskContext._stream)
    received = _waits(TaskContext._received)
    next_offset = _waits(TaskContext._next_offset)

    def _in_loop(self, call: Callable[[], None]) -> None:
        self._session.loop.call_soon_threadsafe(call)

    async def _unless_cancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop, and stop waiting for it when the job is deleted."""
        job = self._job
        if job.cancelled:
            work.close()
            raise self._cancelled()
        before, job.waiting = job.waiting, asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if job.cancelled:
                raise self._cancelled() from None
            raise
        finally:
            job.waiting = before


# -- what the task brings ---------------------------------------------------------------------------


class Result(msgspec.Struct, kw_only=True, gc=False):
    """The result of one task on one worker; a task may return one, else what it returns becomes ``result``.

    Attributes:
        result: anything JSON can say. failed: True when the task did not do what was asked. errors: why.
        task: ``WORKER:TASK``. messages: for people. juuid: the job. resources: names of what the task worked on;
        resources_failed: those of them it failed on. status: completed, created, updated, unchanged, skipped, no_match,
        failed, error or timeout. task_started, task_completed: local
        time. diff: what changed. dry_run: True when nothing was changed on purpose.
    """

    result: Any = None
    failed: bool = False
    errors: list[str] = []
    task: str | None = None
    messages: list[str] = []
    juuid: str | None = None
    resources: list[str] = []
    resources_failed: list[str] = []
    status: str | None = None
    task_started: str | None = None
    task_completed: str | None = None
    service: str | None = None
    diff: Any = None
    dry_run: bool = False


def tidied(result: Result) -> Result:
    """A task's own ``result`` with texts, lists of them and truth values where these belong."""
    for name in ("errors", "messages", "resources", "resources_failed"):
        setattr(result, name, texts(getattr(result, name)))
    for name in ("task", "juuid", "service", "status", "task_started", "task_completed"):
        value = getattr(result, name)
        setattr(result, name, None if value is None else text(value))
    result.failed, result.dry_run = bool(result.failed), bool(result.dry_run)
    return result


def completed(result: Result, context: TaskContext) -> Result:
    """``result`` with what the task left in its context."""
    result.resources += texts(context.resources)
    result.resources_failed += texts(context.resources_failed)
    result.messages += texts(context.messages)
    if errors := texts(context.errors):
        result.failed = True
        result.errors += errors
    if result.diff is None:
        result.diff = context.diff
    result.dry_run = result.dry_run or bool(context.dry_run)
    return result


def encode(worker: str, result: Result) -> bytes:
    """The body of the final RESPONSE: ``{worker: result}``.

    A result that JSON cannot say becomes a failed one which tells so.
    """
    try:
        return bodies.encode({worker: result})
    except BaseException as error:  # whatever a value does when it is looked at
        result.result = result.diff = None
        result.failed, result.status = True, "error"
        result.errors = [*result.errors, f"the result cannot be written as JSON: {text(error)}"]
        return bodies.encode({worker: result})


def failure(said: str, error: BaseException | None = None, *, status: str = "error") -> Result:
    """The result of a task that did not bring one, but ``error``, of which ``said`` tells."""
    messages = [] if error is None else [about(error)]
    return Result(failed=True, status=status, errors=[text(said)], messages=messages)


def trace_of(error: BaseException) -> str:
    """The traceback, from the task's own function on; of a task that did not begin, what was missing."""
    if isinstance(error, FetchFailed | InvalidInput):
        return text(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    try:
        lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    except BaseException:  # it has been given attributes that no exception of its kind has
        lines = [*traceback.format_tb(trace or error.__traceback__), about(error)]
    return "".join(lines)[-ERROR_TEXT_CHARS:]
