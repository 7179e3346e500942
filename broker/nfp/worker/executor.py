"""Runs tasks: so many at a time as the worker has slots, in the order in which the jobs came.

Ordinary functions run in threads (``nfp.threads``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from broker.errors import HeadgateError
from broker.nfp.client.errors import FetchFailed, JobCancelled
from broker.nfp.threads import Threads
from broker.nfp.worker.assignments import RUNNING, Assignment
from broker.nfp.worker.containment import contain, enter_job
from broker.nfp.worker.context import JobContext, ThreadContext
from broker.nfp.worker.delivery import Delivery
from broker.nfp.worker.results import Result, clock_text, encode, failure, normalise
from broker.nfp.worker.tasks import InvalidInput, Task
from broker.safe_text import about, text, texts

log = logging.getLogger("headgate")
Localise = Callable[[Task, list[Any], dict[str, Any]], Awaitable[tuple[list[Any], dict[str, Any]]]]
"""Brings the files that arguments name."""
CANCELLED_STATUS = 417
"""Status of a deleted job's end: the client does not get what it was expecting (NFP, "Status Frames")."""
ERROR_TEXT_CHARS = 16_000
"""A traceback is cut to its last so many characters."""


class NotStarted(HeadgateError):
    """The task of a job is not entered: the job ends with the error and status 500."""


class StartHeld(Exception):
    """The task of a job is not entered now: whoever raised this brings the job again."""


