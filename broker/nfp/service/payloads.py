"""What a request asks for, and what it is answered; no input or output, no clock."""

from __future__ import annotations

import errno
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from broker.errors import RpcError
from broker.nfp.client.job import Job, Question
from broker.nfp.jobs.search import JobFilter, JobSearch
from broker.nfp.jobs.views import JobView, ResultView, ServiceView, WorkerView
from broker.nfp.management.jobs import STATES, chosen_states, described, job_filter, told_everywhere
from broker.nfp.names import NAME_BYTES_MAX, Code
from broker.nfp.principal import Principal, Standing
from broker.nfp.targets import Target, parse
from broker.wire.payload import read_request

SERVICE: Final = "nfp"
LIST_MAX: Final = 1000
"""Jobs in one answer: some hundred KiB."""

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


class WhichJobs(msgspec.Struct, forbid_unknown_fields=True):
    """Payload of ``nfp.jobs.list``, and without ``limit`` of ``nfp.jobs.count``; see ``dispatch.search.JobFilter``."""

    state: str | list[str] = ""
    service: str = ""
    task: str = ""
    worker: str = ""
    client: str = ""
    text: str = ""
    since: float | None = None
    until: float | None = None
    mine: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIST_MAX)] = 100

    def filter(self, principal: Principal) -> JobFilter:
        """Return what is looked for.

        Raises:
            RpcError: EINVAL, a state is none.
        """
        states = self.state.split(",") if isinstance(self.state, str) else self.state
        try:
            chosen = chosen_states(state.strip() for state in states if state.strip())
        except ValueError as error:
            raise RpcError(errno.EINVAL, str(error)) from None
        return job_filter(
            chosen,
            self.since,
            self.until,
            service=self.service,
            task=self.task,
            worker=self.worker,
            client=self.client,
            text=self.text,
            holder=principal.holder if self.mine else "",
        )


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
    target = parse(said if isinstance(said, str) else msgspec.json.encode(said).decode())
    if target is None:
        raise RpcError(errno.EINVAL, f"target {str(said)[:64]!r}, expected all, any or names of workers")
    return target


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


# ---------------------------------------------------------------- views


def job_row(view: JobView, results: list[ResultView]) -> dict[str, Any]:
    """Tell of a job what people and dashboards read."""
    return {
        **told_everywhere(view),
        "age": round(view.age_s, 3),
        "remaining": round(view.remaining_s, 3),
        "parts": [part._asdict() for part in view.parts],
        **described(view, results),
    }


def count_states(search: JobSearch) -> dict[str, Any]:
    """How many are in which state."""
    return {**{state: search.states[state] for state in STATES}, "more": False}


def service_row(view: ServiceView) -> dict[str, Any]:
    """A service for people and dashboards."""
    return {**view._asdict(), "workers": list(view.workers)}


def worker_row(view: WorkerView, principal: Principal) -> dict[str, Any]:
    """A worker: which jobs it has is for owners, what it covers not for guests."""
    row: dict[str, Any] = {
        "name": view.name,
        "service": view.service,
        "status": view.status,
        "dialect": view.dialect.value,
        "credits": view.credits,
        "busy": view.busy,
        "waiting": view.waiting,
        "alive": round(view.alive_s, 1),
        "hold": round(view.holdtime_s, 1),
        **view.ended,
        "tasks": list(view.tasks),
    }
    if principal.standing is not Standing.GUEST:
        row["resources"] = list(view.resources)
    if principal.owner:
        row["jobs"] = list(view.jobs)
        row["holder"] = view.holder
    return row


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
