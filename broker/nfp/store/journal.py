"""The broker's store, and the one that stores nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from broker.nfp.contract import NotStored
from broker.nfp.records import JobRow, Op, Snapshot
from broker.nfp.store import tables
from broker.nfp.store.clock import Clock, StoreClock
from broker.nfp.store.database import Sync, give_back, open_database, open_reader
from broker.nfp.store.thread import CLOSE_S, RETRY_S, StoreThread

log = logging.getLogger("headgate")


class Store(StoreThread[Op]):
    """Journal of a broker in a SQLite file (NFP, "Job Persistence" and "Reliability").

    What was put is durable, all of a group or nothing, once ``on_commit`` is called with the ``position`` it had.
    Ages in the snapshot come from a clock that never goes back (see ``clock``): a step of the wall clock extends no
    deadline. A slot's first result and a job's first end are the ones kept; operations for jobs that are not there
    change nothing, so those of a job come behind its ``JobAdded``.

    Args:
        path: of the file; it and its folder are made when they are missing.
        loop: where callbacks happen.
        sync: "normal": commits survive kill -9 at any point; "full": power loss, too.
        on_commit: called with the number of a commit that is done.
        on_failed: called with the reason and all operations that are not written, at each failure; returns those to
            keep and try again each second. For an operation that can never be written (a body above SQLite's 1 GB)
            it is called with that one alone, and what it returns is ignored. Default: keeps all.
        on_stuck: called when the disk does not answer and ``broken`` says so.
        clock: the machine's; tests bring their own.

    Attributes:
        position, committed, broken, lost: as of ``StoreThread``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loop: asyncio.AbstractEventLoop,
        *,
        sync: Sync = "normal",
        on_commit: Callable[[int], None] | None = None,
        on_failed: Callable[[str, list[Op]], list[Op]] | None = None,
        on_stuck: Callable[[], None] | None = None,
        clock: Clock | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.path = os.fspath(path)
        self._clock = StoreClock(clock)
        self._reader: sqlite3.Connection | None = None
        self._readable = True
        super().__init__(
            partial(open_database, path, tables.SCHEMA, sync),
            partial(tables.write, clock=self._clock),
            loop,
            on_commit=on_commit,
            on_failed=on_failed,
            on_stuck=on_stuck,
            tidy=self._clean_up,
            name="nfp store",
            retry_s=retry_s,
        )

    async def open(self) -> Snapshot:
        """Open the file and return what is in it, but for the bodies and results of closed jobs (see ``closed``).

        Raises:
            ConfigError: another broker uses it, it is damaged, of another version, not ours, or cannot be written.
        """
        found = await self.start(self._read_all)
        self._reader = open_reader(self.path)
        return found

    async def close(self, timeout_s: float = CLOSE_S) -> int:
        """See ``StoreThread.close``; nothing can be read any more."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        return await super().close(timeout_s)

    def closed(self, uuids: Sequence[str]) -> list[JobRow]:
        """Those of these jobs that are there, among those that are durable, read at once.

        Raises:
            NotStored: the disk hangs, the file cannot be read, or what it has is no job.
        """
        if self.hangs or self._reader is None:
            raise NotStored(self.broken or "nfp store: closed, nothing can be read")
        try:
            rows = tables.named(self._reader, self._clock.now(), uuids)
        except Exception as error:  # besides a failing disk: what is no job
            if self._readable:
                log.exception("closed jobs cannot be read")
            self._readable = False
            raise NotStored(f"{self.path}: {error}") from error
        self._readable = True
        return rows

    # -- in the thread -------------------------------------------------------------------------

    def _read_all(self, connection: sqlite3.Connection) -> Snapshot:
        self._clock.load(connection)
        return tables.read(connection, self._clock.now())

    def _clean_up(self, connection: sqlite3.Connection) -> bool:
        tables.forget_workers(connection)
        return give_back(connection)


class NoStore:
    """The store switched off: nothing waits, nothing is kept."""

    position = 0
    committed = -1
    broken = ""
    lost = 0

    def __init__(self, *_args: Any, **_settings: Any) -> None:
        """Takes what ``Store`` takes."""

    async def open(self) -> Snapshot:
        """Nothing."""
        return Snapshot()

    def put(self, op: Op) -> None:
        """Forgets ``op``."""

    def commit(self, *, waited: bool = True) -> None:
        """Has nothing to do."""

    async def durable(self) -> None:
        """Returns at once."""

    def closed(self, uuids: Sequence[str]) -> list[JobRow]:
        """Nothing was kept."""
        return []

    async def close(self, timeout_s: float = 0.0) -> int:
        """Nothing is left unwritten."""
        return 0
