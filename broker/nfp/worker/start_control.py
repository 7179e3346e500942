"""What stands between a job and its task: the broker's word, the store, and 201.

A job may be somebody else's by now, or cancelled, whenever its broker was not there to say so. Therefore what has not
begun when a connection is lost, or when the worker itself ends, is held back, is listed in the next OPEN, and begins
when the broker confirms it ("200 CONFIRMED") or gives it anew. A job that must not be run twice is stored and accepted
first, begins when the broker has confirmed that this is on record, and that it has begun is on disk before its task is
entered. Jobs of deployed NorFab, which confirms nothing, carry no attempt: they begin unasked.

201 says that a job runs: one that may be run twice is stored and accepted when it takes longer than ``ACCEPT_AFTER_S``,
since until then the broker gives it to another worker anyway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.names import Command
from broker.nfp.worker.assignments import Assignment, Assignments
from broker.nfp.worker.delivery import Delivery
from broker.nfp.worker.executor import Executor, NotStarted, StartHeld
from broker.nfp.worker.heartbeat import Heartbeat
from broker.nfp.worker.store import AssignmentStore

log = logging.getLogger("headgate")
ACCEPT_AFTER_S: Final = 0.05
"""Jobs that may be run twice and are shorter than this cost no 201 and no place in the store before their end."""


class StartControl:
    """Lets jobs begin.

    Attributes:
        executor: to be set before the first job. accept_after_s: ``ACCEPT_AFTER_S``.
    """

    def __init__(
        self,
        jobs: Assignments,
        store: AssignmentStore,
        delivery: Delivery,
        heartbeat: Heartbeat,
    ) -> None:
        self.executor: Executor
        self._assignments = jobs
        self._store = store
        self._delivery = delivery
        self._heartbeat = heartbeat
        self.accept_after_s: float = ACCEPT_AFTER_S
        self._held: dict[str, Assignment] = {}

    async def wait_to_start(self, job: Assignment) -> None:
        """``job`` has its slot: return when its task may be entered.

        Raises:
            StartHeld: the broker may have given us up. NotStarted: it cannot be stored.
        """
        if job.attempt and not job.confirmed and not self._heartbeat.broker_is_there:
            self.hold(job)
            raise StartHeld
        try:
            if not job.idempotent:
                await self._begin_once(job)
            elif self._delivery.pushes_results:
                job.timer = self._delivery.loop.call_later(self.accept_after_s, self._still_running, job)
        except HeadgateError as error:
            raise NotStarted(f"worker {self._delivery.worker} cannot store the job: {error}") from error
        if job.idempotent and job.stored:
            self._store.started(job.uuid)
        if not self._delivery.pushes_results:
            self._delivery.send_event(job, "progress", "starting", "running")

    async def _begin_once(self, job: Assignment) -> None:
        """What must not be run twice is confirmed first, and that it has begun is on disk."""
        if job.attempt and not job.confirmed:
            job.confirmation = self._delivery.loop.create_future()
            await self.accept(job)
            try:
                async with asyncio.timeout(max(0.0, job.deadline - time.monotonic())):
                    await job.confirmation
            except TimeoutError:
                return  # it is over: the task is not entered
        self._store.started(job.uuid)
        await self._store.durable()
        if job.attempt and not job.confirmed:
            self.hold(job)  # the connection was lost meanwhile, and the broker's word with it
            raise StartHeld

    def confirmed(self, uuids: Iterable[str]) -> None:
        """The broker says that these jobs are this worker's."""
        for uuid in uuids:
            job = self._assignments.get(uuid)
            if job is None or job.ended or job.begun:
                continue
            job.confirmed = True
            if job.confirmation is not None and not job.confirmation.done():
                job.confirmation.set_result(None)
            else:
                self.release(job)

    def connection_lost(self) -> None:
        """What has not begun waits for a new word of the broker."""
        for job in self.executor.remove_waiting():
            self.hold(job)
        for job in self._assignments:
            if not job.begun:
                job.confirmed = False

    def hold(self, job: Assignment) -> None:
        """``job`` does not begin until its broker has said that it may, and ends at its deadline."""
        job.confirmed = False
        job.stop_timer()
        self._held[job.uuid] = job
        left_s = max(0.0, job.deadline - time.monotonic())
        job.timer = self._delivery.loop.call_later(left_s, self._never_confirmed, job)

    def _never_confirmed(self, job: Assignment) -> None:
        del self._held[job.uuid]
        worker = self._delivery.worker
        self.end_unstarted(
            job, f"no broker said within {job.timeout_s:g} s that {worker} may run the job", 408
        )

    def release(self, job: Assignment) -> bool:
        """A job that was held back waits for its slot; False when it was not."""
        if not self.stop_holding(job):
            return False
        self.executor.add(job)
        return True

    def release_unconfirmed(self) -> None:
        """The broker confirms nothing: what it or one like it gave goes on, what another kind gave does not."""
        for job in [job for job in self._held.values() if not job.attempt]:
            self.release(job)

    def stop_holding(self, job: Assignment) -> bool:
        """``job`` is not held back any more; False when it was not."""
        if self._held.pop(job.uuid, None) is None:
            return False
        job.stop_timer()
        return True

    def take_back(self, job: Assignment) -> bool:
        """Forget ``job``, for which somebody else has a place; False when it has its slot here."""
        if not (self.stop_holding(job) or self.executor.remove(job)):
            return False
        self._assignments.remove(job)
        if job.stored:
            self._store.drop(job.uuid)
        return True

    # -- 201 --------------------------------------------------------------------------------------

    def _still_running(self, job: Assignment) -> None:
        """A job that may be run twice is still there after a while: now its broker is told that it is in hand."""
        job.timer = None
        self._delivery.run_in_background(self._accept_late(job), f"accept {job.uuid}")

    async def _accept_late(self, job: Assignment) -> None:
        try:
            await self.accept(job)
        except HeadgateError as error:
            log.warning("%s: job %s is not stored: %s", self._delivery.worker, job.uuid, error)

    async def accept(self, job: Assignment) -> None:
        """Store the job and say 201.

        Raises:
            HeadgateError: it cannot be stored.
        """
        self._store.accepted(job.as_stored())
        job.stored = True
        if job.begun:
            self._store.started(job.uuid)
        await self._store.durable()
        if not job.ended:
            job.accepted = True
            self.send_accepted(job)

    def send_accepted(self, job: Assignment) -> None:
        """201."""
        body = bodies.accepted(job.uuid, self._delivery.service, self._delivery.worker)
        self._delivery.send(job, Command.RESPONSE, 201, body)

    def end_unstarted(self, job: Assignment, error: str, status: int) -> None:
        """``job`` ends with ``error`` and its task is not entered; nothing happens when it has ended."""
        if job.ended:
            return
        job.end(status, self._delivery.error_result(job, error), failed=True)
        self._delivery.ended(job)
