"""What clients are told, by kind of client.

A REQ client of the text is told in lock step: exactly one RESPONSE for each of its commands, with one of the seven
codes, and nothing unasked (NFP, "NFP/Client"). All others are told without asking, too. A deployed client takes the
first 202 with names for the whole truth, drops what comes from workers it did not name, and ends the job at the first
4xx or 5xx. So *any* is answered with no names until the owner is certain, and an error of one worker among several is
told as that worker's failed task.
"""

# compiled: mypyc

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from broker.nfp import bodies
from broker.nfp.contract import Journal, Peer
from broker.nfp.frames import Body, Packet, answer_packet
from broker.nfp.jobs.counts import Counts
from broker.nfp.jobs.machine import ENTERED, FINAL, WAITING
from broker.nfp.jobs.model import Attempt, Client, Job, Part
from broker.nfp.jobs.translation import (
    error_for_norfab,
    failure_for_norfab,
    names_worker,
    result_for_norfab,
    waits_for_input,
)
from broker.nfp.names import SEED_CODES, Command, Dialect
from broker.nfp.outcome import CANCELLED, EXPIRED, job_state
from broker.nfp.records import Owned
from broker.nfp.targets import render

NOT_GIVEN: Final = "this job was not given to the workers that were named"
_RESPONSE: Final = Command.RESPONSE
_EVENT: Final = Command.EVENT
_NORFAB: Final = Dialect.NORFAB
_NAMING: Final = frozenset({"input_request", "result_ready"})
"""Events that a deployed client drops unless it knows the worker."""
_SEED_CODE: Final = {404: 400, 102: 300, 201: 202}
"""What the text has for codes it does not have; anything else is 500."""


class Responder(ABC):
    """One kind of client. Methods with ``peer`` answer whoever asked; the others push to the job's client."""

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

    def submitted(self, peer: Peer, job: Job) -> None:
        """A POST: 202 when it is, or will be, dispatched; 300 when nobody is there yet."""
        self._respond(peer, job.service, job.uuid, *self._submission(job), job.after)

    @abstractmethod
    def results(self, peer: Peer, job: Job, parts: Sequence[Part]) -> bool:
        """A GET about these parts; none: none of the job's that it named. False: not all of it could be sent."""

    def cancelled(self, peer: Peer, job: Job, workers: Iterable[str], status: str) -> None:
        """A DELETE that was carried out; ``status`` is CANCELLED, or how the job had ended before."""
        body = bodies.cancelled(job.uuid, job.service, job.target_text, workers, status)
        self._respond(peer, job.service, job.uuid, 202, body, self._journal.position)

    # -- pushes ---------------------------------------------------------------------------------
    # the strictest kind is told nothing unasked, so doing nothing is what these do unless a kind says otherwise

    def dispatched(self, job: Job) -> None:  # noqa: B027
        """A job that nobody was there for is given to its first worker."""

    def accepted(self, job: Job, body: Body) -> None:  # noqa: B027
        """A worker has the job: 201, ``body`` says which."""

    def event(self, attempt: Attempt, kind: str, packet: Packet) -> None:  # noqa: B027
        """An EVENT of the worker; ``kind`` is its event_type, "" when it has none."""

    def stream(self, attempt: Attempt, packet: Packet) -> None:  # noqa: B027
        """A STREAM of the worker."""

    def recorded(self, part: Part, announcement: Any) -> None:  # noqa: B027
        """A part is final; ``announcement`` is the body of the event that announced it, None without one."""

    def closed(self, job: Job) -> None:  # noqa: B027
        """All parts of the job are final."""

    def delivered_again(self, part: Part) -> None:  # noqa: B027
        """The client is back, or asks again for a job it submitted: the recorded result of ``part`` once more."""

    # -- inner part -----------------------------------------------------------------------------

    def _submission(self, job: Job) -> tuple[int, bytes]:
        target = job.target_text
        if not job.told_dispatched:
            return 300, bodies.queued(job.uuid, job.service, target, job.missing)
        return 202, bodies.dispatched(job.uuid, job.service, target, self._workers(job), job.missing)

    def _workers(self, job: Job) -> list[str]:
        """Whom the job is for, as far as that is settled."""
        anyone = job.parts.get("")
        if anyone is None:
            return list(job.parts)
        owner = job.owner or anyone.worker
        return [owner] if owner else []

    def _respond(self, peer: Peer, service: str, uuid: str, code: int, body: Body, after: int = 0) -> bool:
        return peer.send(answer_packet(_RESPONSE, self.dialect, service, uuid, code, body), after)

    def _forward(self, job: Job, command: Command, body: Body, after: int = 0) -> bool:
        """Push to the job's client; what finds no room, or nobody, is counted."""
        peer = job.client.peer
        if peer is not None and peer.send(
            answer_packet(command, self.dialect, job.service, job.uuid, 200, body), after
        ):
            return True
        self._counts.dropped += 1
        return False


