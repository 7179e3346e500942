"""The one SQLite file that the worker processes of a gateway share: ``STATEDIR/gateway.db``.

What is in it, and which file of this room knows the table:

    keys         secrets made once, such as the key of resume tokens     here
    facts        where the gateway listens, for the operator's commands   here
    revocations  credentials that count no more, until they would end    here
    change       a number that grows with every revocation               here
    links        one-time login links, by hash                           ``login``
    logins       web logins, by the hash of their cookie                 ``login``
    spent        logins at providers that have come back, by hash        ``oidc``
    userids      people of providers, and the userid that each has       ``users``

Rules of this file:

- Secrets that clients hold are stored as SHA-256 of 256 random bits: who reads the file can log in with none of them.
- Each process opens the store itself, after the fork; a connection of SQLite must not cross one.
- Transactions are short (tens of microseconds) and run in the event loop's thread. A writer waits ``BUSY_S`` for
  another process at most, then `Denied` (503, reconnect) is raised: that long a loop may stand still, no longer.
- WAL with ``synchronous=NORMAL``: a crash of the process loses nothing; a crash of the machine may lose the last
  moments, so a login made then has to be made again. Revocations are written through to the disk.
- WAL needs shared memory: the directory must be on a local file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from broker import home
from broker.errors import ConfigError
from broker.obstacles import obstacle
from gateway.principal import unavailable

FILE: Final = "gateway.db"
BUSY_S: Final = 0.1
"""Longest wait for another process that is writing: longer than any transaction here takes."""
FOREVER: Final = 32503680000.0
"""The year 3000: the end of a revoked credential that has none of its own."""
LATEST: Final = 2.0**53
"""The latest end that is remembered, wall clock seconds."""
LONGEST_S: Final = 366 * 86400.0
"""How long a login lasts at the most (``access.cookie_s``)."""
CREDENTIAL_CHARS: Final = 1024
"""Longest name of a credential."""
LOGIN: Final = "login:"
"""What stands before a login's id where credentials of all kinds are named."""
FLEET: Final = "fleet"
"""The key that only a gateway among several has (``gateway.fleet``)."""
KEY_BYTES: Final = 32
"""256 bits, for keys and for the secrets that links and cookies carry."""

log = logging.getLogger("headgate")

_TABLES: Final = """
CREATE TABLE keys (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL);
CREATE TABLE change (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
INSERT INTO change VALUES (1, 0);
CREATE TABLE revocations
    (credential TEXT PRIMARY KEY, until REAL NOT NULL, change INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX revocations_by_until ON revocations (until);
CREATE INDEX revocations_by_change ON revocations (change);
CREATE TABLE links
    (hash BLOB PRIMARY KEY, role TEXT NOT NULL, loopback INTEGER NOT NULL, expires REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE logins
    (hash BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, role TEXT NOT NULL, loopback INTEGER NOT NULL,
     expires REAL NOT NULL, source TEXT NOT NULL, user TEXT NOT NULL, claims BLOB NOT NULL, made REAL NOT NULL)
    WITHOUT ROWID;
CREATE TABLE spent (hash BLOB PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE userids (who TEXT PRIMARY KEY, userid INTEGER NOT NULL UNIQUE) WITHOUT ROWID;
"""
VERSION: Final = 4
"""Of these tables; ``_set_up`` brings those of the last release, 3, to this one: they had no userids."""

_REVOKED: Final = "SELECT credential, until FROM revocations WHERE"
_KNOWN: Final = f"{_REVOKED} credential = ? AND until >= ?"
_SINCE: Final = f"{_REVOKED} change > ? AND +until >= ?"
_BELOW_LOGINS: Final = f"{_REVOKED} credential < '{LOGIN}' AND +change > ? AND +until >= ?"
_ABOVE_LOGINS: Final = f"{_REVOKED} credential > '{LOGIN}~' AND +change > ? AND +until >= ?"
"""Each by one index, the other columns with a plus; ids of logins are hexadecimal."""


