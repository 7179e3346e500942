"""Runs tasks: so many at a time as the worker has slots, in the order in which the jobs came."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from broker.errors import HeadgateError
from broker.nfp.files.fetching import FetchFailed
from broker.nfp.worker.context import JobCancelled, JobContext, ThreadContext, Way
from broker.nfp.worker.jobs import RUNNING, Job
from broker.nfp.worker.results import Result, clock_text, encode, tidy
from broker.nfp.worker.tasks import InvalidInput, Task, Tasks
from broker.nfp.worker.threads import Threads

log = logging.getLogger("headgate")
Localise = Callable[[Task, list[Any], dict[str, Any]], Awaitable[tuple[list[Any], dict[str, Any]]]]
"""Brings the files that arguments name."""
CANCELLED_STATUS = 417
"""Status of a deleted job's end: the client does not get what it was expecting (NFP, "Status Frames")."""
ERROR_TEXT_CHARS = 16_000
"""A traceback is cut to its last so many characters."""


class NotBegun(HeadgateError):
    """The task of a job is not entered: the job ends with the error and ``status``."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class HeldBack(Exception):
    """The task of a job is not entered now: whoever raised this brings the job again."""


class Runner:
    """The slots.

    Args:
        tasks: what there is. way: where contexts send. slots: jobs at a time. begin: awaited with each job that
        has its slot, before its task is entered; it may raise ``NotBegun`` or ``HeldBack``. ended: called with each job
        that has got its result. localise: see ``Localise``. inventory: shown to tasks.
    """

    def __init__(
        self,
        tasks: Tasks,
        way: Way,
        slots: int,
        begin: Callable[[Job], Awaitable[None]],
        ended: Callable[[Job], None],
        localise: Localise,
        inventory: dict[str, Any],
    ) -> None:
        self._tasks = tasks
        self._way = way
        self._slots = slots
        self._begin = begin
        self._ended = ended
        self._localise = localise
        self._inventory = inventory
        self._threads = Threads(f"task of {way.worker}", slots, way.loop)
        self._waiting: deque[Job] = deque()
        self._running: dict[str, tuple[Job, JobContext | ThreadContext]] = {}
        self._paused = True

    @property
    def running(self) -> int:
        """Jobs in a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs that wait for one."""
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Run ``job`` when a slot is free."""
        self._waiting.append(job)
        self._fill()

    def take_back(self, job: Job) -> bool:
        """Do not run ``job``; False when it has its slot."""
        if job not in self._waiting:
            return False
        self._waiting.remove(job)
        return True

    def take_all_back(self) -> list[Job]:
        """Return the jobs that wait for a slot, oldest first: they wait no more."""
        waiting, self._waiting = list(self._waiting), deque()
        return waiting

    def resume(self) -> None:
        """Fill free slots; until the first call they stay free."""
        self._paused = False
        self._fill()

    def pause(self) -> None:
        """Begin with no further job."""
        self._paused = True

    def ask_again(self) -> None:
        """A new conversation with a broker: open questions are asked once more."""
        for _job, context in self._running.values():
            context._ask_again()

    def cancel(self, job: Job) -> None:
        """``job`` was deleted: end it at once when it waits or is asynchronous, else tell it."""
        job.cancelled = True
        held = self._running.get(job.uuid)
        if held is None:
            self.take_back(job)
            self._finish(job, self._cancelled(job))
        elif isinstance(held[1], ThreadContext) and job.begun:
            held[1].interrupt()
        elif job.running is not None:
            job.running.cancel()

    async def stop(self) -> None:
        """Cancel what runs; ordinary functions are left to themselves."""
        self._paused = True
        tasks = [job.running for job, _ in self._running.values() if job.running is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._threads.close()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._slots and not self._paused:
            job = self._waiting.popleft()
            task = self._tasks.get(job.task)
            kind = JobContext if task is None or task.asynchronous else ThreadContext
            context = kind(job, self._way, self._inventory)
            self._running[job.uuid] = (job, context)
            job.running = self._way.loop.create_task(self._run(job, task, context), name=f"job {job.uuid}")

    async def _run(self, job: Job, task: Task | None, context: JobContext | ThreadContext) -> None:
        status = 0
        try:
            await self._begin(job)
            job.begun, job.state, job.started_s = True, RUNNING, time.time()
            result = await self._result(job, task, context)
        except NotBegun as error:
            result, status = Result(failed=True, errors=[str(error)], status="error"), error.status
        except HeldBack:
            self._running.pop(job.uuid, None)
            self._fill()
            return
        except asyncio.CancelledError:
            if not job.cancelled:  # the worker ends: the job has no result
                self._running.pop(job.uuid, None)
                raise
            result = self._cancelled(job)
        except BaseException:
            self._running.pop(job.uuid, None)
            raise
        self._running.pop(job.uuid, None)
        self._finish(job, result, status)
        self._fill()

    async def _result(self, job: Job, task: Task | None, context: JobContext | ThreadContext) -> Result:
        """What the task brings; an exception becomes a failed result."""
        try:
            if task is None:
                raise LookupError(_no_task(job.task, self._tasks))
            value = await self._value(job, task, context)
        except KeyboardInterrupt:
            raise
        except JobCancelled as error:
            result = self._cancelled(job) if job.cancelled else Result(failed=True, status="failed")
            result.errors = [str(error)]
            return _dressed(result, context)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            late = isinstance(error, TimeoutError) and context.remaining_s <= 0
            text = str(error) if isinstance(error, LookupError) and task is None else _trace(error)
            failed = Result(failed=True, errors=[text], status="timeout" if late else "error")
            failed.messages = [f"{type(error).__name__}: {error}" if str(error) else type(error).__name__]
            return _dressed(failed, context)
        return _dressed(tidy(value) if isinstance(value, Result) else Result(result=value), context)

    async def _value(self, job: Job, task: Task, context: JobContext | ThreadContext) -> Any:
        context.check()
        args, kwargs = await self._localise(task, job.args, job.kwargs)
        if isinstance(context, ThreadContext):
            return await asyncio.shield(self._threads.run(lambda: task.call(context, args, kwargs)))
        try:
            async with asyncio.timeout(max(0.0, context.remaining_s)) as limit:
                return await task.call(context, args, kwargs)
        except TimeoutError:
            if limit.expired():
                context.check()  # says how long it took
            raise

    def _cancelled(self, job: Job) -> Result:
        return Result(failed=True, status="skipped", errors=[f"job {job.uuid} was cancelled"])

    def _finish(self, job: Job, result: Result, status: int = 0) -> None:
        name = self._way.worker
        result.task = result.task or f"{name}:{job.task}"
        result.juuid = result.juuid or job.uuid
        result.service = self._way.service
        result.status = result.status or ("failed" if result.failed else "completed")
        result.task_started = result.task_started or clock_text(job.started_s or None)
        result.task_completed = clock_text()
        body = encode(name, result)
        job.end(CANCELLED_STATUS if job.cancelled else status or 200, body, failed=bool(result.failed))
        self._ended(job)


def _dressed(result: Result, context: JobContext | ThreadContext) -> Result:
    """``result`` with what the task left in its context."""
    result.resources = [*result.resources, *context.resources]
    result.resources_failed = [*result.resources_failed, *context.resources_failed]
    result.messages = [*result.messages, *context.messages]
    if context.errors:
        result.failed = True
        result.errors = [*result.errors, *context.errors]
    if result.diff is None:
        result.diff = context.diff
    result.dry_run = result.dry_run or context.dry_run
    return result


def _is_cancelled() -> bool:
    """Whether somebody cancelled the running task: a CancelledError may also be an error of the user's code."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def _no_task(name: str, tasks: Tasks) -> str:
    if not name:
        return 'the body names no task, expected JSON with "task", "args" and "kwargs"'
    return f"no task {name[:64]!r}, expected one of {', '.join(tasks.names)}"


def _trace(error: BaseException) -> str:
    """The traceback, from the task's own function on; of a task that did not begin, what was missing."""
    if isinstance(error, FetchFailed | InvalidInput):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    return "".join(lines)[-ERROR_TEXT_CHARS:]
