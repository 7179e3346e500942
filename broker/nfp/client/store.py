"""The jobs of a client in a SQLite file, so that what it waits for survives its end (NFP, "Job Persistence")."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from broker.nfp.store.clock import Clock
from broker.nfp.store.database import Sync
from broker.nfp.store.shelf import Kept, Retention, Shelf, schema
from broker.nfp.targets import Kind, Target

SCHEMA: Final = schema("client store", b"NFPc")
_BODY: Final = "body"
_EVENT: Final = "event"
_RESULT: Final = "result/"
"""Followed by the worker's name."""
ENDS: Final = frozenset({"done", "failed", "cancelled", "expired"})


class Result(NamedTuple):
    """What a worker answered; ``status`` 200, or the code of an error."""

    status: int
    body: bytes


class StoredJob(NamedTuple):
    """A job that was submitted."""

    uuid: str
    service: str
    task: str
    target: Target
    body: bytes
    """Of the POST."""
    timeout_s: float
    """As submitted."""
    left_s: float
    """Until its deadline, 0 when that has passed; no step of the wall clock changes it."""
    state: str
    """open, done, failed, cancelled or expired."""
    submitted_s: float
    """Wall clock."""
    results: dict[str, Result]
    """By worker; "" for a result without a worker's name."""
    event: bytes = b""
    """The last one kept."""
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
    """All methods belong to the loop's thread, and none waits for the disk but async ones.

    Args:
        path: of the file; None keeps jobs in memory only.
        retention: of what has ended. sync: "normal" survives kill -9, "full" survives power loss.
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
        """Why nothing can be written at present, or ""."""
        return self._shelf.broken

    async def open(self) -> list[StoredJob]:
        """Begin; the jobs that had not ended, the oldest first.

        Raises:
            ConfigError: another process uses the file, it is damaged, of a newer version, or cannot be written.
        """
        return [self._job(kept) for kept in await self._shelf.open()]

    async def unfinished(self) -> list[StoredJob]:
        """The jobs that have not ended at present, the oldest first.

        Raises:
            NotStored: the file cannot be read.
        """
        uuids = [card.uuid for card in self._shelf.cards.values() if not card.settled]
        jobs = [await self.find(uuid) for uuid in uuids]
        return [job for job in jobs if job is not None]

    def submitted(
        self, uuid: str, service: str, task: str, target: Target, body: bytes, timeout_s: float
    ) -> bool:
        """A job is about to be sent. False: its uuid is there already and stays as it is."""
        if uuid in self._shelf.cards:
            return False
        self._shelf.new(uuid, service, task, "open", _text(_More(target, timeout_s)))
        self._shelf.attach(uuid, _BODY, body)
        return True

    def result(self, uuid: str, worker: str, status: int, body: bytes) -> None:
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

    def event(self, uuid: str, body: bytes) -> None:
        """The latest event: it takes the place of the one before."""
        self._shelf.attach(uuid, _EVENT, body)

    def closed(self, uuid: str, state: str, error: str = "") -> None:
        """It has ended: done, failed, cancelled or expired. The first end stays; its retention begins."""
        assert state in ENDS, state
        card = self._shelf.cards.get(uuid)
        if card is None or card.settled:
            return
        more = _more.decode(card.more)
        more.error = error
        self._shelf.change(uuid, state, more=_text(more), settled=True)

    def forget(self, uuid: str) -> None:
        """Drop a job."""
        self._shelf.drop(uuid)

    def state(self, uuid: str) -> str:
        """open, done, failed, cancelled or expired; "" for a job that is not here."""
        card = self._shelf.cards.get(uuid)
        return card.state if card is not None else ""

    async def find(self, uuid: str) -> StoredJob | None:
        """The job ``uuid``, ended or not.

        Raises:
            NotStored: the file cannot be read.
        """
        kept = await self._shelf.read(uuid)
        return self._job(kept) if kept is not None else None

    async def durable(self) -> None:
        """Return when everything put so far is on disk.

        Raises:
            NotStored: it cannot be written at present (disk full); the text says why. It stays queued.
        """
        await self._shelf.durable()

    async def close(self) -> None:
        """Write what is left and end."""
        await self._shelf.close()

    def _job(self, kept: Kept) -> StoredJob:
        card = kept.card
        more = _more.decode(card.more)
        results = {
            worker: Result(status, kept.bodies.get(_RESULT + worker, b""))
            for worker, status in more.statuses.items()
        }
        return StoredJob(
            card.uuid,
            card.service,
            card.task,
            Target(*more.target),
            kept.bodies.get(_BODY, b""),
            more.timeout_s,
            max(0.0, more.timeout_s - self._shelf.age_s(card)),
            card.state,
            card.submitted_s,
            results,
            kept.bodies.get(_EVENT, b""),
            more.error,
        )


def _text(more: _More) -> str:
    return msgspec.json.encode(more).decode()
