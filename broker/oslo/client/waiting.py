"""How a caller waits for the thread of the sockets: a real lock, or under eventlet a greenlet that its hub wakes.

A real lock costs nothing while it waits and is exact. Where eventlet has patched threads it would stop every greenlet
of the OS thread; there, the thread of the sockets puts the waiter into a deque and writes an eventfd, which the hub
of the waiter's OS thread reads (``Dispatcher``). No green lock is ever shared with a real thread, and eventlet is
never imported here: it is found in ``sys.modules`` or it is not there.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from broker.oslo.reactor import natives

log = logging.getLogger("headgate.oslo")

LONGEST_S: Final = min(_thread.TIMEOUT_MAX, 10 * 365 * 86400.0)
"""Ten years: longer waits are cut, since clocks and locks cannot say them."""
RECORDS_MAX: Final = 1000
"""Log records that may wait to be written; more are dropped and counted."""
SAY_NAME: Final = "headgate-oslo-log"


class Waiter(Protocol):
    """Waits once, in the thread (and greenlet) that calls ``wait``; ``set`` may come from any thread at any time."""

    def set(self, _what: object = None) -> None:
        """It has happened, whatever it is. Harmless twice."""

    def wait(self, timeout_s: float | None) -> bool:
        """True when it has happened; False after ``timeout_s`` (None: waits for ever)."""


def bounded(timeout_s: float | None) -> float | None:
    """Seconds that a lock and a hub can wait: from 0 to ``LONGEST_S``; None and infinity: for ever.

    Raises:
        ValueError: it is not a number; a hub's timers would lose their order.

    >>> bounded(None), bounded(-1.0), bounded(float("inf"))
    (None, 0.0, None)
    """
    if timeout_s is None or timeout_s == math.inf:
        return None
    if timeout_s != timeout_s:
        raise ValueError("timeout: saw nan, expected seconds, or None for no limit")
    return min(max(timeout_s, 0.0), LONGEST_S)


def new_waiter() -> Waiter:
    """A waiter of the kind that this process needs now."""
    return GreenWaiter() if natives.threads_are_green() else NativeWaiter()


class Waiters:
    """Callers that wait for the same thing, each once; in turn. For any thread."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, timeout_s: float | None, ready: Callable[[], bool]) -> bool:
        """Wait until woken and ``ready`` by then, ``timeout_s`` at most (None: for ever); returns whether it is."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not ready():
            left_s = None if end_s is None else end_s - time.monotonic()
            waiter = new_waiter()
            self._waiting.append(waiter)
            try:
                # asked behind ``append``: whoever makes it so from now on sees this waiter
                if not ready() and not waiter.wait(left_s):
                    return ready()
            finally:
                with contextlib.suppress(ValueError):  # woken
                    self._waiting.remove(waiter)
        return True

    def wake_one(self) -> None:
        """The one that has waited longest goes on; harmless when nobody waits."""
        with contextlib.suppress(IndexError):
            self._waiting.popleft().set()

    def wake(self) -> None:
        """All that wait now go on."""
        for _ in range(len(self._waiting)):
            self.wake_one()


class NativeWaiter:
    """Waits in a real thread, on a real lock."""

    __slots__ = ("_lock", "_set")

    def __init__(self) -> None:
        self._set = False
        self._lock = natives.allocate_lock()
        self._lock.acquire()

    def set(self, _what: object = None) -> None:
        """See ``Waiter``."""
        self._set = True
        try:
            self._lock.release()
        except RuntimeError:  # set twice
            pass

    def wait(self, timeout_s: float | None) -> bool:
        """See ``Waiter``."""
        if not self._set:
            seconds = bounded(timeout_s)
            self._lock.acquire(True, -1.0 if seconds is None else seconds)
        return self._set


class GreenWaiter:
    """Waits in a greenlet while its hub runs others."""

    __slots__ = ("_dispatcher", "_greenlet", "_set")

    def __init__(self) -> None:
        self._set = False
        self._greenlet: Any = None
        self._dispatcher: Dispatcher | None = None

    def set(self, _what: object = None) -> None:
        """See ``Waiter``."""
        self._set = True
        dispatcher = self._dispatcher  # looked at after the flag: ``wait`` looks at them the other way round
        if dispatcher is not None:
            dispatcher.wake(self.resume)

    def wait(self, timeout_s: float | None) -> bool:
        """See ``Waiter``. In the hub's own greenlet nobody can wait: returns at once."""
        if self._set:
            return True
        seconds = bounded(timeout_s)
        dispatcher = Dispatcher.here()
        hub = dispatcher.hub
        current = sys.modules["greenlet"].getcurrent()
        if current is hub.greenlet:
            return self._set
        self._dispatcher = dispatcher
        dispatcher.waiting += 1
        timer = None
        try:
            if not self._set:
                self._greenlet = current
                if seconds is not None:
                    timer = hub.schedule_call_global(seconds, self.resume)
                hub.switch()
        finally:
            self._greenlet = None
            self._dispatcher = None
            if timer is not None:
                timer.cancel()
            dispatcher.left()
        return self._set

    def resume(self) -> None:
        """Go on, when it still waits; called by the hub."""
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.switch()


