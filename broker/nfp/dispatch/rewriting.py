"""Results between the dialects: bodies that a client could not read as the worker wrote them.

Bodies pass as they came wherever possible; what is here is for the rest: a worker of the text's dialect with a deployed
client, an error of a worker that names nobody, an owner that changed after the client had been told one.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.nesting import decoder, read_json
from broker.nfp.bodies import UNREADABLE

if TYPE_CHECKING:
    from broker.nfp.dispatch.job import Job, Slot

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


def result_for_norfab(slot: Slot) -> bytes:
    """The recorded 200 of ``slot`` as ``{worker: {...}}``, under the name its client knows the worker by."""
    job, worker, body = slot.job, slot.worker, slot.body
    known = job.owner if not slot.name and job.owner else worker
    if known == worker and names_worker(slot):
        return body
    inner = _inner(worker, body)
    return _encode({known: _wrapped(slot) if inner is None else inner})


def names_worker(slot: Slot) -> bool:
    """True for a recorded result of the form ``{worker: ...}`` in the plainest spelling."""
    return slot.body.startswith(b'{"%s":' % slot.worker.encode())


def _inner(worker: str, body: bytes) -> msgspec.Raw | None:
    try:
        members = _members(body)
    except _UNREADABLE_ERRORS:
        return None
    return members[worker] if members.keys() == {worker} else None


def _wrapped(slot: Slot) -> dict[str, Any]:
    return {
        "result": _readable(slot.body),
        "failed": False,
        "errors": [],
        "messages": [],
        "task": f"{slot.worker}:{slot.job.task}",
        "juuid": slot.job.uuid,
        "resources": [],
        "status": "completed",
        "service": slot.job.service,
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


def error_for_norfab(slot: Slot) -> bytes:
    """The recorded status other than 200 of ``slot``, as an object with ``worker`` and ``error``."""
    said = _readable(slot.body)
    worker = slot.worker or (slot.name if slot.name else slot.job.owner)
    if not isinstance(said, dict):
        said = {"error": said if isinstance(said, str) and said else f"worker {worker}: status {slot.status}"}
    if "error" not in said:
        said["error"] = str(said.get("status") or f"worker {worker}: status {slot.status}")
    said["worker"] = worker
    said.setdefault("uuid", slot.job.uuid)
    said.setdefault("service", slot.job.service)
    said.setdefault("status", "FAILED")
    return _encode(said)


def waits_for_input(slot: Slot, worker: str) -> bytes:
    """102: the input request that the client may have missed, in deployed NorFab's form."""
    extras = _readable(bytes(slot.asked))
    extras = extras.get("extras") if isinstance(extras, dict) else None
    said = {
        "worker": worker,
        "uuid": slot.job.uuid,
        "service": slot.job.service,
        "status": "WAITING_CLIENT_INPUT",
    }
    if isinstance(extras, dict) and isinstance(extras.get("input_request"), dict):
        said["input_request"] = extras["input_request"]
    return _encode(said)
