"""A SQLite file of ours: made private, locked to one process, checked, of the present schema.

Rules of these files:

- 0600 from the first moment; SQLite gives its -wal and -shm the same mode.
- One process at a time: ``FILE.lock`` is locked (POSIX record lock: a forked child does not keep it) for as long as the
  database is open, and names the process. The lock file stays; removing it could let two in.
- WAL. ``synchronous`` NORMAL: a commit survives the end of the process at any point (kill -9), a crash of the machine
  may take the last moments. FULL: each commit is on the disk before it is told.
- A damaged file is never deleted nor replaced: the error says what can be done.
- ``auto_vacuum`` is incremental: pages that a burst left are given back once it is quiet.
- WAL needs shared memory and honest locks: the file must be on a local file system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from broker import home
from broker.errors import ConfigError
from broker.obstacles import obstacle

log = logging.getLogger("headgate")

Sync = Literal["normal", "full"]

BUSY_S: Final = 2.0
"""How long a statement waits for a stranger (an operator's shell, a backup) that holds the write lock."""
STATEMENTS: Final = 64
"""Prepared statements that are kept: all of a store's."""
CHECKED_BYTES: Final = 64 * 1024 * 1024
"""Files up to this size are checked as a whole at start (a fraction of a second); larger ones as they are read."""
WAL_KEPT_BYTES: Final = 16 * 1024 * 1024
"""What the -wal file keeps of its size after a burst."""
TIDY_PAGES: Final = 256
"""Pages given back to the file system in one go: a millisecond or so, between two commits."""
FREE_PAGES_KEPT: Final = 512
"""Free pages (2 MiB) that are not worth giving back."""

MEMORY: Final = ":memory:"
"""The path of a database without a file: it ends with the process."""

_held: set[tuple[int, int]] = set()
"""Lock files that this process holds, by device and inode: record locks do not exclude their own process."""
_holding = threading.Lock()


class Schema(NamedTuple):
    """What is in a file; one of another version is refused, but for those before that are brought to this one.

    Attributes:
        what: "broker store", for people. application: four bytes as a number, marks the file as ours.
        version: of ``tables``, grows with every change of them.
        upgrades: what is run on a file of a version before, one after the other up to this one; see ``upgrade``.
    """

    what: str
    application: int
    version: int
    tables: str
    upgrades: tuple[str, ...] = ()


class Database:
    """An open file and its lock; ``connection`` is in autocommit mode and for one thread at a time.

    A database in memory has no lock.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: Lock | None) -> None:
        self.path = path
        self.connection = connection
        self._lock = lock

    def close(self) -> None:
        """Close the file, then let go of the lock; idempotent."""
        try:
            with contextlib.suppress(
                sqlite3.Error
            ):  # a full disk: the -wal stays and is read at the next start
                self.connection.close()
        finally:
            if self._lock is not None:
                self._lock.release()


def open_database(path: str | os.PathLike[str], schema: Schema, sync: Sync = "normal") -> Database:
    """Open ``path``, made with its folder (0700) when it is missing; ``MEMORY`` opens one without a file.

    Raises:
        ConfigError: it cannot be used: held by another process, damaged, of another version, not ours, no space.
    """
    if path == MEMORY:
        return _open_in_memory(schema)
    place = Path(path).absolute()
    try:
        home.make(place.parent)
    except OSError as error:
        text = f"{place}: its folder cannot be made: {error.filename}: {error.strerror}"
        raise obstacle(text, error, absent=True) from error
    lock = None
    try:
        lock = Lock(place, schema.what)
        return Database(place, _connect(place, schema, sync), lock)
    except BaseException as error:
        if lock is not None:
            lock.release()
        if isinstance(error, sqlite3.Error):
            raise complaint(place, error) from error
        if isinstance(error, OSError):
            raise obstacle(f"{place}: {error.strerror or error}", error, absent=True) from error
        raise


def _open_in_memory(schema: Schema) -> Database:
    place = Path(MEMORY)
    connection = _connection(place)
    _create(connection, schema)
    return Database(place, connection, None)


def complaint(path: Path, error: Exception) -> ConfigError:
    """``error`` in words: which file, what was seen, what to do."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _damaged(path, str(error))
    if name.startswith("SQLITE_FULL"):
        return obstacle(f"{path}: no space left on its disk ({error})", error)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return obstacle(f"{path}: another program keeps it locked ({error})", error)
    return ConfigError(f"{path}: cannot be used: {error}{f' [{name}]' if name else ''}")


def _damaged(path: Path, seen: str) -> ConfigError:
    return ConfigError(
        f"{path}: damaged ({seen}), expected a SQLite database. Put back a copy, or {_move_away(path)};"
        f" `sqlite3 {path.name} .recover` may save what is in it"
    )


def _move_away(path: Path) -> str:
    return (
        f"move {path.name} away together with {path.name}-wal and {path.name}-shm to begin with an empty one"
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing, holding the write lock from the begin."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.commit()
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        raise


def give_back(connection: sqlite3.Connection) -> bool:
    """Return some free pages to the file system; True when there are more."""
    if connection.execute("PRAGMA freelist_count").fetchone()[0] <= FREE_PAGES_KEPT:
        return False
    connection.executescript(
        f"PRAGMA incremental_vacuum({TIDY_PAGES})"
    )  # execute() would take one step, a page
    return bool(connection.execute("PRAGMA freelist_count").fetchone()[0] > FREE_PAGES_KEPT)


def make_room(connection: sqlite3.Connection, error: Exception) -> bool:
    """After ``error``: on a full disk, move the -wal file into the database and cut it off; True when that was done.

    It helps when the database has free pages and the -wal took the last room.
    """
    if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_FULL:
        return False
    with contextlib.suppress(sqlite3.Error):
        return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
    return False


# -- opening --------------------------------------------------------------------------------------


class Lock:
    """``PATH.lock``, held for this process; ``what`` it guards is told to others.

    Raises:
        ConfigError: it is held already. OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, what: str) -> None:
        name = path.with_name(f"{path.name}.lock")
        with _holding:
            with contextlib.suppress(FileNotFoundError):
                if _identity(os.stat(name)) in _held:  # opening and closing it again would drop the lock
                    raise ConfigError(
                        f"{path}: this {what} is open in this very process already", errno.EBUSY
                    )
            self._file: int | None = os.open(
                name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                holder = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(self._file)
                raise obstacle(
                    f"{path}: process {holder} uses this {what}, expected nobody; end it, or choose another file",
                    errno.EBUSY,
                ) from None
            self._identity = _identity(os.fstat(self._file))
            _held.add(self._identity)
        with contextlib.suppress(OSError):  # a full disk; the lock holds without the number
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let go of it; idempotent."""
        with _holding:
            if self._file is not None:
                os.close(self._file)
                self._file = None
                _held.discard(self._identity)


def _identity(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_dev, seen.st_ino


def _connect(path: Path, schema: Schema, sync: Sync) -> sqlite3.Connection:
    _make_private(path)
    connection = _connection(path)
    try:
        _set_up(connection, path, schema, sync)
    except BaseException:
        connection.close()
        raise
    return connection


def _connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
    )


def open_reader(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """A second connection to the file of an open database, which only reads, in the thread that calls this.

    It sees what is committed, and in WAL mode neither waits for a writer nor makes one wait.
    """
    name = Path(path).absolute().as_uri()
    return sqlite3.connect(
        f"{name}?mode=ro", timeout=0.0, isolation_level=None, cached_statements=STATEMENTS, uri=True
    )


def _make_private(path: Path) -> None:
    """Make the file before SQLite can, tighten the mode of one that is there."""
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    seen = path.lstat()
    if not stat.S_ISREG(seen.st_mode):
        raise ConfigError(f"{path}: {stat.filemode(seen.st_mode)}, expected a regular file")
    if seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("%s: others could read it (mode %04o), made 0600", path, stat.S_IMODE(seen.st_mode))
        os.chmod(path, 0o600)
    wal = path.with_name(f"{path.name}-wal")
    if seen.st_size == 0 and wal.exists() and wal.stat().st_size > 0:
        raise _damaged(path, "it is empty, but its -wal is not")  # SQLite would delete that


def _set_up(connection: sqlite3.Connection, path: Path, schema: Schema, sync: Sync) -> None:
    version = _version(connection, path, schema)
    new = version == 0
    if path.stat().st_size <= CHECKED_BYTES:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _damaged(path, found)
    if new:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigError(f"{path}: journal mode {mode}, expected wal: its file system has no shared memory")
    connection.execute(f"PRAGMA synchronous={'FULL' if sync == 'full' else 'NORMAL'}")
    connection.execute(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
    connection.execute("PRAGMA temp_store=MEMORY")
    if new:
        _create(connection, schema)
    elif version < schema.version:
        log.info("%s: a %s of version %d, brought to version %d", path, schema.what, version, schema.version)
        with transaction(connection):
            for text in schema.upgrades[version - schema.version :]:
                upgrade(connection, text)
            connection.execute(f"PRAGMA user_version={schema.version}")


def _version(connection: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """Refuse, without having written a byte, what is not ours or of a version that cannot be read; 0: it is empty."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == schema.application:
        if not schema.version - len(schema.upgrades) <= version <= schema.version:
            raise ConfigError(
                f"{path}: {schema.what} of version {version}, expected {schema.version}: another version of Headgate"
                f" wrote it. Run that one, or {_move_away(path)}"
            )
        return int(version)
    if application or version or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise ConfigError(f"{path}: a database, but no {schema.what} of Headgate; choose another file")
    return 0


def _create(connection: sqlite3.Connection, schema: Schema) -> None:
    with transaction(connection):
        for statement in filter(str.strip, schema.tables.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={schema.application}")
        connection.execute(f"PRAGMA user_version={schema.version}")


# -- files of versions before -----------------------------------------------------------------------

_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    ".": lambda value: value,
    "b": bool,
    "j": msgspec.json.decode,
    "m": msgspec.msgpack.decode,
    "x": lambda digits: None if digits is None else bytes.fromhex(digits),
}


def upgrade(connection: sqlite3.Connection, text: str) -> None:
    """Run statements that make the tables of a version of those of the version before, in the caller's transaction.

    ``pack`` and ``fields`` write values as MessagePack, the latter with their names; the first argument has a letter
    for each: a value as it is (.), a truth (b), JSON (j), MessagePack (m) or hexadecimal digits (x).
    """
    connection.create_function("pack", -1, _pack, deterministic=True)
    connection.create_function("fields", -1, _fields, deterministic=True)
    for statement in filter(str.strip, text.split(";")):
        connection.execute(statement)


def _pack(letters: str, *values: Any) -> bytes:
    return msgspec.msgpack.encode(
        [_READERS[each](value) for each, value in zip(letters, values, strict=True)]
    )


def _fields(words: str, *values: Any) -> bytes:
    names, letters = words.split()[::2], words.split()[1::2]
    read = [_READERS[each](value) for each, value in zip(letters, values, strict=True)]
    return msgspec.msgpack.encode(dict(zip(names, read, strict=True)))
