"""Jobs of a worker or of a client on disk: cards with a state, bodies attached to them, retention.

The loop's thread knows all cards (small) and decides everything; the file only repeats what it is told. Bodies are in
the file alone, read when somebody asks. What is put goes into a commit by itself, a few milliseconds later unless
somebody waits for it (``durable``): a job that begins, ends and is recorded meanwhile costs one commit.

Retention. A card that is *settled* is dropped ``keep_s`` after its end, or earlier, the oldest first, while there
are more than ``keep_jobs`` or ``keep_bytes``. One that has ended but is not settled (a result nobody has confirmed)
has the same time, and makes room only when no settled one is left. What has not ended stays.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from broker.nfp.store import clock as clocks
from broker.nfp.store.clock import Clock, StoreClock
from broker.nfp.store.database import MEMORY, Schema, Sync, give_back, open_database
from broker.nfp.store.thread import StoreThread

KEEP_S: Final = 24 * 3600.0
"""Results of yesterday can be asked for, unless a worker's ``keep_s`` or a client's says otherwise."""
KEEP_BYTES: Final = 256 * 1024 * 1024
KEEP_JOBS: Final = 10_000
"""Their cards are in memory: a few megabytes."""
NEVER: Final = -1.0
SWEEP_MIN_S: Final = 1.0
"""Between two looks at what is too old."""

_TABLES: Final = f"""
{clocks.TABLE}
CREATE TABLE cards (
    number INTEGER PRIMARY KEY, uuid TEXT NOT NULL, service TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL,
    settled INTEGER NOT NULL, submitted_s REAL NOT NULL, at REAL NOT NULL, ended_at REAL NOT NULL, more TEXT NOT NULL);
CREATE TABLE bodies (
    id INTEGER PRIMARY KEY, number INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (number, name))
