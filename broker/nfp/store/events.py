"""What is in a store's file, the same for a broker, a worker and a client: events of jobs, names, the time.

One table has everything that happened to jobs (``events``): a job begins with the event that has its uuid, and those of
its life stand behind it; their numbers are the job's, times ``2 ** 24``, and one more each. Nothing of it changes until
all of it is deleted. Whoever starts from a file applies the events again, in their order. A body stands apart from what
else is known of an event, so that a start need not read it. What belongs to no job is kept by its kind and name, the
latest only (``names``). Values are MessagePack. So a group of operations is one statement as a rule, which costs little
of the interpreter's lock (see ``thread``): rows of a table that only grows, on few pages.

Times are of a clock that never goes back, and that a restart takes up where it was (``StoreClock``), but for the wall
clock's beside the beginning of a job. A wall clock may be set while a broker runs or while it is down; a deadline must
not move further away by that. Within one boot of the machine the store's clock advances with the kernel's boot clock,
also over restarts and kills of the process, whatever the wall clock does. Over a reboot, or on another machine, only
the wall clock can tell how long nobody counted: a negative difference counts as nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from broker.nfp.records import Forgotten
from broker.nfp.store.database import transaction

EVENTS: Final = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, uuid TEXT, at REAL NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX jobs ON events (uuid) WHERE uuid IS NOT NULL
"""
TABLES: Final = f"""
CREATE TABLE clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at REAL NOT NULL, wall REAL NOT NULL, boot REAL NOT NULL, boot_id TEXT NOT NULL);
INSERT INTO clock VALUES (1, 0, 0, 0, '-');
{EVENTS};
CREATE TABLE names (
    kind TEXT NOT NULL, name TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (kind, name)) WITHOUT ROWID
"""  # noqa: S608 - our own words only, in all of these
"""``clock`` has when the last commit was, on every clock, give or take ``CLOCK_S``."""

BEGUN: Final = ""
"""The kind of a job's first event."""
CLOCK_S: Final = 1.0
"""How much a reboot may take of the time that had passed, if the wall clock is set back over it, too."""
ROWS: Final = 32
"""Of one statement: the events of ten jobs or so."""
CACHED: Final = 8192
"""Jobs whose last event's number is kept in memory at most: those that something happens to."""
_GONE: Final = -1
KEY_BITS: Final = 24
"""Of an event's number: which of its job's it is; above them is the job's."""
_EVENTS_MAX: Final = 1 << KEY_BITS
"""Of one job."""

_INSERT: Final = [
    f"INSERT INTO events VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * count)}"  # noqa: S608
    " ON CONFLICT (uuid) WHERE uuid IS NOT NULL DO NOTHING"
    for count in range(ROWS + 1)
]
_OF_JOB: Final = "seq BETWEEN ? AND ?"
_LAST: Final = f"""
SELECT (SELECT max(seq) FROM events WHERE seq BETWEEN j.seq AND j.seq + {_EVENTS_MAX - 1}) FROM events j WHERE uuid = ?
"""  # noqa: S608
_FORGET: Final = f"DELETE FROM events WHERE {_OF_JOB}"  # noqa: S608
_REPLACE: Final = f"{_FORGET} AND kind = ?"
_NAME: Final = "INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)"
_UNNAME: Final = "DELETE FROM names WHERE kind = ? AND name = ?"
_SAVE: Final = "UPDATE clock SET at = ?, wall = ?, boot = ?, boot_id = ?"
_HEADS: Final = "SELECT seq, uuid, at, kind, data, x'', length(body) FROM events"
_HEADS_OF: Final = f"{_HEADS} WHERE kind IN ('{BEGUN}', ?)"
_WHOLE: Final = (
    f"SELECT seq, uuid, at, kind, data, body, length(body) FROM events WHERE {_OF_JOB} ORDER BY seq"  # noqa: S608
)
_FIND: Final = "SELECT seq FROM json_each(?) o CROSS JOIN events ON uuid = o.value ORDER BY seq"
_NAMES: Final = "SELECT name, data FROM names WHERE kind = ? ORDER BY at, name"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


