"""What clients are told, by kind of client, and results between the dialects.

There are four kinds. A REQ client of the text is told in lock step: exactly one RESPONSE for each of its commands, with
one of the seven codes, and nothing unasked (NFP, "NFP/Client"). Another client of the text (feature ``push``) gets
events as they come, and at the end what a GET would answer. Deployed NorFab's client gets events, and fetches a result
when it hears that it is ready: it takes the first 202 with names for the whole truth, drops what comes from workers it
did not name, and ends the job at the first 4xx or 5xx. So *any* is answered with no names until the owner is certain,
and an error of one worker among several is told as that worker's failed task. Our client (``push``) gets every result
as soon as it is recorded, errors of single workers too.

Bodies pass as they came wherever possible. What a client could not read as the worker wrote it is written anew: of a
worker of the text for a deployed client, an error of a worker that names nobody, a result of an owner that changed
after the client had been told one.
"""

# compiled: mypyc

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.nesting import decoder, read_json
from broker.nfp import bodies
from broker.nfp.contract import Peer
from broker.nfp.frames import Body, Packet, answer_packet
from broker.nfp.jobs.machine import ENTERED
from broker.nfp.jobs.model import Attempt, Client, Job, Part
from broker.nfp.names import SEED_CODES, Command, Dialect
from broker.nfp.outcome import CANCELLED, EXPIRED, job_state
from broker.nfp.records import Owned
from broker.nfp.targets import render

if TYPE_CHECKING:
    from broker.nfp.jobs.schedule import Jobs

NOT_GIVEN: Final = "this job was not given to the workers that were named"
_TEXT: Final = Dialect.SEED
_RESPONSE: Final = Command.RESPONSE
_EVENT: Final = Command.EVENT
_STREAM: Final = Command.STREAM
_NAMING: Final = frozenset({"input_request", "result_ready"})
"""Events that a deployed client drops unless it knows the worker."""
_TEXT_CODE: Final = {404: 400, 102: 300, 201: 202}
"""What the text has for codes it does not have; anything else is 500."""
_UNREADABLE_ERRORS: Final = (msgspec.MsgspecError, UnicodeError)
_encode: Final = msgspec.json.Encoder().encode
_members: Final = decoder(dict[str, msgspec.Raw])


# -- answers to whoever asked -----------------------------------------------------------------------


def refused(who: Peer | Client, packet: Packet, code: int, error: str) -> None:
    """A request that is not carried out."""
    target = render(packet.target, array=True) if packet.target is not None else ""
    _respond(who, packet, code, bodies.failed(code, packet.uuid, packet.service, target, error))


def submitted(who: Peer | Client, job: Job) -> None:
    """A POST: 202 when it is, or will be, dispatched, with whom it is for as far as that is settled; 300 when nobody is
    there yet.
    """
    if not job.told_dispatched:
        body = bodies.submitted(job.uuid, job.service, job.target_text, None, job.missing)
        _respond(who, job, 300, body, job.after)
        return
    anyone = job.parts.get("")
    workers = list(job.parts)
    if anyone is not None:
        owner = job.owner or anyone.worker
        workers = [owner] if owner else []
    body = bodies.submitted(job.uuid, job.service, job.target_text, workers, job.missing)
    _respond(who, job, 202, body, job.after)


def results(peer: Peer, job: Job, parts: Sequence[Part]) -> bool:
    """A GET about these parts; none: none of the job's that it named. False: not all of it could be sent.

    What finds no room is sent once there is, to the client whose job it is.
    """
    if peer.dialect is _TEXT:
        return _respond(peer, job, *_of_all(job, parts))
    if not parts:
        code, body = 300, bodies.progress(job.uuid, job.service, "")
        if job.parts and not job.open:  # without parts it waits for the first worker of its service
            code, body = 404, bodies.failed(404, job.uuid, job.service, job.target_text, NOT_GIVEN)
        return _respond(peer, job, code, body, job.after)
    all_sent = True
    for part in parts:
        if part.state != "final":
            sent = _respond(peer, job, *_under_way(part), job.after)
        else:
            sent = _respond(peer, job, *_recorded(peer, part), part.after)
            if not sent and job.client.peer is peer:
                job.client.owe(part)
        all_sent &= sent
    return all_sent


def cancelled(peer: Peer, job: Job, workers: Iterable[str], status: str, after: int) -> None:
    """A DELETE that was carried out; ``status`` is CANCELLED, or how the job had ended before."""
    body = bodies.cancelled(job.uuid, job.service, job.target_text, workers, status)
    _respond(peer, job, 202, body, after)


# -- pushes to the job's client ---------------------------------------------------------------------


