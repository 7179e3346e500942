"""Results between the dialects: bodies that a client could not read as the worker wrote them.

Bodies pass as they came wherever possible; what is here is for the rest: a worker of the text's dialect with a deployed
client, an error of a worker that names nobody, an owner that changed after the client had been told one.
"""

# compiled: mypyc

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec

from broker.nesting import decoder, read_json
from broker.nfp.bodies import UNREADABLE
from broker.nfp.jobs.model import Job, Part
from broker.nfp.opening import read_object

_UNREADABLE_ERRORS: Final = (msgspec.MsgspecError, UnicodeError)
_encode = msgspec.json.Encoder().encode
_members: Final = decoder(dict[str, msgspec.Raw])


def is_object(job: Job) -> bool:
    """True when the job's body is a JSON object in UTF-8: deployed workers do not survive anything else."""
    if job.task in ("", UNREADABLE):
        try:
            return isinstance(read_json(job.body), dict)
        except _UNREADABLE_ERRORS:
            return False
    if job.body.isascii():  # task was read from it: it is an object
        return True
    try:
        job.body.decode()
    except UnicodeDecodeError:
        return False
    return True


def result_for_norfab(part: Part) -> bytes:
    """The recorded 200 of ``part`` as ``{worker: {...}}``, under the name its client knows the worker by."""
    job, worker, body = part.job, part.worker, part.body
    known = job.owner if not part.name and job.owner else worker
    if known == worker and names_worker(part):
        return body
    inner = _inner(worker, body)
    return _encode({known: _wrapped(part, worker) if inner is None else inner})


def names_worker(part: Part) -> bool:
    """True for a recorded result of the form ``{worker: ...}`` in the plainest spelling."""
    return part.body.startswith(b'{"%s":' % part.worker.encode())


def _inner(worker: str, body: bytes) -> msgspec.Raw | None:
    try:
        members = _members(body)
    except _UNREADABLE_ERRORS:
        return None
    return members[worker] if members.keys() == {worker} else None


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


def error_for_norfab(part: Part) -> bytes:
    """The recorded status other than 200 of ``part``, as an object with ``worker`` and ``error``."""
    said, worker = _readable(part.body), _whose(part)
    if not isinstance(said, dict):
        said = {"error": said if isinstance(said, str) and said else f"worker {worker}: status {part.status}"}
    if "error" not in said:
        said["error"] = str(said.get("status") or f"worker {worker}: status {part.status}")
    said["worker"] = worker
    said.setdefault("uuid", part.job.uuid)
    said.setdefault("service", part.job.service)
    said.setdefault("status", "FAILED")
    return _encode(said)


def failure_for_norfab(part: Part) -> bytes:
    """The same as the result of a task that failed: ``{worker: {"failed": true, ...}}``."""
    worker, error = _whose(part), read_object(error_for_norfab(part))["error"]
    return _encode({worker: _wrapped(part, worker, errors=(str(error),))})


def _whose(part: Part) -> str:
    return part.worker or part.name or part.job.owner


def waits_for_input(part: Part, worker: str, question: Any) -> bytes:
    """102: the input request that the client may have missed, in deployed NorFab's form."""
    extras = _readable(bytes(question))
    extras = extras.get("extras") if isinstance(extras, dict) else None
    said = {
        "worker": worker,
        "uuid": part.job.uuid,
        "service": part.job.service,
        "status": "WAITING_CLIENT_INPUT",
    }
    if isinstance(extras, dict) and isinstance(extras.get("input_request"), dict):
        said["input_request"] = extras["input_request"]
    return _encode(said)
