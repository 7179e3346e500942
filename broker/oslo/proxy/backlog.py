"""Notifications that are kept for listeners that are away: what rabbit's queues give, bounded, at the node.

A pool of a topic that was listened to once on this node has a **shelf** here: while it has no listener on this node,
what comes for it is kept, and its next listener gets that first, in order. The node goes on announcing a listener of
that pool, whose id begins with ``BACKLOG_LETTER``: notifiers choose it only while the pool has no other anywhere.

What is kept is bounded in messages and bytes, all shelves together: the oldest makes room for the newest. A message,
and a shelf that nobody came back to, is forgotten after a time, by the clock of the day: a backlog on disk outlives the
proxy.

On disk it is an SQLite file that the proxy reads when it starts; it outlives ``kill -9``. What is kept is in memory,
too, so nothing is read while the proxy runs, and a disk that is full or broken costs no message as long as it does: it
is logged and counted as ``backlog_disk``. Nothing is synced, so a loss of power may take the last seconds or the file;
one that cannot be read is put aside, and a new one begun.

Writing takes the reactor's thread some ten microseconds a message; what one turn says is written in the next one. So a
proxy that is killed in between may have lost the last messages, or hand the last ones out again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.oslo.names import BACKLOG_LETTER, LISTENER_CHARS
from broker.oslo.node import BacklogConfig
from broker.oslo.proxy.listeners import Key, WaitingMessage
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters
from broker.oslo.records import Record

SHELVES_MAX: Final = 1_024
"""Pools of topics that are kept; a further one is not. Pools with a name for each process would take all of them."""
BUSY_S: Final = 0.1
"""How long somebody else who has the file open may keep us waiting: nothing else goes on meanwhile."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS shelves (
    exchange TEXT NOT NULL, topic TEXT NOT NULL, pool TEXT NOT NULL, seen_s REAL NOT NULL,
    PRIMARY KEY (exchange, topic, pool)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (
    number INTEGER PRIMARY KEY, exchange TEXT NOT NULL, topic TEXT NOT NULL, pool TEXT NOT NULL, at_s REAL NOT NULL,
    id BLOB NOT NULL, stamp BLOB NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL);
