"""Read views of the tables, for management and people: values of one moment, with which nothing can be changed; and
jobs that people look for, by filters and a text, the newest job first, a slice at a time.

A broker keeps tens of thousands of jobs and has others to serve meanwhile: each of ``JobSearch.steps`` looks at
``SLICE`` of them, and whoever searches lets the loop do something else in between. Closed jobs that are in the store
only are read where a worker or a text is looked for, and where they are to be told of. Ages are in seconds.
"""

# compiled: mypyc

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from broker.nfp.jobs import closed_jobs
from broker.nfp.jobs.config import DispatchConfig
from broker.nfp.jobs.model import Client, Job, Part, Service, WorkerEntry
from broker.nfp.jobs.registry import Registry
from broker.nfp.jobs.schedule import Jobs
from broker.nfp.names import Dialect
from broker.nfp.outcome import DONE, END_STATES
from broker.nfp.targets import Target

SLICE: int = 500
"""Jobs looked at in one go: about a millisecond, five when a text is looked for."""
READ_MAX_BYTES: int = 4 * 1024 * 1024
"""What those that are read from the store in one go may have in all; the last one may be larger."""
READ_BYTES: Final = 64 * 1024
"""What reading costs besides, as if it were bytes: 64 jobs in one go, some two milliseconds."""


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
    body: bytes = b""
    """Of the recorded result."""

    def row(self) -> dict[str, Any]:
        """All but the body, JSON-ready."""
        told = self._asdict()
        del told["body"]
        return told


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


def worker_view(worker: WorkerEntry, registry: Registry, config: DispatchConfig, now: float) -> WorkerView:
    """One worker."""
    box = registry.mailboxes.get(worker.name)
    ended = registry.ended.get(worker.name, Counter())
    if worker.peer is not None:
        holdtime = worker.heard + config.hold_s - now
    else:
        holdtime = worker.since + (config.hold_s if worker.state == "expected" else config.grace_s) - now
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
        now - worker.since if worker.peer is not None else 0.0,
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
    until = job.deadline if job.state == "open" else job.closed_at + result_ttl_s
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
        tuple(
            PartView(
                part.name,
                part_worker(part),
                part.number,
                part.stage,
                part.status,
                len(part.body),
                part.ended,
                part.body,
            )
            for part in parts
        ),
        (job.closed_at if job.state != "open" else now) - job.added_at,
        job.body,
    )


def part_worker(part: Part) -> str:
    """Who has a part, had it last or finished it; "" when nobody yet."""
    if part.current is not None:
        return part.current.worker.name
    return part.worker or next(reversed(part.given), "")


# -- looked for -------------------------------------------------------------------------------------


class JobFilter(NamedTuple):
    """Which jobs are meant; what is left out excludes none."""

    service: str = ""
    """"all" excludes none, too."""
    task: str = ""
    states: frozenset[str] = frozenset()
    worker: str = ""
    """Who has a part of it, had it last, or is the one it is for."""
    client: str = ""
    holder: str = ""
    text: str = ""
    """What its id, its arguments or one of its errors contains, whatever the case of ASCII letters."""
    since_s: float = inf
    """Submitted then or later: seconds ago."""
    until_s: float = -inf
    """Submitted earlier than that: seconds ago."""


Tell = Callable[[JobView], Any]


class JobSearch:
    """One search.

    Args:
        jobs: the dispatcher's. which: what is looked for.
        may_see: whether the searcher may see jobs of a holder. limit: how many are returned.
        now: as of the dispatcher. tell: what is returned of each.

    Attributes:
        found: what is told of the first ``limit``, the newest first.
        total: how many there are.
        states, services: how many of each.
    """

    def __init__(
        self,
        jobs: Jobs,
        which: JobFilter,
        may_see: Callable[[str], bool],
        limit: int,
        now: float,
        tell: Tell,
    ) -> None:
        self.found: list[Any] = []
        self.total = 0
        self.states: Counter[str] = Counter()
        self.services: Counter[str] = Counter()
        self._jobs = jobs
        self._uuids = list(jobs.by_uuid)
        self._which = which
        self._may_see = may_see
        self._limit = limit
        self._now = now
        self._tell = tell
        self._needles = _needles(which.text)
        self._from, self._to = now - which.since_s, now - which.until_s

    def steps(self) -> Iterator[None]:
        """Look at all jobs that are there now; whoever takes the steps does something else after each.

        Raises:
            NotStored: the store cannot be read.
        """
        while self._uuids:
            self._look()
            if self._uuids:
                yield

    def _look(self) -> None:
        """Look at the next ones."""
        weight = 0
        for _ in range(min(SLICE, len(self._uuids))):
            job = self._jobs.by_uuid.get(self._uuids.pop())
            if job is None or not self._may_be_meant(job):  # None: it was forgotten meanwhile
                continue
            if job.state == "stored" and self._needs_all():
                weight += READ_BYTES + job.size + job.dropped
                closed_jobs.read(self._jobs, job.uuid)
            if self._is_meant(job):
                self._count(job)
            if weight > READ_MAX_BYTES:
                break
        closed_jobs.put_back(self._jobs)

    def _needs_all(self) -> bool:
        """Whether all of a job is needed, to know whether it is meant or to tell of it."""
        return bool(self._which.worker or self._needles) or len(self.found) < self._limit

    def _count(self, job: Job) -> None:
        self.total += 1
        self.states[job.outcome] += 1
        self.services[job.service] += 1
        if len(self.found) < self._limit:
            self.found.append(self._tell(job_view(job, self._jobs.config.result_ttl_s, self._now)))

    def _may_be_meant(self, job: Job) -> bool:
        which = self._which
        return (
            which.service in ("", "all", job.service)
            and which.task in ("", job.task)
            and (not which.states or job.outcome in which.states)
            and which.client in ("", job.client.name)
            and which.holder in ("", job.holder)
            and self._from <= job.added_at < self._to
            and self._may_see(job.holder)
        )

    def _is_meant(self, job: Job) -> bool:
        """Whether one that may be meant is."""
        worker = self._which.worker
        whose = (part_worker(part) or part.name for part in job.parts.values())
        return (not worker or worker in whose) and (not self._needles or self._says(job))

    def _says(self, job: Job) -> bool:
        places = [job.uuid.encode(), job.body]
        places += (part.body for part in job.parts.values() if part.ended not in ("", DONE))
        return any(needle in place.lower() for place in places for needle in self._needles)


def _needles(text: str) -> list[bytes]:
    """``text`` as JSON may have written it: with and without escapes for what is not ASCII."""
    written = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return [each.encode().lower() for each in sorted(written)] if text else []