"""
_PUT_CARD: Final = "INSERT OR REPLACE INTO cards VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_BODY: Final = """
INSERT INTO bodies (number, name, body) VALUES (?, ?, ?)
ON CONFLICT (number, name) DO UPDATE SET body = excluded.body
"""


def schema(what: str, application: bytes) -> Schema:
    """The schema of a shelf, marked with four bytes of its own."""
    return Schema(what, int.from_bytes(application), 1, _TABLES)


class Retention(NamedTuple):
    """How much of what has ended is kept."""

    keep_s: float = KEEP_S
    keep_bytes: int = KEEP_BYTES
    keep_jobs: int = KEEP_JOBS


class Card(NamedTuple):
    """What is known of a job without its bodies."""

    number: int
    uuid: str
    service: str
    task: str
    state: str
    settled: bool
    submitted_s: float
    """Wall clock, for people."""
    at: float
    """Store clock, when it was put here."""
    ended_at: float = NEVER
    """Store clock."""
    more: str = "{}"
    """JSON of what the owner keeps besides."""


class _Body(NamedTuple):
    number: int
    name: str
    body: bytes


class _Dropped(NamedTuple):
    number: int


class Kept(NamedTuple):
    """A card and its bodies by name."""

    card: Card
    bodies: dict[str, bytes]


_Op = Card | _Body | _Dropped


class Shelf:
    """See the module.

    Args:
        path: of the file. None: a database in memory, nothing survives and nobody waits for it.
        schema: of ``schema()``. broken: told why nothing can be written, at each failure.

    Attributes:
        cards: by uuid, in the order they were put.
        size: bytes of all bodies.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        loop: asyncio.AbstractEventLoop,
        schema: Schema,
        *,
        retention: Retention,
        sync: Sync = "normal",
        broken: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.cards: dict[str, Card] = {}
        self.size = 0
        self.retention = retention
        self._loop = loop
        self._clock = StoreClock(clock)
        self._wall = (clock or Clock()).wall
        self._number = 0
        self._sizes: dict[int, dict[str, int]] = {}
        self._survives = path is not None
        self._settled: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        self._flush: asyncio.Handle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._thread: StoreThread[_Op] = StoreThread(
            partial(open_database, MEMORY if path is None else path, schema, sync),
            partial(_write, self._clock),
            loop,
            on_failed=None if broken is None else lambda text, ops: (broken(text), ops)[1],
            tidy=give_back,
            name=schema.what,
        )

    @property
    def broken(self) -> str:
        """Why nothing can be written at present, or ""."""
        return self._thread.broken

    # -- life ----------------------------------------------------------------------------------

    async def open(self) -> list[Kept]:
        """Begin; what is not settled, the oldest first.

        Raises:
            ConfigError: the file cannot be used.
        """
        cards, sizes, kept = await self._thread.start(partial(_read_all, self._clock))
        for card in cards:
            self.cards[card.uuid] = card
            self._number = max(self._number, card.number)
        for card in sorted(cards, key=lambda card: card.ended_at):
            self._file_away(card)
        for number, name, size in sizes:
            self._sizes.setdefault(number, {})[name] = size
            self.size += size
        self._sweep()
        return [one for one in kept if one.card.uuid in self.cards]

    async def durable(self) -> None:
        """Return once all that was put so far is on disk.

        Raises:
            NotStored: it cannot be written at present; it stays queued.
        """
        if self._survives:
            await self._thread.durable()

    async def close(self) -> None:
        """Write what is left and end."""
        for handle in (self._flush, self._sweeper):
            if handle is not None:
                handle.cancel()
        await self._thread.close()

    # -- cards ---------------------------------------------------------------------------------

    def new(self, uuid: str, service: str, task: str, state: str, more: str = "{}") -> Card:
        """Put a new card; one of this uuid must not be there."""
        self._number += 1
        card = Card(
            self._number, uuid, service, task, state, False, self._wall(), self._clock.now(), NEVER, more
        )
        self.cards[uuid] = card
        self._put(card)
        return card

    def change(
        self, uuid: str, state: str, *, more: str | None = None, ends: bool = False, settled: bool = False
    ) -> None:
        """Put another state; ``settled`` says that it has ended, too. An unknown uuid changes nothing."""
        card = self.cards.get(uuid)
        if card is None:
            return
        ended_at = self._clock.now() if ends or (settled and card.ended_at < 0) else card.ended_at
        card = card._replace(
            state=state,
            settled=settled or card.settled,
            ended_at=ended_at,
            more=card.more if more is None else more,
        )
        self.cards[uuid] = card
        self._put(card)
        self._file_away(card)
        if ended_at >= 0:
            self._sweep()

    def attach(self, uuid: str, name: str, body: bytes) -> None:
        """Put a body, over an earlier one of this name. An unknown uuid changes nothing."""
        card = self.cards.get(uuid)
        if card is None:
            return
        number = card.number
        sizes = self._sizes.setdefault(number, {})
        self.size += len(body) - sizes.get(name, 0)
        sizes[name] = len(body)
        self._put(_Body(number, name, body))

    def drop(self, uuid: str) -> None:
        """Forget a job."""
        card = self.cards.pop(uuid, None)
        if card is None:
            return
        self._settled.pop(uuid, None)
        self._ended.pop(uuid, None)
        self.size -= sum(self._sizes.pop(card.number, {}).values())
        self._put(_Dropped(card.number))

    async def read(self, uuid: str) -> Kept | None:
        """A job with its bodies.

        Raises:
            NotStored: the file cannot be read.
        """
        card = self.cards.get(uuid)
        if card is None:
            return None
        return Kept(card, await self._thread.ask(partial(_read_bodies, number=card.number)))

    def age_s(self, card: Card) -> float:
        """Since it was put here; no step of the wall clock changes it."""
        return max(0.0, self._clock.now() - card.at)

    # -- retention -----------------------------------------------------------------------------

    def _file_away(self, card: Card) -> None:
        if card.settled:
            self._ended.pop(card.uuid, None)
            self._settled.setdefault(card.uuid)
        elif card.ended_at >= 0:
            self._ended.setdefault(card.uuid)

    def _sweep(self) -> None:
        """Drop what is too old or too much."""
        now = self._clock.now()
        for uuid in list(self._too_old(now)):
            self.drop(uuid)
        while self.size > self.retention.keep_bytes or self._count() > self.retention.keep_jobs:
            first = next(iter(self._settled or self._ended), None)
            if first is None:
                break
            self.drop(first)
        oldest = [next(iter(group)) for group in (self._settled, self._ended) if group]
        if oldest and self._sweeper is None:
            due = min(self.cards[uuid].ended_at for uuid in oldest) + self.retention.keep_s
            self._sweeper = self._loop.call_later(max(SWEEP_MIN_S, due - now), self._swept)

    def _swept(self) -> None:
        self._sweeper = None
        self._sweep()

    def _count(self) -> int:
        return len(self._settled) + len(self._ended)

    def _too_old(self, now: float) -> Iterator[str]:
        for group in (self._settled, self._ended):
            for uuid in group:
                if now - self.cards[uuid].ended_at < self.retention.keep_s:
                    break
                yield uuid

    # -- the file ------------------------------------------------------------------------------

    def _put(self, op: _Op) -> None:
        self._thread.put(op)
        if self._flush is None:
            self._flush = self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Who waits for it has said so (``durable``); the rest may share a commit with what comes next."""
        self._flush = None
        self._thread.commit(waited=False)


def _write(clock: StoreClock, connection: sqlite3.Connection, operations: list[_Op]) -> None:
    """A group, sorted by kind: numbers are never used twice. Of a card only the latest state is written."""
    clock.save(connection)
    cards = {op.number: op for op in operations if type(op) is Card}
    connection.executemany(_PUT_CARD, cards.values())
    connection.executemany(_PUT_BODY, [op for op in operations if type(op) is _Body])
    dropped = [op for op in operations if type(op) is _Dropped]
    connection.executemany("DELETE FROM bodies WHERE number = ?", dropped)
    connection.executemany("DELETE FROM cards WHERE number = ?", dropped)


def _read_all(
    clock: StoreClock, connection: sqlite3.Connection
) -> tuple[list[Card], list[tuple[int, str, int]], list[Kept]]:
    clock.load(connection)
    cards = [_card(row) for row in connection.execute("SELECT * FROM cards ORDER BY number")]
    sizes = connection.execute("SELECT number, name, length(body) FROM bodies").fetchall()
    open_ones = [card for card in cards if not card.settled]
    return cards, sizes, [Kept(card, _read_bodies(connection, card.number)) for card in open_ones]


def _card(row: tuple[Any, ...]) -> Card:
    card = Card(*row)
    return card._replace(settled=bool(card.settled))


def _read_bodies(connection: sqlite3.Connection, number: int) -> dict[str, bytes]:
    return dict(connection.execute("SELECT name, body FROM bodies WHERE number = ?", (number,)).fetchall())
