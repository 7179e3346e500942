"""One job: what comes for it, and what its owner may do with it.

A job is made by ``NfpClient.submit`` and ends by itself, at its deadline at the latest. Nobody has to read its events
or its stream: both are bounded.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from broker.errors import LinkClosed
from broker.nfp.client.errors import JobCancelled, JobError, JobFailed, JobTimeout, TaskFailed
from broker.nfp.client.events import ByteStream, Event, EventReader, RecentEvents
from broker.nfp.frames import Packet
from broker.nfp.names import MMI_WORKER, Code, Command, Sender
from broker.nfp.opening import read_any, read_object
from broker.nfp.outcome import (
    CANCELLED,
    DONE,
    EXPIRED,
    FAILED,
    Failure,
    Outcome,
    error_text,
    job_state,
    result_state,
)
from broker.nfp.store.peers import KEEP_S
from broker.nfp.targets import Target
from broker.tasks import within

JOB_TIMEOUT_S: Final = 600.0
"""A job's deadline when none is given, as in deployed NorFab."""
BROKER: Final = "broker"
"""Whose result the answer to a question is."""
_STATUS_OF: Final = {JobTimeout: EXPIRED, JobCancelled: CANCELLED}


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a client waits and how much it holds; none of it can be switched off."""

    resend_s: float = 5.0
    """A POST without any answer is sent again, under the same uuid, after this many seconds."""
    poll_s: float = 10.0
    """A job that nothing was heard of for this long is asked for, as deployed NorFab's clients do."""
    poll_pushed_s: float = 60.0
    """The same at a broker that pushes results: a safety net."""
    poll_attached_s: float = 2.0
    """The same for a job that was submitted by somebody else: what comes of it is pushed to them."""
    answer_s: float = 10.0
    """How long management requests and cancellations wait for an answer."""
    at_broker_msgs: int = 500
    """Unfinished jobs given to the broker at a time, half of what it takes from one client; the rest wait here."""
    jobs: int = 100_000
    """Unfinished jobs of this client; beyond it EAGAIN."""
    keep_s: float = KEEP_S
    """How long an ended job of a named client is kept on its disk (NFP, "Job Persistence": "a configurable amount")."""
    events_msgs: int = 1000
    """Events one job keeps for its readers; older ones are dropped and counted."""
    events_bytes: int = 4 << 20
    """The same in bytes."""
    stream_bytes: int = 64 << 20
    """Bytes of a job's stream that wait for their reader; beyond it the stream raises Overrun."""
    subscription_msgs: int = 10_000
    """Events one subscription keeps for its reader; older ones are dropped and counted."""


class JobOwner(ABC):
    """Sends what is said about jobs, and is told what becomes of them."""

    limits: Limits

    @abstractmethod
    def send(self, job: Job, command: Command, body: bytes, target: Target | None = None) -> bool:
        """Send a command about ``job``; return False when that cannot be. ``target`` None: as it was submitted."""

    @abstractmethod
    async def cancel(self, job: Job) -> bool:
        """See ``Job.cancel``."""

    def keep_progress(self, job: Job) -> None:
        """Called when the job's workers became known, or new results came (those of ``outcome.fresh``)."""
        return

    def abandon(self, job: Job) -> None:
        """Called once the job was given up (``Job.give_up``)."""
        return

    def forget(self, job: Job) -> None:
        """Called once, when the job is over."""
        return


class Submission(NamedTuple):
    """A request for a job: enough to ask again after a restart."""

    uuid: str
    service: str
    task: str
    target: Target
    body: bytes
    """Of the POST; b"" for a job that somebody else submitted: it is only asked for."""
    timeout_s: float
    deadline: float
    """Monotonic seconds."""