def hash_of(secret: str) -> bytes:
    """What the store keeps of a secret: SHA-256 suffices, for nobody tries 2**256 secrets at any speed."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()  # headers may hold what is no UTF-8


class Store:
    """One process's connection to the shared file.

    Args:
        statedir: the directory of the file; made with mode 0700 when it is missing.
        wall: the wall clock, seconds since 1970.
        login_s: how long a login lasts; one of another gateway that would last longer is not taken.

    Raises:
        ConfigError: the directory or the file cannot be used, is writable by others, or is of another version.
    """

    def __init__(
        self,
        statedir: str | os.PathLike[str],
        *,
        wall: Callable[[], float] = time.time,
        login_s: float = LONGEST_S,
    ) -> None:
        self.wall = wall
        self.login_s = login_s
        self.statedir: Path = prepare(statedir)
        self.path: Path = self.statedir / FILE
        self._pid: int = os.getpid()
        try:
            self._database: sqlite3.Connection = _open(self.path)
        except (OSError, sqlite3.Error) as error:
            raise obstacle(f"{self.path}: cannot be used: {error}", error) from error

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._database.close()

    # ------------------------------------------------------------ for the files of this room

    @contextlib.contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its begin; commits, or rolls back on an error.

        Args:
            durable: wait until the disk has it.

        Raises:
            Denied: another process held the lock for longer than ``BUSY_S``, or the file is bad (503, reconnect).
        """
        self._check_fork()
        base = self._database
        try:
            # a setting of the connection, so for each transaction anew
            base.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            base.execute("BEGIN IMMEDIATE")
            try:
                yield base
                base.commit()  # on a full disk it may fail with the transaction still open
            except BaseException:
                base.rollback()
                raise
        except sqlite3.Error as error:
            raise unavailable(f"{self.path}: {error}") from error

    def reading(self, query: str, *values: Any) -> list[Any]:
        """The rows of one query; in WAL mode a reader waits for no writer.

        Raises:
            Denied: the file cannot be read (503, reconnect).
        """
        self._check_fork()
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise unavailable(f"{self.path}: {error}") from error

    def _check_fork(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("a store was taken through a fork; each process opens its own")

    # ------------------------------------------------------------ keys

    def key(self, name: str) -> bytes:
        """A secret of 32 bytes, made when it is first asked for; the same for all workers and after a restart.

        Raises:
            Denied: the file cannot be written.
        """
        rows = self.reading("SELECT value FROM keys WHERE name = ?", name)
        if not rows:
            with self.writing(durable=True) as base:
                base.execute(
                    "INSERT OR IGNORE INTO keys VALUES (?, ?)", (name, secrets.token_bytes(KEY_BYTES))
                )
            rows = self.reading("SELECT value FROM keys WHERE name = ?", name)
        return bytes(rows[0][0])

    # ------------------------------------------------------------ what runs here

    def announce(self, facts: dict[str, Any]) -> None:
        """Leave word for the commands of the operator (``headgate login link``): where this gateway listens.

        Raises:
            Denied: the file cannot be written.
        """
        with self.writing() as base:
            base.execute(
                "INSERT INTO facts VALUES (1, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (msgspec.json.encode(facts),),
            )

    def announced(self) -> dict[str, Any]:
        """What was announced last; empty when nothing ever was."""
        rows = self.reading("SELECT value FROM facts")
        return msgspec.json.decode(rows[0][0], type=dict[str, Any]) if rows else {}

    # ------------------------------------------------------------ revocations

    def changes(self) -> int:
        """A number that grows when a credential was revoked or restored or a login ended, in any process. Asking costs
        microseconds: ask often, and look at credentials only when it has grown.
        """
        return int(self.reading("SELECT number FROM change")[0][0])

    def revoke(self, credential: str, until: float) -> None:
        """Refuse ``credential`` (``Principal.credential``) from now on, in every worker, over restarts.

        Args:
            credential: its name, never the secret.
            until: wall clock seconds after which it has ended anyway and need not be remembered.

        Raises:
            Denied: the file cannot be written.
        """
        self.revoke_all({credential: until})

    def revoke_all(self, credentials: Mapping[str, float]) -> None:
        """The same of several, by name, in one transaction; of a login nothing else is left. One that is revoked for so
        long already is no change, and for such alone nobody has to wait: all is looked up before the write lock.

        What is no name, or no time, is left out with a line of the log: other gateways say these, too.
        """
        credentials = {
            name: until
            for name, until in _bounded(credentials).items()
            if not self.reading(_KNOWN, name, until)
        }
        if not credentials:
            return
        with self.writing(durable=True) as base:
            base.execute("DELETE FROM revocations WHERE until < ?", (self.wall(),))
            revoked = base.executemany(
                "INSERT INTO revocations SELECT ?, ?, number + 1 FROM change WHERE true ON CONFLICT DO UPDATE "
                "SET until = excluded.until, change = excluded.change WHERE until < excluded.until",
                credentials.items(),
            ).rowcount
            logins = [name.removeprefix(LOGIN) for name in credentials if name.startswith(LOGIN)]
            ended = base.executemany("DELETE FROM logins WHERE id = ?", [(name,) for name in logins]).rowcount
            if revoked > 0 or ended > 0:
                count_change(base)

    def restore(self, credential: str) -> bool:
        """Let a revoked credential count again, in every worker; False: it was not revoked.

        Raises:
            Denied: the file cannot be written.
        """
        with self.writing(durable=True) as base:
            restored = (
                base.execute("DELETE FROM revocations WHERE credential = ?", (credential,)).rowcount > 0
            )
            if restored:
                count_change(base)
        return restored

    def revocations(self, *, since: int = -1, logins: bool = True) -> dict[str, float]:
        """Credentials that are revoked and have not ended, and the wall clock seconds after which they have.

        Args:
            since: those that a change with a greater number (``changes``) revoked; -1: all.
            logins: False: but for those of logins, of which there may be many; each is gone from the table of logins.
        """
        queries = (_SINCE,) if logins else (_BELOW_LOGINS, _ABOVE_LOGINS)
        rows = [row for query in queries for row in self.reading(query, since, self.wall())]
        return dict(sorted(rows))


def _bounded(credentials: Mapping[str, float]) -> dict[str, float]:
    """Those that can be kept, none for longer than ``LATEST``."""
    found = {
        name: min(until, LATEST)
        for name, until in credentials.items()
        if 0 < len(name) <= CREDENTIAL_CHARS and not math.isnan(until)
    }
    if left_out := len(credentials) - len(found):
        log.warning("%d revocations were left out: no name of a credential, or no time", left_out)
    return found


def count_change(base: sqlite3.Connection) -> None:
    """Inside a transaction: tell all workers that credentials changed."""
    base.execute("UPDATE change SET number = number + 1")


def prepare(statedir: str | os.PathLike[str]) -> Path:
    """Make the state directory (0700) or check the one that is there.

    Raises:
        ConfigError: it cannot be made, belongs to another user, or others may write to it.
    """
    path = Path(statedir)
    try:
        home.make(path)
        seen = path.stat()
    except OSError as error:
        raise obstacle(f"state directory {path}: {error.strerror}", error, absent=True) from error
    if seen.st_uid != os.geteuid() or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"state directory {path}: expected a directory of ours that nobody else may write to, saw owner "
            f"{seen.st_uid}, mode {stat.S_IMODE(seen.st_mode):04o}"
        )
    return path


