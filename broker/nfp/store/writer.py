"""The thread's side of ``thread``: opens the database, writes groups, answers questions, cleans up."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from broker.nfp.contract import NotStored
from broker.nfp.store.database import Database, complaint, make_room, transaction

log = logging.getLogger("headgate")
Operation = TypeVar("Operation")
Answer = TypeVar("Answer")


class Written(NamedTuple, Generic[Operation]):
    """What became of a group."""

    left: list[Operation]
    """Operations that were not written, ``error`` says why; [] and "" when all was."""
    error: str
    dropped: list[tuple[Operation, str]]
    """Operations that can never be written, and why."""


class Writer(Generic[Operation]):
    """A database, in the thread that owns it.

    Args:
        connect, apply, tidy, name: as of ``StoreThread``.

    Attributes:
        busy: let go after each group.
    """

    def __init__(
        self,
        connect: Callable[[], Database],
        apply: Callable[[sqlite3.Connection, list[Operation]], None],
        tidy: Callable[[sqlite3.Connection], bool] | None,
        name: str,
    ) -> None:
        self.busy = threading.Lock()
        self._connect = connect
        self._apply = apply
        self._tidy = tidy
        self._name = name
        self._database: Database | None = None

    @property
    def _opened(self) -> Database:
        assert self._database is not None
        return self._database

    def open(self, read: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Open it and return what ``read`` finds in it.

        Raises:
            ConfigError: it cannot be used.
        """
        database = self._database = self._connect()
        try:
            found = read(database.connection)
            with transaction(database.connection):  # so it shows now whether it can be written
                self._apply(database.connection, [])
        except sqlite3.Error as error:
            self.close()
            raise complaint(database.path, error) from error
        except BaseException:
            self.close()
            raise
        return found

    def close(self) -> None:
        """Close it, if it is open."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def write(self, operations: list[Operation]) -> Written[Operation]:
        """Write a group, all or nothing; one that fails for what is in it without the culprits."""
        database = self._opened
        dropped: list[tuple[Operation, str]] = []
        try:
            error = self._attempt(operations)
            if error is not None and make_room(database.connection, error):
                error = self._attempt(operations)
            if error is not None and not _of_the_disk(error):
                log.error("%s: a group cannot be written as a whole: %s", self._name, error)
                operations, error = self._write_apart(operations, dropped)
        finally:
            self.busy.release()
        if error is None:
            return Written([], "", dropped)
        return Written(operations, str(complaint(database.path, error)), dropped)

    def _attempt(self, operations: list[Operation]) -> Exception | None:
        connection = self._opened.connection
        try:
            with transaction(connection):
                self._apply(connection, operations)
        except Exception as error:  # whatever it is, the store must live on
            return error
        return None

    def _write_apart(
        self, operations: list[Operation], dropped: list[tuple[Operation, str]]
    ) -> tuple[list[Operation], Exception | None]:
        """Write half by half and drop what fails alone; returns what a failing disk left, and why."""
        parts = [operations]
        while parts:
            part = parts.pop()
            error = self._attempt(part)
            if error is None:
                continue
            if _of_the_disk(error):
                parts.append(part)
                return [op for part in reversed(parts) for op in part], error
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            elif part:
                dropped.append((part[0], str(complaint(self._opened.path, error))))
        return [], None

    def ask(self, query: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Return what ``query`` finds.

        Raises:
            NotStored: it cannot be read.
        """
        try:
            return query(self._opened.connection)
        except sqlite3.Error as error:
            raise NotStored(str(complaint(self._opened.path, error))) from error

    def tidy(self) -> bool:
        """Clean up once; True when there is more to do."""
        connection = self._opened.connection
        try:
            return self._tidy is not None and self._tidy(connection)
        except sqlite3.Error as error:
            log.debug("%s: not tidied: %s", self._name, error)
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            return False


def _of_the_disk(error: Exception) -> bool:
    """True for what may pass by itself; False for what is wrong with the values of a group."""
    if isinstance(error, sqlite3.OperationalError | MemoryError | OSError):
        return True
    return (
        type(error) is sqlite3.DatabaseError
    )  # a damaged file; its subclasses are about values and statements