def dispatched(job: Job) -> None:
    """A job that nobody was there for is given to its first worker: 202, after the 300 that the POST got.

    A client in lock step has had its one answer.
    """
    if job.client.dialect is not _TEXT or _pushes(job.client):
        submitted(job.client, job)


def accepted(job: Job, body: Body) -> None:
    """A worker has the job: 201, ``body`` says which; that it has it does not depend on our record of it."""
    if job.client.dialect is not _TEXT:
        _respond(job.client, job, 201, body)


def event(jobs: Jobs, attempt: Attempt, kind: str, packet: Packet) -> None:
    """An EVENT of the worker, as it came; ``kind`` is its event_type, "" when it has none.

    The owner is named first where the event would be lost otherwise. Our client is not told of results that are ready:
    it gets them.
    """
    job = attempt.part.job
    if job.client.dialect is not _TEXT:
        if kind == "result_ready" and _pushes(job.client):
            return
        if kind in _NAMING:
            _name(jobs, attempt.part, attempt.worker.name)
    elif not _pushes(job.client):
        return
    _forward(jobs, job, _EVENT, packet.body)


def stream(jobs: Jobs, attempt: Attempt, packet: Packet) -> None:
    """A STREAM, as it came: what was streamed by one worker cannot be continued by another, so the owner is settled."""
    _name(jobs, attempt.part, attempt.worker.name)
    _forward(jobs, attempt.part.job, _STREAM, packet.body)


def recorded(jobs: Jobs, part: Part, announcement: Any) -> None:
    """A part is final; ``announcement`` is the body of the event that announced it, None without one.

    A deployed client is told that the result is ready where its worker has said so, and is sent any other one. Our
    client need not be told before whose result it is when the result says so.
    """
    job, client = part.job, part.job.client
    if client.dialect is _TEXT:
        return
    if _pushes(client):
        announcement = None
        if not part.name and part.status == 200 and not job.owner and _names_worker(part):
            job.owner = part.worker
    _name(jobs, part, part.worker)
    renamed = not part.name and bool(job.owner) and job.owner != part.worker
    if announcement is None or part.status != 200 or renamed:
        _push(part)
    elif not _forward(jobs, job, _EVENT, announcement, part.after):
        client.owe(part)


def closed(job: Job) -> None:
    """All parts of the job are final: one answer for the whole job, for a client of the text."""
    if job.client.dialect is _TEXT:
        again(next(iter(job.parts.values())))


def again(part: Part) -> None:
    """The client is back, or asks again for a job it submitted: the recorded result of ``part`` once more.

    With it goes the 202 that names the worker: it may have been lost, too. A client of the text is told of the whole
    job, which it is owed under the first part.
    """
    job, client = part.job, part.job.client
    if client.dialect is not _TEXT:
        if part.state == "final":
            dispatched(job)
            _push(part)
        return
    parts = list(job.parts.values())
    if (
        _pushes(client)
        and not job.open
        and part is parts[0]
        and not _respond(client, job, *_of_all(job, parts))
    ):
        client.owe(part)


# -- how it is sent ---------------------------------------------------------------------------------


def _pushes(who: Peer | Client) -> bool:
    return "push" in who.features


def _send(
    who: Peer | Client, command: Command, about: Job | Packet, code: int, body: Body, after: int
) -> bool:
    """False: it is not there, or its queue is full."""
    peer = who.peer if isinstance(who, Client) else who
    if peer is None:
        return False
    return peer.send(answer_packet(command, who.dialect, about.service, about.uuid, code, body), after)


def _respond(who: Peer | Client, about: Job | Packet, code: int, body: Body, after: int = 0) -> bool:
    return _send(who, _RESPONSE, about, code, body, after)


def _forward(jobs: Jobs, job: Job, command: Command, body: Body, after: int = 0) -> bool:
    """Push to the job's client; what finds no room, or nobody, is counted."""
    sent = _send(job.client, command, job, 200, body, after)
    jobs.counts.dropped += not sent
    return sent


def _push(part: Part) -> None:
    client = part.job.client
    if not _respond(client, part.job, *_recorded(client, part), part.after):
        client.owe(part)


def _name(jobs: Jobs, part: Part, worker: str) -> None:
    """The second 202 of a job for any: who has it, once that cannot change without the client's knowing."""
    job = part.job
    if part.name or job.owner or not worker:
        return
    job.owner = worker
    if part.state != "final":
        jobs.journal.put(Owned(job.uuid, worker))
    job.after = jobs.journal.position  # a restarted broker must know whom the client was told of
    submitted(job.client, job)


