"""The jobs of a named client in a SQLite file, so that they are found again after its end (NFP, "Job Persistence").

The file is ``peers/NAME.db`` in the client's folder. One process at a time uses it: a second client of the name on this
machine gets a ConfigError that names the first. Jobs that have ended are kept for ``Limits.keep_s``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import Final, NamedTuple

import msgspec

from broker.errors import ConfigError
from broker.nfp.client.errors import JobCancelled, JobError, JobFailed, JobTimeout
from broker.nfp.client.job import Job, Submission
from broker.nfp.names import Code
from broker.nfp.opening import read_any
from broker.nfp.outcome import Failure
from broker.nfp.store.clock import Clock
from broker.nfp.store.shelf import Kept, Retention, Shelf, schema
from broker.nfp.store.writer import NotStored
from broker.nfp.targets import Kind, Target

log = logging.getLogger("headgate")
SCHEMA: Final = schema("client store", b"NFPc")
_BODY: Final = "body"
_WORKERS: Final = "event"
_RESULT: Final = "result/"
"""Followed by the worker's name."""
_EXPIRED: Final = "expired"
ENDS: Final = frozenset({"done", "failed", "cancelled", _EXPIRED})


class StoredResult(NamedTuple):
    """What a worker answered; ``status`` 200, or the code of an error."""

    status: int
    body: bytes


class StoredJob(NamedTuple):
    """A job that was submitted."""

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
    """What is kept besides the columns of a card; ``statuses`` by worker."""

    target: tuple[Kind, tuple[str, ...]]
    """Not a Target to decode by: compiled, it keeps no annotations."""
    timeout_s: float
    statuses: dict[str, int] = {}
    error: str = ""


_more = msgspec.json.Decoder(_More)


