"""The jobs of a named client in a SQLite file, so that they are found again after its end (NFP, "Job Persistence").

The file is ``peers/NAME.db`` in the client's folder. One process at a time uses it: a second client of the name on this
machine gets a ConfigError that names the first. Jobs that have ended are kept for ``Limits.keep_s``.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Any, Final, NamedTuple

import msgspec

from broker.errors import ConfigError
from broker.nfp.client.errors import JobCancelled, JobError, JobFailed, JobTimeout
from broker.nfp.client.job import Job, Submission
from broker.nfp.names import Code
from broker.nfp.opening import read_any
from broker.nfp.outcome import CANCELLED, END_STATES, EXPIRED, FAILED, Failure
from broker.nfp.store import upgrade
from broker.nfp.store.database import Schema
from broker.nfp.store.events import TABLES
from broker.nfp.store.peers import PeerStore
from broker.nfp.targets import Target

log = logging.getLogger("headgate")
_OPEN: Final = "open"
ENDS: Final = frozenset(END_STATES)


class StoredResult(NamedTuple):
    """What a worker answered; ``status`` 200, or the code of an error, whose ``state`` is that of a ``Failure``."""

    status: int
    body: bytes
    state: str = FAILED


class StoredJob(NamedTuple):
    """A job that was submitted, as the store has it."""

    submission: Submission
    state: str
    """open, done, failed, cancelled or expired."""
    results: dict[str, StoredResult]
    """By worker; "" for a result without a worker's name."""
    workers: tuple[str, ...] = ()
    """Who was given the job, as far as it was kept."""
    error: str = ""
    """Why it did not end well."""

    def restore(self, job: Job) -> None:
        """Give ``job`` what had come for it before."""
        outcome = job.outcome
        if self.workers:
            outcome.workers = self.workers
            outcome.acknowledged = True
        for worker, result in self.results.items():
            if result.status == Code.OK:
                outcome.results[worker] = read_any(result.body)
            else:
                text = result.body.decode("utf-8", "replace")
                outcome.failures[worker] = Failure(result.status, text, result.state)

    def error_of(self, job: Job) -> JobError | None:
        """Return how the restored ``job`` ended, which is over; None: with a result of every worker."""
        results, failures = job.outcome.results, job.outcome.failures
        if self.state == CANCELLED:
            return JobCancelled(self.error, job.uuid, results)
        if not self.error:
            return None
        if self.state == EXPIRED:
            return JobTimeout(self.error, job.uuid, results)
        status = next((failure.status for failure in failures.values()), int(Code.ERROR))
        return JobFailed(self.error, status, job.uuid, results)


