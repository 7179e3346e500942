"""Read views of the tables, for management and people: values of one moment, with which nothing can be changed.

Ages are in seconds.
"""

# compiled: mypyc

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from broker.nfp.jobs.config import DispatchConfig
from broker.nfp.jobs.machine import EXPECTED, FINAL, OPEN
from broker.nfp.jobs.model import Client, Job, Part, Service, WorkerEntry
from broker.nfp.jobs.registry import WorkerRegistry
from broker.nfp.names import Dialect
from broker.nfp.outcome import END_STATES
from broker.nfp.targets import Target


class WorkerView(NamedTuple):
    """A worker the broker knows at present: there, or waited for."""

    name: str
    service: str
    status: str
    """``alive``; ``lost`` (connection broken, within its grace); ``expected`` (after a restart, not back yet)."""
    dialect: Dialect
    key: str
    """Z85, "" without CURVE."""
    holder: str
    """"" while expected."""
    features: frozenset[str]
    credits: int
    busy: int
    """Credits in use."""
    jobs: tuple[str, ...]
    """Uuids it was given and has not finished."""
    waiting: int
    """Requests that wait for this worker by name."""
    holdtime_s: float
    """Until it counts as dead if nothing comes."""
    alive_s: float
    """Since it registered, 0.0 while expected."""
    keepalives_sent: int
    keepalives_received: int
    ended: Mapping[str, int]
    """How many parts of jobs ended at it since the broker's start: done, failed, expired, cancelled (``outcome``)."""
    resources: tuple[str, ...]
    """As its OPEN named them."""
    tasks: tuple[str, ...]
    """As its OPEN named them."""


class ServiceView(NamedTuple):
    """A service with workers or waiting requests."""

    name: str
    workers: tuple[str, ...]
    alive: int
    idle: int
    """Workers with a free credit."""
    queued: int
    """Requests for any of its workers that wait."""
    running: int


class ClientView(NamedTuple):
    """Somebody who is there, or has submitted a job that is remembered."""

    name: str
    holder: str
    dialect: Dialect
    present: bool
    pushes: bool
    """Results and events are sent unasked."""
    jobs: int
    """Open ones."""
    kept: int
    """Closed ones that are remembered."""
    seen_s: float
    """Since its last request; -1.0 when not since the broker started."""


class PartView(NamedTuple):
    """One worker's part of a job."""

    name: str
    """Name of the worker; "" for any of the service."""
    worker: str
    """Who has it, had it last, or finished it; "" when nobody yet."""
    attempt: int
    state: str
    """waiting, dispatched, accepted or final."""
    status: int
    """Of the recorded result, 0 before."""
    size: int
    """Bytes of the recorded result."""
    ended: str = ""
    """How it ended: done, failed, expired or cancelled (``outcome``); "" before."""


class JobView(NamedTuple):
    """A job, open or remembered."""

    uuid: str
    service: str
    task: str
    target: Target
    holder: str
    userid: int
    client: str
    state: str
    """open, done, failed, expired or cancelled (``outcome``)."""
    age_s: float
    """Since it was submitted."""
    remaining_s: float
    """Until its deadline (open) or until it is forgotten."""
    asked: tuple[str, ...]
    """Workers that wait for input from the client."""
    parts: tuple[PartView, ...]
    took_s: float = 0.0
    """From its submission to its end, or until now."""
    body: bytes = b""
    """As it was submitted; b"" of a closed job when it is longer than ``model.BODY_KEPT_BYTES``."""


class ResultView(NamedTuple):
    """The recorded result of one worker."""

    worker: str
    status: int
    body: bytes


class FoundJob(NamedTuple):
    """A job with what is recorded of it."""

    view: JobView
    results: list[ResultView]


def worker_view(
    worker: WorkerEntry, registry: WorkerRegistry, config: DispatchConfig, now: float
) -> WorkerView:
    """One worker."""
    box = registry.mailboxes.get(worker.name)
    ended = registry.ended.get(worker.name, Counter())
    if worker.connection is not None:
        holdtime = worker.heard + config.hold_s - now
    else:
        holdtime = worker.since + (config.hold_s if worker.state == EXPECTED else config.grace_s) - now
    return WorkerView(
        worker.name,
        worker.service.name,
        worker.state,
        worker.dialect,
        worker.key,
        worker.holder,
        worker.features,
        worker.slots,
        min(worker.busy, worker.slots),
        tuple(worker.attempts),
        len(box) if box is not None else 0,
        max(0.0, holdtime),
        now - worker.since if worker.connection is not None else 0.0,
        worker.tx,
        worker.rx,
        {state: ended[state] for state in END_STATES},
        worker.resources,
        tuple(worker.tasks),
    )


def service_view(service: Service) -> ServiceView:
    """One service."""
    return ServiceView(
        service.name,
        tuple(service.workers),
        service.alive,
        len(service.idle),
        len(service.queue) + len(service.gathering),
        sum(len(worker.attempts) for worker in service.workers.values()),
    )


def client_view(client: Client, now: float) -> ClientView:
    """One client."""
    return ClientView(
        client.name,
        client.holder,
        client.dialect,
        client.peer is not None,
        client.peer is not None and (client.dialect is Dialect.NORFAB or "push" in client.peer.features),
        client.open,
        client.kept,
        now - client.seen if client.seen >= 0 else -1.0,
    )


def job_view(job: Job, result_ttl_s: float, now: float) -> JobView:
    """One job."""
    until = job.deadline if job.state == OPEN else job.closed_at + result_ttl_s
    parts = job.parts.values()
    return JobView(
        job.uuid,
        job.service,
        job.task,
        job.target,
        job.holder,
        job.userid,
        job.client.name,
        job.outcome,
        now - job.added_at,
        max(0.0, until - now),
        tuple(each.worker.name for part in parts if (each := part.current) and each.question is not None),
        tuple(part_view(part) for part in parts),
        (job.closed_at if job.state != OPEN else now) - job.added_at,
        job.body,
    )


def part_view(part: Part) -> PartView:
    """One worker's part of a job."""
    return PartView(
        part.name, part_worker(part), part.number, part.stage, part.status, len(part.body), part.ended
    )


def part_worker(part: Part) -> str:
    """Who has a part, had it last or finished it; "" when nobody yet."""
    if part.current is not None:
        return part.current.worker.name
    return part.worker or next(reversed(part.given), "")


def result_views(job: Job) -> list[ResultView]:
    """What is recorded of a job."""
    return [
        ResultView(part.worker or part.name, part.status, part.body)
        for part in job.parts.values()
        if part.state == FINAL
    ]
