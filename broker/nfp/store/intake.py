"""How a whole group of operations goes into SQLite as one statement; for every store of the wing.

A store has a view of its connection only (TEMP), *intake*, with a trigger that takes a row apart inside SQLite: one
INSERT into it is one statement, one transaction and one release of the interpreter's lock, however many operations it
carries (see ``thread``). A column of the row is a JSON array of tuples, in the order the operations were put, or NULL.
One column is a blob with all bodies back to back, out of which ``substr`` cuts each by offset (from 1) and length:
JSON holds no bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from broker.nfp.store.clock import StoreClock
from broker.nfp.store.database import Database, complaint

PORTION_BYTES: Final = 8 * 1024 * 1024
"""Bodies joined into one statement; behind so many bytes the next one begins. Keeps the copy of joining small."""

encode: Final = msgspec.json.Encoder().encode


def item(*path: int) -> str:
    """SQL: the element of a tuple ``o.value``.

    >>> item(1, 0)
    "json_extract(o.value, '$[1][0]')"
    """
    return "json_extract(o.value, '$" + "".join(f"[{index}]" for index in path) + "')"


def items(*indexes: int) -> str:
    """SQL: several elements, comma separated."""
    return ", ".join(item(index) for index in indexes)


def body(column: str, *indexes: int) -> str:
    """SQL: the body that offset and length in ``o.value`` cut out of the joined ones."""
    return f"coalesce(substr(NEW.{column}, {items(*indexes)}), x'')"  # of nothing, substr makes NULL


def insert(columns: int) -> str:
    """SQL: the statement that takes in a row."""
    return f"INSERT INTO intake VALUES ({', '.join('?' * columns)})"  # noqa: S608 - question marks only


def column(rows: Sequence[Any]) -> str | None:
    """Tuples as a column of the intake."""
    return encode(rows).decode() if rows else None


def attach(
    database: Database, script: str, clock: StoreClock, write: Callable[[sqlite3.Connection, list[Any]], None]
) -> Database:
    """Give ``database`` its intake, set the clock, and write an empty group: so it shows now whether it can be written.

    Raises:
        ConfigError: it cannot; the database is closed.
    """
    try:
        database.connection.executescript(script)
        clock.load(database.connection)
        write(database.connection, [])
    except sqlite3.Error as error:
        database.close()
        raise complaint(database.path, error) from error
    except BaseException:
        database.close()
        raise
    return database


class Bodies:
    """Bodies, back to back."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []

    def place(self, body: bytes) -> tuple[int, int]:
        """Take ``body`` in: its offset and length, as ``substr`` wants them."""
        start = self.size + 1
        self.size += len(body)
        self._parts.append(body)
        return start, len(body)

    def joined(self) -> bytes:
        """All of them; a single one is not copied."""
        return b"".join(self._parts)
