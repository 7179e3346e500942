"""Jobs that people look for: filters and a text, the newest job first, a slice at a time.

A broker keeps tens of thousands of jobs and has others to serve meanwhile: each of ``JobSearch.steps`` looks at
``SLICE`` of them, and whoever searches lets the loop do something else in between. Closed jobs that are in the store
only are read where a worker or a text is looked for, and where they are to be told of.
"""

# compiled: mypyc

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from broker.nfp.jobs.closed_jobs import ClosedJobs
from broker.nfp.jobs.machine import STORED
from broker.nfp.jobs.model import Job, Part
from broker.nfp.jobs.schedule import Jobs
from broker.nfp.jobs.views import JobView, ResultView, job_view, part_worker, result_views
from broker.nfp.outcome import DONE

Tell = Callable[[JobView, list[ResultView]], Any]

SLICE: int = 500
"""Jobs looked at in one go: about a millisecond, five when a text is looked for."""
READ_MAX_BYTES: int = 4 * 1024 * 1024
"""What those that are read from the store in one go may have in all; the last one may be larger."""
READ_BYTES: Final = 64 * 1024
"""What reading costs besides, as if it were bytes: 64 jobs in one go, some two milliseconds."""


class JobFilter(NamedTuple):
    """Which jobs are meant; what is empty, or None, excludes none."""

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
    since_s: float | None = None
    """Submitted then or later: seconds ago."""
    until_s: float | None = None
    """Submitted earlier than that: seconds ago."""


class JobSearch:
    """One search.

    Args:
        jobs: the dispatcher's. closed: reads from the store. which: what is looked for.
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
        closed: ClosedJobs,
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
        self._closed = closed
        self._uuids = list(jobs.by_uuid)
        self._which = which
        self._may_see = may_see
        self._limit = limit
        self._now = now
        self._tell = tell
        self._needles = _needles(which.text)
        self._from = now - which.since_s if which.since_s is not None else None
        self._to = now - which.until_s if which.until_s is not None else None

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
            if job.state == STORED and self._needs_all():
                weight += READ_BYTES + job.size + job.dropped
                self._closed.read(job.uuid)
            if self._is_meant(job):
                self._count(job)
            if weight > READ_MAX_BYTES:
                break
        self._closed.put_back()

    def _needs_all(self) -> bool:
        """Whether all of a job is needed, to know whether it is meant or to tell of it."""
        return bool(self._which.worker or self._needles) or len(self.found) < self._limit

    def _count(self, job: Job) -> None:
        self.total += 1
        self.states[job.outcome] += 1
        self.services[job.service] += 1
        if len(self.found) < self._limit:
            view = job_view(job, self._jobs.config.result_ttl_s, self._now)
            self.found.append(self._tell(view, result_views(job)))

    def _may_be_meant(self, job: Job) -> bool:
        which = self._which
        return (
            which.service in ("", "all", job.service)
            and which.task in ("", job.task)
            and (not which.states or job.outcome in which.states)
            and which.client in ("", job.client.name)
            and which.holder in ("", job.holder)
            and (self._from is None or job.added_at >= self._from)
            and (self._to is None or job.added_at < self._to)
            and self._may_see(job.holder)
        )

    def _is_meant(self, job: Job) -> bool:
        """Whether one that may be meant is."""
        worker = self._which.worker
        return (not worker or worker in map(_whose, job.parts.values())) and (
            not self._needles or self._says(job)
        )

    def _says(self, job: Job) -> bool:
        places = [job.uuid.encode(), job.body]
        places += (part.body for part in job.parts.values() if part.ended not in ("", DONE))
        return any(needle in place.lower() for place in places for needle in self._needles)


def _whose(part: Part) -> str:
    return part_worker(part) or part.name


def _needles(text: str) -> list[bytes]:
    """``text`` as JSON may have written it: with and without escapes for what is not ASCII."""
    written = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return [each.encode().lower() for each in sorted(written)] if text else []
