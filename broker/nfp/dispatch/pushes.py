"""Clients that are told without asking: deployed NorFab's, our own, and the text's with the feature ``push``.

A deployed client takes the first 202 with names for the whole truth, drops what comes from workers it did not name,
and ends the job at the first 4xx or 5xx. So *any* is answered with no names until the owner is certain, and an error of
one worker waits until the others are through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.nfp import bodies
from broker.nfp.dispatch.answers import NOT_GIVEN, Answers, Strict
from broker.nfp.dispatch.job import ACCEPTED, FINAL, OPEN
from broker.nfp.dispatch.rewriting import error_for_norfab, names_worker, result_for_norfab, waits_for_input
from broker.nfp.frames import Body, Packet, status_text
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.records import Owned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.nfp.contract import Peer
    from broker.nfp.dispatch.job import Job, Run, Slot
    from broker.nfp.dispatch.state import State

_BROKER: Final = Sender.BROKER
_EVENT: Final = Command.EVENT
_NORFAB: Final = Dialect.NORFAB
_NAMING: Final = frozenset({"input_request", "result_ready"})
"""Events that a deployed client drops unless it knows the worker."""


class Deployed(Answers):
    """NorFab's own client: it gets events, and fetches a result when it hears that it is ready."""

    __slots__ = ()

    def results(self, peer: Peer, job: Job, slots: Sequence[Slot]) -> bool:
        """One answer for each slot; never an error while the job may still end well."""
        sent = True
        if not slots:
            sent = self._respond(peer, job.service, job.uuid, *self._none_of(job), job.after)
        for slot in slots:
            if slot.state == FINAL and not self._withheld(slot):
                sent &= self._answer_result(peer, slot)
            else:
                sent &= self._respond(peer, job.service, job.uuid, *self._under_way(slot), job.after)
        return sent

    def _none_of(self, job: Job) -> tuple[int, bytes]:
        if job.open:
            return 300, bodies.progress(job.uuid, job.service, "")
        return 404, bodies.failed(404, job.uuid, job.service, job.target_text, NOT_GIVEN)

    def _under_way(self, slot: Slot) -> tuple[int, bytes]:
        job, run = slot.job, slot.run
        worker = job.owner or (run.worker.name if run is not None else slot.worker or slot.name)
        if slot.asked is not None:
            return 102, waits_for_input(slot, worker)
        state = "STARTED" if slot.state == ACCEPTED else "PENDING"
        return 300, bodies.progress(job.uuid, job.service, worker, state)

    def _answer_result(self, peer: Peer, slot: Slot) -> bool:
        """What finds no room is sent once there is, to the client whose job it is."""
        sent = self._respond_result(peer, slot)
        if not sent and slot.job.client.peer is peer:
            slot.job.client.owed[slot] = None
        return sent

    def _respond_result(self, peer: Peer, slot: Slot) -> bool:
        job = slot.job
        body = result_for_norfab(slot) if slot.status == 200 else error_for_norfab(slot)
        return self._respond(peer, job.service, job.uuid, slot.status, body, slot.after)

    # -- pushes ---------------------------------------------------------------------------------

    def dispatched(self, job: Job) -> None:
        """202, after the 300 that the POST got."""
        if job.client.peer is not None:
            self.submitted(job.client.peer, job)

    def accepted(self, job: Job, body: Body) -> None:
        """201 as it came: that the worker has the job does not depend on our record of it."""
        if job.client.peer is not None:
            self._respond(job.client.peer, job.service, job.uuid, 201, body)

    def event(self, run: Run, kind: str, packet: Packet) -> None:
        """As it came; the owner is named first where the event would be lost otherwise."""
        if kind in _NAMING:
            self._name(run.slot, run.worker.name)
        self._forward(run.slot.job, _EVENT, packet.body)

    def stream(self, run: Run, packet: Packet) -> None:
        """As it came: what was streamed by one worker cannot be continued by another, so the owner is settled."""
        self._name(run.slot, run.worker.name)
        self._forward(run.slot.job, Command.STREAM, packet.body)

    def recorded(self, slot: Slot, ready: Any) -> None:
        """A result that the worker announced is announced; any other one is pushed."""
        self._name(slot, slot.worker)
        job = slot.job
        if ready is not None and slot.status == 200 and not self._renamed(slot):
            if not self._forward(job, _EVENT, ready, slot.after):
                job.client.owed[slot] = None
        elif not self._withheld(slot):
            self._push(slot)

    def closed(self, job: Job) -> None:
        """Errors of single workers were withheld until now."""
        if len(job.slots) > 1:
            for slot in job.slots.values():
                if slot.status != 200:
                    self._push(slot)

    def delivered_again(self, slot: Slot) -> None:
        """The 202 that names the worker, too: it may have been lost with the result."""
        if slot.state == FINAL and not self._withheld(slot):
            self.dispatched(slot.job)
            self._push(slot)

    # -- inner part -----------------------------------------------------------------------------

    def _push(self, slot: Slot) -> None:
        client = slot.job.client
        if client.peer is None or not self._respond_result(client.peer, slot):
            client.owed[slot] = None

    def _withheld(self, slot: Slot) -> bool:
        """An error of one worker until the job is closed: others may still bring results."""
        return slot.status != 200 and slot.job.state == OPEN and len(slot.job.slots) > 1

    def _renamed(self, slot: Slot) -> bool:
        return not slot.name and bool(slot.job.owner) and slot.job.owner != slot.worker

    def _name(self, slot: Slot, worker: str) -> None:
        """The second 202 of a job for any: who has it, once that cannot change without the client's knowing."""
        job = slot.job
        if slot.name or job.owner or not worker:
            return
        job.owner = worker
        if slot.state != FINAL:
            self._state.journal.put(Owned(job.uuid, worker))
        job.after = self._state.journal.position  # a restarted broker must know whom the client was told of
        if job.client.peer is not None:
            self.submitted(job.client.peer, job)

    def _forward(self, job: Job, command: Command, body: Body, after: int = 0) -> bool:
        peer = job.client.peer
        packet = Packet(
            _BROKER,
            command,
            dialect=self.dialect,
            service=job.service,
            uuid=job.uuid,
            status=200,
            status_text=status_text(200, self.dialect),
            body=body,
        )
        if peer is not None and peer.send(packet, after):
            return True
        self._state.counts.dropped += 1
        return False