"""
_KEEP: Final = "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FORGET: Final = "DELETE FROM kept WHERE number = ?"
_SEE: Final = "INSERT OR REPLACE INTO shelves VALUES (?, ?, ?, ?)"
_DROP: Final = "DELETE FROM shelves WHERE (exchange, topic, pool) = (?, ?, ?)"


def listener_of(pool: str | None) -> str:
    """The id by which a node is chosen for what is kept for ``pool``: always the same.

    >>> len(listener_of("telemetry"))
    24
    """
    digest = hashlib.sha256(b"" if pool is None else b"=" + pool.encode()).hexdigest()
    return BACKLOG_LETTER + digest[: LISTENER_CHARS - 1]


class BacklogRecipient(NamedTuple):
    """Whom messages are kept for."""

    key: Key
    pool: str | None

    @classmethod
    def of_row(cls, exchange: str, topic: str, pool: str) -> BacklogRecipient:
        """As ``row`` wrote it."""
        return cls((exchange, topic), pool[1:] if pool else None)

    @property
    def row(self) -> tuple[str, str, str]:
        """On disk: no pool is "", others begin with "="."""
        return (*self.key, "" if self.pool is None else f"={self.pool}")

    @property
    def record(self) -> Record:
        """What the directory is told of it."""
        return Record(*self.key, "", listener_of(self.pool), self.pool)


class Kept(NamedTuple):
    """A message, since when it is kept."""

    shelf: BacklogRecipient
    message: WaitingMessage
    at_s: float


class Backlog:
    """What is kept at one node.

    Args:
        config: which topics, how much, how long.
        clock: seconds of the clock of the day.
        file: where it survives; None: in memory alone.

    Attributes:
        counts: messages by what became of them: ``backlog_kept``, ``backlog_given`` to a listener, ``backlog_full``:
            the oldest that made room, ``backlog_expired``.
        bytes: of all messages.

    Raises:
        ConfigError: the file cannot be read; it is closed.
    """

    def __init__(
        self, config: BacklogConfig, clock: Callable[[], float], file: BacklogFile | None = None
    ) -> None:
        self.counts = dict.fromkeys(("backlog_kept", "backlog_given", "backlog_full", "backlog_expired"), 0)
        self.bytes = 0
        self._config = config
        self._clock = clock
        self._file = file
        self._kept: dict[int, Kept] = {}
        self._shelves: dict[BacklogRecipient, deque[int]] = {}
        self._seen_s: dict[BacklogRecipient, float] = {}
        self._pools: dict[str, str | None] = {}
        self._next = 1
        if file is not None:
            self._load(file)

    def _load(self, file: BacklogFile) -> None:
        """What was kept when the last proxy ended."""
        for *row, seen_s in file.read("SELECT * FROM shelves"):
            self._begin(BacklogRecipient.of_row(*row), seen_s)
        for number, exchange, topic, pool, at_s, id_, stamp, head, body in file.read(
            "SELECT * FROM kept ORDER BY number"
        ):
            shelf = BacklogRecipient.of_row(exchange, topic, pool)
            if shelf not in self._shelves:  # a disk that was full has its messages, and not the shelf
                self._begin(shelf, at_s)
            message = WaitingMessage(head, body, len(head) + len(body), shelf.key, id_, stamp)
            self._add(number, Kept(shelf, message, at_s))

    def __len__(self) -> int:
        return len(self._kept)

    # ------------------------------------------------------------ shelves

    def shelves(self) -> Iterator[BacklogRecipient]:
        """All of them."""
        return iter(list(self._shelves))

    def pools(self) -> Mapping[str, str | None]:
        """The pools that something may be kept for, by ``listener_of`` them."""
        return self._pools

    def come(self, keys: Iterable[Key], pool: str | None) -> list[BacklogRecipient]:
        """A listener of ``pool`` is there; returns the shelves that are new."""
        fresh = []
        for key in keys:
            shelf = BacklogRecipient(key, pool)
            if not any(fnmatchcase(key[1], glob) for glob in self._config.topics):
                continue
            if shelf not in self._shelves:
                if len(self._shelves) >= SHELVES_MAX:
                    continue
                self._begin(shelf, 0.0)
                fresh.append(shelf)
            self._see(shelf)
        return fresh

    def _begin(self, shelf: BacklogRecipient, seen_s: float) -> None:
        self._shelves[shelf] = deque()
        self._seen_s[shelf] = seen_s
        self._pools[listener_of(shelf.pool)] = shelf.pool

    def _see(self, shelf: BacklogRecipient) -> None:
        self._seen_s[shelf] = self._clock()
        self._write(_SEE, *shelf.row, self._seen_s[shelf])

    def _write(self, text: str, *values: object) -> None:
        if self._file is not None:
            self._file.write(text, values)

    def expire(self, present: Callable[[BacklogRecipient], bool]) -> list[BacklogRecipient]:
        """Forget what was kept for too long; returns the shelves that nobody came back to, which are gone.

        Args:
            present: whether that shelf has a listener now.
        """
        over_s = self._clock() - self._config.keep_s
        while self._kept:
            number, kept = next(iter(self._kept.items()))
            if kept.at_s > over_s:
                break
            self._remove(number)
            self.counts["backlog_expired"] += 1
        gone = []
        for shelf in list(self._shelves):
            if present(shelf):
                self._see(shelf)
            elif self._seen_s[shelf] <= over_s and not self._shelves[shelf]:
                del self._shelves[shelf], self._seen_s[shelf]
                self._write(_DROP, *shelf.row)
                gone.append(shelf)
        if gone:
            self._pools = {listener_of(each.pool): each.pool for each in self._shelves}
        return gone

    def keeps(self, key: Key) -> bool:
        """Whether something may be kept for a pool there."""
        return any(shelf.key == key for shelf in self._shelves)

    # ------------------------------------------------------------ messages

    def put(self, message: WaitingMessage, pool: str | None) -> bool:
        """Keep ``message``; False: nothing is kept for that pool there, or it is larger than all that may be."""
        shelf = BacklogRecipient(message.key, pool)
        config = self._config
        if shelf not in self._shelves or message.size > config.bytes:
            return False
        while len(self._kept) >= config.messages or self.bytes + message.size > config.bytes:
            self._remove(next(iter(self._kept)))
            self.counts["backlog_full"] += 1
        kept = Kept(shelf, message, self._clock())
        number = self._next
        self._add(number, kept)
        self.counts["backlog_kept"] += 1
        values = (message.id, message.stamp, message.head, message.body)
        self._write(_KEEP, number, *shelf.row, kept.at_s, *values)
        return True

    def _add(self, number: int, kept: Kept) -> None:
        self._next = number + 1
        self._kept[number] = kept
        self._shelves[kept.shelf].append(number)
        self.bytes += kept.message.size

    def head(self, keys: Iterable[Key], pool: str | None) -> tuple[int, WaitingMessage] | None:
        """The oldest message that is kept for a listener of ``keys`` in ``pool``, and its number; None: none is."""
        if not self._kept:
            return None
        heads = [shelf[0] for key in keys if (shelf := self._shelves.get(BacklogRecipient(key, pool)))]
        return (number := min(heads), self._kept[number].message) if heads else None

    def give(self, number: int) -> None:
        """That message was given to a listener."""
        self.counts["backlog_given"] += 1
        self._remove(number)

    def _remove(self, number: int) -> None:
        """It is the oldest of its shelf."""
        kept = self._kept.pop(number)
        self.bytes -= kept.message.size
        self._shelves[kept.shelf].popleft()
        self._write(_FORGET, number)

    def status(self) -> dict[str, Any]:
        """For STATUS: what is kept, for whom."""
        shelves = [
            {"exchange": shelf.key[0], "topic": shelf.key[1], "pool": shelf.pool, "messages": len(numbers)}
            for shelf, numbers in self._shelves.items()
        ]
        return {"messages": len(self._kept), "bytes": self.bytes, "shelves": shelves}

    def close(self) -> int:
        """Close the file; returns how many messages are lost, since there is none. Harmless twice."""
        if self._file is not None:
            self._file.close()
            return 0
        lost = len(self._kept)
        self._kept.clear()
        return lost


class BacklogFile:
    """The file of one ``Backlog``, which says what is kept and what not any more.

    Args:
        reactor: whose thread uses it.
        path: of the file; its folder is there.
        counters: where errors are told.

    Raises:
        ConfigError: it can be neither read nor made. NotReady: not now: another program has it locked, say.
    """

    def __init__(self, reactor: Reactor, path: str, counters: Counters) -> None:
        self._reactor = reactor
        self._path = path
        self._counters = counters
        self._due: list[tuple[str, tuple[object, ...]]] = []
        self._soon = False
        try:
            self._db = self._open()
        except sqlite3.OperationalError as error:  # nothing is wrong with what is in it
            absent = not os.path.isdir(os.path.dirname(os.path.abspath(path)))
            text = f"oslo.backlog.path {path}: {error}"
            raise obstacle(text, errno.ENOENT if absent else error, absent=True) from error
        except sqlite3.DatabaseError as error:
            aside = f"{path}.damaged"
            counters.count_dropped(
                "backlog_disk", "the backlog %s cannot be read (%s): put aside as %s", path, error, aside
            )
            try:
                os.replace(path, aside)
                self._db = self._open()
            except (OSError, sqlite3.Error) as again:
                raise ConfigError(f"oslo.backlog.path {path}: {again}") from error

    def _open(self) -> sqlite3.Connection:
        before = os.umask(0o077)
        try:
            db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
        finally:
            os.umask(before)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            db.executescript(_SCHEMA)
            db.execute("PRAGMA quick_check(1)")
        except BaseException:
            db.close()
            raise
        return db

    def read(self, text: str) -> list[Any]:
        """All rows of a query.

        Raises:
            ConfigError: the file cannot be read; it is closed.
        """
        try:
            return self._db.execute(text).fetchall()
        except sqlite3.Error as error:
            self._db.close()
            raise ConfigError(f"oslo.backlog.path {self._path}: {error}") from error

    def write(self, text: str, values: tuple[object, ...]) -> None:
        """Execute ``text`` in the next turn; nothing is raised then."""
        if not self._soon:
            self._soon = True
            self._reactor.call_soon(self._commit)
        self._due.append((text, values))

    def _commit(self) -> None:
        due, self._due, self._soon = self._due, [], False
        if not due:
            return
        try:
            self._db.execute("BEGIN")
            for text, values in due:
                self._db.execute(text, values)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._counters.count_dropped(
                "backlog_disk", "the backlog %s cannot be written: %s", self._path, error
            )
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            # what was given away must not come again: with what is written next
            self._due = [each for each in due if each[0].startswith("DELETE")]

    def close(self) -> None:
        """Write what is due, and close. Harmless twice."""
        self._commit()
        self._due = []
        self._db.close()