class LockstepResponder(Responder):
    """A client of the text: asked, it answers; pushes do nothing."""

    dialect: ClassVar[Dialect] = Dialect.SEED

    def results(self, peer: Peer, job: Job, parts: Sequence[Part]) -> bool:
        """One answer for all: 200 with the result or an object of all results; else what stands in the way."""
        return self._respond(peer, job.service, job.uuid, *self._outcome(job, parts))

    def _outcome(self, job: Job, parts: Sequence[Part]) -> tuple[int, bytes, int]:
        if not parts and job.parts:
            return (
                400,
                bodies.failed(400, job.uuid, job.service, job.target_text, NOT_GIVEN),
                job.after,
            )
        if not parts or any(part.state != FINAL for part in parts):
            begun = any(part.state != WAITING for part in parts)
            state = "STARTED" if begun else "PENDING"
            return 300, bodies.progress(job.uuid, job.service, "", state), job.after
        after = max(part.after for part in parts)
        if len(parts) == 1:
            return seed_code(parts[0].status), parts[0].body, after
        body = bodies.aggregate({part.worker or part.name: part.body for part in parts})
        return _common_code(parts), body, after


def _common_code(parts: Sequence[Part]) -> int:
    """What a client of the text is told of several results in one."""
    if all(part.status == 200 for part in parts):
        return 200
    return {CANCELLED: 417, EXPIRED: 408}.get(job_state(part.ended for part in parts), 500)


def seed_code(code: int) -> int:
    """``code`` among the seven of the text."""
    return code if code in SEED_CODES else _SEED_CODE.get(code, 500)


class NorfabResponder(Responder):
    """NorFab's own client: it gets events, and fetches a result when it hears that it is ready."""

    def results(self, peer: Peer, job: Job, parts: Sequence[Part]) -> bool:
        """One answer for each part; never an error of one among several."""
        sent = True
        if not parts:
            sent = self._respond(peer, job.service, job.uuid, *self._none_of(job), job.after)
        for part in parts:
            if part.state == FINAL:
                sent &= self._answer_result(peer, part)
            else:
                sent &= self._respond(peer, job.service, job.uuid, *self._under_way(part), job.after)
        return sent

    def _none_of(self, job: Job) -> tuple[int, bytes]:
        if job.open or not job.parts:  # without parts it waits for the first worker of its service
            return 300, bodies.progress(job.uuid, job.service, "")
        return 404, bodies.failed(404, job.uuid, job.service, job.target_text, NOT_GIVEN)

    def _under_way(self, part: Part) -> tuple[int, bytes]:
        job, attempt = part.job, part.current
        worker = job.owner or (attempt.worker.name if attempt is not None else part.worker or part.name)
        if attempt is not None and attempt.question is not None:
            return 102, waits_for_input(part, worker, attempt.question)
        state = "STARTED" if attempt is not None and attempt.state in ENTERED else "PENDING"
        return 300, bodies.progress(job.uuid, job.service, worker, state)

    def _answer_result(self, peer: Peer, part: Part) -> bool:
        """What finds no room is sent once there is, to the client whose job it is."""
        sent = self._respond_result(peer, part)
        if not sent and part.job.client.peer is peer:
            part.job.client.owe(part)
        return sent

    def _respond_result(self, peer: Peer, part: Part) -> bool:
        job = part.job
        return self._respond(peer, job.service, job.uuid, *self._recorded(part), part.after)

    def _recorded(self, part: Part) -> tuple[int, bytes]:
        """A status other than 200 would end the whole job: of one worker among several it is a task that failed.

        Unless the client was told of no workers yet, and waits for none.
        """
        if part.status == 200:
            return 200, result_for_norfab(part)
        if part.job.told_dispatched and len(part.job.parts) > 1:
            return 200, failure_for_norfab(part)
        return part.status, error_for_norfab(part)

    # -- pushes ---------------------------------------------------------------------------------

    def dispatched(self, job: Job) -> None:
        """202, after the 300 that the POST got."""
        if job.client.peer is not None:
            self.submitted(job.client.peer, job)

    def accepted(self, job: Job, body: Body) -> None:
        """201 as it came: that the worker has the job does not depend on our record of it."""
        if job.client.peer is not None:
            self._respond(job.client.peer, job.service, job.uuid, 201, body)

    def event(self, attempt: Attempt, kind: str, packet: Packet) -> None:
        """As it came; the owner is named first where the event would be lost otherwise."""
        if kind in _NAMING:
            self._name(attempt.part, attempt.worker.name)
        self._forward(attempt.part.job, _EVENT, packet.body)

    def stream(self, attempt: Attempt, packet: Packet) -> None:
        """As it came: what was streamed by one worker cannot be continued by another, so the owner is settled."""
        self._name(attempt.part, attempt.worker.name)
        self._forward(attempt.part.job, Command.STREAM, packet.body)

    def recorded(self, part: Part, announcement: Any) -> None:
        """A result that the worker announced is announced; any other one is pushed."""
        self._name(part, part.worker)
        job = part.job
        if announcement is not None and part.status == 200 and not self._renamed(part):
            if not self._forward(job, _EVENT, announcement, part.after):
                job.client.owe(part)
        else:
            self._push(part)

    def delivered_again(self, part: Part) -> None:
        """The 202 that names the worker, too: it may have been lost with the result."""
        if part.state == FINAL:
            self.dispatched(part.job)
            self._push(part)

    # -- inner part -----------------------------------------------------------------------------

    def _push(self, part: Part) -> None:
        client = part.job.client
        if client.peer is None or not self._respond_result(client.peer, part):
            client.owe(part)

    def _renamed(self, part: Part) -> bool:
        return not part.name and bool(part.job.owner) and part.job.owner != part.worker

    def _name(self, part: Part, worker: str) -> None:
        """The second 202 of a job for any: who has it, once that cannot change without the client's knowing."""
        job = part.job
        if part.name or job.owner or not worker:
            return
        job.owner = worker
        if part.state != FINAL:
            self._journal.put(Owned(job.uuid, worker))
        job.after = self._journal.position  # a restarted broker must know whom the client was told of
        if job.client.peer is not None:
            self.submitted(job.client.peer, job)


