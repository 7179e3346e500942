"""GET, DELETE and PUT of a job that is known (NFP, "GET", "DELETE"; PUT is deployed NorFab's).

Only whose job it is, and owners, may ask; everybody else is told what is told about a job that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.nfp import bodies
from broker.nfp.dispatch.answers import NOT_GIVEN
from broker.nfp.dispatch.job import CANCELLED, FINAL, Job, Slot
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect, Sender

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.nfp.contract import Peer
    from broker.nfp.dispatch.assignment import Assignment
    from broker.nfp.dispatch.clients import Clients
    from broker.nfp.dispatch.pushes import Kinds
    from broker.nfp.dispatch.relays import Relays
    from broker.nfp.dispatch.results import Results
    from broker.nfp.dispatch.state import State

_UNKNOWN: Final = "this job is not known here"


class Requests:
    """Requests about jobs."""

    __slots__ = ("_assignment", "_clients", "_kinds", "_relays", "_results", "_state")

    def __init__(
        self,
        state: State,
        clients: Clients,
        kinds: Kinds,
        results: Results,
        assignment: Assignment,
        relays: Relays,
    ) -> None:
        self._state = state
        self._clients = clients
        self._kinds = kinds
        self._results = results
        self._assignment = assignment
        self._relays = relays

    def _find(self, peer: Peer, packet: Packet) -> Job | None:
        job = self._state.jobs.get(packet.uuid)
        return job if job is not None and peer.principal.may_see(job.holder) else None

    def get(self, peer: Peer, packet: Packet, now: float) -> None:
        """GET: from the record. A job that only workers may know of is asked for there, for owners."""
        answers = self._kinds.of(peer)
        job = self._find(peer, packet)
        self._clients.known(peer, now)
        if job is not None:
            assert packet.target is not None
            slots = job.named(packet.target.names)
            if answers.results(peer, job, slots) and job.client.peer is peer:
                for slot in slots:
                    job.client.owed.pop(slot, None)
        elif (
            packet.uuid in self._state.jobs
            or not peer.principal.owner
            or packet.dialect is Dialect.SEED
            or not self._relays.get(peer, packet, now)
        ):
            self._state.counts.unroutable += 1
            answers.refused(peer, packet, 400, _UNKNOWN)

    def delete(self, peer: Peer, packet: Packet, now: float) -> None:
        """DELETE: what has no result yet ends at once; workers that understand it are told. What is over stays so."""
        answers = self._kinds.of(peer)
        job = self._find(peer, packet)
        self._clients.known(peer, now)
        if job is None:
            self._state.counts.unroutable += 1
            answers.refused(peer, packet, 400, _UNKNOWN)
            return
        assert packet.target is not None
        if not job.slots and not packet.target.names:
            self._assignment.settle_nowhere(job, now)
        meant = job.named(packet.target.names)
        if not meant:
            self._state.counts.unroutable += 1
            answers.refused(peer, packet, 400, NOT_GIVEN)
            return
        slots = [slot for slot in meant if slot.state != FINAL]
        running = [slot.run.worker.name for slot in slots if slot.run is not None]
        if slots:
            job.fate = CANCELLED
        for slot in slots:
            self._state.counts.cancelled += 1
            self._assignment.withdraw(slot)
            self._results.give_up(slot, 417, "cancelled", now)
        answers.cancelled(peer, job, running, "CANCELLED" if slots else _end_of(meant))

    def put(self, peer: Peer, packet: Packet, now: float) -> None:
        """PUT: to the workers that run it. There is no answer: a deployed client would take an error for the end."""
        job = self._find(peer, packet)
        self._clients.known(peer, now)
        sent = False
        if job is not None and packet.target is not None:
            for slot in job.named(packet.target.names):
                run = slot.run
                wire = run.worker.wire if run is not None else None
                if run is not None and wire is not None:
                    sent |= wire.request(Command.PUT, job, run.attempt, packet.body)
        if not sent:
            self._state.counts.unroutable += 1

    def unstored(self, uuid: str, error: str) -> None:
        """The store refused the job for good: as if it had never come, but for the 500."""
        state = self._state
        job = state.jobs.pop(uuid, None)
        if job is None:
            return
        for slot in job.slots.values():
            self._assignment.withdraw(slot)
            run = slot.run
            if run is not None:
                wire = run.worker.wire
                if wire is not None and wire.cancels:
                    wire.request(Command.DELETE, job, run.attempt, b"")
                self._results.let_go(run)
        if not job.slots:
            self._assignment.stop_gathering(job)
        self._results.remove(job)
        state.counts.submitted -= 1
        state.counts.denied += 1
        client = job.client
        if client.peer is not None:
            asked = Packet(Sender.CLIENT, Command.POST, service=job.service, target=job.target, uuid=uuid)
            client.answers.refused(client.peer, asked, 500, f"the broker cannot store jobs: {error}")


def _end_of(slots: Iterable[Slot]) -> str:
    """How these, which are all over, have ended."""
    failed = [slot.status for slot in slots if slot.status != 200]
    return bodies.FAILED.get(failed[0], "FAILED") if failed else "COMPLETED"
