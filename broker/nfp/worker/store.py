"""The jobs of a worker in a SQLite file (NFP, "Job Persistence").

Everything put is written in order, in batches, by a thread of the store's; ``durable`` waits for what was put so far.
A job is there from its acceptance until its retention is over: unfinished and unrecorded ones come back from ``load``,
recorded ones can be asked for (GET by uuid) and are known when a broker sends them again.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, NamedTuple

from broker.nfp.store import upgrade
from broker.nfp.store.database import Schema
from broker.nfp.store.events import TABLES
from broker.nfp.store.peers import PeerStore

FINISHED: Final = frozenset({"done", "recorded", "cancelled"})
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
"""What deployed NorFab's ``job_list`` shows of those that have ended; of the others:"""
_SHOWN: Final = {"accepted": "PENDING", "started": "STARTED", "asking": "WAITING_CLIENT_INPUT"}
LISTED: Final = 1000
"""Jobs that people are shown unless they ask for another number."""


class StoredRun(NamedTuple):
    """A job as the store has it.

    ``state`` is accepted, started, done, recorded or cancelled, of one that goes on also asking; times are wall clock,
    0: not yet.
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

    @property
    def shown(self) -> str:
        """Its state in deployed NorFab's words."""
        if self.failed:
            return FAILED
        return COMPLETED if self.state in ("done", "recorded") else _SHOWN.get(self.state, self.state)


class RunStore(PeerStore[StoredRun]):
    """The jobs of one worker; ``path`` None keeps them in memory only. See ``PeerStore``."""

    schema = Schema("worker store", int.from_bytes(b"NFPw"), 3, TABLES, upgrade.WORKER)
    ended = frozenset({"done"})
    settled = frozenset({"recorded", "cancelled"})

    async def load(self) -> list[StoredRun]:
        """Begin; the jobs that are not recorded (accepted, started, done), oldest first.

        Raises:
            ConfigError: see ``PeerStore.open``.
        """
        await self.open()
        uuids = [uuid for uuid in self.jobs if self.state(uuid) not in self.settled]
        return [self._aged(run) for run in await self.whole(uuids)]

    def accepted(self, job: StoredRun) -> bool:
        """A job came. False: its uuid is there already and stays as it is."""
        if job.uuid in self.jobs:
            return False
        values = {name: getattr(job, name) for name in ("client", "service", "task", "idempotent")}
        self.put_job(job.uuid, values, bytes(job.body))
        return True

    def started(self, uuid: str) -> None:
        """Its task begins now. A finished one stays finished."""
        if self.state(uuid) == "accepted":
            self.put_event(uuid, "started", state="started", started_s=self._wall())

    def done(self, job: StoredRun) -> None:
        """Its result; the job need not have been put before. The first result stays."""
        self.accepted(job)
        if self.state(job.uuid) in FINISHED:
            return
        if job.events:
            self.put_event(job.uuid, "events", job.events)
        end: dict[str, Any] = {
            "state": "done",
            "status": job.status,
            "failed": job.failed,
            "ended_s": self._wall(),
        }
        self.put_event(job.uuid, "result", bytes(job.result), **end)

    def recorded(self, uuids: list[str]) -> None:
        """The broker has these results: they are kept for the retention time only."""
        for uuid in uuids:
            if self.state(uuid) == "done":
                self.put_event(uuid, "recorded", state="recorded")

    def cancelled(self, uuid: str) -> None:
        """Its client does not want it any more: it does not come back after a restart."""
        if self.state(uuid) in ("accepted", "started"):
            self.put_event(uuid, "cancelled", state="cancelled", ended_s=self._wall())

    def readdressed(self, uuid: str, client: bytes | None) -> None:
        """A job that is here came again, with another attempt in its address."""
        self.put_event(uuid, "address", latest=True, client=client)

    async def find(self, uuid: str) -> StoredRun | None:
        """The job ``uuid`` with body and result.

        Raises:
            NotStored: the file cannot be read.
        """
        if uuid not in self.jobs:
            return None
        return next((self._aged(run) for run in await self.whole([uuid])), None)

    def listing(self, last: int = LISTED) -> list[StoredRun]:
        """The newest ``last`` jobs, newest first, without bodies and results."""
        return [self._aged(known.view) for known in islice(reversed(self.jobs.values()), last)]

    def _aged(self, run: StoredRun) -> StoredRun:
        return run._replace(age_s=self.age_s(run.uuid))

    def begin(self, uuid: str, submitted_s: float, values: dict[str, Any], body: bytes) -> StoredRun:
        """See ``PeerStore``."""
        return StoredRun(uuid, body=body, received_s=submitted_s, **values)
