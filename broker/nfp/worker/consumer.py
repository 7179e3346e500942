"""What a worker does with each message of the broker, from its first READY to its last DISCONNECT.

Two kinds of brokers are served. Ours answered OPEN with the feature ``recorded``: results are pushed with RESPONSE 200
and kept until the broker says that it has them; what has not begun waits for the broker's word (see ``start_control``).
Deployed NorFab gets what its own workers send: 201, a ``starting`` event, a ``result_ready`` event, and the result when
it asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from broker.errors import HeadgateError
from broker.nfp import bodies
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect
from broker.nfp.opening import broker_of, read_any
from broker.nfp.peer.channel import Channel
from broker.nfp.worker.assignments import ASKING, PUTS_MAX, Assignment, Assignments
from broker.nfp.worker.delivery import Delivery
from broker.nfp.worker.executor import Executor, Localise
from broker.nfp.worker.heartbeat import Heartbeat
from broker.nfp.worker.start_control import StartControl
from broker.nfp.worker.store import FINISHED, AssignmentStore, StoredAssignment
from broker.nfp.worker.tasks import Task

log = logging.getLogger("headgate")
UNFINISHED_MAX: Final = 10_000
"""Jobs without result that a worker holds; a broker with credits sends one at a time, deployed NorFab sends all."""
FETCH_S: Final = 3.0
"""How long a leaving worker waits until its last results are recorded, or deployed NorFab has asked for them."""
RECORDED_FEATURE: Final = "recorded"
Manage = Callable[[Packet], bytes]
"""Answers a request to ``mmi.service.worker`` with JSON."""


class Consumer:
    """Between channel, jobs, store and executor (peer.channel.Receiver).

    Args:
        slots: jobs at a time. manage: see ``Manage``. localise: see ``executor.Localise``. inventory: shown to tasks.

    Attributes:
        opened: the broker's OPEN. draining: no new jobs are run.
    """

    def __init__(
        self,
        channel: Channel,
        service: str,
        tasks: dict[str, Task],
        store: AssignmentStore,
        *,
        slots: int,
        manage: Manage,
        localise: Localise,
        inventory: dict[str, Any],
    ) -> None:
        self.worker = channel.name
        self.service = service
        self.assignments = Assignments()
        self.heartbeat = Heartbeat(channel, service, asyncio.get_running_loop())
        self.delivery = Delivery(channel, service, self.assignments, store, self.heartbeat)
        self.start_control = StartControl(self.assignments, store, self.delivery, self.heartbeat)
        self.executor = self.start_control.executor = Executor(
            tasks,
            self.delivery,
            slots,
            self.start_control.wait_to_start,
            self.job_ended,
            localise,
            inventory,
        )
        self.opened: dict[str, Any] | None = None
        self.draining = False
        self._tasks = tasks
        self._store = store
        self._manage = manage
        self._commands: dict[Command, Callable[[Packet], None]] = {
            Command.POST: self._post,
            Command.GET: self._get,
            Command.PUT: self._put,
            Command.DELETE: self._delete,
            Command.RESPONSE: self._response,
            Command.MMI: self._mmi,
        }

    # -- peer.channel.Receiver --------------------------------------------------------------------

    def connected(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Register, and bring what an earlier broker or connection may not have got."""
        self.opened = opened
        said = broker_of(opened or {})
        self.delivery.pushes_results = RECORDED_FEATURE in said.features
        self.delivery.message_bytes = said.message_bytes
        if self.draining:
            return
        again = self.heartbeat.registered
        self.heartbeat.register(opened)
        if not again:
            self.start_control.release_unconfirmed()
            self.executor.resume()
            self.executor.repeat_questions()
        self.delivery.send_results_again()

    def lost(self, why: str) -> None:
        """The channel looks for a broker; running jobs go on, others do not begin."""
        self.heartbeat.stop()
        self.start_control.connection_lost()
        for job in self.assignments:
            job.repost = None

    def received(self, packet: Packet) -> None:
        """Do what the broker says."""
        self.heartbeat.note_received(packet)
        command = self._commands.get(packet.command)
        if command is not None:
            command(packet)

    # -- jobs that come ---------------------------------------------------------------------------

    def _post(self, packet: Packet) -> None:
        job = self.assignments.get(packet.uuid)
        if job is not None and job.cancelled and job.idempotent:
            job.repost = packet  # it was somebody else's for a while, and is this worker's again
            return
        if job is not None:
            self._duplicate(job, packet)
            return
        if self.draining:
            return  # DISCONNECT follows: the broker gives it to another
        if self.assignments.open >= UNFINISHED_MAX:
            error = f"worker {self.worker} holds {UNFINISHED_MAX} jobs already"
            body = bodies.failed(500, packet.uuid, self.service, self.worker, error)
            self.delivery.answer(packet, 500, body)
            return
        job = Assignment(packet.uuid, packet.client, packet.service, packet.dialect, packet.data)
        task = self._tasks.get(job.task)
        job.idempotent = task is None or task.idempotent
        self.assignments.add(job)
        if self._store.state(job.uuid) or not self.delivery.pushes_results:
            self.delivery.run_in_background(self._admit(job), f"admit {job.uuid}")
            return
        self.executor.add(job)

    def _duplicate(self, job: Assignment, packet: Packet) -> None:
        """A duplicate is answered by state, not run twice."""
        if job.stored and packet.client != job.client:
            self._store.readdressed(job.uuid, packet.client)  # a later life answers under this attempt
        job.readdress(packet)
        if job.ended:
            self.delivery.send_result(job)
        elif not self.start_control.release(job) and job.accepted:
            self.start_control.send_accepted(job)

    async def _admit(self, job: Assignment) -> None:
        """Let the job wait for its slot unless it has ended before; for deployed NorFab store and accept it first."""
        if self._store.state(job.uuid) and await self._ended_before(job):
            return
        if not self.delivery.pushes_results:
            try:
                await self.start_control.accept(job)
            except HeadgateError as error:
                self.start_control.end_unstarted(
                    job, f"worker {self.worker} cannot store the job: {error}", 500
                )
        if not job.ended:
            self.executor.add(job)

    async def _ended_before(self, job: Assignment) -> bool:
        """Whether the store says that the job has ended before; its result is sent then."""
        state, found = self._store.state(job.uuid), await self._find(job.uuid)
        if job.ended:
            return True  # a DELETE came meanwhile
        if state not in ("done", "recorded") and (job.idempotent or state == "accepted"):
            self._store.drop(job.uuid)  # cancelled before, and wanted after all
            return False
        if found is None or not found.result:
            error = f"job {job.uuid} was {state} here before, and there is no result to be read"
            self.start_control.end_unstarted(job, error, 417 if state == "cancelled" else 500)
            return True
        job.end(found.status, found.result, failed=found.failed)
        job.stored = job.accepted = True
        self.assignments.close(job)
        self.delivery.send_result(job)
        return True

    def job_ended(self, job: Assignment) -> None:
        """``job`` has its result; if it was stopped and is wanted after all, it is run again."""
        self.delivery.ended(job)
        if job.repost is not None:
            self._post(job.repost)

    # -- the other commands -----------------------------------------------------------------------

    def _get(self, packet: Packet) -> None:
        job = self.assignments.get(packet.uuid)
        if job is None:
            self.delivery.run_in_background(self._get_elsewhere(packet), f"get {packet.uuid}")
        elif not job.ended:
            asking = job.state == ASKING and packet.dialect is Dialect.NORFAB
            said: dict[str, Any] = {"worker": self.worker, "uuid": job.uuid, "service": self.service}
            said["status"] = job.state
            if job.question is not None:
                said["input_request"] = job.question
            self.delivery.answer(packet, 102 if asking else 300, bodies.write(said))
        elif self.delivery.answer(packet, job.status, job.result or b"") and not self.delivery.pushes_results:
            self.delivery.results_recorded([job.uuid])

    async def _get_elsewhere(self, packet: Packet) -> None:
        found = await self._find(packet.uuid)
        if found is not None:
            self.delivery.answer(packet, found.status, found.result)
        else:
            self._unknown(packet)

    async def _find(self, uuid: str) -> StoredAssignment | None:
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
        job = self.assignments.get(packet.uuid)
        if job is None or job.ended or len(job.puts) >= PUTS_MAX:
            return
        job.puts.append(read_any(packet.data, packet.data))
        if job.on_put is not None:
            job.on_put()

    def _delete(self, packet: Packet) -> None:
        job = self.assignments.get(packet.uuid)
        if job is None and self._store.state(packet.uuid) in FINISHED:
            return
        if job is None or job.repost is not None:
            self._unknown(packet)
            if job is not None:
                job.repost = None
        elif job.ended:
            return
        elif not bodies.unless_begun(packet.data):
            self.start_control.stop_holding(job)
            self.executor.cancel(job)
        elif self.start_control.take_back(job):
            self._unknown(packet)
        else:
            self.start_control.send_accepted(job)

    def _response(self, packet: Packet) -> None:
        """What the broker says of jobs by their uuids."""
        if packet.status_text == bodies.RECORDED:
            self.delivery.results_recorded(bodies.read_uuids(packet.data) or [packet.uuid])
        elif packet.status_text == bodies.CONFIRMED:
            self.start_control.confirmed(bodies.read_uuids(packet.data) or [packet.uuid])

    def _mmi(self, packet: Packet) -> None:
        self.delivery.answer(packet, 200, self._manage(packet))

    # -- a beginning and an end -------------------------------------------------------------------

    def restore(self, unrecorded: list[StoredAssignment]) -> None:
        """Take up what the store has: offer results, hold back what has not begun, end what must not begin again.

        What had begun and may be run twice is forgotten: a broker that confirms sees that it is gone, and gives it to
        somebody as a new attempt. Deployed NorFab gives it to nobody, so its jobs are run again here.
        """
        for each in unrecorded:
            job = Assignment.restored(each)
            if each.state == "started" and each.idempotent and job.attempt:
                self._store.drop(job.uuid)
                continue
            self.assignments.add(job)
            if each.state == "done":
                job.end(each.status, each.result, failed=each.failed)
                self.assignments.close(job)
            elif each.state == "accepted" or each.idempotent:
                self.start_control.hold(job)
            else:
                error = f"worker {self.worker} ended while it ran {job.task}, which must not be run twice"
                self.start_control.end_unstarted(job, error, 200)

    def held(self) -> dict[str, list[Any]]:
        """For OPEN: what this worker holds, uuid to attempt and state."""
        return {job.uuid: [job.attempt, _state(job)] for job in self.assignments}

    async def drain(self, seconds: float) -> None:
        """Finish what runs, within ``seconds``, then say goodbye.

        DISCONNECT comes last: a broker sends nothing after it, and deployed NorFab's even drops the results.
        """
        self.draining = True
        self.executor.pause()
        if not await self._until(lambda: not self.executor.running and not self.delivery.busy, seconds):
            log.warning(
                "%s: left with %d running jobs after %g s", self.worker, self.executor.running, seconds
            )
        if self.heartbeat.registered:
            await self._until(lambda: not self.assignments.unrecorded, min(seconds, FETCH_S))
        self.heartbeat.disconnect()
        await self.executor.stop()
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


def _state(job: Assignment) -> str:
    return "done" if job.ended else "running" if job.begun else "waiting"
