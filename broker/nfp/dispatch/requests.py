"""GET, DELETE and PUT of a job that is known (NFP, "GET", "DELETE"; PUT is deployed NorFab's).

Only whose job it is, and owners, may ask; a setting lets others GET, too ("any other client"). Everybody else is told
what is told about a job that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.nfp.contract import Peer
from broker.nfp.dispatch.answers import NOT_GIVEN
from broker.nfp.dispatch.assignment import Assignment
from broker.nfp.dispatch.model import FINAL, Order, Part
from broker.nfp.dispatch.relays import Relays
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.state import State
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.outcome import STATUS_WORDS, job_state

_UNKNOWN: Final = "this job is not known here"


class Requests:
    """Requests about jobs."""

    __slots__ = ("_assignment", "_relays", "_results", "_state")

    def __init__(
        self,
        state: State,
        results: Results,
        assignment: Assignment,
        relays: Relays,
    ) -> None:
        self._state = state
        self._results = results
        self._assignment = assignment
        self._relays = relays

    def _find(self, peer: Peer, packet: Packet) -> Order | None:
        order = self._state.orders.get(packet.uuid)
        return order if order is not None and peer.principal.may_see(order.holder) else None

    def _readable(self, peer: Peer, packet: Packet) -> Order | None:
        order = self._state.orders.get(packet.uuid)
        return (
            order if order is not None and self._state.access.may_read(peer.principal, order.holder) else None
        )

    def get(self, peer: Peer, packet: Packet, now: float) -> None:
        """GET: from the record. A job that only workers may know of is asked for there, for owners."""
        answers = self._state.kinds.of(peer)
        order = self._readable(peer, packet)
        self._state.clients.known(peer, now)
        if order is not None:
            assert packet.target is not None
            parts = order.named(packet.target.names)
            if answers.results(peer, order, parts) and order.client.peer is peer:
                for part in parts:
                    order.client.owed.pop(part, None)
        elif (
            packet.uuid in self._state.orders
            or not peer.principal.owner
            or packet.dialect is Dialect.SEED
            or not self._relays.get(peer, packet, now)
        ):
            self._state.counts.unroutable += 1
            answers.refused(peer, packet, 400, _UNKNOWN)

    def delete(self, peer: Peer, packet: Packet, now: float) -> None:
        """DELETE: what has no result yet ends at once; workers that understand it are told. What is over stays so."""
        answers = self._state.kinds.of(peer)
        order = self._find(peer, packet)
        self._state.clients.known(peer, now)
        if order is None:
            self._state.counts.unroutable += 1
            answers.refused(peer, packet, 400, _UNKNOWN)
            return
        assert packet.target is not None
        if not order.parts and not packet.target.names:
            self._assignment.settle_nowhere(order, now)
        meant = order.named(packet.target.names)
        if not meant:
            self._state.counts.unroutable += 1
            answers.refused(peer, packet, 400, NOT_GIVEN)
            return
        parts = [part for part in meant if part.state != FINAL]
        running = [part.run.worker.name for part in parts if part.run is not None]
        for part in parts:
            self._assignment.withdraw(part)
            self._results.give_up(part, 417, "cancelled", now)
        answers.cancelled(peer, order, running, "CANCELLED" if parts else _end_of(meant))

    def put(self, peer: Peer, packet: Packet, now: float) -> None:
        """PUT: to the workers that run it. There is no answer: a deployed client would take an error for the end."""
        order = self._find(peer, packet)
        self._state.clients.known(peer, now)
        sent = False
        if order is not None and packet.target is not None:
            for part in order.named(packet.target.names):
                if part.run is not None:
                    sent |= part.run.request(Command.PUT, packet.body)
        if not sent:
            self._state.counts.unroutable += 1

    def unstored(self, uuid: str, error: str) -> None:
        """The store refused the job for good: as if it had never come, but for the 500."""
        state = self._state
        order = state.orders.pop(uuid, None)
        if order is None:
            return
        for part in order.parts.values():
            self._assignment.withdraw(part)
            run = part.run
            if run is not None:
                wire = run.worker.wire
                if wire is not None and wire.cancels:
                    run.request(Command.DELETE, b"")
                self._results.let_go(run)
        if not order.parts:
            self._assignment.stop_gathering(order)
        self._results.remove(order)
        state.counts.submitted -= 1
        state.counts.denied += 1
        client = order.client
        if client.peer is not None:
            asked = Packet(Sender.CLIENT, Command.POST, service=order.service, target=order.target, uuid=uuid)
            self._state.kinds.of(client).refused(
                client.peer, asked, 500, f"the broker cannot store jobs: {error}"
            )


def _end_of(parts: Iterable[Part]) -> str:
    """How these, which are all over, have ended."""
    return STATUS_WORDS[job_state(part.ended for part in parts)]
