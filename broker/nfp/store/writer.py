"""The thread's side of ``thread``: opens the database, writes groups, answers questions, cleans up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from broker.errors import HeadgateError
from broker.nfp.store.database import Database, complaint, make_room, transaction

log = logging.getLogger("headgate")

TIDY_AFTER_S: Final = 1.0
"""Without work for so long, the thread cleans up behind the last burst."""


class NotStored(HeadgateError):
    """Something could not be written; it stays queued and is tried again unless its owner took it out."""


class Group(NamedTuple):
    """Operations that are written together, or not at all."""

    number: int
    operations: list[Any]


class Query(NamedTuple):
    """A question to the database."""

    ask: Callable[[sqlite3.Connection], Any]
    answer: asyncio.Future[Any]


class Writer:
    """``main`` is the thread; everything it has to say it says by callbacks in the loop.

    Args:
        connect, apply, tidy: as of ``StoreThread``. committed: called with the number of a group that is written.
        failed: called with the operations that are not, and why. dropped: with one that never can be, and why.
        ended: done when the database is closed.

    Attributes:
        queue: groups and queries; None ends the thread. busy: let go after each group.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connect: Callable[[], Database],
        apply: Callable[[sqlite3.Connection, list[Any]], None],
        tidy: Callable[[sqlite3.Connection], bool] | None,
        committed: Callable[[int], None],
        failed: Callable[[list[Any], str], None],
        dropped: Callable[[Any, str], None],
        ended: asyncio.Future[None],
        name: str,
    ) -> None:
        self.queue: queue.SimpleQueue[Group | Query | None] = queue.SimpleQueue()
        self.busy = threading.Lock()
        self._loop = loop
        self._connect = connect
        self._apply = apply
        self._tidy = tidy
        self._committed = committed
        self._failed = failed
        self._dropped = dropped
        self._ended = ended
        self._name = name

    def main(self, read: Callable[[sqlite3.Connection], Any], opened: asyncio.Future[Any]) -> None:
        """Open, answer ``opened`` with what ``read`` finds, then serve the queue until it says None."""
        try:
            database = self._connect()
        except Exception as error:
            self._tell(_fail, opened, error)
            self._tell(_succeed, self._ended, None)
            return
        try:
            try:
                found = read(database.connection)
                with transaction(database.connection):  # so it shows now whether it can be written
                    self._apply(database.connection, [])
            except sqlite3.Error as error:
                self._tell(_fail, opened, complaint(database.path, error))
            except Exception as error:
                self._tell(_fail, opened, error)
            else:
                self._tell(_succeed, opened, found)
                del found
                self._serve(database)
        finally:
            database.close()
            self._tell(_succeed, self._ended, None)

    def _serve(self, database: Database) -> None:
        untidy = self._tidy is not None
        while True:
            try:
                item = self.queue.get(timeout=TIDY_AFTER_S if untidy else None)
            except queue.Empty:
                untidy = self._tidied(database.connection)
                continue
            if item is None:
                return
            if isinstance(item, Group):
                self._write(database, item)
                untidy = self._tidy is not None
            else:
                self._answer(database, item)
            del item  # holds bodies

    def _write(self, database: Database, group: Group) -> None:
        error = self._attempt(database, group.operations)
        if error is not None and make_room(database.connection, error):
            error = self._attempt(database, group.operations)
        if error is not None and not _of_the_disk(error):
            log.error("%s: a group cannot be written as a whole: %s", self._name, error)
            rest = self._write_apart(database, group.operations)
            error = rest[1]
            group = group._replace(operations=rest[0])
        self.busy.release()
        if error is None:
            self._tell(self._committed, group.number)
        else:
            self._tell(self._failed, group.operations, str(complaint(database.path, error)))

    def _attempt(self, database: Database, operations: list[Any]) -> Exception | None:
        try:
            with transaction(database.connection):
                self._apply(database.connection, operations)
        except Exception as error:  # whatever it is, the store must live on
            return error
        return None

    def _write_apart(self, database: Database, operations: list[Any]) -> tuple[list[Any], Exception | None]:
        """Write half by half and drop what fails alone; returns what a failing disk left, and why."""
        parts = [operations]
        while parts:
            part = parts.pop()
            error = self._attempt(database, part)
            if error is None:
                continue
            if _of_the_disk(error):
                parts.append(part)
                return [op for part in reversed(parts) for op in part], error
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            elif part:
                self._tell(self._dropped, part[0], str(complaint(database.path, error)))
        return [], None

    def _answer(self, database: Database, query: Query) -> None:
        try:
            found = query.ask(database.connection)
        except sqlite3.Error as error:
            self._tell(_fail, query.answer, NotStored(str(complaint(database.path, error))))
        except Exception as error:  # whose mistake it is learns of it
            self._tell(_fail, query.answer, error)
        else:
            self._tell(_succeed, query.answer, found)

    def _tidied(self, connection: sqlite3.Connection) -> bool:
        """Clean up once; True when there is more to do."""
        assert self._tidy is not None
        try:
            return self._tidy(connection)
        except sqlite3.Error as error:
            log.debug("%s: not tidied: %s", self._name, error)
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            return False

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed under us: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *args)


def _of_the_disk(error: Exception) -> bool:
    """True for what may pass by itself; False for what is wrong with the values of a group."""
    if isinstance(error, sqlite3.OperationalError | MemoryError | OSError):
        return True
    return (
        type(error) is sqlite3.DatabaseError
    )  # a damaged file; its subclasses are about values and statements


def _succeed(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