# -- time -----------------------------------------------------------------------------------------


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # unknown: every restart counts as a reboot


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(NamedTuple):
    """The clocks of the machine; tests bring their own."""

    wall: Callable[[], float] = time.time
    """Seconds since 1970, may step."""
    boot: Callable[[], float] = _boot_s
    """Seconds since the machine was booted, never step."""
    boot_id: Callable[[], str] = _boot_id
    """Differs from boot to boot; "" when unknown."""


class StoreClock:
    """See the module; ``load`` comes first.

    Attributes:
        wall: the machine's wall clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.wall = self._clock.wall
        self._boot_id = self._clock.boot_id()
        self._base = 0.0
        self._started = self._clock.boot()

    def load(self, connection: sqlite3.Connection) -> None:
        """Go on where the last commit was."""
        at, wall, boot, boot_id = connection.execute("SELECT at, wall, boot, boot_id FROM clock").fetchone()
        self._started = self._clock.boot()
        if boot_id == "-":
            elapsed = 0.0
        elif boot_id == self._boot_id != "":
            elapsed = self._started - boot
        else:
            elapsed = self._clock.wall() - wall
        self._base = at + max(0.0, elapsed)

    def now(self) -> float:
        """Seconds since the store was made."""
        return self._base + max(0.0, self._clock.boot() - self._started)

    def reading(self) -> tuple[float, float, float, str]:
        """What ``clock`` has for now."""
        return self.now(), self._clock.wall(), self._clock.boot(), self._boot_id


# -- what is written --------------------------------------------------------------------------------


class Event(NamedTuple):
    """Something happens to a job; with ``BEGUN`` it begins. ``latest``: the job keeps the last of this kind only."""

    uuid: str
    kind: str
    values: Any
    body: bytes = b""
    latest: bool = False


class Named(NamedTuple):
    """``values`` are kept under a name from now on, in place of others; None: nothing is."""

    kind: str
    name: str
    values: Any


class EventLog:
    """Writes to the file of one store; in the thread that owns its connection.

    An event of a job that is not there changes nothing. A uuid that is there must not begin again before it is
    forgotten; one that does stays as it is, if its job is one of the latest.

    Attributes:
        clock: of the store.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = StoreClock(clock)
        self._saved_at = 0.0
        self._number = 0
        self._last: dict[str, int] = {}
        """The number of the last event of each job, by uuid; ``_GONE`` for none."""

    def load(self, connection: sqlite3.Connection) -> None:
        """Go on behind what is there."""
        self.clock.load(connection)
        (last,) = connection.execute("SELECT max(seq) FROM events").fetchone()
        self._number = 0 if last is None else (last >> KEY_BITS) + 1

    def write(self, connection: sqlite3.Connection, operations: Iterable[Event | Forgotten | Named]) -> None:
        """Write ``operations``, one after the other, all or nothing; something is written even if there are none.

        Raises:
            sqlite3.Error: the disk fails, or a value cannot be held. Exception: it is no operation.
        """
        if len(self._last) > CACHED:
            for uuid in list(islice(self._last, CACHED // 2)):
                del self._last[uuid]
        try:
            statements = self._statements(connection, operations)
            if len(statements) == 1:  # which is a transaction by itself
                connection.execute(*statements[0])
            elif statements:
                with transaction(connection):
                    for statement in statements:
                        connection.execute(*statement)
        except BaseException:
            self._last.clear()  # what is in there may not be in the file
            raise

    def _statements(
        self, connection: sqlite3.Connection, operations: Iterable[Event | Forgotten | Named]
    ) -> list[tuple[str, Sequence[Any]]]:
        reading = self.clock.reading()
        at, wall = reading[:2]
        statements: list[tuple[str, Sequence[Any]]] = []
        rows: list[Any] = []
        count = 0
        for op in operations:
            if count == ROWS or (count and (not isinstance(op, Event) or op.latest)):
                statements.append((_INSERT[count], rows))
                rows, count = [], 0
            if isinstance(op, Event):
                uuid, kind, values, body, latest = op
                seq = self._find(connection, uuid, begins=kind == BEGUN)
                if (seq == _GONE) != (kind == BEGUN):
                    continue
                if kind == BEGUN:
                    seq, name, values = self._number << KEY_BITS, uuid, (wall, values)
                    self._number += 1
                else:
                    seq, name = seq + 1, None
                if latest:
                    statements.append((_REPLACE, (*_of_job(seq), kind)))
                self._last[uuid] = seq
                rows += (seq, name, at, kind, _encode(values), body)
                count += 1
            elif isinstance(op, Forgotten):
                statements.append((_FORGET, _of_job(self._find(connection, op.uuid))))
                self._last[op.uuid] = _GONE
            elif op.values is None:
                statements.append((_UNNAME, (op.kind, op.name)))
            else:
                statements.append((_NAME, (op.kind, op.name, at, _encode(op.values))))
        if count:
            statements.append((_INSERT[count], rows))
        if not statements or at - self._saved_at >= CLOCK_S:
            self._saved_at = at
            statements.append((_SAVE, reading))
        return statements

    def _find(self, connection: sqlite3.Connection, uuid: str, *, begins: bool = False) -> int:
        """The number of the last event of a job; of one that ``begins`` only if that is in memory."""
        last = self._last.get(uuid)
        if last is None:
            found = None if begins else connection.execute(_LAST, (uuid,)).fetchone()
            last = self._last[uuid] = _GONE if found is None else int(found[0])
        return last


def _of_job(seq: int) -> tuple[int, int]:
    """The numbers that the events of a job may have, of which ``seq`` is one."""
    first = seq >> KEY_BITS << KEY_BITS
    return first, first + _EVENTS_MAX - 1


# -- what is read -----------------------------------------------------------------------------------


class Happened(NamedTuple):
    """An event as it is in a file."""

    kind: str
    at: float
    values: Any
    body: bytes
    """b"" where bodies are not asked for."""
    size: int
    """Of the body."""


class Kept(NamedTuple):
    """A job as it is in a file."""

    uuid: str
    at: float
    wall: float
    values: Any
    body: bytes
    """b"" where bodies are not asked for."""
    size: int
    """Of the body."""
    events: list[Happened]


def read(
    connection: sqlite3.Connection, uuids: Iterable[str] | None = None, *, only: str = ""
) -> Iterator[Kept]:
    """All jobs without their bodies, or those of ``uuids`` with theirs, in the order they were added.

    ``only``: their events of this kind, "": all; of all jobs.
    """
    rows: Iterable[Any]
    if uuids is not None:
        names = msgspec.json.encode(list(uuids)).decode()
        found = connection.execute(_FIND, (names,)).fetchall()
        rows = chain.from_iterable(connection.execute(_WHOLE, _of_job(seq)) for (seq,) in found)
    elif only:
        rows = connection.execute(f"{_HEADS_OF} ORDER BY seq", (only,))
    else:
        rows = connection.execute(f"{_HEADS} ORDER BY seq")
    for _number, events in groupby(rows, lambda row: row[0] >> KEY_BITS):
        (_seq, uuid, at, _kind, data, body, size), *later = events
        if uuid is None:
            continue  # events of a uuid that was there before, see ``EventLog``
        wall, values = _decode(data)
        happened = [
            Happened(kind, at, _decode(data), body, size) for _seq, _, at, kind, data, body, size in later
        ]
        yield Kept(uuid, at, wall, values, body, size, happened)


def names_of(connection: sqlite3.Connection, kind: str) -> list[tuple[str, list[Any]]]:
    """What is kept by name, the earliest first."""
    return [(name, _decode(data)) for name, data in connection.execute(_NAMES, (kind,))]
