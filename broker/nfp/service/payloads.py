"""What a request asks for, and what it is answered: at the end, or with STREAMING in order; no clock."""

from __future__ import annotations

import errno
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from broker.errors import ConfigError, RpcError
from broker.nfp.client.events import Event
from broker.nfp.client.job import Job, Question
from broker.nfp.names import NAME_BYTES_MAX, Code
from broker.nfp.targets import Target, target_of
from broker.wire.payload import read_request

SERVICE: Final = "nfp"
Record = dict[str, Any]

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Payload of ``nfp.SERVICE.TASK``."""

    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    target: str | list[str] = "all"
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    uuid: Name | None = None
    cancel_with_caller: bool = False


class NamedJobRequest(JobRequest, forbid_unknown_fields=True, kw_only=True):
    """Payload of ``nfp.run``."""

    service: Name
    task: Name


class OneJob(msgspec.Struct, forbid_unknown_fields=True):
    """Payload of what is about one job."""

    uuid: Name


class JobAnswer(OneJob, forbid_unknown_fields=True, kw_only=True):
    """Payload of ``nfp.jobs.answer``."""

    input_id: str
    value: Any = None
    worker: str = ""
    cancel: bool = False


class WhichWorkers(msgspec.Struct, forbid_unknown_fields=True):
    """Payload of ``nfp.workers.list``."""

    service: str = ""


class Asked(NamedTuple):
    """The job that a request wants run."""

    service: str
    task: str
    target: Target
    job: JobRequest


def read_job(topic: str, payload: bytes | None) -> Asked:
    """The job that a request with this topic and payload is about.

    Raises:
        RpcError: ENOSYS, the topic names no service and task. EINVAL, the payload is wrong.
    """
    words = topic.split(".")
    if topic == f"{SERVICE}.run":
        named = read_request(NamedJobRequest, payload)
        return Asked(named.service, named.task, _target(named.target), named)
    service, task = ".".join(words[1:-1]), words[-1]
    if not service or not task:
        raise RpcError(errno.ENOSYS, f"Unknown service method '{topic}', expected {SERVICE}.SERVICE.TASK")
    job = read_request(JobRequest, payload)
    return Asked(service, task, _target(job.target), job)


def _target(said: str | list[str]) -> Target:
    try:
        return target_of(said)
    except ConfigError as error:
        raise RpcError(errno.EINVAL, str(error)) from None


# ---------------------------------------------------------------- errors

_ERRNO: Final = {
    Code.TIMEOUT: errno.ETIMEDOUT,
    Code.EXPECT_FAILED: errno.ECANCELED,
    Code.NOT_FOUND: errno.ENOENT,
    Code.UNKNOWN: errno.EINVAL,
}
_BY_TEXT: Final = (
    ("not allowed", errno.EPERM),
    ("unknown", errno.ENOENT),
    (" is full", errno.EAGAIN),
    (" in use", errno.EEXIST),
)
"""A status and its text are all that NFP has: what the text says decides first."""


def errnum_of(status: int, text: str) -> int:
    """The POSIX error number for a final status that is not 200.

    >>> errnum_of(408, "expired"), errnum_of(400, "not allowed: a guest"), errnum_of(500, "queue of a is full (1)")
    (110, 1, 11)
    """
    if status in (Code.UNKNOWN, Code.ERROR):
        for part, number in _BY_TEXT:
            if part in text:
                return number
    return _ERRNO.get(Code(status) if status in list(Code) else Code.ERROR, errno.EIO)


def error_of(job: Job) -> RpcError | None:
    """How a job without any result ended; None when there is one."""
    outcome = job.outcome
    if results_of(job):
        return None
    failure = outcome.error or next(iter(outcome.failures.values()), None)
    if failure is not None:
        return RpcError(errnum_of(failure.status, failure.text), failure.text)
    if job.error is not None:
        return RpcError(errno.EIO, str(job.error))
    return RpcError(errno.ENODATA, f"job {job.uuid} has no result")


def results_of(job: Job) -> dict[str, Any]:
    """Return the results so far by worker; the answer of a service of the broker itself is that of ""."""
    if isinstance(job, Question):
        return {"": job.value} if job.done and job.error is None else {}
    return dict(job.outcome.results)


def summarize(job: Job) -> dict[str, Any]:
    """The one answer to a job without STREAMING."""
    failures = job.outcome.failures.items()
    return {
        "uuid": job.uuid,
        "results": results_of(job),
        "failures": {
            worker: {"status": failure.status, "error": failure.text} for worker, failure in failures
        },
    }


# ---------------------------------------------------------------- with STREAMING


async def tell_records(job: Job) -> AsyncGenerator[Record, None]:
    """What comes of ``job`` until it is over.

    Events and streams that a slow reader has no room for are dropped, the oldest first, and a record ``gap`` stands in
    their place; results are all told.
    """
    told: set[str] = set()
    accepted, lost = False, 0
    events = job.events(once=True)
    async for event in events:
        if events.lost > lost:
            yield {"type": "gap", "lost": events.lost - lost}
            lost = events.lost
            if not accepted:  # that, too, was dropped, and the caller has to know the uuid
                accepted = True
                yield _tell_accepted(job, "dispatched", job.workers)
        if event.kind in ("queued", "dispatched"):
            accepted = True
            workers = event.body.get("workers") if event.kind == "dispatched" else ()
            yield _tell_accepted(job, event.kind, workers or ())
        elif event.kind == "stream":
            yield {"type": "stream", "data": b64encode(event.body).decode()}
        elif event.kind in ("finished", "failed", "cancelled"):
            for record in _tell_settled(job, told):
                yield record
        else:
            yield _tell_event(event)
    for record in _tell_settled(job, told, every=True):
        yield record


def _tell_accepted(job: Job, status: str, workers: Any) -> Record:
    record: Record = {"type": "accepted", "uuid": job.uuid, "status": status, "workers": list(workers)}
    return record | ({"missing": list(job.missing)} if job.missing else {})


def _tell_settled(job: Job, told: set[str], *, every: bool = False) -> Iterator[Record]:
    """Results and errors of workers that were not ``told``; one without a name may have one at the end."""
    for worker, result in results_of(job).items():
        if worker not in told and (worker or every):
            told.add(worker)
            yield {"type": "result", "worker": worker, "result": result}
    for worker, failure in job.outcome.failures.items():
        if worker not in told:
            told.add(worker)
            yield {"type": "failed", "worker": worker, "status": failure.status, "error": failure.text}


def _tell_event(event: Event) -> Record:
    body = None if event.kind == "accepted" else event.body
    return {
        "type": "event",
        "worker": event.worker,
        "kind": event.kind,
        "message": event.message,
        "event": body,
    }