class Own(Deployed):
    """Our client: it gets every result as soon as it is recorded, errors of single workers too."""

    __slots__ = ()

    def event(self, run: Run, kind: str, packet: Packet) -> None:
        """All but the announcements of results."""
        if kind != "result_ready":
            super().event(run, kind, packet)

    def recorded(self, slot: Slot, ready: Any) -> None:
        """The result itself; of one that says whose it is the client need not be told before."""
        if not slot.name and slot.status == 200 and not slot.job.owner and names_worker(slot):
            slot.job.owner = slot.worker
        else:
            self._name(slot, slot.worker)
        self._push(slot)

    def closed(self, job: Job) -> None:
        """Everything was sent."""

    def _withheld(self, slot: Slot) -> bool:
        return False


class PushedStrict(Strict):
    """The text's dialect with the feature ``push``: events as they come, and at the end what a GET would answer."""

    __slots__ = ()

    def dispatched(self, job: Job) -> None:
        """202, after the 300 that the POST got."""
        if job.client.peer is not None:
            self.submitted(job.client.peer, job)

    def event(self, run: Run, kind: str, packet: Packet) -> None:
        """As it came."""
        job = run.slot.job
        peer = job.client.peer
        event = Packet(
            _BROKER,
            _EVENT,
            dialect=self.dialect,
            service=job.service,
            uuid=job.uuid,
            status=200,
            status_text=status_text(200, self.dialect),
            body=packet.body,
        )
        if peer is None or not peer.send(event):
            self._state.counts.dropped += 1

    def stream(self, run: Run, packet: Packet) -> None:
        """The text has no STREAM."""
        self._state.counts.dropped += 1

    def closed(self, job: Job) -> None:
        """One answer for the whole job."""
        self.delivered_again(next(iter(job.slots.values())))

    def delivered_again(self, slot: Slot) -> None:
        """The answer for the whole job; owed under its first slot."""
        job = slot.job
        first = next(iter(job.slots.values()))
        if job.open or slot is not first:
            return
        client = job.client
        answer = self._outcome(job, list(job.slots.values()))
        if client.peer is None or not self._respond(client.peer, job.service, job.uuid, *answer):
            client.owed[first] = None


class Kinds:
    """One object for each kind of client."""

    __slots__ = ("_deployed", "_own", "_pushed_strict", "_strict")

    def __init__(self, state: State) -> None:
        self._strict = Strict(state)
        self._pushed_strict = PushedStrict(state)
        self._deployed = Deployed(state)
        self._own = Own(state)

    def of(self, peer: Peer) -> Answers:
        """By how it speaks, and what its OPEN asked for."""
        pushed = "push" in peer.features
        if peer.dialect is _NORFAB:
            return self._own if pushed else self._deployed
        return self._pushed_strict if pushed else self._strict

    def absent(self, dialect: Dialect) -> Answers:
        """Of a client that was not heard since the start: nothing can be sent to it anyway."""
        return self._deployed if dialect is _NORFAB else self._strict
