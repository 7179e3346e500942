"""Jobs of a client on disk: ``store`` in terms of jobs, so that futures survive a restart (NFP, "Job Persistence")."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from broker.nfp.client.errors import JobCancelled, JobError, JobFailed, JobTimeout
from broker.nfp.client.job import Job, Ticket
from broker.nfp.client.store import ENDS, ClientStore, StoredJob
from broker.nfp.names import Code
from broker.nfp.opening import read_any
from broker.nfp.outcome import Failure
from broker.nfp.peer.keys import peer_file
from broker.nfp.store.writer import NotStored

log = logging.getLogger("headgate")
_EXPIRED: Final = "expired"


class Keeping:
    """The jobs of the client ``name`` in the folder ``state_dir``.

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(self, state_dir: Path, name: str) -> None:
        self._path = peer_file(state_dir, name, ".db")
        self._name = name
        self._store: ClientStore | None = None

    async def open(self) -> None:
        """Begin.

        Raises:
            ConfigError: the file cannot be used, or another process uses it.
        """
        self._store = ClientStore(self._path, broken=self._broken)
        for stored in await self._store.open():
            if stored.left_s <= 0:
                self._expired(stored)  # nobody may ever ask for what a client that is gone has left

    def _broken(self, why: str) -> None:
        log.error("%s: jobs cannot be kept: %s", self._name, why)

    async def close(self) -> None:
        """Write what is left."""
        if self._store is not None:
            await self._store.close()

    @property
    def store(self) -> ClientStore:
        """The store, once open."""
        assert self._store is not None, "Keeping.open comes first"
        return self._store

    async def added(self, ticket: Ticket) -> None:
        """Returns once the job is on disk.

        Raises:
            NotStored: it cannot be written; the job is not kept.
        """
        uuid = ticket.uuid
        self.store.submitted(uuid, ticket.service, ticket.task, ticket.target, ticket.body, ticket.timeout_s)
        try:
            await self.store.durable()
        except NotStored:
            self.store.forget(uuid)
            raise

    def named(self, job: Job) -> None:
        """It is known who works on a job: kept in place of its latest event, of which there is no other use here."""
        self.store.event(job.uuid, msgspec.json.encode(job.workers))

    def result(self, job: Job) -> None:
        """Its workers in ``outcome.fresh`` have brought something."""
        outcome = job.outcome
        for worker in outcome.fresh:
            failure = outcome.failures.get(worker)
            if failure is not None:
                self.store.result(job.uuid, worker, failure.status, failure.text.encode())
            elif worker in outcome.results:
                body = msgspec.json.encode(outcome.results[worker])
                self.store.result(job.uuid, worker, Code.OK, body)

    def closed(self, job: Job) -> None:
        """The job is over."""
        if job.status in ENDS:
            self.store.closed(job.uuid, job.status, str(job.error or ""))

    async def find(self, uuid: str) -> StoredJob | None:
        """A job of this or an earlier life, ended or not."""
        return await self.store.find(uuid)

    async def unfinished(self) -> list[StoredJob]:
        """Jobs that have not ended; those whose deadline has passed meanwhile end now."""
        found = []
        for stored in await self.store.unfinished():
            if stored.left_s > 0:
                found.append(stored)
            else:
                self._expired(stored)
        return found

    def _expired(self, stored: StoredJob) -> None:
        self.store.closed(stored.uuid, _EXPIRED, f"nothing final within {stored.timeout_s:g} s")


def ticket_of(stored: StoredJob) -> Ticket:
    """What was asked for, with the time that is left."""
    deadline = asyncio.get_running_loop().time() + stored.left_s
    return Ticket(
        stored.uuid,
        stored.service,
        stored.task,
        stored.target,
        stored.body,
        stored.timeout_s,
        deadline,
    )


def take_up(job: Job, earlier: StoredJob) -> None:
    """Give ``job`` what had come for it before."""
    outcome = job.outcome
    workers = read_any(earlier.event)
    if isinstance(workers, list) and workers:
        outcome.workers = tuple(map(str, workers))
        outcome.acknowledged = True
        outcome.status = "dispatched"
    for worker, result in earlier.results.items():
        if result.status == Code.OK:
            outcome.results[worker] = read_any(result.body)
        else:
            outcome.failures[worker] = Failure(result.status, result.body.decode("utf-8", "replace"))


def end_of(stored: StoredJob) -> JobError | None:
    """How a job that has ended did; None: well."""
    if stored.state == "done":
        return None
    results = {worker: read_any(one.body) for worker, one in stored.results.items() if one.status == Code.OK}
    if stored.state == "cancelled":
        return JobCancelled(stored.error, stored.uuid, results)
    if stored.state == _EXPIRED:
        return JobTimeout(stored.error, stored.uuid, results)
    status = next((one.status for one in stored.results.values() if one.status != Code.OK), int(Code.ERROR))
    return JobFailed(stored.error, status, stored.uuid, results)
