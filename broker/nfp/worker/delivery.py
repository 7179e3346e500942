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
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.peer.channel import Channel
from broker.nfp.worker.jobs import Job, Jobs
from broker.nfp.worker.presence import Presence
from broker.nfp.worker.results import event_time
from broker.nfp.worker.store import KeptJob, SqliteJobStore

log = logging.getLogger("headgate")


class Delivery:
    """One worker's way out (context.Way).

    Attributes:
        worker, service: who we are. pushing: the broker takes results unasked and says when they are recorded.
        changed: set whenever a job ended, a result became safe, or background work ended.
    """

    def __init__(
        self, channel: Channel, service: str, jobs: Jobs, store: SqliteJobStore, presence: Presence
    ) -> None:
        self.worker = channel.name
        self.service = service
        self.loop = asyncio.get_running_loop()
        self.pushing = False
        self.changed = asyncio.Event()
        self._channel = channel
        self._jobs = jobs
        self._store = store
        self._presence = presence
        self._works: set[asyncio.Task[None]] = set()
        self._unsent: dict[str, Job] = {}
        """Results that this conversation has not taken yet, in order."""
        self._offering = False

    @property
    def busy(self) -> bool:
        """Whether something goes on in the background."""
        return bool(self._works)

    # -- packets ----------------------------------------------------------------------------------

    def say(self, job: Job, command: Command, status: int, body: bytes) -> bool:
        """Send something about ``job`` the way it came; False when it was not taken."""
        return self._send(command, job.uuid, status, body, job.client, job.service, job.dialect)

    def answer(self, packet: Packet, status: int, body: bytes) -> bool:
        """Answer a request; False when the answer was not taken."""
        return self._send(
            Command.RESPONSE, packet.uuid, status, body, packet.client, packet.service, packet.dialect
        )

    async def writable(self) -> None:
        """Wait for room."""
        await self._channel.writable()

    def _send(
        self,
        command: Command,
        uuid: str,
        status: int,
        body: bytes,
        client: bytes | None,
        service: str,
        dialect: Dialect,
    ) -> bool:
        if not self._presence.registered:
            return False
        packet = Packet(
            Sender.WORKER,
            command,
            dialect=dialect,
            service="" if client is not None else service or self.service,
            client=client,
            uuid=uuid,
            status=status,
            status_text=status_text(status, dialect),
            body=body,
        )
        sent = self._channel.send(packet)
        if sent:
            self._presence.spoke()
        return sent

    def tell(self, job: Job, kind: str, message: str, status: str) -> bool:
        """Send an event of the worker's own about ``job``."""
        body = bodies.event(
            kind,
            worker=self.worker,
            service=self.service,
            uuid=job.uuid,
            task=job.task,
            message=message,
            status=status,
            timestamp=event_time(),
        )
        return self.say(job, Command.EVENT, 200, body)

    # -- results ----------------------------------------------------------------------------------

    def ended(self, job: Job) -> None:
        """``job`` has its result: store it, send it."""
        self._jobs.close(job)
        self.changed.set()
        if job.cancelled:
            self._ended_cancelled(job)
            return
        self._store.done(kept(job))
        job.stored = True
        if self.pushing:
            self.bring(job)
        else:
            self.start(self._bring_stored(job), f"result of {job.uuid}")

    def _ended_cancelled(self, job: Job) -> None:
        """The broker has closed a cancelled job: told once that the slot is free, it needs the result no more."""
        if job.stored:
            self._store.cancelled(job.uuid)
        self._brought(job)
        self._jobs.recorded(job)

    async def _bring_stored(self, job: Job) -> None:
        """Deployed NorFab asks for a result once it is told that there is one, so it is stored before."""
        try:
            await self._store.durable()
        except HeadgateError as error:
            log.warning("%s: the result of job %s is not stored: %s", self.worker, job.uuid, error)
        self.bring(job)

    def bring(self, job: Job) -> None:
        """Send a result, or say that there is one; later when the outbox is full."""
        if not self._brought(job):
            self._unsent[job.uuid] = job
            self._send_unsent()

    def offer(self) -> None:
        """A conversation begins: send every result that is not known to be safe, as fast as the outbox takes them."""
        self._unsent = {job.uuid: job for job in self._jobs.offered}
        self._send_unsent()

    def _send_unsent(self) -> None:
        """One task at a time does it; what is added or begun anew meanwhile is its work as well."""
        if self._unsent and not self._offering and self._presence.registered:
            self._offering = True
            self.start(self._offer_all(), "offer results")

    async def _offer_all(self) -> None:
        try:
            while self._unsent and self._presence.registered:
                uuid, job = next(iter(self._unsent.items()))
                if job.recorded or self._brought(job):
                    self._unsent.pop(uuid, None)
                else:
                    await self._channel.writable()
        finally:
            self._offering = False

    def _brought(self, job: Job) -> bool:
        if self.pushing:
            return self.say(job, Command.RESPONSE, job.status, job.result or b"")
        return self.tell(job, "result_ready", "completed", "completed")

    def safe(self, uuids: list[str]) -> None:
        """These results are where they belong."""
        known = [job for uuid in uuids if (job := self._jobs.get(uuid)) is not None and not job.recorded]
        for job in known:
            self._jobs.recorded(job)
        if known:
            self._store.recorded([job.uuid for job in known])
            self.changed.set()

    # -- background -------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do ``work`` in the background; its failure is logged."""
        task = self.loop.create_task(work, name=name)
        self._works.add(task)
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._works.discard(task)
        self.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %s failed", self.worker, task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """Give up what goes on in the background."""
        works = tuple(self._works)
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)


def kept(job: Job) -> KeptJob:
    """``job`` for the store."""
    return KeptJob(
        job.uuid,
        job.client,
        job.service,
        job.task,
        job.body,
        job.idempotent,
        "done" if job.ended else "started" if job.started_s else "accepted",
        job.status,
        job.result or b"",
        job.received_s,
        job.started_s,
        job.ended_s,
    )
