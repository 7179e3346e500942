"""What a task sees of its job: ``JobContext`` in asynchronous functions, ``ThreadContext`` in ordinary ones.

Both have the same names. In an ordinary function every call returns when it is done; in an asynchronous one those that
may wait are awaited.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import uuid4

import msgspec

from broker.nfp import bodies
from broker.nfp.client.errors import JobCancelled
from broker.nfp.names import Command, Dialect
from broker.nfp.worker.job_run import JobRun
from broker.safe_text import text, texts
from broker.tasks import within

if TYPE_CHECKING:
    from broker.nfp.worker.jobs import Jobs

log = logging.getLogger("headgate")
T = TypeVar("T")
P = ParamSpec("P")
ASK_S: Final = 120.0
"""How long a question waits for its answer."""


class TaskContext:
    """What both have, and what happens in the loop's thread.

    Attributes:
        uuid, task: of the job. worker: the worker's name. timeout_s: how long the job may take in all.
    """

    def __init__(self, job: JobRun, jobs: Jobs, inventory: dict[str, Any]) -> None:
        self._job = job
        self._jobs = jobs
        self.uuid = job.uuid
        self.task = job.task
        self.worker = jobs.worker
        self.timeout_s = job.timeout_s
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._put_waiter: asyncio.Future[None] | None = None
        self.resources: list[str] = []
        self.resources_failed: list[str] = []
        self.messages: list[str] = []
        self.errors: list[str] = []
        self.diff: Any = None
        self.dry_run = False
        self.inventory = inventory

    # -- about the job ----------------------------------------------------------------------------

    @property
    def client(self) -> str:
        """The name of the client that asked for the job, for people."""
        return self._job.client_name

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
        """What is left of it; negative when nobody waits any more."""
        return self._job.deadline - time.monotonic()

    def check(self) -> None:
        """To be called now and then by an ordinary function that takes long.

        Raises:
            JobCancelled: the job was deleted. TimeoutError: its time is over.
        """
        if self._job.cancelled:
            raise JobCancelled(f"job {self.uuid} was cancelled", self.uuid)
        if self.remaining_s <= 0:
            raise TimeoutError(f"job {self.uuid} took longer than its {self.timeout_s:g} s")

    def fail(self, error: str) -> None:
        """The result will be a failed one, with ``error`` among its errors."""
        self.errors.append(error)

    # -- events -----------------------------------------------------------------------------------

    def _event(self, kind: str, message: str, status: str, *, severity: str = "INFO", **more: Any) -> None:
        """Write it down where it is said, in the thread of the task, and keep and send it in the loop's."""
        said = {"message": text(message), "status": text(status), "severity": text(severity)}
        body = self._jobs.event(self._job, kind, **said, **more)
        if why := self._jobs.too_large(len(body)):
            raise ValueError(f"an event of {why}: say less, stream it, or share it as a file")
        self._in_loop(lambda: self._keep_and_send({"event_type": kind, **said}, body))

    def _keep_and_send(self, said: dict[str, Any], body: bytes) -> None:
        self._job.events.append(said)
        if not self._jobs.send(self._job, Command.EVENT, 200, body):
            log.debug("job %s: an event was not sent, the broker is away", self._job.uuid)

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
        self._event(
            "progress", message, status, severity=severity, resource=texts(resource), extras=extras or None
        )

    def _in_loop(self, call: Callable[[], None]) -> None:
        call()

    def repeat_question(self) -> None:
        """The question went to a broker that may not have told anybody: ask once more."""
        if self._job.question is not None:
            try:
                self._event_of_question(self._job.question)
            except ValueError as error:  # this broker takes less than the one before
                log.warning("job %s: its question cannot be asked again: %s", self.uuid, error)

    def _event_of_question(self, asked: dict[str, Any]) -> None:
        self._event(
            "input_request",
            asked["question"],
            "waiting_client_input",
            extras={"input_request": asked},
            timeout_s=asked["timeout"],
        )

    # -- what may wait ----------------------------------------------------------------------------

    async def _ask(
        self, /, question: str, *, default: Any = False, timeout_s: float = ASK_S, **metadata: Any
    ) -> Any:
        """Ask the client; returns the value it answers.

        Raises:
            TimeoutError: no answer. JobCancelled: the client refuses to answer; in an ordinary function also: the job
            was deleted meanwhile.
        """
        job, question = self._job, text(question)
        wanted = {
            "id": uuid4().hex,
            "question": question,
            "default": default,
            "timeout": max(1, round(timeout_s)),
            "metadata": metadata,
        }
        asked = msgspec.json.decode(bodies.write(wanted))  # it is written again, to whoever asks for the job
        self._event_of_question(asked)
        answer: asyncio.Future[dict[str, Any]] = self._jobs.loop.create_future()
        self._answers[asked["id"]] = answer
        job.question = asked
        said: dict[str, Any] = {"input_id": asked["id"]}
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
            del self._answers[asked["id"]]
            job.question = None
            self._event("input_response", question, status, extras={"input_response": said})
        if status == "cancelled":
            raise JobCancelled(f"the client cancelled the question {question!r}")
        return response.get("value", default)

    def put_came(self) -> None:
        """A PUT: the answer to a question, or something for ``received``."""
        newest = self._job.puts[-1]
        asked = newest.get("input_id") if isinstance(newest, dict) else None
        if isinstance(asked, str):
            self._job.puts.pop()
            answer = self._answers.get(asked)
            if answer is not None and not answer.done():  # else it comes too late, or for the second time
                answer.set_result(newest)
        elif self._put_waiter is not None and not self._put_waiter.done():
            self._put_waiter.set_result(None)

    async def _received(self, timeout_s: float) -> Any:
        """The next thing the client sent to this job with PUT, decoded, answers to questions excepted.

        Raises:
            TimeoutError: nothing came.
        """
        async with within(timeout_s):
            return await self._next_put()

    async def _next_put(self) -> Any:
        job = self._job
        while not job.puts:
            self._put_waiter = self._jobs.loop.create_future()
            await self._put_waiter
        return job.puts.popleft()

    async def _next_offset(self, timeout_s: float) -> int | None:
        """The next ``{"offset": n}`` of the client: a credit for one more chunk; None when none came in time."""
        try:
            async with within(timeout_s):
                while True:
                    put = await self._next_put()
                    offset = put.get("offset") if isinstance(put, dict) else None
                    if isinstance(offset, int) and not isinstance(offset, bool):
                        return offset
        except TimeoutError:
            return None

    async def _stream(self, data: bytes) -> None:
        """Send raw bytes to the client; waits while the outbox is full or the broker is away."""
        if self._job.dialect is Dialect.SEED:
            raise RuntimeError("the one-byte dialect has no STREAM: this broker cannot carry it")
        if why := self._jobs.too_large(len(data)):
            raise ValueError(f"a chunk of {why}: stream smaller ones")
        while not self._jobs.send(self._job, Command.STREAM, 200, data):
            await self._jobs.writable()


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
        return context._wait(method(context, *args, **kwargs))

    return call