class ClientStore:
    """The store of one client; its methods belong to the loop's thread, and only async ones wait for the disk.

    Args:
        path: of the file. name: of the client, for people.
        retention: of what has ended.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        retention: Retention | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._shelf = Shelf(
            path, self._loop, SCHEMA, retention=retention or Retention(), broken=self._broken, clock=clock
        )

    def _broken(self, why: str) -> None:
        log.error("%s: jobs cannot be kept: %s", self._name, why)

    async def open(self) -> None:
        """Begin; jobs whose deadline has passed meanwhile end, for nobody may ever ask for them.

        Raises:
            ConfigError: EBUSY, another client of this name is in use; else the file is damaged, of a newer version, or
            cannot be written.
        """
        try:
            found = await self._shelf.open()
        except ConfigError as error:
            if error.errno != errno.EBUSY:
                raise
            used = f"the client name {self._name!r} is in use on this machine, expected one client a name at a time"
            raise ConfigError(f"{used}: {error}", errno.EBUSY) from error
        for kept in found:
            self._expire(self._job(kept))

    async def close(self) -> None:
        """Write what is left and end."""
        await self._shelf.close()

    async def durable(self) -> None:
        """Return when everything put so far is on disk.

        Raises:
            NotStored: it cannot be written at present (disk full); the text says why. It stays queued.
        """
        await self._shelf.durable()

    async def add(self, submission: Submission) -> None:
        """Keep a job that is about to be sent; returns once it is on disk. One that is known stays as it is.

        Raises:
            NotStored: it cannot be written; the job is not kept.
        """
        uuid = submission.uuid
        if uuid in self._shelf.cards:
            return
        more = _text(_More(submission.target, submission.timeout_s))
        self._shelf.new(uuid, submission.service, submission.task, "open", more)
        self._shelf.attach(uuid, _BODY, submission.body)
        try:
            await self.durable()
        except NotStored:
            self._shelf.drop(uuid)
            raise

    def keep_workers(self, uuid: str, workers: tuple[str, ...]) -> None:
        """It is known who works on a job."""
        self._shelf.attach(uuid, _WORKERS, msgspec.json.encode(workers))

    def keep_results(self, job: Job) -> None:
        """The workers in the job's ``outcome.fresh`` have brought a result or an error."""
        for worker in job.outcome.fresh:
            failure = job.outcome.failures.get(worker)
            if failure is not None:
                self.keep_result(job.uuid, worker, failure.status, failure.text.encode())
            elif worker in job.outcome.results:
                body = msgspec.json.encode(job.outcome.results[worker])
                self.keep_result(job.uuid, worker, Code.OK, body)

    def keep_result(self, uuid: str, worker: str, status: int, body: bytes) -> None:
        """The result of ``worker``, "" when it has no name; the first one stays."""
        card = self._shelf.cards.get(uuid)
        if card is None:
            return
        more = _more.decode(card.more)
        if worker in more.statuses:
            return
        more.statuses = {**more.statuses, worker: status}
        self._shelf.attach(uuid, _RESULT + worker, body)
        self._shelf.change(uuid, card.state, more=_text(more))

    def end(self, uuid: str, state: str, error: str = "") -> None:
        """A job has ended: done, failed, cancelled or expired. The first end stays; its retention begins."""
        card = self._shelf.cards.get(uuid)
        if card is None or card.settled or state not in ENDS:
            return
        more = _more.decode(card.more)
        more.error = error
        self._shelf.change(uuid, state, more=_text(more), settled=True)

    def state(self, uuid: str) -> str:
        """open, done, failed, cancelled or expired; "" for a job that is not here."""
        card = self._shelf.cards.get(uuid)
        return card.state if card is not None else ""

    async def find(self, uuid: str) -> StoredJob | None:
        """The job ``uuid`` of this or an earlier life, ended or not.

        Raises:
            NotStored: the file cannot be read.
        """
        kept = await self._shelf.read(uuid)
        return self._job(kept) if kept is not None else None

    async def unfinished(self) -> list[StoredJob]:
        """The jobs that have not ended, the oldest first; those whose deadline has passed meanwhile end now.

        Raises:
            NotStored: the file cannot be read.
        """
        uuids = [card.uuid for card in self._shelf.cards.values() if not card.settled]
        jobs = [await self.find(uuid) for uuid in uuids]
        return [job for job in jobs if job is not None and not self._expire(job)]

    def _expire(self, stored: StoredJob) -> bool:
        """End a job whose deadline has passed; whether it has."""
        if stored.left_s > 0:
            return False
        self.end(stored.submission.uuid, _EXPIRED, f"nothing final within {stored.submission.timeout_s:g} s")
        return True

    def _job(self, kept: Kept) -> StoredJob:
        card, bodies = kept
        more = _more.decode(card.more)
        left_s = max(0.0, more.timeout_s - self._shelf.age_s(card))
        submission = Submission(
            card.uuid,
            card.service,
            card.task,
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
        return StoredJob(submission, left_s, card.state, results, named, more.error)


def restore(job: Job, stored: StoredJob) -> None:
    """Give ``job`` what had come for it before."""
    outcome = job.outcome
    if stored.workers:
        outcome.workers = stored.workers
        outcome.acknowledged = True
        outcome.status = "dispatched"
    for worker, result in stored.results.items():
        if result.status == Code.OK:
            outcome.results[worker] = read_any(result.body)
        else:
            outcome.failures[worker] = Failure(result.status, result.body.decode("utf-8", "replace"))


def error_of(job: Job, stored: StoredJob) -> JobError | None:
    """How the restored ``job`` ended that ``stored`` says is over; None: well."""
    results, failures = job.outcome.results, job.outcome.failures
    if stored.state == "done":
        return None
    if stored.state == "cancelled":
        return JobCancelled(stored.error, job.uuid, results)
    if stored.state == _EXPIRED:
        return JobTimeout(stored.error, job.uuid, results)
    status = next((failure.status for failure in failures.values()), int(Code.ERROR))
    return JobFailed(stored.error, status, job.uuid, results)


def _text(more: _More) -> str:
    return msgspec.json.encode(more).decode()
