"""What may be tuned about jobs, queues and liveness, and what is counted.

The settings section gives the same names to people. Counts are for management and metrics: plain ints that only grow,
and rate, errors and duration of jobs, by service and task: from their POST to the last result. A job fails as its
caller on the Flux side is told it: EIO failed, ETIMEDOUT expired, ECANCELED cancelled, else the errno with which it was
refused. That a task did something proves that its name is not made up. Jobs that a restarted broker takes up again were
counted by the former one: they are open here, and end here.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from broker.name_stats import NameStats, StatsTable, readable
from broker.nfp.jobs.model import Job
from broker.nfp.outcome import CANCELLED, DONE, EXPIRED, FAILED, explain

ERRNOS: Final = {FAILED: errno.EIO, EXPIRED: errno.ETIMEDOUT, CANCELLED: errno.ECANCELED}
READ_MAX_BYTES: Final = 1 << 20
"""A larger result is not read for what its error says."""


@dataclass(frozen=True)
class DispatchConfig:
    """Limits and intervals; every ``_s`` is seconds.

    Attributes:
        keepalive_s: between two KEEPALIVEs to a worker that gets nothing else (NFP, "Keepaliving"); as deployed.
        multiplier: a worker silent for that many intervals is dead; as deployed.
        grace_s: a worker whose connection broke is dead after that, unless it is back: one reconnect takes less.
        credits: jobs a worker of deployed NorFab is given at a time unless its OPEN asks otherwise: so many it runs at
            once, by default. A worker of the text gets one ("at most one request a time").
        credits_max: the most an OPEN may ask for.
        ahead: jobs beyond that for a worker that gives back what it has not begun: it need not wait for its next one.
            A worker of deployed NorFab, which gives nothing back, gets so many for each credit while no other worker of
            its service could run them.
        queue_ttl_s: how long a request waits while its service, or the worker it names, is absent.
        job_timeout_s: deadline of a job whose body names none; as deployed.
        job_ttl_s: the longest deadline a body may name; a request with a longer one is refused.
        result_ttl_s: how long a closed job is remembered.
        results_max_bytes: what closed jobs may cost in the store, or in memory with the store off (``Job.size``); the
            oldest are forgotten first.
        results_max_jobs: how many of them, likewise.
        recent_max_bytes, recent_max_jobs: what of them stays in memory, too, where there is a store: most results are
            asked for at once.
        queue_max: requests that may wait in one queue (a service's, or a named worker's).
        queue_per_client: requests of one holder that may wait.
        parts_per_client: workers that those may be for, together; one request for more is taken while none waits.
        jobs_max: open jobs in all: service names are free to invent, memory is not.
        parts_max: workers that open jobs may be for in all: names of workers are as free.
        open_max_bytes: what open jobs may cost in memory.
        probe_s: a worker that does not push results and was silent about a job for that long is asked (GET).
        attempts_max: a job over which so many workers were lost is a bad job, and is not given to another one; before
            a supervisor gives up its workers (``children.child.ENDS_MAX``).
        relay_s: how long an answer to a relayed request is waited for.
        idempotent: what the settings declare for (service, task), None for nothing; None itself: ask Access.
    """

    keepalive_s: float = 2.5
    multiplier: int = 6
    grace_s: float = 2.0
    credits: int = 5
    credits_max: int = 64
    ahead: int = 0
    queue_ttl_s: float = 60.0
    job_timeout_s: float = 600.0
    job_ttl_s: float = 3600.0
    result_ttl_s: float = 3600.0
    results_max_bytes: int = 256 * 1024 * 1024
    results_max_jobs: int = 50_000
    recent_max_bytes: int = 16 * 1024 * 1024
    recent_max_jobs: int = 2_000
    queue_max: int = 10_000
    queue_per_client: int = 1_000
    parts_per_client: int = 20_000
    jobs_max: int = 100_000
    parts_max: int = 200_000
    open_max_bytes: int = 512 * 1024 * 1024
    probe_s: float = 10.0
    attempts_max: int = 3
    relay_s: float = 10.0
    idempotent: Callable[[str, str], bool | None] | None = None

    @property
    def hold_s(self) -> float:
        """Silence after which a worker is dead."""
        return self.keepalive_s * self.multiplier


@dataclass
class Counts:
    """One attribute a count."""

    submitted: int = 0
    """Jobs accepted."""
    duplicates: int = 0
    """POSTs of a job that is known already, answered from its state."""
    denied: int = 0
    """Requests that a rule, a full queue or a foreign uuid refused."""
    dispatched: int = 0
    """Times a job was given to a worker."""
    returned: int = 0
    """Times a job came back because its worker was lost or did not know it."""
    finished: int = 0
    """Final results recorded, one for each worker's part of a job."""
    done: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    """Jobs that ended like this, see ``outcome.job_state``."""
    late: int = 0
    """Results that came after the recorded one; none of them was used."""
    forged: int = 0
    """RESPONSE, EVENT and STREAM about a job that its sender was never given."""
    refused: int = 0
    """READYs that no rule allows."""
    unexpected: int = 0
    """Valid commands at a wrong time, answered with DISCONNECT."""
    unroutable: int = 0
    """Packets about jobs nobody knows, or for workers that are not there."""
    dropped: int = 0
    """Events and streams that their client's queue did not take."""
    unsent: int = 0
    """POSTs that a worker's queue did not take; the job went back to the queue."""
    died: int = 0
    """Workers that were lost."""
    forgotten: int = 0
    """Closed jobs removed."""

    def ended(self, state: str) -> None:
        """A job ended in ``state``."""
        setattr(self, state, getattr(self, state) + 1)

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return asdict(self)