class ThreadContext(TaskContext):
    """The job, for an ordinary task, which runs in a thread; see ``JobContext``.

    When the function returns an awaitable, which runs in the loop, what may wait is awaited, as of ``JobContext``.
    """

    _waiting: asyncio.Task[Any] | None = None
    """What the task waits for."""

    def _in_loop(self, call: Callable[[], None]) -> None:
        self._jobs.loop.call_soon_threadsafe(call)

    ask = _waits(TaskContext._ask)
    stream = _waits(TaskContext._stream)
    received = _waits(TaskContext._received)
    next_offset = _waits(TaskContext._next_offset)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop, and stop waiting when the job is deleted."""
        if _runs_in(self._jobs.loop):  # what an ordinary function returned is awaited there, and awaits this
            return self._unless_cancelled(work)  # type: ignore[return-value]
        return asyncio.run_coroutine_threadsafe(self._unless_cancelled(work), self._jobs.loop).result()

    async def _unless_cancelled(self, work: Coroutine[Any, Any, T]) -> T:
        before, self._waiting = self._waiting, asyncio.current_task()
        if self._job.cancelled:
            work.close()
            raise JobCancelled(f"job {self.uuid} was cancelled", self.uuid)
        try:
            return await work
        except asyncio.CancelledError:
            if self._job.cancelled:
                raise JobCancelled(f"job {self.uuid} was cancelled", self.uuid) from None
            raise
        finally:
            self._waiting = before

    def goes_on_in_loop(self) -> None:
        """What the function returned is awaited now: the deletion of the job ends it (loop's thread)."""
        self._waiting = asyncio.current_task()

    def interrupt(self) -> None:
        """The job was deleted: whatever the task waits for ends now (loop's thread)."""
        if self._waiting is not None:
            self._waiting.cancel()


def _runs_in(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