class Executor:
    """Runs each job in one of so many slots.

    Args:
        tasks: what there is. delivery: where contexts send. slots: jobs at a time. may_start: awaited with each job
        that has its slot, before its task is entered; it may raise ``NotStarted`` or ``StartHeld``. ended: called with
        each job that has got its result. localise: see ``Localise``. inventory: shown to tasks.
    """

    def __init__(
        self,
        tasks: dict[str, Task],
        delivery: Delivery,
        slots: int,
        may_start: Callable[[Assignment], Awaitable[None]],
        ended: Callable[[Assignment], None],
        localise: Localise,
        inventory: dict[str, Any],
    ) -> None:
        self._tasks = tasks
        self._delivery = delivery
        self._slots = slots
        self._may_start = may_start
        self._ended = ended
        self._localise = localise
        self._inventory = inventory
        self._threads = Threads(f"task of {delivery.worker}", slots, delivery.loop)
        self._waiting: deque[Assignment] = deque()
        self._running: dict[str, tuple[Assignment, JobContext | ThreadContext]] = {}
        self._paused = True
        self._stopping = False
        contain(delivery.loop)

    @property
    def running(self) -> int:
        """Assignments in a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Assignments that wait for one."""
        return len(self._waiting)

    def told_as(self, task: asyncio.Task[Any] | None) -> str:
        """What a log says of the job that ``task`` runs; "" when it runs none. From any thread."""
        found = (job for job, _context in tuple(self._running.values()) if job.running is task)
        job = next(found, None)
        return f"task {job.task} of job {job.uuid}" if job is not None and task is not None else ""

    def remaining_s(self, task: asyncio.Task[Any] | None) -> float:
        """What is left to the job that ``task`` runs; to the last of all when it runs none. From any thread."""
        jobs = [job for job, _context in tuple(self._running.values())]
        own = [job for job in jobs if task is not None and job.running is task]
        return max((job.deadline for job in own or jobs), default=0.0) - time.monotonic()

    def add(self, job: Assignment) -> None:
        """Run ``job`` when a slot is free."""
        self._waiting.append(job)
        self._start_waiting()

    def remove(self, job: Assignment) -> bool:
        """Do not run ``job``; False when it has its slot."""
        if job not in self._waiting:
            return False
        self._waiting.remove(job)
        return True

    def remove_waiting(self) -> list[Assignment]:
        """Return the jobs that wait for a slot, oldest first: they wait no more."""
        waiting, self._waiting = list(self._waiting), deque()
        return waiting

    def resume(self) -> None:
        """Fill free slots; until the first call they stay free."""
        self._paused = False
        self._start_waiting()

    def pause(self) -> None:
        """Begin with no further job."""
        self._paused = True

    def repeat_questions(self) -> None:
        """A new conversation with a broker: open questions are asked once more."""
        for _job, context in self._running.values():
            context.repeat_question()

    def cancel(self, job: Assignment) -> None:
        """``job`` was deleted: end it at once when it waits or is asynchronous, else tell it."""
        job.cancelled = True
        _job, context = self._running.get(job.uuid, (job, None))
        if context is None:
            self.remove(job)
            self._finish(job, _cancelled(job))
        elif isinstance(context, ThreadContext) and job.begun:
            context.interrupt()
        elif job.running is not None:
            job.running.cancel()

    async def stop(self) -> None:
        """Cancel what runs; ordinary functions are left to themselves."""
        self._paused = self._stopping = True
        tasks = [job.running for job, _ in self._running.values() if job.running is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._threads.close()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._slots and not self._paused:
            job = self._waiting.popleft()
            task = self._tasks.get(job.task)
            kind = JobContext if task is None or task.asynchronous else ThreadContext
            context = kind(job, self._delivery, self._inventory)
            self._running[job.uuid] = (job, context)
            job.running = self._delivery.loop.create_task(
                self._run(job, task, context), name=f"job {job.uuid}"
            )

    async def _run(self, job: Assignment, task: Task | None, context: JobContext | ThreadContext) -> None:
        """``job`` in its slot: whatever its task leaves, it has a result when its slot is free again."""
        result, status = None, 200
        enter_job()
        try:
            await self._may_start(job)
            job.begun, job.state, job.started_s = True, RUNNING, time.time()
            result = await self._result(job, task, context)
        except NotStarted as error:
            result, status = Result(failed=True, errors=[text(error)], status="error"), 500
        except StartHeld:
            pass
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

    async def _result(
        self, job: Assignment, task: Task | None, context: JobContext | ThreadContext
    ) -> Result:
        """What the task brings; an exception becomes a failed result."""
        try:
            if task is None:
                raise LookupError(_no_task(job.task, self._tasks))
            value = await self._value(job, task, context)
        except JobCancelled as error:
            result = _cancelled(job) if job.cancelled else Result(failed=True, status="failed")
            result.errors = [text(error)]
            return _with_context(result, context)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and (job.cancelled or self._stopping):
                raise  # else somebody in the user's code cancelled it, or said so
            late = isinstance(error, TimeoutError) and context.remaining_s <= 0
            said = text(error) if isinstance(error, LookupError) and task is None else _trace(error)
            return _with_context(failure(error, said, "timeout" if late else "error"), context)
        return _with_context(normalise(value) if isinstance(value, Result) else Result(result=value), context)

    async def _value(self, job: Assignment, task: Task, context: JobContext | ThreadContext) -> Any:
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

    def _finish(self, job: Assignment, result: Result, status: int = 200) -> None:
        name = self._delivery.worker
        result.task = result.task or f"{name}:{job.task}"
        result.juuid = result.juuid or job.uuid
        result.service = self._delivery.service
        result.status = result.status or ("failed" if result.failed else "completed")
        result.task_started = result.task_started or clock_text(job.started_s or None)
        result.task_completed = clock_text()
        body = encode(name, result)
        job.end(CANCELLED_STATUS if job.cancelled else status, body, failed=bool(result.failed))
        self._ended(job)


def _cancelled(job: Assignment) -> Result:
    return Result(failed=True, status="skipped", errors=[f"job {job.uuid} was cancelled"])


def _with_context(result: Result, context: JobContext | ThreadContext) -> Result:
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


def _no_task(name: str, tasks: dict[str, Task]) -> str:
    if not name:
        return 'the body names no task, expected JSON with "task", "args" and "kwargs"'
    return f"no task {name[:64]!r}, expected one of {', '.join(sorted(tasks))}"


def _trace(error: BaseException) -> str:
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
