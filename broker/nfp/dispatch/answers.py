"""What clients are told: the contract of all kinds of clients, and the strictest kind.

A client of the text speaks REQ: exactly one RESPONSE for each of its commands, with one of the seven codes, and
nothing unasked (NFP, "NFP/Client"). The other kinds, which are pushed to, are in ``pushes``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from broker.nfp import bodies
from broker.nfp.contract import Journal, Peer
from broker.nfp.dispatch.counts import Counts
from broker.nfp.dispatch.model import FINAL, WAITING, Order, Part, Run
from broker.nfp.frames import Body, Packet, answer_packet
from broker.nfp.names import SEED_CODES, Command, Dialect, Sender
from broker.nfp.outcome import CANCELLED, EXPIRED, job_state
from broker.nfp.targets import render

NOT_GIVEN: Final = "this job was not given to the workers that were named"
_BROKER: Final = Sender.BROKER
_RESPONSE: Final = Command.RESPONSE
_SEED_CODE: Final = {404: 400, 102: 300, 201: 202}
"""What the text has for codes it does not have; anything else is 500."""


class Answers(ABC):
    """One kind of client. Methods with ``peer`` answer whoever asked; the others push to the job's client."""

    __slots__ = ("_counts", "_journal")

    dialect: ClassVar[Dialect] = Dialect.NORFAB

    def __init__(self, journal: Journal, counts: Counts) -> None:
        self._journal = journal
        self._counts = counts

    # -- answers --------------------------------------------------------------------------------

    def refused(self, peer: Peer, packet: Packet, code: int, error: str) -> None:
        """A request that is not carried out."""
        target = render(packet.target, array=True) if packet.target is not None else ""
        body = bodies.failed(code, packet.uuid, packet.service, target, error)
        self._respond(peer, packet.service, packet.uuid, code, body)

    def submitted(self, peer: Peer, order: Order) -> None:
        """A POST: 202 when it is, or will be, dispatched; 300 when nobody is there yet."""
        self._respond(peer, order.service, order.uuid, *self._submission(order), order.after)

    @abstractmethod
    def results(self, peer: Peer, order: Order, parts: Sequence[Part]) -> bool:
        """A GET about these parts; none: none of the job's that it named. False: not all of it could be sent."""

    def cancelled(self, peer: Peer, order: Order, workers: Iterable[str], status: str) -> None:
        """A DELETE that was carried out; ``status`` is CANCELLED, or how the job had ended before."""
        body = bodies.cancelled(order.uuid, order.service, order.target_text, workers, status)
        self._respond(peer, order.service, order.uuid, 202, body, self._journal.position)

    # -- pushes ---------------------------------------------------------------------------------
    # the strictest kind is told nothing unasked, so doing nothing is what these do unless a kind says otherwise

    def dispatched(self, order: Order) -> None:  # noqa: B027
        """A job that nobody was there for is given to its first worker."""

    def accepted(self, order: Order, body: Body) -> None:  # noqa: B027
        """A worker has the job: 201, ``body`` says which."""

    def event(self, run: Run, kind: str, packet: Packet) -> None:  # noqa: B027
        """An EVENT of the worker; ``kind`` is its event_type, "" when it has none."""

    def stream(self, run: Run, packet: Packet) -> None:  # noqa: B027
        """A STREAM of the worker."""

    def recorded(self, part: Part, ready: Any) -> None:  # noqa: B027
        """A part is final; ``ready`` is the body of the event that announced it, None without one."""

    def closed(self, order: Order) -> None:  # noqa: B027
        """All parts of the job are final."""

    def delivered_again(self, part: Part) -> None:  # noqa: B027
        """The client is back, or asks again for a job it submitted: the recorded result of ``part`` once more."""

    # -- inner part -----------------------------------------------------------------------------

    def _submission(self, order: Order) -> tuple[int, bytes]:
        target = order.target_text
        if not order.told:
            return 300, bodies.queued(order.uuid, order.service, target)
        return 202, bodies.dispatched(order.uuid, order.service, target, self._workers(order), order.missing)

    def _workers(self, order: Order) -> list[str]:
        """Whom the job is for, as far as that is settled."""
        anyone = order.parts.get("")
        if anyone is None:
            return list(order.parts)
        owner = order.owner or anyone.worker
        return [owner] if owner else []

    def _respond(self, peer: Peer, service: str, uuid: str, code: int, body: Body, after: int = 0) -> bool:
        return peer.send(answer_packet(_RESPONSE, self.dialect, service, uuid, code, body), after)

    def _forward(self, order: Order, command: Command, body: Body, after: int = 0) -> bool:
        """Push to the job's client; what finds no room, or nobody, is counted."""
        peer = order.client.peer
        if peer is not None and peer.send(
            answer_packet(command, self.dialect, order.service, order.uuid, 200, body), after
        ):
            return True
        self._counts.dropped += 1
        return False


class Strict(Answers):
    """A client of the text: asked, it answers; pushes do nothing."""

    __slots__ = ()

    dialect: ClassVar[Dialect] = Dialect.SEED

    def results(self, peer: Peer, order: Order, parts: Sequence[Part]) -> bool:
        """One answer for all: 200 with the result or an object of all results; else what stands in the way."""
        return self._respond(peer, order.service, order.uuid, *self._outcome(order, parts))

    def _outcome(self, order: Order, parts: Sequence[Part]) -> tuple[int, bytes, int]:
        if not parts and order.parts:
            return (
                400,
                bodies.failed(400, order.uuid, order.service, order.target_text, NOT_GIVEN),
                order.after,
            )
        if not parts or any(part.state != FINAL for part in parts):
            begun = any(part.state != WAITING for part in parts)
            state = "STARTED" if begun else "PENDING"
            return 300, bodies.progress(order.uuid, order.service, "", state), order.after
        after = max(part.after for part in parts)
        if len(parts) == 1:
            return seed_code(parts[0].status), parts[0].body, after
        body = bodies.aggregate({part.worker or part.name: part.body for part in parts})
        return self._common_code(order, parts), body, after

    def _common_code(self, order: Order, parts: Sequence[Part]) -> int:
        if all(part.status == 200 for part in parts):
            return 200
        return {CANCELLED: 417, EXPIRED: 408}.get(job_state(part.ended for part in parts), 500)


def seed_code(code: int) -> int:
    """``code`` among the seven of the text."""
    return code if code in SEED_CODES else _SEED_CODE.get(code, 500)
