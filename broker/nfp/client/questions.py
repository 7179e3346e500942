"""Jobs for services that take none: what is submitted to ``mmi.service.broker`` and its like is one question by MMI.

A job's POST is sent again until somebody confirms it; a question such as "restart" must not be. So it is sent once and
never again on another connection: an answer that is lost with the connection ends the job with LinkBroken.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.errors import HeadgateError, LinkClosed
from broker.nfp.client.errors import JobCancelled, JobFailed, JobTimeout, RequestFailed
from broker.nfp.client.job import Job, Ticket
from broker.nfp.names import MMI_WORKER, Command

if TYPE_CHECKING:
    from broker.nfp.client.limits import Limits
    from broker.nfp.client.requests import Requests
    from broker.nfp.targets import Target

BROKER: Final = "broker"
"""Whose result the answer of a service of the broker is; ``mmi.service.worker`` answers with names of workers."""


class Questions:
    """The questions of one client that were submitted as jobs (``job.Asked``).

    Attributes:
        jobs: those without an answer, by uuid.
    """

    def __init__(self, requests: Requests, limits: Limits) -> None:
        self.limits = limits
        self.jobs: dict[str, Job] = {}
        self._requests = requests
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, ticket: Ticket, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """Ask, now or once there is a connection; the job that is returned ends with the answer.

        Raises:
            HeadgateError: EAGAIN, too many wait for answers.
        """
        if len(self.jobs) >= self.limits.jobs:
            raise HeadgateError(f"{len(self.jobs)} questions wait, that is the limit", errno.EAGAIN)
        job = self.jobs[ticket.uuid] = Job(ticket, self)
        asking = asyncio.get_running_loop().create_task(
            self._ask(job, args, kwargs), name=f"question {ticket.uuid}"
        )
        self._tasks[ticket.uuid] = asking
        return job

    async def _ask(self, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            value = await self._requests.ask(
                job.service,
                job.task,
                args,
                kwargs,
                target=job.target,
                timeout_s=job.ticket.timeout_s,
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
        """What waits raises LinkClosed."""
        tasks = list(self._tasks.values())
        for job in list(self.jobs.values()):
            job.finish(LinkClosed(f"{job.service} {job.task}: the client was closed"))
        if tasks:
            await asyncio.wait(tasks)

    # -- job.Asked --------------------------------------------------------------------------------

    def send(self, job: Job, command: Command, body: bytes, target: Target | None = None) -> bool:
        """Nothing can be told to a question."""
        return False

    async def cancel(self, job: Job) -> bool:
        """Wait no more; what was asked for may be done all the same, so the cancellation is not confirmed."""
        self.abandon(job)
        return False

    def abandon(self, job: Job, error: Exception | None = None) -> None:
        """Wait no more; the job ends with ``error``, None: cancelled."""
        job.finish(error or JobCancelled(f"job {job.uuid} was cancelled", job.uuid))

    def named(self, job: Job) -> None:
        """Nobody is given a question."""

    def settled(self, job: Job) -> None:
        """The answer is all there is."""

    def ended(self, job: Job) -> None:
        """A job is over."""
        self.jobs.pop(job.uuid, None)
        task = self._tasks.pop(job.uuid, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
