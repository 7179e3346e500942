"""Rate, errors and duration of jobs, by service and task: from their POST to the last result.

A job fails as its caller on the Flux side is told it: EIO failed, ETIMEDOUT expired, ECANCELED cancelled, else the
errno with which it was refused. That a task did something proves that its name is not made up. Jobs that a restarted
broker takes up again were counted by the former one: they are open here, and end here.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from typing import Any, Final

from broker.name_stats import NameStats, StatsTable, readable
from broker.nfp.jobs.model import Job
from broker.nfp.outcome import CANCELLED, DONE, EXPIRED, FAILED, explain

ERRNOS: Final = {FAILED: errno.EIO, EXPIRED: errno.ETIMEDOUT, CANCELLED: errno.ECANCELED}
READ_MAX_BYTES: Final = 1 << 20
"""A larger result is not read for what its error says."""


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
