"""Clients that are told without asking: deployed NorFab's, our own, and the text's with the feature ``push``.

A deployed client takes the first 202 with names for the whole truth, drops what comes from workers it did not name,
and ends the job at the first 4xx or 5xx. So *any* is answered with no names until the owner is certain, and an error of
one worker among several is told as that worker's failed task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.nfp import bodies
from broker.nfp.contract import Journal, Peer
from broker.nfp.dispatch.answers import NOT_GIVEN, Answers, Strict
from broker.nfp.dispatch.counts import Counts
from broker.nfp.dispatch.model import ACCEPTED, FINAL, Client, Order, Part, Run
from broker.nfp.dispatch.rewriting import (
    error_for_norfab,
    failure_for_norfab,
    names_worker,
    result_for_norfab,
    waits_for_input,
)
from broker.nfp.frames import Body, Packet
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.records import Owned

_BROKER: Final = Sender.BROKER
_EVENT: Final = Command.EVENT
_NORFAB: Final = Dialect.NORFAB
_NAMING: Final = frozenset({"input_request", "result_ready"})
"""Events that a deployed client drops unless it knows the worker."""


class Deployed(Answers):
    """NorFab's own client: it gets events, and fetches a result when it hears that it is ready."""

    __slots__ = ()

    def results(self, peer: Peer, order: Order, parts: Sequence[Part]) -> bool:
        """One answer for each part; never an error of one among several."""
        sent = True
        if not parts:
            sent = self._respond(peer, order.service, order.uuid, *self._none_of(order), order.after)
        for part in parts:
            if part.state == FINAL:
                sent &= self._answer_result(peer, part)
            else:
                sent &= self._respond(peer, order.service, order.uuid, *self._under_way(part), order.after)
        return sent

    def _none_of(self, order: Order) -> tuple[int, bytes]:
        if order.open:
            return 300, bodies.progress(order.uuid, order.service, "")
        return 404, bodies.failed(404, order.uuid, order.service, order.target_text, NOT_GIVEN)

    def _under_way(self, part: Part) -> tuple[int, bytes]:
        order, run = part.order, part.run
        worker = order.owner or (run.worker.name if run is not None else part.worker or part.name)
        if part.asked is not None:
            return 102, waits_for_input(part, worker)
        state = "STARTED" if part.state == ACCEPTED else "PENDING"
        return 300, bodies.progress(order.uuid, order.service, worker, state)

    def _answer_result(self, peer: Peer, part: Part) -> bool:
        """What finds no room is sent once there is, to the client whose job it is."""
        sent = self._respond_result(peer, part)
        if not sent and part.order.client.peer is peer:
            part.order.client.owed[part] = None
        return sent

    def _respond_result(self, peer: Peer, part: Part) -> bool:
        order = part.order
        return self._respond(peer, order.service, order.uuid, *self._recorded(part), part.after)

    def _recorded(self, part: Part) -> tuple[int, bytes]:
        """A status other than 200 would end the whole job: of one worker among several it is a task that failed.

        Unless the client was told of no workers yet, and waits for none.
        """
        if part.status == 200:
            return 200, result_for_norfab(part)
        if part.order.told and len(part.order.parts) > 1:
            return 200, failure_for_norfab(part)
        return part.status, error_for_norfab(part)

    # -- pushes ---------------------------------------------------------------------------------

    def dispatched(self, order: Order) -> None:
        """202, after the 300 that the POST got."""
        if order.client.peer is not None:
            self.submitted(order.client.peer, order)

    def accepted(self, order: Order, body: Body) -> None:
        """201 as it came: that the worker has the job does not depend on our record of it."""
        if order.client.peer is not None:
            self._respond(order.client.peer, order.service, order.uuid, 201, body)

    def event(self, run: Run, kind: str, packet: Packet) -> None:
        """As it came; the owner is named first where the event would be lost otherwise."""
        if kind in _NAMING:
            self._name(run.part, run.worker.name)
        self._forward(run.part.order, _EVENT, packet.body)

    def stream(self, run: Run, packet: Packet) -> None:
        """As it came: what was streamed by one worker cannot be continued by another, so the owner is settled."""
        self._name(run.part, run.worker.name)
        self._forward(run.part.order, Command.STREAM, packet.body)

    def recorded(self, part: Part, ready: Any) -> None:
        """A result that the worker announced is announced; any other one is pushed."""
        self._name(part, part.worker)
        order = part.order
        if ready is not None and part.status == 200 and not self._renamed(part):
            if not self._forward(order, _EVENT, ready, part.after):
                order.client.owed[part] = None
        else:
            self._push(part)

    def delivered_again(self, part: Part) -> None:
        """The 202 that names the worker, too: it may have been lost with the result."""
        if part.state == FINAL:
            self.dispatched(part.order)
            self._push(part)

    # -- inner part -----------------------------------------------------------------------------

    def _push(self, part: Part) -> None:
        client = part.order.client
        if client.peer is None or not self._respond_result(client.peer, part):
            client.owed[part] = None

    def _renamed(self, part: Part) -> bool:
        return not part.name and bool(part.order.owner) and part.order.owner != part.worker

    def _name(self, part: Part, worker: str) -> None:
        """The second 202 of a job for any: who has it, once that cannot change without the client's knowing."""
        order = part.order
        if part.name or order.owner or not worker:
            return
        order.owner = worker
        if part.state != FINAL:
            self._journal.put(Owned(order.uuid, worker))
        order.after = self._journal.position  # a restarted broker must know whom the client was told of
        if order.client.peer is not None:
            self.submitted(order.client.peer, order)