class Dispatcher:
    """The way from real threads into the hub of one OS thread: a deque, and an eventfd that the hub reads.

    Attributes:
        hub: whose.
        waiting: greenlets that wait on it.
    """

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.waiting = 0
        self._queue: deque[Callable[[], None]] = deque()
        self._awake = False
        self._ending = False
        self._pid = os.getpid()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # the number may have belonged to a file that was closed behind the hub's back
        sys.modules["eventlet.hubs"].notify_opened(self._fd)
        self._listener: Any = hub.add(hub.READ, self._fd, self._ready, self._lost, None)

    @staticmethod
    def here() -> Dispatcher:
        """The one of this OS thread's hub."""
        hub = sys.modules["eventlet.hubs"].get_hub()
        found = _dispatchers.get(id(hub))
        if found is None or found.hub is not hub or found._fd < 0:
            found = _dispatchers[id(hub)] = Dispatcher(hub)
        found._ending = False
        return found

    def wake(self, resume: Callable[[], None]) -> None:
        """Have the hub call ``resume`` in its own greenlet, where it must not wait; from any thread."""
        self._queue.append(resume)
        if not self._awake:
            self._awake = True
            if self._fd >= 0 and self._pid == os.getpid():  # the number may be anybody's in a forked child
                os.eventfd_write(self._fd, 1)

    def left(self) -> None:
        """A greenlet waits no more."""
        self.waiting -= 1
        if self._ending and self.waiting <= 0:
            self._close()

    def end(self) -> None:
        """Close the eventfd as soon as nobody waits; from any thread."""
        self._ending = True
        self.wake(_nothing)

    def _ready(self, _fd: int) -> None:
        if self._pid != os.getpid():
            return  # a forked child that has kept the hub: what is in there is the parent's
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass
        self._awake = False
        try:
            while self._queue:
                self._queue.popleft()()
        finally:
            if self._queue:  # one of them raised: the hub reports it, the others must not wait
                self.hub.schedule_call_global(0, self._ready, self._fd)
        if self._ending and self.waiting <= 0:
            self._close()

    def _lost(self, _error: BaseException) -> None:
        """The hub believes that the descriptor was closed: the next one who waits makes a new dispatcher."""
        self._fd = -1

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.hub.remove(self._listener)
            os.close(fd)
            if _dispatchers.get(id(self.hub)) is self:
                del _dispatchers[id(self.hub)]


def _nothing() -> None:
    """Wakes a hub without anybody who waits there."""


_dispatchers: dict[int, Dispatcher] = {}


def end_dispatchers() -> None:
    """Nobody needs the thread of the sockets any more: let the hubs forget their eventfds."""
    for dispatcher in list(_dispatchers.values()):
        dispatcher.end()


def bury_dispatchers() -> object:
    """After a fork: begin without any. Returns the parent's, which have to be kept and never touched."""
    global _dispatchers
    buried, _dispatchers = _dispatchers, {}
    return buried


class LogWriter:
    """Takes log records in the thread of the sockets and writes them elsewhere: in a thread that lives while there are
    some, or under eventlet in a greenlet of the hub where this was made.

    Handlers may be slow, wait for green locks, or send what they are given over these very sockets.

    Attributes:
        dropped: records that found no room.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._dispatcher = Dispatcher.here() if natives.threads_are_green() else None
        self._lock = natives.allocate_lock()
        self._records: deque[tuple[int, str, tuple[Any, ...]]] = deque()
        self._writing = False
        self._waiters: list[NativeWaiter] = []

    def __call__(self, level: int, text: str, values: tuple[Any, ...]) -> None:
        """See ``reactor.loop.Say``."""
        with self._lock:
            if len(self._records) >= RECORDS_MAX:
                self.dropped += 1
                return
            self._records.append((level, text, values))
            if self._writing:
                return
            self._writing = True
        if self._dispatcher is not None:
            self._dispatcher.wake(self._spawn)
            return
        try:
            natives.start_thread(self._write, SAY_NAME)
        except RuntimeError:  # the interpreter ends, or there are too many: better late than never
            self._write()

    def _spawn(self) -> None:
        """In the hub, which must not wait."""
        sys.modules["eventlet"].spawn_n(self._write)

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._records:
                    self._writing = False
                    waiters, self._waiters = self._waiters, []
                    break
                level, text, values = self._records.popleft()
            with contextlib.suppress(Exception):  # of a filter; those behind it shall be written
                log.log(level, text, *values)
        for waiter in waiters:
            waiter.set()

    def flush(self, timeout_s: float) -> None:
        """Wait until all is written; not for a handler that waits for us, nor for a greenlet, whose hub would stop."""
        with self._lock:
            if not self._writing or self._dispatcher is not None:
                return
            waiter = NativeWaiter()
            self._waiters.append(waiter)
        waiter.wait(timeout_s)
