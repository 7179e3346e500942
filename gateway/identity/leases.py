"""How many connections each user has, over all worker processes.

Each worker owns its rows and refreshes a heartbeat. The supervisor removes the rows of a worker that it has reaped
(`forget`); should it be gone itself, rows of a worker that was not seen for ``LEASE_S`` count no more. Within a worker
memory is the truth, the file its copy: a worker that stood still longer than its lease writes its counts anew with the
next heartbeat. While the file cannot be written, each worker goes on with its own counts, without a wait for the file
at every connection, until a heartbeat finds it again.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
from collections.abc import Callable
from typing import Final

from broker.holdings import Holdings
from gateway.identity.store import Store
from gateway.principal import Denied

log = logging.getLogger("headgate")

HEARTBEAT_S: Final = 5.0
"""How often a worker says that it lives."""
LEASE_S: Final = 4 * HEARTBEAT_S
"""A worker that was silent for so long has ended: three heartbeats may be late."""
OVERDUE_S: Final = 1.5 * HEARTBEAT_S
"""A worker that was silent for so long may have ended."""

_COUNTED: Final = "FROM counts JOIN workers ON workers.id = counts.worker WHERE user = ? AND seen >= ?"
"""The counts of a user in workers that were seen since."""


class Connections:
    """Counts of one worker, and the sum over all of them.

    Args:
        store: the file workers share, or None for a single process: then nothing is written.
        worker: name of this worker's rows, for `forget`; "" takes a random one.

    Attributes:
        away: the file could not be written: limits are this worker's own until the next heartbeat that can.
        elsewhere: connections of a user at other gateways (``gateway.fleet``). changed: told whose count changed.
    """

    def __init__(self, store: Store | None, worker: str = "") -> None:
        self._store = store
        self.worker: str = worker or secrets.token_hex(8)
        self._own: Holdings[str] = Holdings()
        self.away = False
        self.elsewhere: Callable[[str], int] = lambda _user: 0
        self.changed: Callable[[str], None] = lambda _user: None
        if store is not None:
            self.heartbeat()

    def acquire(self, user: str, limit: int) -> bool:
        """Count one more connection of ``user`` unless it has ``limit`` already; tells whether it was counted.

        Atomic over the workers, unless the file is away: of several that ask for the last place, one gets it.
        """
        limit -= self.elsewhere(user)
        granted = self._own.of(user) < limit
        if granted and self._store is not None and not self.away:
            try:
                granted = self._share(self._store, user, limit)
            except Denied as error:
                self._lost(error)
        if granted:
            self._own.add(user)
            self.changed(user)
        return granted

    def _share(self, store: Store, user: str, limit: int) -> bool:
        with store.writing() as base:
            alive = store.wall() - LEASE_S
            query = f"SELECT COALESCE(SUM(connections), 0) {_COUNTED} AND worker != ?"
            (others,) = base.execute(query, (user, alive, self.worker)).fetchone()
            if others + self._own.of(user) >= limit:
                return False
            _put(base, user, self.worker, self._own.of(user) + 1)
        return True

    def _lost(self, error: Denied) -> None:
        self.away = True
        log.error("%s; connections of a user are counted in this process alone meanwhile", error)

    def release(self, user: str) -> None:
        """Take back one `acquire` that was granted. Raises nothing: what cannot be written now is put right by the
        next heartbeat.
        """
        if self._own.of(user):
            self._own.add(user, -1)
        self.changed(user)
        if self._store is not None and not self.away:
            try:
                with self._store.writing() as base:
                    _put(base, user, self.worker, self._own.of(user))
            except Denied as error:
                self._lost(error)

    def own(self, user: str) -> int:
        """Connections of ``user`` in this worker."""
        return self._own.of(user)

    def all_own(self) -> dict[str, int]:
        """Those of all users in this worker."""
        return dict(self._own.counts)

    def total(self, user: str) -> int:
        """Connections of ``user`` in all workers that live."""
        if self._store is None:
            return self.own(user)
        query = f"SELECT COALESCE(SUM(connections), 0) {_COUNTED}"
        return int(self._store.reading(query, user, self._store.wall() - LEASE_S)[0][0])

    def uncertain(self, user: str) -> bool:
        """Whether the limit of ``user`` may not be reached after all: some of the connections belong to a worker that
        may have ended, or to another gateway, which cannot say when it is killed.
        """
        if self.elsewhere(user):
            return True
        if self._store is None or self.away:
            return False
        now = self._store.wall()
        query = f"SELECT 1 {_COUNTED} AND seen < ? AND worker != ?"
        return bool(self._store.reading(query, user, now - LEASE_S, now - OVERDUE_S, self.worker))

    def heartbeat(self) -> None:
        """Say that this worker lives, and remove what ended workers left. Call it every ``HEARTBEAT_S``.

        Raises:
            Denied: the store cannot be written; the next call may succeed.
        """
        if self._store is None:
            return
        try:
            self._say(self._store)
        except Denied:
            self.away = True
            raise
        if self.away:
            log.warning(
                "%s can be written again: connections of a user are counted together", self._store.path
            )
        self.away = False

    def _say(self, store: Store) -> None:
        now = store.wall()
        with store.writing() as base:
            base.execute("DELETE FROM workers WHERE seen < ?", (now - LEASE_S,))
            known = base.execute("SELECT 1 FROM workers WHERE id = ?", (self.worker,)).fetchone()
            base.execute(
                "INSERT INTO workers VALUES (?, ?) ON CONFLICT DO UPDATE SET seen = excluded.seen",
                (self.worker, now),
            )
            base.execute("DELETE FROM counts WHERE worker NOT IN (SELECT id FROM workers)")
            if known is None or self.away:
                base.execute("DELETE FROM counts WHERE worker = ?", (self.worker,))
                for user, connections in self._own.counts.items():
                    _put(base, user, self.worker, connections)

    def close(self) -> None:
        """Give back everything this worker has; raises nothing, for the lease ends it otherwise."""
        self._own.clear()
        if self._store is None:
            return
        with contextlib.suppress(Denied):
            forget(self._store, self.worker)


def forget(store: Store, worker: str | None) -> None:
    """``worker`` has ended, and its connections with it.

    None is every worker: whichever lives counts anew with its next heartbeat.

    Raises:
        Denied: the store cannot be written.
    """
    with store.writing() as base:
        base.execute("DELETE FROM workers WHERE id = coalesce(?, id)", (worker,))
        base.execute("DELETE FROM counts WHERE worker NOT IN (SELECT id FROM workers)")


def _put(base: sqlite3.Connection, user: str, worker: str, connections: int) -> None:
    if connections <= 0:
        base.execute("DELETE FROM counts WHERE user = ? AND worker = ?", (user, worker))
        return
    base.execute(
        "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET connections = excluded.connections",
        (user, worker, connections),
    )
