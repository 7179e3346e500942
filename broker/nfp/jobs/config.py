"""What may be tuned about jobs, queues and liveness; the settings section gives the same names to people."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