class OwnResponder(NorfabResponder):
    """Our client: it gets every result as soon as it is recorded, errors of single workers too."""

    def event(self, attempt: Attempt, kind: str, packet: Packet) -> None:
        """All but the announcements of results."""
        if kind != "result_ready":
            super().event(attempt, kind, packet)

    def recorded(self, part: Part, announcement: Any) -> None:
        """The result itself; of one that says whose it is the client need not be told before."""
        if not part.name and part.status == 200 and not part.job.owner and names_worker(part):
            part.job.owner = part.worker
        else:
            self._name(part, part.worker)
        self._push(part)

    def _recorded(self, part: Part) -> tuple[int, bytes]:
        """With its own status, which is its worker's only."""
        return part.status, result_for_norfab(part) if part.status == 200 else error_for_norfab(part)


class TextResponder(LockstepResponder):
    """The text's dialect with the feature ``push``: events as they come, and at the end what a GET would answer."""

    def dispatched(self, job: Job) -> None:
        """202, after the 300 that the POST got."""
        if job.client.peer is not None:
            self.submitted(job.client.peer, job)

    def event(self, attempt: Attempt, kind: str, packet: Packet) -> None:
        """As it came."""
        self._forward(attempt.part.job, _EVENT, packet.body)

    def closed(self, job: Job) -> None:
        """One answer for the whole job."""
        self.delivered_again(next(iter(job.parts.values())))

    def delivered_again(self, part: Part) -> None:
        """The answer for the whole job; owed under its first part."""
        job = part.job
        first = next(iter(job.parts.values()))
        if job.open or part is not first:
            return
        client = job.client
        answer = self._outcome(job, list(job.parts.values()))
        if client.peer is None or not self._respond(client.peer, job.service, job.uuid, *answer):
            client.owe(first)


class Responders:
    """One object for each kind of client."""

    def __init__(self, journal: Journal, counts: Counts) -> None:
        self._lockstep = LockstepResponder(journal, counts)
        self._text = TextResponder(journal, counts)
        self._deployed = NorfabResponder(journal, counts)
        self._own = OwnResponder(journal, counts)

    def of(self, who: Peer | Client) -> Responder:
        """By how it speaks, and what its OPEN asked for."""
        pushed = "push" in who.features
        if who.dialect is _NORFAB:
            return self._own if pushed else self._deployed
        return self._text if pushed else self._lockstep
