"""One thread that owns one database: what a loop puts becomes durable in groups, and the loop is told when.

Theory of operation. ``put`` appends to a list in the loop's thread. ``commit`` hands that list to the thread when it is
idle; what is put while a commit runs goes into the next one, so groups grow with the load. Only one group is under way
at a time, therefore all the rest of the state lives in the loop's thread and needs no lock. When a group cannot be
written (disk full, I/O error, locked by somebody else) ``broken`` says why, the owner may take out what it would
rather refuse, and what is left is tried again each ``RETRY_S`` together with everything put meanwhile, in order.
A group that fails for what is in it (a value the database cannot hold) is taken apart until the culprit is alone;
that one is dropped, reported, and the rest is written.

The thread and the loop share the interpreter's lock. CPython gives it to a thread that waits only when the running one
holds it for 5 ms without a break; an event loop under full load breaks off all the time for system calls of a few
microseconds, too short for the other to wake up, and so starves it. Therefore a group is one statement where that can
be (see ``events``), each of which lets go of the lock once; and ``commit`` stands aside for up to ``GIVE_WAY_S`` when
the group under way is older than ``PATIENCE_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from broker.awake import StallMeter
from broker.nfp.contract import NotStored
from broker.nfp.store.database import Database, complaint, make_room
from broker.nfp.threads import Threads

log = logging.getLogger("headgate")
Operation = TypeVar("Operation")
Answer = TypeVar("Answer")

TIDY_AFTER_S: Final = 1.0
"""Without work for so long, the thread cleans up behind the last burst."""
RETRY_S: Final = 1.0
"""Between two attempts to write what could not be written: soon enough for people, rare enough for a sick disk."""
CLOSE_S: Final = 5.0
"""How long ``close`` waits for the last group and for the end of the thread."""
LATER_S: Final = 0.005
"""How long what nobody waits for may stay in memory to share a commit; a kill loses it, as if it came so much later."""
SPACE_S: Final = 0.002
"""Between the beginnings of two groups under load: more operations share a commit, and the interpreter's lock changes
hands less often. Who does one job after the other waits for nothing."""
LOADED_OPS: Final = 4
"""A group of more operations than that is not of one job alone: that is load."""
HANGS_S: Final = 2.0
"""A commit that takes so long means a disk that hangs, or is too slow: new jobs are refused until it is done."""
PATIENCE_S: Final = 0.005
"""A group takes well below a millisecond; one that is older probably waits for the interpreter."""
GIVE_WAY_S: Final = 0.001
"""Enough for what a group does in Python; the loop stands still for one sixth of the time at worst."""
BEHIND_OPS: Final = 100_000
"""So many operations behind a commit under way mean a disk that cannot follow: new jobs are refused."""
WAITING_OPS_MAX: Final = 1_000_000
"""What is put beyond that is lost to the store (counted, logged): memory ends before patience does. The store is then
broken until a restart: it can no longer be said of anything that it is all there."""


class Written(NamedTuple, Generic[Operation]):
    """What became of a group."""

    left: list[Operation]
    """Operations that were not written, ``error`` says why; [] and "" when all was."""
    error: str
    dropped: list[tuple[Operation, str]]
    """Operations that can never be written, and why."""


class StoreThread(Generic[Operation]):
    """The thread, seen from its loop: but for those of the last part, every method belongs to the loop's thread.

    Args:
        connect: opens the database; called in the thread.
        apply: writes a group, in the thread, all or nothing. It is given an empty list to see whether the disk is back,
            and writes something even then.
        loop: where callbacks happen.
        on_commit: called with the number of a commit that is done.
        on_failed: called with the reason and all that is not written; returns what to keep and try again. For an
            operation that can never be written it is called with that one alone, and what it returns is ignored.
        on_stuck: called when a commit has taken ``HANGS_S`` and ``broken`` says so.
        tidy: called in the thread after ``TIDY_AFTER_S`` without work; True when there is more to do.
        name: of the thread, for people.
        retry_s: see ``RETRY_S``.

    Attributes:
        position: the number of the commit that makes durable all that was put so far.
        committed: the number of the last commit that is done.
        broken: "" or why nothing can be written at present.
        hangs: the disk has not answered for ``HANGS_S``, and does not since.
        lost: operations dropped because they can never be written, or because too many waited.
    """

    def __init__(
        self,
        connect: Callable[[], Database],
        apply: Callable[[sqlite3.Connection, list[Operation]], None],
        loop: asyncio.AbstractEventLoop,
        *,
        on_commit: Callable[[int], None] | None = None,
        on_failed: Callable[[str, list[Operation]], list[Operation]] | None = None,
        on_stuck: Callable[[], None] | None = None,
        tidy: Callable[[sqlite3.Connection], bool] | None = None,
        name: str = "store",
        retry_s: float = RETRY_S,
    ) -> None:
        self.position = 0
        self.committed = 0
        self.broken = ""
        self.hangs = False
        self.lost = 0
        self._loop = loop
        self._on_commit = on_commit
        self._on_failed = on_failed
        self._on_stuck = on_stuck
        self._retry_s = retry_s
        self._pending: list[Operation] = []
        self._connect = connect
        self._apply_group = apply
        self._tidy = tidy
        self._database: Database | None = None
        self._threads = Threads(name, 1, loop, self._close_file)
        self._busy = threading.Lock()
        """Let go by the thread after each group."""
        self._under_way = False
        self._asked = False
        self._since = self._begun = 0.0
        self._incomplete = False
        self._watch: asyncio.TimerHandle | None = None
        self._stall = StallMeter(loop.time)
        self._later: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._tidier: asyncio.TimerHandle | None = None
        self._opened = False
        self._loaded = False
        self._closing = False
        self._settled: asyncio.Future[None] | None = None
        self._name = name

    # -- from the loop -------------------------------------------------------------------------

    async def start(self, read: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Open the database and answer with what ``read`` finds in it, before anything is written.

        Raises:
            ConfigError: it cannot be used; the text names the file and what to do.
        """
        try:
            found: Answer = await self._threads.run(partial(self._open_file, read))
        except BaseException:
            self._threads.run(self._close_file)  # it may be open, when nobody waits any more
            self._threads.close()
            raise
        self._opened = True
        self._tidy_later()
        return found

    def put(self, op: Operation) -> None:
        """Write down ``op`` with the next commit. Never waits, never raises."""
        pending = self._pending
        if not pending:
            self.position += 1
        pending.append(op)

    def commit(self, *, waited: bool = True) -> None:
        """Make durable what was put, now or right behind the commit that is under way. Never waits for the disk.

        ``waited`` False: nobody waits for it, so it goes with what comes next, or after ``LATER_S``.
        """
        if not self._under_way:
            self._next(waited)
            return
        self._asked |= waited
        if len(self._pending) > BEHIND_OPS:
            self._fall_behind()
        if not self.broken and time.monotonic() - self._since > PATIENCE_S:
            self._give_way()

    async def durable(self) -> None:
        """Return once all that was put so far is written.

        Raises:
            NotStored: it could not be written, or the store is being closed. It stays queued.
        """
        if self._retry is not None or self._closing:
            raise NotStored(self.broken or f"{self._name}: closed")
        self.commit()
        if self.committed >= self.position:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((self.position, waiter))
        await waiter

    async def ask(self, query: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """What ``query`` finds, asked in the thread behind all that was put before.

        While nothing can be written it is asked all the same, and finds what was written before.

        Raises:
            NotStored: the database cannot be read, or the store is closed.
        """
        if self._pending and not self._closing:
            with contextlib.suppress(NotStored):
                await StoreThread.durable(self)  # whether its owner waits for that or not
        if not self._opened or self._closing:
            raise NotStored(f"{self._name}: closed, nothing can be asked")
        answer: Answer = await self._threads.run(partial(self._query, query))
        return answer

    async def close(self, timeout_s: float = CLOSE_S) -> int:
        """Write what is left and end the thread, within ``timeout_s``; returns how many operations were not written.

        A disk that fails gets one more attempt, no more. Idempotent.
        """
        if not self._opened or self._closing:
            return len(self._pending)
        self._closing = True
        for timer in (self._later, self._watch, self._tidier):
            if timer is not None:
                timer.cancel()
        until = self._loop.time() + timeout_s
        if self._retry is not None:
            self._try_again()
        elif not self._under_way and self._pending:
            self._hand_over()
        if self._under_way:
            self._settled = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled, timeout_s)
        self._refuse_waiters(f"{self._name}: closed")
        closing = self._threads.run(self._close_file)
        self._threads.close()
        try:
            await asyncio.wait_for(asyncio.shield(closing), max(0.1, until - self._loop.time()))
        except TimeoutError:
            log.error("%s: the disk does not answer, its last commit is left to itself", self._name)
        if self._pending:
            log.error("%s: %d operations were not written: %s", self._name, len(self._pending), self.broken)
        return len(self._pending)

    # -- groups, in the loop's thread ----------------------------------------------------------

    def _next(self, waited: bool) -> None:
        """Nothing is under way: hand over what is there, or see to it that it is handed over in time."""
        if not self._pending or self._closing:
            return
        due = now = self._loop.time()
        if not waited:
            due += LATER_S
        elif self._loaded:
            due = self._begun + SPACE_S
        if due <= now:
            self._hand_over()
        elif self._later is None or self._later.when() > due:
            if self._later is not None:
                self._later.cancel()
            self._later = self._loop.call_at(due, self._late)

    def _late(self) -> None:
        self._later = None
        if not self._under_way and self._pending and not self._closing:
            self._hand_over()

    def _hand_over(self) -> None:
        operations, self._pending = self._pending, []
        self._loaded = len(operations) > LOADED_OPS
        self._under_way = True
        self._asked = False
        self._since = self._begun = time.monotonic()
        if self._watch is None and not self._closing:
            self._look_after(HANGS_S)
        self._busy.acquire(blocking=False)  # free unless a start failed: the thread lets go after each group
        self._threads.call(
            partial(self._write_group, operations), partial(self._written, self.position, operations)
        )

    def _look_after(self, seconds: float) -> None:
        due = self._loop.time() + seconds
        self._stall.wakes_at(due)
        self._watch = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        """Once in ``HANGS_S`` while there is work: does the disk still answer?"""
        self._watch = None
        absent, now = self._stall.stalled_s(), time.monotonic()
        if not self._under_way or self.hangs or self._closing:
            return
        self._begun = min(self._begun + absent, now)  # the thread was stopped as we were
        left = self._begun + HANGS_S - now
        if left > 0 or not self._busy.locked():  # written, and the news of it is on the way
            self._look_after(max(left, PATIENCE_S))
            return
        self.hangs = True
        text = f"{self._name}: the disk has not answered for {HANGS_S:g} s"
        log.error("%s", text)
        if self.broken:
            return  # it has failed before, or too much waits for it: its owner knows
        self.broken = text
        if self._on_stuck is not None:
            self._on_stuck()

    def _give_way(self) -> None:
        if self._busy.acquire(timeout=GIVE_WAY_S):
            self._busy.release()
        self._since = time.monotonic()

    def _fall_behind(self) -> None:
        if not self.broken:
            self.broken = f"{self._name}: {len(self._pending)} operations wait for the disk"
            log.error("%s", self.broken)
        excess = len(self._pending) - WAITING_OPS_MAX
        if excess > 0:
            del self._pending[WAITING_OPS_MAX:]
            self.lost += excess
            if not self._incomplete:
                self._incomplete = True
                self.broken = f"{self._name}: operations were lost waiting for the disk; restart the broker"
                log.error("%s", self.broken)

    def _written(
        self,
        number: int,
        operations: list[Operation],
        written: Written[Operation] | None,
        error: BaseException | None,
    ) -> None:
        """The group ``number`` is written, or is not."""
        self.hangs = False
        if written is None:  # such as no memory left
            written = Written(operations, f"{self._name}: {error!r}", [])
        for operation, why in written.dropped:
            self._dropped(operation, why)
        if written.error:
            self._failed(written.left, written.error)
        else:
            self._committed(number)

    def _committed(self, number: int) -> None:
        self._under_way = False
        self.committed = number
        if self.broken and not self._incomplete:
            log.warning("%s: writes again", self._name)
            self.broken = ""
        self._wake_waiters(number)
        if self._on_commit is not None:
            self._tell_owner(self._on_commit, number)
        if self._under_way:
            return
        if self._closing and self._pending:
            self._hand_over()
        elif self._closing:
            self._settle()
        else:
            self._tidy_later()
            self._next(self._asked)

    def _tell_owner(self, on_commit: Callable[[int], None], number: int) -> None:
        try:
            on_commit(number)
        except Exception:  # the next group must not wait for it
            log.exception("%s: its owner failed at a commit", self._name)

    def _failed(self, operations: list[Operation], text: str) -> None:
        """Nothing of the group was written: refuse what the owner refuses, try the rest again."""
        if not self.broken:
            log.error("%s; tried again each %g s", text, self._retry_s)
        if not self._incomplete:
            self.broken = text
        self._refuse_waiters(text)
        self._pending = operations + self._pending
        self._pending = self._sifted(text, self._pending)
        if self._closing:
            self._settle()
        else:
            self._retry = self._loop.call_later(self._retry_s, self._try_again)

    def _tidy_later(self) -> None:
        if self._tidy is not None and self._tidier is None and not self._closing:
            self._tidier = self._loop.call_later(TIDY_AFTER_S, self._clean_up_when_quiet)

    def _clean_up_when_quiet(self) -> None:
        """Clean up behind the last burst, a little at a time, once it is over."""
        self._tidier = None
        if self._under_way or time.monotonic() - self._begun < TIDY_AFTER_S:
            self._tidy_later()
        else:
            self._threads.call(self._tidy_once, lambda more, _: self._tidy_later() if more else None)

    def _try_again(self) -> None:
        """Hand over what is left, even if that is nothing: so it shows whether the disk is back."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._hand_over()

    def _dropped(self, operation: Operation, text: str) -> None:
        """``operation`` can never be written."""
        self.lost += 1
        log.error("%s; dropped a %s", text, type(operation).__name__)
        self._sifted(text, [operation])

    def _sifted(self, text: str, operations: list[Operation]) -> list[Operation]:
        """What the owner wants to keep of what failed."""
        if self._on_failed is None:
            return operations
        try:
            return self._on_failed(text, operations)
        except Exception:
            log.exception("%s: its owner failed at a failure", self._name)
            return operations

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _wake_waiters(self, number: int) -> None:
        if not self._waiters:
            return
        for at, waiter in self._waiters:
            if at <= number and not waiter.done():
                waiter.set_result(None)
        self._waiters = [entry for entry in self._waiters if entry[0] > number]

    def _refuse_waiters(self, text: str) -> None:
        waiters, self._waiters = self._waiters, []
        for _at, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(NotStored(text))

    # -- in the thread --------------------------------------------------------------------------

    @property
    def _opened_file(self) -> Database:
        assert self._database is not None
        return self._database

    def _open_file(self, read: Callable[[sqlite3.Connection], Answer]) -> Answer:
        database = self._database = self._connect()
        try:
            found = read(database.connection)
            self._apply_group(database.connection, [])  # so it shows now whether it can be written
        except sqlite3.Error as error:
            self._close_file()
            raise complaint(database.path, error) from error
        except BaseException:
            self._close_file()
            raise
        return found

    def _close_file(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _write_group(self, operations: list[Operation]) -> Written[Operation]:
        """Write a group, all or nothing; one that fails for what is in it without the culprits."""
        database = self._opened_file
        dropped: list[tuple[Operation, str]] = []
        try:
            error = self._attempt(operations)
            if error is not None and make_room(database.connection, error):
                error = self._attempt(operations)
            if error is not None and not _of_the_disk(error):
                log.error("%s: a group cannot be written as a whole: %s", self._name, error)
                operations, error = self._write_apart(operations, dropped)
        finally:
            self._busy.release()
        if error is None:
            return Written([], "", dropped)
        return Written(operations, str(complaint(database.path, error)), dropped)

    def _attempt(self, operations: list[Operation]) -> Exception | None:
        try:
            self._apply_group(self._opened_file.connection, operations)
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
                dropped.append((part[0], str(complaint(self._opened_file.path, error))))
        return [], None

    def _query(self, query: Callable[[sqlite3.Connection], Answer]) -> Answer:
        try:
            return query(self._opened_file.connection)
        except sqlite3.Error as error:
            raise NotStored(str(complaint(self._opened_file.path, error))) from error

    def _tidy_once(self) -> bool:
        """Clean up once; True when there is more to do."""
        connection = self._opened_file.connection
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