# -- what is said -----------------------------------------------------------------------------------


def _of_all(job: Job, parts: Sequence[Part]) -> tuple[int, bytes, int]:
    """One answer for all: 200 with the result or an object of all results; else what stands in the way."""
    if not parts and job.parts:
        return 400, bodies.failed(400, job.uuid, job.service, job.target_text, NOT_GIVEN), job.after
    if not parts or any(part.state != "final" for part in parts):
        begun = any(part.state != "waiting" for part in parts)
        state = "STARTED" if begun else "PENDING"
        return 300, bodies.progress(job.uuid, job.service, "", state), job.after
    after = max(part.after for part in parts)
    if len(parts) == 1:
        return text_code(parts[0].status), parts[0].body, after
    code = 200
    if any(part.status != 200 for part in parts):
        code = {CANCELLED: 417, EXPIRED: 408}.get(job_state(part.ended for part in parts), 500)
    return code, bodies.aggregate({part.worker or part.name: part.body for part in parts}), after


def text_code(code: int) -> int:
    """``code`` among the seven of the text."""
    return code if code in SEED_CODES else _TEXT_CODE.get(code, 500)


def _under_way(part: Part) -> tuple[int, bytes]:
    """300, or 102 with the input request that the client may have missed, in deployed NorFab's form."""
    job, attempt = part.job, part.current
    worker = job.owner or (attempt.worker.name if attempt is not None else part.worker or part.name)
    if attempt is None or attempt.question is None:
        state = "STARTED" if attempt is not None and attempt.state in ENTERED else "PENDING"
        return 300, bodies.progress(job.uuid, job.service, worker, state)
    extras = _readable(bytes(attempt.question))
    extras = extras.get("extras") if isinstance(extras, dict) else None
    said = {"worker": worker, "uuid": job.uuid, "service": job.service, "status": "WAITING_CLIENT_INPUT"}
    if isinstance(extras, dict) and isinstance(extras.get("input_request"), dict):
        said["input_request"] = extras["input_request"]
    return 102, _encode(said)


def _recorded(who: Peer | Client, part: Part) -> tuple[int, bytes]:
    """Our client gets each worker's own status. To a deployed one another than 200 would end the whole job: of one
    worker among several it is a task that failed, unless it was told of no workers yet, and waits for none.
    """
    if part.status == 200:
        return 200, _result(part)
    if not _pushes(who) and part.job.told_dispatched and len(part.job.parts) > 1:
        return 200, _failure(part)
    return part.status, _encode(_error(part))


def _result(part: Part) -> bytes:
    """The recorded 200 of ``part`` as ``{worker: {...}}``, under the name its client knows the worker by."""
    job, worker = part.job, part.worker
    known = job.owner if not part.name and job.owner else worker
    if known == worker and _names_worker(part):
        return part.body
    inner: Any = None
    try:
        members = _members(part.body)
        inner = members[worker] if members.keys() == {worker} else None
    except _UNREADABLE_ERRORS:
        pass
    return _encode({known: _wrapped(part, worker) if inner is None else inner})


def _names_worker(part: Part) -> bool:
    """True for a recorded result of the form ``{worker: ...}`` in the plainest spelling."""
    return part.body.startswith(b'{"%s":' % part.worker.encode())


def _error(part: Part) -> dict[str, Any]:
    """The recorded status other than 200 of ``part``, as an object with ``worker`` and ``error``."""
    said, worker = _readable(part.body), part.worker or part.name or part.job.owner
    if not isinstance(said, dict):
        said = {"error": said if isinstance(said, str) and said else f"worker {worker}: status {part.status}"}
    if "error" not in said:
        said["error"] = str(said.get("status") or f"worker {worker}: status {part.status}")
    said["worker"] = worker
    said.setdefault("uuid", part.job.uuid)
    said.setdefault("service", part.job.service)
    said.setdefault("status", "FAILED")
    return said


def _failure(part: Part) -> bytes:
    """The same as the result of a task that failed: ``{worker: {"failed": true, ...}}``."""
    said = _error(part)
    return _encode({said["worker"]: _wrapped(part, said["worker"], errors=(str(said["error"]),))})


def _wrapped(part: Part, worker: str, *, errors: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "result": None if errors else _readable(part.body),
        "failed": bool(errors),
        "errors": errors,
        "messages": [],
        "task": f"{worker}:{part.job.task}",
        "juuid": part.job.uuid,
        "resources": [],
        "status": "failed" if errors else "completed",
        "service": part.job.service,
    }


def _readable(body: bytes) -> Any:
    try:
        return read_json(body)
    except _UNREADABLE_ERRORS:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode()}
