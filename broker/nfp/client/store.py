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
from broker.nfp.contract import NotStored
from broker.nfp.names import Code
from broker.nfp.opening import read_any
from broker.nfp.outcome import Failure
from broker.nfp.store.peers import PeerStore, Row, schema
from broker.nfp.targets import Kind, Target

log = logging.getLogger("headgate")
SCHEMA: Final = schema("client store", b"NFPc")
_BODY: Final = "body"
_WORKERS: Final = "event"
_RESULT: Final = "result/"
"""Followed by the worker's name."""
_OPEN: Final = "open"
_EXPIRED: Final = "expired"
ENDS: Final = frozenset({"done", "failed", "cancelled", _EXPIRED})


class StoredResult(NamedTuple):
    """What a worker answered; ``status`` 200, or the code of an error."""

    status: int
    body: bytes


class StoredJob(NamedTuple):
    """A job that was submitted, as the store has it."""

    submission: Submission
    left_s: float
    """Until its deadline, 0 when that has passed; no step of the wall clock changes it."""
    state: str
    """open, done, failed, cancelled or expired."""
    results: dict[str, StoredResult]
    """By worker; "" for a result without a worker's name."""
    workers: tuple[str, ...] = ()
    """Who was given the job, as far as it was kept."""
    error: str = ""
    """Why it did not end well."""


class _More(msgspec.Struct, omit_defaults=True):
    """What is kept besides the columns of a row; ``statuses`` by worker."""

    target: tuple[Kind, tuple[str, ...]]
    """Not a Target to decode by: compiled, it keeps no annotations."""
    timeout_s: float
    statuses: dict[str, int] = {}
    error: str = ""


class ClientStore(PeerStore[_More]):
    """Keeps the jobs of one client.

    Args:
        path: of the file. name: of the client, for people. settings: as ``PeerStore`` takes them.
    """

    def __init__(self, path: str | os.PathLike[str], name: str, **settings: Any) -> None:
        self._name = name
        super().__init__(path, SCHEMA, _More, broken=self._log_broken, **settings)

    def _log_broken(self, why: str) -> None:
        log.error("%s: jobs cannot be kept: %s", self._name, why)

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
            used = f"the client name {self._name!r} is in use on this machine, expected one client a name at a time"
            raise ConfigError(f"{used}: {error}", errno.EBUSY) from error
        self._expire()

    async def add(self, submission: Submission) -> None:
        """Keep a job that is about to be sent; returns once it is on disk. One that is known stays as it is.

        Raises:
            NotStored: it cannot be written; the job is not kept.
        """
        uuid = submission.uuid
        if uuid in self.rows:
            return
        more = _More(submission.target, submission.timeout_s)
        self.new(uuid, submission.service, submission.task, _OPEN, more)
        self.attach(uuid, _BODY, submission.body)
        try:
            await self.durable()
        except NotStored:
            self.drop(uuid)
            raise

    def keep_workers(self, uuid: str, workers: tuple[str, ...]) -> None:
        """Keep who works on a job."""
        self.attach(uuid, _WORKERS, msgspec.json.encode(workers))

    def keep_results(self, job: Job) -> None:
        """Keep what the workers in the job's ``outcome.fresh`` have brought, results and errors."""
        for worker in job.outcome.fresh:
            failure = job.outcome.failures.get(worker)
            if failure is not None:
                self.keep_result(job.uuid, worker, failure.status, failure.text.encode())
            elif worker in job.outcome.results:
                body = msgspec.json.encode(job.outcome.results[worker])
                self.keep_result(job.uuid, worker, Code.OK, body)

    def keep_result(self, uuid: str, worker: str, status: int, body: bytes) -> None:
        """Keep the result of ``worker``, "" when it has no name; the first one stays."""
        row = self.rows.get(uuid)
        if row is None or worker in row.more.statuses:
            return
        self.attach(uuid, _RESULT + worker, body)
        self.change(uuid, row.state, statuses={**row.more.statuses, worker: status})

    def end(self, uuid: str, state: str, error: str = "") -> None:
        """Note that a job has ended: done, failed, cancelled or expired. The first end stays; its retention begins."""
        row = self.rows.get(uuid)
        if row is not None and not row.settled and state in ENDS:
            self.change(uuid, state, settled=True, error=error)

    async def find(self, uuid: str) -> StoredJob | None:
        """Return the job ``uuid`` of this or an earlier life, ended or not; None when it is not here.

        Raises:
            NotStored: the file cannot be read.
        """
        row = self.rows.get(uuid)
        return self._job(row, (await self.bodies([row]))[0]) if row is not None else None

    async def unfinished(self) -> list[StoredJob]:
        """Return the jobs that have not ended, the oldest first; those whose deadline has passed meanwhile end now.

        Raises:
            NotStored: the file cannot be read.
        """
        self._expire()
        rows = [row for row in self.rows.values() if not row.settled]
        jobs = [self._job(row, bodies) for row, bodies in zip(rows, await self.bodies(rows), strict=True)]
        return [job for job in jobs if self.state(job.submission.uuid) == _OPEN]

    def _expire(self) -> None:
        """End the jobs whose deadline has passed."""
        for row in list(self.rows.values()):
            if not row.settled and self._left_s(row) <= 0:
                self.end(row.uuid, _EXPIRED, f"nothing final within {row.more.timeout_s:g} s")

    def _left_s(self, row: Row[_More]) -> float:
        return max(0.0, row.more.timeout_s - self.age_s(row))

    def _job(self, row: Row[_More], bodies: dict[str, bytes]) -> StoredJob:
        more, left_s = row.more, self._left_s(row)
        submission = Submission(
            row.uuid,
            row.service,
            row.task,
            Target(*more.target),
            bodies.get(_BODY, b""),
            more.timeout_s,
            self._loop.time() + left_s,
        )
        results = {
            worker: StoredResult(status, bodies.get(_RESULT + worker, b""))
            for worker, status in more.statuses.items()
        }
        workers = read_any(bodies.get(_WORKERS, b""))
        named = tuple(map(str, workers)) if isinstance(workers, list) else ()
        return StoredJob(submission, left_s, row.state, results, named, more.error)


def restore(job: Job, stored: StoredJob) -> None:
    """Give ``job`` what had come for it before."""
    outcome = job.outcome
    if stored.workers:
        outcome.workers = stored.workers
        outcome.acknowledged = True
    for worker, result in stored.results.items():
        if result.status == Code.OK:
            outcome.results[worker] = read_any(result.body)
        else:
            outcome.failures[worker] = Failure(result.status, result.body.decode("utf-8", "replace"))


def error_of(job: Job, stored: StoredJob) -> JobError | None:
    """Return how the restored ``job`` ended that ``stored`` says is over; None: with a result of every worker."""
    results, failures = job.outcome.results, job.outcome.failures
    if stored.state != "cancelled" and not stored.error:
        return None
    if stored.state == "cancelled":
        return JobCancelled(stored.error, job.uuid, results)
    if stored.state == _EXPIRED:
        return JobTimeout(stored.error, job.uuid, results)
    status = next((failure.status for failure in failures.values()), int(Code.ERROR))
    return JobFailed(stored.error, status, job.uuid, results)