class Own(Deployed):
    """Our client: it gets every result as soon as it is recorded, errors of single workers too."""

    __slots__ = ()

    def event(self, run: Run, kind: str, packet: Packet) -> None:
        """All but the announcements of results."""
        if kind != "result_ready":
            super().event(run, kind, packet)

    def recorded(self, part: Part, ready: Any) -> None:
        """The result itself; of one that says whose it is the client need not be told before."""
        if not part.name and part.status == 200 and not part.order.owner and names_worker(part):
            part.order.owner = part.worker
        else:
            self._name(part, part.worker)
        self._push(part)

    def _recorded(self, part: Part) -> tuple[int, bytes]:
        """With its own status, which is its worker's only."""
        return part.status, result_for_norfab(part) if part.status == 200 else error_for_norfab(part)


class PushedStrict(Strict):
    """The text's dialect with the feature ``push``: events as they come, and at the end what a GET would answer."""

    __slots__ = ()

    def dispatched(self, order: Order) -> None:
        """202, after the 300 that the POST got."""
        if order.client.peer is not None:
            self.submitted(order.client.peer, order)

    def event(self, run: Run, kind: str, packet: Packet) -> None:
        """As it came."""
        self._forward(run.part.order, _EVENT, packet.body)

    def closed(self, order: Order) -> None:
        """One answer for the whole job."""
        self.delivered_again(next(iter(order.parts.values())))

    def delivered_again(self, part: Part) -> None:
        """The answer for the whole job; owed under its first part."""
        order = part.order
        first = next(iter(order.parts.values()))
        if order.open or part is not first:
            return
        client = order.client
        answer = self._outcome(order, list(order.parts.values()))
        if client.peer is None or not self._respond(client.peer, order.service, order.uuid, *answer):
            client.owed[first] = None


class Kinds:
    """One object for each kind of client."""

    __slots__ = ("_deployed", "_own", "_pushed_strict", "_strict")

    def __init__(self, journal: Journal, counts: Counts) -> None:
        self._strict = Strict(journal, counts)
        self._pushed_strict = PushedStrict(journal, counts)
        self._deployed = Deployed(journal, counts)
        self._own = Own(journal, counts)

    def of(self, who: Peer | Client) -> Answers:
        """By how it speaks, and what its OPEN asked for."""
        pushed = "push" in who.features
        if who.dialect is _NORFAB:
            return self._own if pushed else self._deployed
        return self._pushed_strict if pushed else self._strict
