"""What a worker does with each message of the broker, from its first READY to its last DISCONNECT.

Two kinds of brokers are served. Ours answered OPEN with the feature ``recorded``: results are pushed with RESPONSE 200
and kept until the broker says that it has them; what has not begun waits for the broker's word (see ``admission``).
Deployed NorFab gets what its own workers send: 201, a ``starting`` event, a ``result_ready`` event, and the result when
it asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect
from broker.nfp.peer.channel import Channel
from broker.nfp.worker.admission import ACCEPT_AFTER_S, Admission
from broker.nfp.worker.delivery import Delivery
from broker.nfp.worker.jobs import ASKING, PUTS_MAX, Job, Jobs
from broker.nfp.worker.presence import Presence
from broker.nfp.worker.running import Runner
from broker.nfp.worker.store import KeptJob, SqliteJobStore
from broker.nfp.worker.tasks import Tasks

log = logging.getLogger("headgate")
UNFINISHED_MAX: Final = 10_000
"""Jobs without result that a worker holds; a broker with credits sends one at a time, deployed NorFab sends all."""
FETCH_S: Final = 3.0
"""How long a leaving worker waits until its last results are recorded, or deployed NorFab has asked for them."""
RECORDED_FEATURE: Final = "recorded"
Manage = Callable[[Packet], bytes]
"""Answers a request to ``mmi.service.worker`` with JSON."""


class Duty:
    """Between channel, jobs, store and runner (peer.channel.Receiver).

    Args:
        manage: see ``Manage``.

    Attributes:
        runner: to be set before the channel is started. opened: the broker's OPEN. draining: no new jobs are run.
    """

    def __init__(
        self,
        channel: Channel,
        service: str,
        tasks: Tasks,
        store: SqliteJobStore,
        manage: Manage,
        *,
        accept_after_s: float = ACCEPT_AFTER_S,
    ) -> None:
        self.worker = channel.name
        self.service = service
        self.jobs = Jobs()
        self.presence = Presence(channel, service, asyncio.get_running_loop())
        self.delivery = Delivery(channel, service, self.jobs, store, self.presence)
        self.runner: Runner
        self.opened: dict[str, Any] | None = None
        self.draining = False
        self._tasks = tasks
        self._store = store
        self._manage = manage
        self.admission = Admission(self.jobs, store, self.delivery, self.presence, accept_after_s)
        self._commands: dict[Command, Callable[[Packet], None]] = {
            Command.POST: self._post,
            Command.GET: self._get,
            Command.PUT: self._put,
            Command.DELETE: self._delete,
            Command.RESPONSE: self._told,
            Command.MMI: self._mmi,
        }

    # -- peer.channel.Receiver --------------------------------------------------------------------

    def connected(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Register, and bring what an earlier broker or connection may not have got."""
        self.opened = opened
        self.delivery.pushing = opened is not None and RECORDED_FEATURE in _features(opened)
        if self.draining:
            return
        again = self.presence.registered
        self.presence.begin(opened)
        if not again:
            self.admission.go_on_unasked()
            self.runner.resume()
            self.runner.ask_again()
        self.delivery.offer()

    def lost(self, why: str) -> None:
        """The channel looks for a broker; running jobs go on, others do not begin."""
        self.presence.end()
        for job in self.runner.take_all_back():
            self.admission.hold_back(job)
        for job in self.jobs:
            job.again = None

    def received(self, packet: Packet) -> None:
        """Do what the broker says."""
        self.presence.heard(packet)
        command = self._commands.get(packet.command)
        if command is not None:
            command(packet)

    # -- jobs that come ---------------------------------------------------------------------------

    def _post(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is not None and job.cancelled and job.idempotent:
            # it was somebody else's for a while, and is this worker's again
            if not job.ended:
                job.again = packet
                return
            self.jobs.remove(job)
        elif job is not None:
            self._posted_again(job, packet)
            return
        if self.draining:
            return  # DISCONNECT follows: the broker gives it to another
        if self.jobs.open >= UNFINISHED_MAX:
            error = f"worker {self.worker} holds {UNFINISHED_MAX} jobs already"
            body = bodies.failed(500, packet.uuid, self.service, self.worker, error)
            self.delivery.answer(packet, 500, body)
            return
        job = Job.of(packet)
        task = self._tasks.get(job.task)
        job.idempotent = task is None or task.idempotent
        self.jobs.add(job)
        if self._store.state(job.uuid) or not self.delivery.pushing:
            self.delivery.start(self._admit(job), f"admit {job.uuid}")
            return
        self.runner.add(job)

    def _posted_again(self, job: Job, packet: Packet) -> None:
        """A duplicate is answered by state, not run twice."""
        if job.stored and packet.client != job.client:
            self._store.readdressed(job.uuid, packet.client)  # a later life answers under this attempt
        job.readdress(packet)
        if job.ended:
            self.jobs.unrecorded(job)
            self.delivery.bring(job)
        elif not self.admission.go_on(job) and job.accepted:
            self.admission.say_accepted(job)

    async def _admit(self, job: Job) -> None:
        """Let the job wait for its slot unless it has ended before; for deployed NorFab store and accept it first."""
        if self._store.state(job.uuid) and await self._ended_before(job):
            return
        if not self.delivery.pushing:
            try:
                await self.admission.accept(job)
            except HeadgateError as error:
                self.admission.end_unrun(job, f"worker {self.worker} cannot store the job: {error}", 500)
        if not job.ended:
            self.runner.add(job)

    async def _ended_before(self, job: Job) -> bool:
        """Whether the store has the job's result, which is sent then."""
        found = await self._find(job.uuid)
        if job.ended:
            return True  # a DELETE came meanwhile
        if found is None:
            self._store.forget(job.uuid)  # cancelled before, and wanted after all
            return False
        job.end(found.status, found.result, failed=False)
        job.stored = job.accepted = True
        self.jobs.close(job)
        self.delivery.bring(job)
        return True

    def ended(self, job: Job) -> None:
        """``job`` has its result; if it was stopped and is wanted after all, it is run again."""
        self.delivery.ended(job)
        if job.again is not None:
            self._post(job.again)

    # -- the other commands -----------------------------------------------------------------------

    def _get(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is None:
            self.delivery.start(self._get_elsewhere(packet), f"get {packet.uuid}")
        elif not job.ended:
            asking = job.state == ASKING and packet.dialect is Dialect.NORFAB
            said: dict[str, Any] = {"worker": self.worker, "uuid": job.uuid, "service": self.service}
            said["status"] = job.state
            if job.asked is not None:
                said["input_request"] = job.asked
            self.delivery.answer(packet, 102 if asking else 300, msgspec.json.encode(said))
        elif self.delivery.answer(packet, job.status, job.result or b"") and not self.delivery.pushing:
            self.delivery.safe([job.uuid])

    async def _get_elsewhere(self, packet: Packet) -> None:
        found = await self._find(packet.uuid)
        if found is not None:
            self.delivery.answer(packet, found.status, found.result)
        else:
            self._unknown(packet)

    async def _find(self, uuid: str) -> KeptJob | None:
        """An ended job that only the store knows, with its result."""
        if self._store.state(uuid) not in ("done", "recorded"):
            return None
        try:
            return await self._store.find(uuid)
        except HeadgateError as error:
            log.warning("%s: job %s cannot be read: %s", self.worker, uuid, error)
            return None

    def _unknown(self, packet: Packet) -> None:
        error = f"worker {self.worker} does not know the job {packet.uuid[:64]}"
        body = bodies.failed(404, packet.uuid, self.service, self.worker, error)
        self.delivery.answer(packet, 404, body)

    def _put(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is None or job.ended or len(job.puts) >= PUTS_MAX:
            return
        job.puts.append(bodies.read_any(packet.data, packet.data))
        if job.put_came is not None:
            job.put_came()

    def _delete(self, packet: Packet) -> None:
        job = self.jobs.get(packet.uuid)
        if job is None or job.again is not None:
            self._unknown(packet)
            if job is not None:
                job.again = None
        elif job.ended:
            return
        elif not bodies.unless_begun(packet.data):
            self.admission.forget(job)
            self.runner.cancel(job)
        elif self.admission.take_back(job):
            self._unknown(packet)
        else:
            self.admission.say_accepted(job)

    def _told(self, packet: Packet) -> None:
        """What the broker says of jobs by their uuids."""
        if packet.status_text == bodies.RECORDED:
            self.delivery.safe(bodies.read_uuids(packet.data) or [packet.uuid])
        elif packet.status_text == bodies.CONFIRMED:
            self.admission.confirmed(bodies.read_uuids(packet.data) or [packet.uuid])

    def _mmi(self, packet: Packet) -> None:
        self.delivery.answer(packet, 200, self._manage(packet))

    # -- a beginning and an end -------------------------------------------------------------------

    def restore(self, unrecorded: list[KeptJob]) -> None:
        """Take up what the store has: offer results, hold back what has not begun, end what must not begin again.

        What had begun and may be run twice is forgotten: a broker that confirms sees that it is gone, and gives it to
        somebody as a new attempt. Deployed NorFab gives it to nobody, so its jobs are run again here.
        """
        for each in unrecorded:
            job = Job(each.uuid, each.client, each.service, Dialect.NORFAB, each.body)
            job.idempotent, job.stored, job.accepted = each.idempotent, True, True
            job.received_s, job.started_s = each.received_s, each.started_s
            job.deadline -= each.age_s
            if each.state == "started" and each.idempotent and job.attempt:
                self._store.forget(job.uuid)
                continue
            self.jobs.add(job)
            if each.state == "done":
                job.end(each.status, each.result, failed=False)
                self.jobs.close(job)
            elif each.state == "accepted" or each.idempotent:
                self.admission.hold_back(job)
            else:
                error = f"worker {self.worker} ended while it ran {job.task}, which must not be run twice"
                self.admission.end_unrun(job, error, 200)

    def held(self) -> dict[str, list[Any]]:
        """For OPEN: what this worker holds, uuid to attempt and state."""
        held = [job for job in self.jobs if not job.recorded]
        return {job.uuid: [job.attempt, _state(job)] for job in held}

    async def drain(self, seconds: float) -> None:
        """Finish what runs, within ``seconds``, then say goodbye.

        DISCONNECT comes last: a broker sends nothing after it, and deployed NorFab's even drops the results.
        """
        self.draining = True
        self.runner.pause()
        if not await self._until(lambda: not self.runner.running and not self.delivery.busy, seconds):
            log.warning("%s: left with %d running jobs after %g s", self.worker, self.runner.running, seconds)
        if self.presence.registered:
            await self._until(lambda: not self.jobs.offered, min(seconds, FETCH_S))
        self.presence.leave()
        await self.runner.stop()
        await self.delivery.stop()

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self.delivery.changed.clear()
                    await self.delivery.changed.wait()
        except TimeoutError:
            return False
        return True


def _state(job: Job) -> str:
    return "done" if job.ended else "running" if job.begun else "waiting"


def _features(opened: dict[str, Any]) -> list[Any]:
    said = opened.get("features")
    return said if isinstance(said, list) else []
