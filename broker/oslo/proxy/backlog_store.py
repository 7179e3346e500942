"""A backlog on disk: an SQLite file that the proxy reads when it starts. It outlives ``kill -9``.

What is kept is in memory, too, so nothing is read while the proxy runs, and a disk that is full or broken costs no
message as long as it does: it is logged and counted as ``backlog_disk``. Nothing is synced, so a loss of power may take
the last seconds or the file; one that cannot be read is put aside, and a new one begun.

Writing takes the reactor's thread some ten microseconds a message; what one turn says is written in the next one. So a
proxy that is killed in between may have lost the last messages, or hand the last ones out again.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import Final

from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.oslo.proxy.backlog import Backlog, BacklogRecipient, Kept
from broker.oslo.proxy.listeners import WaitingMessage
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters

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


class BacklogFile:
    """The file of one ``backlog.Backlog``, which says what is kept and what not any more; nothing is raised then.

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

    def load(self, backlog: Backlog) -> None:
        """Give it what was kept when the last proxy ended.

        Raises:
            ConfigError: the file cannot be read; it is closed.
        """
        try:
            shelves = [
                (BacklogRecipient((exchange, topic), _pool(pool)), seen_s)
                for exchange, topic, pool, seen_s in self._db.execute("SELECT * FROM shelves")
            ]
            kept = [
                (number, _kept(*row))
                for number, *row in self._db.execute("SELECT * FROM kept ORDER BY number")
            ]
        except sqlite3.Error as error:
            self._db.close()
            raise ConfigError(f"oslo.backlog.path {self._path}: {error}") from error
        backlog.load(shelves, kept)

    # ------------------------------------------------------------ what the backlog says

    def put(self, number: int, kept: Kept) -> None:
        """That message is kept: ``number`` is that of no other one, and greater than those of older ones."""
        (exchange, topic), pool = kept.shelf
        head, body, _size, _key, number_, stamp = kept.message
        values = (number, exchange, topic, _text(pool), kept.at_s, number_, stamp, head, body)
        self._write("INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def forget(self, number: int) -> None:
        """That message is not kept any more."""
        self._write("DELETE FROM kept WHERE number = ?", (number,))

    def remember(self, shelf: BacklogRecipient, seen_s: float) -> None:
        """Somebody was there then."""
        self._write(
            "INSERT OR REPLACE INTO shelves VALUES (?, ?, ?, ?)", (*shelf.key, _text(shelf.pool), seen_s)
        )

    def drop(self, shelf: BacklogRecipient) -> None:
        """Nobody is expected there any more."""
        values = (*shelf.key, _text(shelf.pool))
        self._write("DELETE FROM shelves WHERE (exchange, topic, pool) = (?, ?, ?)", values)

    def _write(self, text: str, values: tuple[object, ...]) -> None:
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


def _text(pool: str | None) -> str:
    """Of a pool as a key has it: no pool is "", others begin with "="."""
    return "" if pool is None else f"={pool}"


def _pool(text: str) -> str | None:
    return text[1:] if text else None


def _kept(
    exchange: str, topic: str, pool: str, at_s: float, number: bytes, stamp: bytes, head: bytes, body: bytes
) -> Kept:
    key = (exchange, topic)
    message = WaitingMessage(head, body, len(head) + len(body), key, number, stamp)
    return Kept(BacklogRecipient(key, _pool(pool)), message, at_s)