class Job:
    """A job of this client; ``await job`` gives its results.

    Attributes:
        uuid, service, task, target, timeout_s: as submitted.
        stream: the bytes its workers stream, ``async for chunk in job.stream``; for one reader.
        heard, posted, asked: monotonic time of the latest packet about it, of its latest POST and GET; 0.0: none.
        known: a broker may have it. moved: it was submitted to an earlier life of the broker. timer: of its owner.
        cancelling: resolves once the broker has answered the DELETE; None: nobody waits for that.
    """

    def __init__(self, submission: Submission, owner: JobOwner) -> None:
        limits = owner.limits
        self.submission = submission
        self.uuid = submission.uuid
        self.service = submission.service
        self.task = submission.task
        self.target = submission.target
        self.timeout_s = submission.timeout_s
        self.stream = ByteStream(sys.maxsize, limits.stream_bytes)
        self.heard = self.posted = self.asked = 0.0
        self.known = self.moved = False
        self.timer: asyncio.TimerHandle | None = None
        self.cancelling: asyncio.Future[bool] | None = None
        self.outcome = Outcome(submission.service, submission.target)
        self._owner = owner
        self._buffer: RecentEvents = RecentEvents(limits.events_msgs, limits.events_bytes)
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accepted = asyncio.Event()
        self._error: Exception | None = None
        self._on_chunk: Callable[[bytes], None] | None = None

    def __repr__(self) -> str:
        return f"<Job {self.uuid} {self.service}.{self.task} {self.status}>"

    # -- views ------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Which job it is, for people."""
        return f"job {self.uuid} ({self.service}.{self.task})"

    @property
    def done(self) -> bool:
        """True once the job is over, well or not."""
        return self._over.done()

    @property
    def status(self) -> str:
        """new, queued, dispatched, started or waiting (for input), then done, failed, cancelled or expired.

        A task that failed is a job that failed, although its result is one like any other.
        """
        if not self.done:
            return self.outcome.status
        ended = DONE if self._error is None else _STATUS_OF.get(type(self._error), FAILED)  # type: ignore[arg-type]
        if ended == CANCELLED:
            return ended
        return job_state([ended, *map(result_state, self.outcome.results.values())])

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that were given the job; () while none was."""
        return self.outcome.workers

    @property
    def missing(self) -> tuple[str, ...]:
        """The names in the target that the broker has never heard of."""
        return self.outcome.missing

    @property
    def results(self) -> dict[str, Any]:
        """The results that have come so far, {worker: result}."""
        return dict(self.outcome.results)

    @property
    def error(self) -> Exception | None:
        """Why the job did not end well; None while it runs, and when it ended well."""
        return self._error

    # -- waiting ----------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self.result().__await__()

    async def result(self, *, check: bool = False, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the results of all its workers and return them, {worker: result}.

        Args:
            check: raise TaskFailed when a result says ``failed``. False: that is a result like any other.
            timeout_s: how long to wait; the job goes on behind it. None: until the job is over.

        Raises:
            JobFailed, JobCancelled, JobTimeout: the job ended so. TimeoutError: it was not over within ``timeout_s``.
            LinkClosed: the client was closed before.
        """
        if not self._over.done():
            async with within(timeout_s):
                await asyncio.shield(self._over)
        if self._error is not None:
            raise self._error
        results = self.results
        if check:
            failed = {
                worker: result.get("errors")
                for worker, result in results.items()
                if result_state(result) != DONE
            }
            if failed:
                raise TaskFailed(failed, self.uuid, results)
        return results

    async def wait(self) -> None:
        """Return when the job is over, however it ended."""
        await asyncio.shield(self._over)

    async def accepted(self) -> None:
        """Return once a broker has the job, which then goes on without this client, or it is over."""
        await self._accepted.wait()

    def events(self, *, from_start: bool = True, once: bool = False) -> EventReader:
        """Read what happens to the job until it is over: ``async for event in job.events()``; any number may read.

        The job keeps the last ``Limits.events_msgs``; a reader's ``lost`` counts those that it came too late for.
        ``from_start`` False leaves out what has happened before. What is read ``once`` is kept for nobody else.
        """
        return self._buffer.reader(from_start=from_start, once=once)

    # -- doing ------------------------------------------------------------------------------------

    async def cancel(self) -> bool:
        """Ask the broker to end the job (DELETE) and return True when the broker says that it did.

        It returns False when the job was over before, or the broker did not answer within ``Limits.answer_s`` (deployed
        NorFab's never does). Nobody waits for the job any more in either case.
        """
        return await self._owner.cancel(self)

    async def answer(
        self,
        input_id: str,
        value: Any = None,
        *,
        worker: str = "",
        cancel: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer an input_request (``Event.input_id``); ``cancel`` declines it, which ends the task.

        Raises:
            LinkError: there is no connection at present, or the job is over.
        """
        said = {"input_id": input_id, "value": value, "cancel": cancel, "metadata": dict(metadata or {})}
        asking = (name for name, asked in self.outcome.inputs.items() if asked == input_id)
        self.put(said, worker=worker or next(asking, ""))

    def put(self, value: Any, *, worker: str = "") -> None:
        """Send ``value`` (JSON) to the running task (PUT), at ``worker`` only or, with "", at all that run it.

        Raises:
            LinkClosed: there is no connection at present, or the job is over.
        """
        names = (worker,) if worker else self.outcome.outstanding
        target = Target("list", names) if names else None
        if self.done or not self._owner.send(self, Command.PUT, msgspec.json.encode(value), target):
            raise LinkClosed(f"job {self.uuid}: {'it is over' if self.done else 'no connection to a broker'}")

    def give_up(self, error: Exception | None = None) -> None:
        """End the job at once, with ``error`` or as cancelled, and tell the broker that nobody waits any more."""
        if not self.done:
            self.finish(error or self.cancellation())
            self._owner.abandon(self)

    def cancellation(self) -> JobCancelled:
        """Return what a job that was cancelled ends with."""
        return JobCancelled(f"job {self.uuid} was cancelled", self.uuid, self.outcome.results)

    def divert_stream(self, take: Callable[[bytes], None]) -> None:
        """Hand the chunks of the stream to ``take`` as they come; ``stream`` gets none then."""
        self._on_chunk = take

    def packet(self, command: Command, body: bytes, target: Target | None = None) -> Packet:
        """Return the packet that says ``command`` about the job; ``target`` None: as it was submitted."""
        target = target or self.target
        return Packet(Sender.CLIENT, command, service=self.service, target=target, uuid=self.uuid, body=body)

    def note(self, event: Event, size: int = 0) -> None:
        """Give readers an event that no packet has brought; ``size``: bytes that it carries."""
        self._buffer.put(event, size)

    # -- from the session -----------------------------------------------------------------------------

    def take(self, packet: Packet) -> None:
        """Take a packet about this job."""
        if self.done:
            return
        if packet.command is Command.STREAM:
            self._take_chunk(packet.data)
        elif packet.command is Command.EVENT:
            self._take_event(read_object(packet.data), len(packet.data))
        elif packet.command is Command.RESPONSE:
            self._take_answer(packet.status, packet.data)
        if self.outcome.acknowledged:
            self._accepted.set()

    def _take_answer(self, status: int, data: bytes) -> None:
        told = self.outcome.take_answer(status, data)
        if told.kind == "input_request":
            self._take_question(read_object(data))
        elif told.kind == "finished":  # what it brought is in ``results``
            self._tell(told.kind, told.worker, told.message, None, 0)
        elif told.kind:
            self._tell(told.kind, told.worker, told.message, read_object(data), len(data))
        if told.kind == "dispatched" or self.outcome.fresh:
            self._owner.keep_progress(self)
        if self.outcome.complete:
            self.finish(self._verdict())

    def _take_question(self, said: dict[str, Any]) -> None:
        """Take 102 of a worker for the event that may have been missed."""
        asked = said.get("input_request")
        if isinstance(asked, dict):
            event = {
                "event_type": "input_request",
                "worker": said.get("worker") or "",
                "message": str(asked.get("question") or ""),
                "extras": {"input_request": asked},
            }
            self._take_event({**said, **event}, len(event["message"]))

    def _take_event(self, said: dict[str, Any], size: int) -> None:
        if self.outcome.take_event(said):
            kind, worker, message = (str(said.get(key) or "") for key in ("event_type", "worker", "message"))
            self._tell(kind or "progress", worker, message, said, 2 * size)

    def _tell(self, kind: str, worker: str, message: str, body: Any, size: int) -> None:
        self._buffer.put(Event(kind, worker, message, body, self.uuid, self.service), size)

    def _take_chunk(self, data: bytes) -> None:
        self.outcome.acknowledged = True
        if self._on_chunk is not None:
            self._on_chunk(data)
        else:
            self.stream.add(data)

    def _verdict(self) -> Exception | None:
        outcome = self.outcome
        failure = outcome.error
        text = failure.text if failure else ""
        if failure is None and outcome.failures:
            worst = job_state(each.state for each in outcome.failures.values())
            worker, failure = next(each for each in outcome.failures.items() if each[1].state == worst)
            text = f"{worker}: {failure.text}"
        if failure is None:
            return None
        if failure.state == CANCELLED:
            return self.cancellation()
        if failure.state == EXPIRED:
            return JobTimeout(text, self.uuid, outcome.results)
        return JobFailed(text, failure.status, self.uuid, outcome.results)

    def finish(self, error: Exception | None) -> None:
        """End the job; ``error`` is None when it ended well. The first end counts."""
        if self.done:
            return
        self._error = error
        self._over.set_result(None)
        self._accepted.set()
        self._buffer.finish()
        self.stream.finish(StopAsyncIteration() if error is None or isinstance(error, JobError) else error)
        self._owner.forget(self)

    def expire(self, trouble: str = "") -> None:
        """End the job because its deadline has passed; ``trouble`` is why there is no connection, "" when there is."""
        text = f"{self.title}: nothing final within {self.timeout_s:g} s{self._lacking(trouble)}"
        self.finish(JobTimeout(text, self.uuid, self.outcome.results))

    def _lacking(self, trouble: str) -> str:
        """Say what did not come, as far as it is known here."""
        if not self.outcome.acknowledged:
            return "; no broker has confirmed that it has it" + (f": {trouble}" if trouble else "")
        if self.outcome.status == "queued":
            return f"; it stayed in the queue: no worker of the service {self.service!r} took it"
        waits = self.outcome.outstanding
        return f"; no result of {', '.join(waits[:8])}" if waits else ""


class Question(Job):
    """What the broker answers itself, at once: the first answer that is final ends it, and nothing comes before.

    As a job it has the result of "broker", or of the workers that ``mmi.service.worker`` answers for.

    Args:
        once: it would be done twice if it was asked again, so a connection that is lost before the answer ends it.

    Attributes:
        sent: it is on its way. value: the answer, read from JSON.
    """

    def __init__(self, submission: Submission, owner: JobOwner, *, once: bool) -> None:
        super().__init__(submission, owner)
        self.once = once
        self.sent = False
        self.value: Any = None

    async def cancel(self) -> bool:
        """Wait no more; what was asked for may be done all the same, so the cancellation is not confirmed."""
        self.give_up()
        return False

    def put(self, value: Any, *, worker: str = "") -> None:
        """See ``Job.put``; no task runs for a question."""
        raise LinkClosed(f"{self.title}: no connection to a task, the broker answers it itself")

    def take(self, packet: Packet) -> None:
        """Take the answer."""
        said = packet.command in (Command.RESPONSE, Command.MMI)
        if self.done or not said or packet.status in (Code.ACCEPTED, Code.PENDING, Code.CREATED):
            return
        data = packet.data
        self.value = value = read_any(data, data.decode("utf-8", "replace")) if data else None
        if packet.status >= Code.UNKNOWN:
            text = error_text(packet.status, value if isinstance(value, dict) else {})
            self.outcome.error = Failure(packet.status, text)
            self.finish(JobFailed(f"{self.service}: {text}", packet.status, self.uuid))
        else:
            if self.service != MMI_WORKER or not isinstance(value, dict):
                value = {BROKER: value}
            self.outcome.results = value
            self.finish(None)

    def expire(self, trouble: str = "") -> None:
        """See ``Job.expire``."""
        why = f": {trouble}" if trouble else ""
        text = f"{self.service} {self.task}: no answer within {self.timeout_s:g} s{why}"
        self.finish(JobTimeout(text, self.uuid))
