"""What clients are told: the contract of all kinds of clients, and the strictest kind.

A client of the text speaks REQ: exactly one RESPONSE for each of its commands, with one of the seven codes, and
nothing unasked (NFP, "NFP/Client"). The other kinds, which are pushed to, are in ``pushes``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from broker.nfp import bodies
from broker.nfp.dispatch.job import CANCELLED, EXPIRED, FINAL, WAITING
from broker.nfp.frames import Body, Packet, status_text
from broker.nfp.names import SEED_CODES, Command, Dialect, Sender
from broker.nfp.targets import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.nfp.contract import Peer
    from broker.nfp.dispatch.job import Job, Run, Slot
    from broker.nfp.dispatch.state import State

NOT_GIVEN: Final = "this job was not given to the workers that were named"
_BROKER: Final = Sender.BROKER
_RESPONSE: Final = Command.RESPONSE
_SEED_CODE: Final = {404: 400, 102: 300, 201: 202}
"""What the text has for codes it does not have; anything else is 500."""


class Answers(ABC):
    """One kind of client. Methods with ``peer`` answer whoever asked; the others push to the job's client."""

    __slots__ = ("_state",)

    dialect: ClassVar[Dialect] = Dialect.NORFAB

    def __init__(self, state: State) -> None:
        self._state = state

    # -- answers --------------------------------------------------------------------------------

    def refused(self, peer: Peer, packet: Packet, code: int, error: str) -> None:
        """A request that is not carried out."""
        target = render(packet.target, array=True) if packet.target is not None else ""
        body = bodies.failed(code, packet.uuid, packet.service, target, error)
        self._respond(peer, packet.service, packet.uuid, code, body)

    def submitted(self, peer: Peer, job: Job) -> None:
        """A POST: 202 when it is, or will be, dispatched; 300 when nobody is there yet."""
        self._respond(peer, job.service, job.uuid, *self._submission(job), job.after)

    @abstractmethod
    def results(self, peer: Peer, job: Job, slots: Sequence[Slot]) -> bool:
        """A GET about these slots; none: none of the job's that it named. False: not all of it could be sent."""

    def cancelled(self, peer: Peer, job: Job, workers: Iterable[str], status: str) -> None:
        """A DELETE that was carried out; ``status`` is CANCELLED, or how the job had ended before."""
        body = bodies.cancelled(job.uuid, job.service, job.target_text, workers, status)
        self._respond(peer, job.service, job.uuid, 202, body, self._state.journal.position)

    # -- pushes ---------------------------------------------------------------------------------
    # the strictest kind is told nothing unasked, so doing nothing is what these do unless a kind says otherwise

    def dispatched(self, job: Job) -> None:  # noqa: B027
        """A job that nobody was there for is given to its first worker."""

    def accepted(self, job: Job, body: Body) -> None:  # noqa: B027
        """A worker has the job: 201, ``body`` says which."""

    def event(self, run: Run, kind: str, packet: Packet) -> None:  # noqa: B027
        """An EVENT of the worker; ``kind`` is its event_type, "" when it has none."""

    def stream(self, run: Run, packet: Packet) -> None:  # noqa: B027
        """A STREAM of the worker."""

    def recorded(self, slot: Slot, ready: Any) -> None:  # noqa: B027
        """A slot is final; ``ready`` is the body of the event that announced it, None without one."""

    def closed(self, job: Job) -> None:  # noqa: B027
        """All slots of the job are final."""

    def delivered_again(self, slot: Slot) -> None:  # noqa: B027
        """The client is back, or asks again for a job it submitted: the recorded result of ``slot`` once more."""

    # -- inner part -----------------------------------------------------------------------------

    def _submission(self, job: Job) -> tuple[int, bytes]:
        target = job.target_text
        if not job.told:
            return 300, bodies.queued(job.uuid, job.service, target)
        return 202, bodies.dispatched(job.uuid, job.service, target, self._workers(job), job.missing)

    def _workers(self, job: Job) -> list[str]:
        """Whom the job is for, as far as that is settled."""
        anyone = job.slots.get("")
        if anyone is None:
            return list(job.slots)
        owner = job.owner or anyone.worker
        return [owner] if owner else []

    def _respond(self, peer: Peer, service: str, uuid: str, code: int, body: Body, after: int = 0) -> bool:
        packet = Packet(
            _BROKER,
            _RESPONSE,
            dialect=self.dialect,
            service=service,
            uuid=uuid,
            status=code,
            status_text=status_text(code, self.dialect),
            body=body,
        )
        return peer.send(packet, after)


class Strict(Answers):
    """A client of the text: asked, it answers; pushes do nothing."""

    __slots__ = ()

    dialect: ClassVar[Dialect] = Dialect.SEED

    def results(self, peer: Peer, job: Job, slots: Sequence[Slot]) -> bool:
        """One answer for all: 200 with the result or an object of all results; else what stands in the way."""
        return self._respond(peer, job.service, job.uuid, *self._outcome(job, slots))

    def _outcome(self, job: Job, slots: Sequence[Slot]) -> tuple[int, bytes, int]:
        if not slots and job.slots:
            return 400, bodies.failed(400, job.uuid, job.service, job.target_text, NOT_GIVEN), job.after
        if not slots or any(slot.state != FINAL for slot in slots):
            begun = any(slot.state != WAITING for slot in slots)
            state = "STARTED" if begun else "PENDING"
            return 300, bodies.progress(job.uuid, job.service, "", state), job.after
        after = max(slot.after for slot in slots)
        if len(slots) == 1:
            return seed_code(slots[0].status), slots[0].body, after
        body = bodies.aggregate({slot.worker or slot.name: slot.body for slot in slots})
        return self._common_code(job, slots), body, after

    def _common_code(self, job: Job, slots: Sequence[Slot]) -> int:
        if all(slot.status == 200 for slot in slots):
            return 200
        return {CANCELLED: 417, EXPIRED: 408}.get(job.fate, 500)


def seed_code(code: int) -> int:
    """``code`` among the seven of the text."""
    return code if code in SEED_CODES else _SEED_CODE.get(code, 500)
