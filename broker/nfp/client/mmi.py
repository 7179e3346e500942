"""Questions to services that the broker answers itself, at once: management, inventory, events, jobs (NFP, "MMI").

Deployed NorFab's broker answers each twice, as RESPONSE and as MMI; the first one counts. A question whose answer was
lost with the connection is asked again in the next session, except where that would be done twice (``ONCE``, and what
is asked ``once``). ``MmiJobs`` are such questions for callers that submit jobs: a job's POST is sent again until
somebody confirms it, a question such as "restart" must not be.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from broker.errors import HeadgateError, LinkBroken, LinkClosed, LinkRefused
from broker.nfp import bodies
from broker.nfp.client.errors import JobCancelled, JobFailed, JobTimeout, RequestFailed
from broker.nfp.client.job import Job, JobOwner, Submission
from broker.nfp.client.limits import Limits
from broker.nfp.frames import Packet
from broker.nfp.names import MMI_WORKER, Code, Command, Sender
from broker.nfp.opening import read_any
from broker.nfp.outcome import error_text
from broker.nfp.peer.channel import Channel
from broker.nfp.targets import ANY, Target
from broker.tasks import within

ONCE: Final = frozenset({"restart", "shutdown", "disconnect"})
"""Tasks of management that end connections: their answers may well be lost with them."""
BROKER: Final = "broker"
"""Whose result the answer of a service of the broker is; ``mmi.service.worker`` answers with names of workers."""
_LOST: Final = "the connection was lost before the answer; it may have been done, and is not asked again"


class _Pending:
    """A question without an answer; ``once``: not asked again when it was ``sent``."""

    __slots__ = ("future", "once", "packet", "sent")

    def __init__(self, packet: Packet, once: bool) -> None:
        self.packet = packet
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.once = once
        self.sent = False

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class MmiRequests:
    """Keeps the questions of one client that wait for answers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending: dict[str, _Pending] = {}
        self._connected = False

    def __len__(self) -> int:
        return len(self._pending)

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
        pending = self._pending[uuid] = _Pending(packet, once or task in ONCE)
        try:
            async with within(timeout_s):
                while self._connected and not self._send(pending):
                    await self._channel.writable()
                return await pending.future
        except TimeoutError as error:
            why = f": {self._channel.trouble}" if self._channel.trouble else ""
            raise TimeoutError(f"{service} {task}: no answer within {timeout_s:g} s{why}") from error
        finally:
            del self._pending[uuid]

    def _send(self, pending: _Pending) -> bool:
        """Whether it is on its way; it may have been sent already, by ``began``."""
        pending.sent = pending.sent or self._channel.send(pending.packet)
        return pending.sent

    def began(self) -> None:
        """Ask, or ask again, what has no answer: a session begins."""
        self._connected = True
        for pending in self._pending.values():
            pending.sent = pending.sent and pending.once
            self._send(pending)

    def lost(self) -> None:
        """Give up what must not be asked twice: the session is over."""
        self._connected = False
        for pending in self._pending.values():
            if pending.once and pending.sent:
                pending.fail(LinkBroken(f"{pending.packet.service}: {_LOST}"))

    def refused(self, error: LinkRefused) -> None:
        """Give up what waits: no broker lets us in."""
        for pending in self._pending.values():
            pending.fail(LinkRefused(str(error), error.errno))

    def close(self) -> None:
        """Give up what waits: the client is closed."""
        for pending in self._pending.values():
            pending.fail(LinkClosed("the client was closed"))

    def received(self, packet: Packet) -> bool:
        """Take the answer to a question; return False when no question has the packet's uuid."""
        pending = self._pending.get(packet.uuid)
        if pending is None:
            return False
        if packet.status in (Code.ACCEPTED, Code.PENDING, Code.CREATED) or pending.future.done():
            return True
        data = packet.data
        value = read_any(data, data.decode("utf-8", "replace")) if data else None
        if packet.status >= Code.UNKNOWN:
            text = error_text(packet.status, value if isinstance(value, dict) else {})
            pending.fail(RequestFailed(f"{pending.packet.service}: {text}", packet.status))
        else:
            pending.future.set_result(value)
        return True


class MmiJobs(JobOwner):
    """Looks after jobs for services that take none: each is one question, asked once.

    An answer that is lost with the connection ends the job with LinkBroken.

    Attributes:
        jobs: those without an answer, by uuid.
    """

    def __init__(self, requests: MmiRequests, limits: Limits) -> None:
        self.limits = limits
        self.jobs: dict[str, Job] = {}
        self._requests = requests
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, submission: Submission, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """Ask, now or once there is a connection, and return a job that ends with the answer.

        Raises:
            HeadgateError: EAGAIN, too many wait for answers.
        """
        if len(self.jobs) >= self.limits.jobs:
            raise HeadgateError(f"{len(self.jobs)} questions wait, that is the limit", errno.EAGAIN)
        uuid = submission.uuid
        job = self.jobs[uuid] = Job(submission, self)
        asking = self._ask(job, args, kwargs)
        self._tasks[uuid] = asyncio.get_running_loop().create_task(asking, name=f"question {uuid}")
        return job

    async def _ask(self, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        ask, timeout_s = self._requests.ask, job.timeout_s
        try:
            value = await ask(
                job.service,
                job.task,
                args,
                kwargs,
                target=job.target,
                timeout_s=timeout_s,
                uuid=job.uuid,
                once=True,
            )
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

    async def close(self) -> None:
        """End what waits with LinkClosed."""
        tasks = list(self._tasks.values())
        for job in list(self.jobs.values()):
            job.finish(LinkClosed(f"{job.service} {job.task}: the client was closed"))
        if tasks:
            await asyncio.wait(tasks)

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
        task = self._tasks.pop(job.uuid, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
