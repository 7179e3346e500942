"""The jobs of a worker in a SQLite file (NFP, "Job Persistence").

Everything put is written in order, in batches, by a thread of the store's; ``durable`` waits for what was put so far.
A job is there from its acceptance until its retention is over: unfinished and unrecorded ones come back from ``open``,
recorded ones can be asked for (GET by uuid) and are known when a broker sends them again.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import msgspec

from broker.nfp.store.peers import PeerStore, Row, schema

SCHEMA: Final = schema("worker store", b"NFPw")
_BODY: Final = "body"
_RESULT: Final = "result"
_EVENTS: Final = "events"
FINISHED: Final = frozenset({"done", "recorded", "cancelled"})


LISTED: Final = 1000
"""Jobs that people are shown unless they ask for another number."""


class StoredRun(NamedTuple):
    """A job as the store has it.

    ``state`` is accepted, started, done, recorded or cancelled; times are wall clock, 0: not yet.
    """

    uuid: str
    client: bytes | None
    service: str
    task: str
    body: bytes
    idempotent: bool
    state: str = "accepted"
    status: int = 0
    result: bytes = b""
    received_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    events: bytes = b""
    """JSON list of those ``job_details`` shows."""
    failed: bool = False
    """Whether the result says that the task has failed."""
    age_s: float = 0.0
    """Since it came; no step of the wall clock changes it."""


class _More(msgspec.Struct, omit_defaults=True):
    """What is kept besides the columns of a row; ``client`` in hexadecimal digits."""

    client: str | None = None
    idempotent: bool = True
    status: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    failed: bool = False


class RunStore(PeerStore[_More]):
    """The jobs of one worker.

    Args:
        path: of the file; None keeps jobs in memory only. settings: as ``PeerStore`` takes them; retention: of what
            has ended, recorded and cancelled jobs first.
    """

    def __init__(self, path: str | os.PathLike[str] | None, **settings: Any) -> None:
        super().__init__(path, SCHEMA, _More, **settings)

    async def load(self) -> list[StoredRun]:
        """Begin; the jobs that are not recorded (accepted, started, done), oldest first.

        Raises:
            ConfigError: see ``PeerStore.open``.
        """
        await self.open()
        rows = [row for row in self.rows.values() if not row.settled]
        return [self._job(row, bodies) for row, bodies in zip(rows, await self.bodies(rows), strict=True)]

    def accepted(self, job: StoredRun) -> bool:
        """A job came. False: its uuid is there already and stays as it is."""
        if job.uuid in self.rows:
            return False
        self.new(job.uuid, job.service, job.task, "accepted", _More(_hex(job.client), job.idempotent))
        self.attach(job.uuid, _BODY, bytes(job.body))
        return True

    def started(self, uuid: str) -> None:
        """Its task begins now. A finished one stays finished."""
        if self.state(uuid) == "accepted":
            self.change(uuid, "started", started_s=self._wall())

    def done(self, job: StoredRun) -> None:
        """Its result; the job need not have been put before. The first result stays."""
        self.accepted(job)
        if self.state(job.uuid) in FINISHED:
            return
        self.attach(job.uuid, _RESULT, bytes(job.result))
        if job.events:
            self.attach(job.uuid, _EVENTS, job.events)
        self.change(job.uuid, "done", ends=True, status=job.status, ended_s=self._wall(), failed=job.failed)

    def recorded(self, uuids: list[str]) -> None:
        """The broker has these results: they are kept for the retention time only."""
        for uuid in uuids:
            if self.state(uuid) == "done":
                self.change(uuid, "recorded", settled=True)

    def cancelled(self, uuid: str) -> None:
        """Its client does not want it any more: it does not come back after a restart."""
        if self.state(uuid) in ("accepted", "started"):
            self.change(uuid, "cancelled", settled=True, ended_s=self._wall())

    def readdressed(self, uuid: str, client: bytes | None) -> None:
        """A job that is here came again, with another attempt in its address."""
        if uuid in self.rows:
            self.change(uuid, self.state(uuid), client=_hex(client))

    async def find(self, uuid: str) -> StoredRun | None:
        """The job ``uuid`` with body and result.

        Raises:
            NotStored: the file cannot be read.
        """
        row = self.rows.get(uuid)
        return self._job(row, (await self.bodies([row]))[0]) if row is not None else None

    def listing(self, last: int = LISTED) -> list[StoredRun]:
        """The newest ``last`` jobs, newest first, without bodies and results."""
        newest = sorted(self.rows.values(), key=lambda row: -row.number)[:last]
        return [self._job(row, {}) for row in newest]

    def _job(self, row: Row[_More], bodies: dict[str, bytes]) -> StoredRun:
        more = row.more
        return StoredRun(
            row.uuid,
            None if more.client is None else bytes.fromhex(more.client),
            row.service,
            row.task,
            bodies.get(_BODY, b""),
            more.idempotent,
            row.state,
            more.status,
            bodies.get(_RESULT, b""),
            row.submitted_s,
            more.started_s,
            more.ended_s,
            bodies.get(_EVENTS, b""),
            more.failed,
            self.age_s(row),
        )


def _hex(client: bytes | None) -> str | None:
    return None if client is None else client.hex()