def _open(path: Path) -> sqlite3.Connection:
    """Open the file and set it up, one process after the other: SQLite waits for no one who switches to WAL."""
    lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make_private(path)
        # no transaction of the module's own: BEGIN IMMEDIATE takes the write lock first, so that no read has to become
        # a write and fail
        base = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _set_up(base, path)
        except BaseException:
            base.close()
            raise
        return base
    finally:
        os.close(lock)


def _make_private(path: Path) -> None:
    """Make the file before SQLite can: 0600 from the first moment; SQLite gives its -wal and -shm the same mode.

    One that is there is not opened: closing it again would drop the locks that SQLite may have on it in this process.
    """
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    seen = path.lstat()
    if not stat.S_ISREG(seen.st_mode) or seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path}: mode {stat.filemode(seen.st_mode)} shows keys to others, expected a file of 0600"
        )


def _set_up(base: sqlite3.Connection, path: Path) -> None:
    found = base.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, VERSION - 1, VERSION):
        raise ConfigError(
            f"{path}: version {found}, expected {VERSION}: another version of Headgate wrote it. Run that one, or move"
            f" {path.name} away together with {path.name}-wal and {path.name}-shm: logins, keys and revocations are"
            " lost with it"
        )
    base.execute("PRAGMA journal_mode=WAL")
    if found != VERSION:
        statements = list(filter(str.strip, _TABLES.split(";")))
        base.execute("BEGIN IMMEDIATE")
        for statement in statements if found == 0 else [each for each in statements if " userids " in each]:
            base.execute(statement)
        base.execute(f"PRAGMA user_version={VERSION}")
        base.execute("COMMIT")