class TaskStats:
    """The tasks of one broker; ``now`` is the dispatcher's clock, in seconds."""

    def __init__(self) -> None:
        self._table: StatsTable = StatsTable()

    def submitted(self, job: Job, *, counted: bool = True) -> None:
        """A job was accepted; ``counted`` False: it was before."""
        stats = job.stats = self._table.of(name_of(job.service, job.task))
        stats.calls += counted
        stats.open += 1

    def removed(self, job: Job) -> None:
        """A job that never was."""
        stats, job.stats = job.stats, None
        if stats is not None:
            stats.open -= 1
            stats.calls -= 1

    def ended(self, job: Job, now: float) -> None:
        """Every part of a job is final."""
        stats, job.stats = job.stats, None
        if stats is None:
            return
        stats.open -= 1
        stats.took(int((now - job.added_at) * 1e9))
        if job.ended != DONE:
            stats.failed(ERRNOS[job.ended], _error_of(job), job.userid, int(now * 1e9))
        elif not stats.proven:
            self._table.proven(name_of(job.service, job.task))

    def refused(self, service: str, task: str, errnum: int, text: str, userid: int, now: float) -> None:
        """A job was not accepted."""
        stats = self._table.of(name_of(service, task))
        stats.calls += 1
        stats.failed(errnum, text, userid, int(now * 1e9))

    @property
    def by_name(self) -> dict[str, NameStats]:
        """The figures; to be looked at only."""
        return self._table.by_name

    def told(self, now: float, wall: float) -> dict[str, dict[str, Any]]:
        """JSON-ready; see ``NameStats.told``."""
        return self._table.told(int(now * 1e9), wall)


def name_of(service: str, task: str) -> str:
    r"""The name of a task; "other" where it is long, or cannot be printed.

    >>> name_of("nornir", "cli"), name_of("nornir", "x\n")
    ('nornir.cli', 'other')
    """
    return readable(f"{service}.{task}")


def _error_of(job: Job) -> str:
    """What the first part that failed says."""
    for part in job.parts.values():
        if part.ended == job.ended and len(part.body) <= READ_MAX_BYTES:
            return explain(part.status, part.body).error
    return ""
