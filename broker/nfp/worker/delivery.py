"""Brings to the broker what jobs have to say, and their results until somebody has them for sure.

Our broker says which results it has recorded (``RESPONSE 200 RECORDED``); deployed NorFab has a result once it has
asked for it. Until then a result is offered again in each new conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.frames import Packet, status_text
from broker.nfp.names import Command, Sender
from broker.nfp.peer.channel import Channel
from broker.nfp.worker.assignments import Assignment, Assignments
from broker.nfp.worker.heartbeat import Heartbeat
from broker.nfp.worker.results import Result, clock_text, encode, event_time
from broker.nfp.worker.store import AssignmentStore
from broker.safe_text import text

log = logging.getLogger("headgate")


class Delivery:
    """One worker's way out.

    Attributes:
        worker, service: who we are. pushes_results: the broker takes results unasked and says when it has them.
        message_bytes: the largest body that it takes; 0: it does not say.
        changed: set whenever a job ended, a result became safe, or background work ended.
    """

    def __init__(
        self, channel: Channel, service: str, jobs: Assignments, store: AssignmentStore, heartbeat: Heartbeat
    ) -> None:
        self.worker = channel.name
        self.service = service
        self.loop = asyncio.get_running_loop()
        self.pushes_results = False
        self.message_bytes = 0
        self.changed = asyncio.Event()
        self._channel = channel
        self._assignments = jobs
        self._store = store
        self._heartbeat = heartbeat
        self._background: set[asyncio.Task[None]] = set()
        self._waiting_results: dict[str, Assignment] = {}
        """Results that this conversation has not taken yet, in order."""
        self._sending = False

    @property
    def busy(self) -> bool:
        """Whether something goes on in the background."""
        return bool(self._background)

    # -- packets ----------------------------------------------------------------------------------

    def send(self, to: Assignment | Packet, command: Command, status: int, body: bytes) -> bool:
        """Send something about a job, or an answer to a packet, the way it came; False when it was not taken."""
        if not self._heartbeat.registered:
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
            self._heartbeat.note_sent()
        return sent

    def answer(self, packet: Packet, status: int, body: bytes) -> bool:
        """Answer a request; False when the answer was not taken."""
        return self.send(packet, Command.RESPONSE, status, body)

    async def writable(self) -> None:
        """Wait for room."""
        await self._channel.writable()

    def event(self, job: Assignment, kind: str, message: str, status: str, **more: Any) -> bytes:
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

    def send_event(self, job: Assignment, kind: str, message: str, status: str) -> bool:
        """Send an event about ``job``; False when it was not taken."""
        return self.send(job, Command.EVENT, 200, self.event(job, kind, message, status))

    # -- results ----------------------------------------------------------------------------------

    def ended(self, job: Assignment) -> None:
        """``job`` has its result: store it, send it."""
        self._shorten(job)
        self._assignments.close(job)
        self.changed.set()
        if job.cancelled:
            self._ended_cancelled(job)
            return
        self._store.done(job.as_stored())
        job.stored = True
        if self.pushes_results:
            self.send_result(job)
        else:
            self.run_in_background(self._send_stored_result(job), f"result of {job.uuid}")

    def _ended_cancelled(self, job: Assignment) -> None:
        """The broker has closed a cancelled job: told once that the slot is free, it needs the result no more."""
        if job.stored:
            self._store.cancelled(job.uuid)
        self._try_result(job)
        self._assignments.remove(job)

    async def _send_stored_result(self, job: Assignment) -> None:
        """Deployed NorFab asks for a result once it is told that there is one, so it is stored before."""
        try:
            await self._store.durable()
        except HeadgateError as error:
            log.warning("%s: the result of job %s is not stored: %s", self.worker, job.uuid, error)
        self.send_result(job)

    def send_result(self, job: Assignment) -> None:
        """Send a result, or say that there is one; later when the outbox is full."""
        if not self._try_result(job):
            self._waiting_results[job.uuid] = job
            self._send_waiting_results()

    def send_results_again(self) -> None:
        """A conversation begins: send every result that is not known to be safe, as fast as the outbox takes them."""
        self._waiting_results = {job.uuid: job for job in self._assignments.unrecorded}
        self._send_waiting_results()

    def _send_waiting_results(self) -> None:
        """One task at a time does it; what is added or begun anew meanwhile is its work as well."""
        if self._waiting_results and not self._sending and self._heartbeat.registered:
            self._sending = True
            self.run_in_background(self._send_waiting(), "offer results")

    async def _send_waiting(self) -> None:
        try:
            while self._waiting_results and self._heartbeat.registered:
                uuid, job = next(iter(self._waiting_results.items()))
                if self._assignments.get(uuid) is not job or self._try_result(job):
                    self._waiting_results.pop(uuid, None)
                else:
                    await self._channel.writable()
        finally:
            self._sending = False

    def too_large(self, size: int) -> str:
        """Why the broker does not take a body of ``size`` bytes, "" when it does."""
        if not self.message_bytes or size <= self.message_bytes:
            return ""
        return f"{size} bytes, the broker takes {self.message_bytes} (nfp.message_bytes_max)"

    def _shorten(self, job: Assignment) -> None:
        """Replace a result that the broker would end the connection for, again and again, by one that says so."""
        why = self.too_large(len(job.result or b""))
        if not why:
            return
        error = f"the result has {why}: return less, stream it, or share it as a file"
        log.error("%s: job %s: %s", self.worker, job.uuid, error)
        self._assignments.replace_result(job, self.error_result(job, error))

    def error_result(self, job: Assignment, error: str) -> bytes:
        """The result of ``job`` when its task did not bring one, but ``error``."""
        result = Result(failed=True, status="error", errors=[text(error)], task=f"{self.worker}:{job.task}")
        result.juuid, result.service, result.task_completed = job.uuid, self.service, clock_text()
        return encode(self.worker, result)

    def _try_result(self, job: Assignment) -> bool:
        self._shorten(job)
        if self.pushes_results:
            return self.send(job, Command.RESPONSE, job.status, job.result or b"")
        return self.send_event(job, "result_ready", "completed", "completed")

    def results_recorded(self, uuids: list[str]) -> None:
        """These results are where they belong."""
        known = [job for uuid in uuids if (job := self._assignments.get(uuid)) is not None and job.ended]
        for job in known:
            self._assignments.remove(job)
        if known:
            self._store.recorded([job.uuid for job in known])
            self.changed.set()

    # -- background -------------------------------------------------------------------------------

    def run_in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do ``work`` in the background; its failure is logged."""
        task = self.loop.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        self.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %s failed", self.worker, task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """Give up what goes on in the background."""
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