class ClientStore(PeerStore[StoredJob]):
    """Keeps the jobs of one client.

    Args:
        path: of the file. name: of the client, for people. settings: as ``PeerStore`` takes them.
    """

    schema = Schema("client store", int.from_bytes(b"NFPc"), 3, TABLES, upgrade.CLIENT)
    ended = frozenset()
    settled = ENDS

    def __init__(self, path: str | os.PathLike[str], name: str, **settings: Any) -> None:
        self._client = name
        super().__init__(path, broken=self._log_broken, **settings)

    def _log_broken(self, why: str) -> None:
        log.error("%s: jobs cannot be kept: %s", self._client, why)

    async def open(self) -> None:
        """Begin; jobs whose deadline has passed meanwhile end, for nobody may ever ask for them.

        Raises:
            ConfigError: EBUSY, another client of this name is in use; else see ``PeerStore.open``.
        """
        try:
            await super().open()
        except ConfigError as error:
            if error.errno != errno.EBUSY:
                raise
            used = f"the client name {self._client!r} is in use on this machine, expected one client a name at a time"
            raise ConfigError(f"{used}: {error}", errno.EBUSY) from error
        self._expire()

    async def add(self, submission: Submission) -> bool:
        """Keep a job that is about to be sent; returns once it is on disk. False: it is known, and stays as it is.

        Whoever waits no longer (a cancellation) has not submitted the job: it is not kept either.

        Raises:
            NotStored: it cannot be written; the job is not kept.
        """
        uuid, service, task, target, body, timeout_s, _deadline = submission
        if uuid in self.jobs:
            return False
        values = {"service": service, "task": task, "target": target, "timeout_s": timeout_s}
        self.put_job(uuid, values, body)
        try:
            await self.durable()
        except BaseException:
            self.drop(uuid)
            raise
        return True

    def keep_workers(self, uuid: str, workers: tuple[str, ...]) -> None:
        """Keep who works on a job."""
        known = self.jobs.get(uuid)
        if known is not None and known.view.workers != workers:
            self.put_event(uuid, "workers", latest=True, workers=workers)

    def keep_results(self, job: Job) -> None:
        """Keep what the workers in the job's ``outcome.fresh`` have brought, results and errors."""
        for worker in job.outcome.fresh:
            failure = job.outcome.failures.get(worker)
            if failure is not None:
                self.keep_result(job.uuid, worker, failure.status, failure.text.encode(), failure.state)
            elif worker in job.outcome.results:
                body = msgspec.json.encode(job.outcome.results[worker])
                self.keep_result(job.uuid, worker, Code.OK, body)

    def keep_result(self, uuid: str, worker: str, status: int, body: bytes, state: str = FAILED) -> None:
        """Keep the result of ``worker``, "" when it has no name; the first one stays."""
        known = self.jobs.get(uuid)
        if known is not None and worker not in known.view.results:
            self.put_event(uuid, "result", body, worker=worker, status=status, state=state)

    def end(self, uuid: str, state: str, error: str = "") -> None:
        """Note that a job has ended: done, failed, cancelled or expired. The first end stays; its retention begins."""
        if self.state(uuid) == _OPEN and state in ENDS:
            self.put_event(uuid, "ended", state=state, error=error)

    async def find(self, uuid: str) -> StoredJob | None:
        """Return the job ``uuid`` of this or an earlier life, ended or not; None when it is not here.

        Raises:
            NotStored: the file cannot be read.
        """
        if uuid not in self.jobs:
            return None
        return next((self._due(job) for job in await self.whole([uuid])), None)

    async def unfinished(self) -> list[StoredJob]:
        """Return the jobs that have not ended, the oldest first; those whose deadline has passed meanwhile end now.

        Raises:
            NotStored: the file cannot be read.
        """
        self._expire()
        jobs = await self.whole([uuid for uuid in self.jobs if self.state(uuid) == _OPEN])
        return [self._due(job) for job in jobs if self.state(job.submission.uuid) == _OPEN]

    def _expire(self) -> None:
        """End the jobs whose deadline has passed."""
        for uuid, known in list(self.jobs.items()):
            if known.view.state == _OPEN and not self._left_s(known.view.submission):
                self.end(uuid, EXPIRED, f"nothing final within {known.view.submission.timeout_s:g} s")

    def _left_s(self, submission: Submission) -> float:
        return max(0.0, submission.timeout_s - self.age_s(submission.uuid))

    def _due(self, job: StoredJob) -> StoredJob:
        """``job`` with its deadline, which no step of the wall clock changes."""
        deadline = self._loop.time() + self._left_s(job.submission)
        return job._replace(submission=job.submission._replace(deadline=deadline))

    def begin(self, uuid: str, submitted_s: float, values: dict[str, Any], body: bytes) -> StoredJob:
        """See ``PeerStore``."""
        kind, names = values["target"]
        about = (values["service"], values["task"], Target(kind, tuple(names)), body, values["timeout_s"])
        return StoredJob(Submission(uuid, *about, 0.0), _OPEN, {})

    def follow(self, view: StoredJob, kind: str, values: dict[str, Any], body: bytes) -> StoredJob:
        """See ``PeerStore``."""
        if kind == "result":
            state = values.get("state", FAILED)  # of former versions none
            view.results[values["worker"]] = StoredResult(values["status"], body, state)
            return view
        if kind == "workers":
            return view._replace(workers=tuple(values["workers"]))
        return super().follow(view, kind, values, body)
