"""The jobs of a worker in a SQLite file (NFP, "Job Persistence").

Everything put is written in order, in batches, by a thread of the store's; ``durable`` waits for what was put so far.
A job is there from its acceptance until its retention is over: unfinished and unrecorded ones come back from ``open``,
recorded ones can be asked for (GET by uuid) and are known when a broker sends them again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from broker.nfp.store.clock import Clock
from broker.nfp.store.database import Sync
from broker.nfp.store.shelf import Card, Kept, Retention, Shelf, schema

SCHEMA: Final = schema("worker store", b"NFPw")
_BODY: Final = "body"
_RESULT: Final = "result"
FINISHED: Final = frozenset({"done", "recorded", "cancelled"})


class KeptJob(NamedTuple):
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
    age_s: float = 0.0
    """Since it came; no step of the wall clock changes it."""


class _More(msgspec.Struct, omit_defaults=True):
    """What is kept besides the columns of a card; ``client`` in hexadecimal digits."""

    client: str | None = None
    idempotent: bool = True
    status: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0


_more = msgspec.json.Decoder(_More)


class SqliteJobStore:
    """All methods belong to the loop's thread, and none waits for the disk but async ones.

    Args:
        path: of the file; None keeps jobs in memory only.
        retention: of what has ended: recorded and cancelled jobs first.
        sync: "normal" survives kill -9, "full" survives power loss.
        broken: told why nothing can be written, at each failure; it is tried again each second.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        retention: Retention | None = None,
        sync: Sync = "normal",
        broken: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._wall = clock.wall if clock is not None else time.time
        self._shelf = Shelf(
            path,
            loop or asyncio.get_running_loop(),
            SCHEMA,
            retention=retention or Retention(),
            sync=sync,
            broken=broken,
            clock=clock,
        )

    @property
    def broken(self) -> str:
        """Why nothing can be written at present (then no job should be accepted), or ""."""
        return self._shelf.broken

    async def open(self) -> list[KeptJob]:
        """Begin; the jobs that are not recorded (accepted, started, done), oldest first.

        Raises:
            ConfigError: another process uses the file, it is damaged, of a newer version, or cannot be written.
        """
        return [self._job(kept) for kept in await self._shelf.open()]

    def accepted(self, job: KeptJob) -> bool:
        """A job came. False: its uuid is there already and stays as it is."""
        if job.uuid in self._shelf.cards:
            return False
        more = _More(_hex(job.client), job.idempotent)
        self._shelf.new(job.uuid, job.service, job.task, "accepted", _text(more))
        self._shelf.attach(job.uuid, _BODY, bytes(job.body))
        return True

    def started(self, uuid: str) -> None:
        """Its task begins now. A finished one stays finished."""
        if self.state(uuid) != "accepted":
            return
        more = self._more(uuid)
        more.started_s = self._wall()
        self._shelf.change(uuid, "started", more=_text(more))

    def done(self, job: KeptJob) -> None:
        """Its result; the job need not have been put before. The first result stays."""
        self.accepted(job)
        if self.state(job.uuid) in FINISHED:
            return
        more = self._more(job.uuid)
        more.status, more.ended_s = job.status, self._wall()
        self._shelf.attach(job.uuid, _RESULT, bytes(job.result))
        self._shelf.change(job.uuid, "done", more=_text(more), ends=True)

    def recorded(self, uuids: list[str]) -> None:
        """The broker has these results: they are kept for the retention time only."""
        for uuid in uuids:
            if self.state(uuid) == "done":
                self._shelf.change(uuid, "recorded", settled=True)

    def cancelled(self, uuid: str) -> None:
        """Its client does not want it any more: it does not come back after a restart."""
        if self.state(uuid) in ("accepted", "started"):
            more = self._more(uuid)
            more.ended_s = self._wall()
            self._shelf.change(uuid, "cancelled", more=_text(more), settled=True)

    def readdressed(self, uuid: str, client: bytes | None) -> None:
        """A job that is here came again, with another attempt in its address."""
        if uuid in self._shelf.cards:
            more = self._more(uuid)
            more.client = _hex(client)
            self._shelf.change(uuid, self.state(uuid), more=_text(more))

    def forget(self, uuid: str) -> None:
        """Drop a job: it was refused after all."""
        self._shelf.drop(uuid)

    def state(self, uuid: str) -> str:
        """accepted, started, done, recorded or cancelled; "" for a job that is not here."""
        card = self._shelf.cards.get(uuid)
        return card.state if card is not None else ""

    async def durable(self) -> None:
        """Return when everything put so far is on disk.

        Raises:
            NotStored: it cannot be written at present (disk full); the text says why. It stays queued.
        """
        await self._shelf.durable()

    async def find(self, uuid: str) -> KeptJob | None:
        """The job ``uuid`` with body and result.

        Raises:
            NotStored: the file cannot be read.
        """
        kept = await self._shelf.read(uuid)
        return self._job(kept) if kept is not None else None

    async def listing(self, last: int) -> list[KeptJob]:
        """The newest ``last`` jobs, newest first, without bodies and results."""
        newest = sorted(self._shelf.cards.values(), key=lambda card: -card.number)[:last]
        return [self._job(Kept(card, {})) for card in newest]

    async def close(self) -> None:
        """Write what is left and end."""
        await self._shelf.close()

    def _more(self, uuid: str) -> _More:
        return _more.decode(self._shelf.cards[uuid].more)

    def _job(self, kept: Kept) -> KeptJob:
        card: Card = kept.card
        more = _more.decode(card.more)
        return KeptJob(
            card.uuid,
            None if more.client is None else bytes.fromhex(more.client),
            card.service,
            card.task,
            kept.bodies.get(_BODY, b""),
            more.idempotent,
            card.state,
            more.status,
            kept.bodies.get(_RESULT, b""),
            card.submitted_s,
            more.started_s,
            more.ended_s,
            self._shelf.age_s(card),
        )


def _hex(client: bytes | None) -> str | None:
    return None if client is None else client.hex()


def _text(more: _More) -> str:
    return msgspec.json.encode(more).decode()
