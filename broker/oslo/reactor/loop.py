"""A loop over descriptors for one real thread: what asyncio is to the broker, where asyncio cannot be.

An application's process may be patched by eventlet, which replaces what asyncio stands on; a real thread must then use
nothing of it. Proxies run on the same loop, so that what talks to each other is read and tested in one form.

The descriptor of a ZeroMQ socket says only that its state may have changed, and any call on the socket may take that
news in: a ``Socket`` that sent something is looked at again at the end of the turn (see ``check_after_turn``).
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import traceback
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import zmq

from broker.oslo.reactor import natives

if TYPE_CHECKING:
    from broker.oslo.reactor.socket import Socket

log = logging.getLogger("headgate.oslo")

SOCKETS_MAX: Final = 8192
"""Sockets of one context: three for each node and pipeline a client speaks to, since two of them watch the third;
libzmq's default is 1023."""
_READABLE: Final = 0x001  # EPOLLIN; the constants of a patched ``select`` are gone
_LONGEST_S: Final = 60.0
CALLS_MAX: Final = 1024
"""Calls of other threads, and of our own, in one turn: a flood of them must not keep sockets waiting."""
CANCELLED_MIN: Final = 256
"""Cancelled timers that may stay in the heap; beyond it they are swept out when they are more than half of it."""
# read where it is used, not folded by the compiler: tests change it
REST_S: float = 0.1
"""A descriptor whose reader raised is left alone for so long: it would be called again at once, for ever."""

Say = Callable[[int, str, tuple[Any, ...]], None]
"""Takes a log record: level, format, arguments."""


def say_here(level: int, text: str, values: tuple[Any, ...]) -> None:
    """Log at once: right for threads that share no green lock."""
    log.log(level, text, *values)


class Timer:
    """A call to come; ``cancel`` is harmless at any time, in the reactor's thread."""

    __slots__ = ("args", "call", "due_s", "reactor")

    def __init__(
        self, due_s: float, call: Callable[..., None], args: tuple[Any, ...], reactor: Reactor | None = None
    ) -> None:
        self.due_s = due_s
        self.call: Callable[..., None] | None = call
        self.args = args
        self.reactor = reactor

    def cancel(self) -> None:
        """Forget it."""
        if self.call is not None:
            self.call = None
            self.args = ()
            if self.reactor is not None:
                self.reactor.timer_cancelled()


class Reactor:
    """Descriptors, timers and calls, in one thread.

    Only ``call_threadsafe`` may be used by other threads. Nothing is opened before ``run``,
    except by ``open``, so that the object may be made anywhere.

    Args:
        say: takes what is to be logged; the default logs at once.
        clock: seconds that never go back.

    Attributes:
        context: ZeroMQ's, None before ``open`` and after ``close``.
        turns: how often the loop went round.
        at_close: called by ``close``, before anything else, and forgotten.
    """

    def __init__(self, say: Say = say_here, clock: Callable[[], float] = natives.monotonic) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.turns = 0
        self.at_close: list[Callable[[], None]] = []
        self.say = say
        self.now = clock
        self._soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._foreign: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._cancelled = 0
        self._readers: dict[int, Callable[[], None]] = {}
        self._new_readers: set[int] = set()
        self._resting: dict[int, Timer] = {}
        self._touched: dict[Socket, None] = {}
        self._epoll: Any = None
        self._bell: natives.Bell | None = None
        self._awake = False
        self._stopping = False
        self._closed = False

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Open the context, epoll and the bell that other threads wake the loop by; harmless twice."""
        if self._epoll is not None:
            return
        bell, epoll = natives.Bell(), natives.new_epoll()
        epoll.register(bell.fd, _READABLE)
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        self._bell, self._epoll, self._closed = bell, epoll, False
        bell.ring()  # calls that came before could not wake anybody

    def run(self) -> None:
        """Go round until ``stop``."""
        self.open()
        while not self._stopping:
            self.turn()

    def stop(self) -> None:
        """Leave ``run`` at the end of this turn."""
        self._stopping = True

    def close(self) -> None:
        """End the context, when its sockets have lingered, and everything else. Harmless twice.

        Sockets should be closed before; those that are not are closed here, without lingering, and that is reported.
        Calls that other threads ask for from now on are forgotten.
        """
        self._closed = True
        self._bell = None
        while self.at_close:
            self._guarded(self.at_close.pop(), ())
        if self.context is not None:
            context, self.context = self.context, None
            left = sum(not sock.closed for sock in list(getattr(context, "_sockets", ())))
            if left:
                self.say(logging.WARNING, "%d sockets were still open when their loop was closed", (left,))
            context.destroy(0)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        self._readers.clear()
        self._touched.clear()
        self._timers.clear()
        self._foreign.clear()
        self._soon.clear()

    # ------------------------------------------------------------ calls

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call in this turn, when its calls are still to come, or in the next one; in the order of asking."""
        self._soon.append((call, args))

    def call_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        """Call in the loop's thread; in the order of asking. Wakes the loop only when it may sleep.

        Before ``open`` it waits for that; after ``close`` it is forgotten.
        """
        if self._closed:
            return
        self._foreign.append((call, args))
        if not self._awake:
            self._awake = True
            bell = self._bell
            if bell is not None:
                bell.ring()

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        """Call after ``delay_s`` seconds; at once when that is below 0, never when it is infinite.

        Raises:
            ValueError: it is not a number, which would leave all other timers without an order.
        """
        if delay_s != delay_s:
            raise ValueError("a timer: saw nan, expected seconds")
        timer = Timer(self.now() + delay_s, call, args, self)
        heapq.heappush(self._timers, (timer.due_s, next(self._order), timer))
        return timer

    def timer_cancelled(self) -> None:
        """One of the timers was; long ones must not pile up until they would have been due."""
        self._cancelled += 1
        if self._cancelled > CANCELLED_MIN and 2 * self._cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # ------------------------------------------------------------ descriptors

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Call whenever ``fd`` is readable or has ended; replaces what was there for that number.

        The reactor has to be open. ``remove_reader`` comes before ``fd`` is closed.

        Raises:
            OSError: it is not open, or of a kind that cannot be waited for.
        """
        try:
            self._epoll.register(fd, _READABLE)
        except FileExistsError:
            self._epoll.modify(fd, _READABLE)
        self._stay(fd)
        self._readers[fd] = call
        self._new_readers.add(fd)  # an event of this turn may be of another file that had the number before

    def remove_reader(self, fd: int) -> None:
        """Forget ``fd``; harmless when it is not known, or already closed."""
        self._stay(fd)
        if self._readers.pop(fd, None) is not None and self._epoll is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def _rest(self, fd: int, call: Callable[[], None]) -> None:
        """Leave a descriptor alone whose reader raised, for a while."""
        if self._readers.get(fd) is call:
            self.remove_reader(fd)
            self._resting[fd] = self.call_later(REST_S, self._rested, fd, call)

    def _rested(self, fd: int, call: Callable[[], None]) -> None:
        del self._resting[fd]
        self.add_reader(fd, call)

    def _stay(self, fd: int) -> None:
        """Whatever rested there does not come back."""
        timer = self._resting.pop(fd, None)
        if timer is not None:
            timer.cancel()

    def check_after_turn(self, socket: Socket) -> None:
        """Check ``socket`` at the end of this turn: something was sent on it, or it has more to read."""
        self._touched[socket] = None

    def forget(self, socket: Socket) -> None:
        """``socket`` is closed."""
        self._touched.pop(socket, None)

    # ------------------------------------------------------------ one turn

    def turn(self) -> None:
        """Wait for something to do, do it. An exception is reported and costs only what raised it."""
        self.turns += 1
        events = self._epoll.poll(self._patience_s())
        self._new_readers.clear()
        for fd, _events in events:
            reader = self._readers.get(fd)
            if reader is None:
                if self._bell is not None and fd == self._bell.fd:
                    # read first, then no longer awake, then look at the queue: whoever adds after that rings again
                    self._bell.quiet()
                    self._awake = False
            elif fd not in self._new_readers and not self._guarded(reader, ()):
                self._rest(fd, reader)
        for queue in (self._foreign, self._soon):
            for _ in range(min(len(queue), CALLS_MAX)):
                call, args = queue.popleft()
                self._guarded(call, args)
        if self._timers and self._timers[0][0] <= self.now():
            self._due()
        touched, self._touched = self._touched, {}
        for socket in touched:
            self._guarded(socket.look, ())

    def _patience_s(self) -> float:
        if self._soon or self._touched or self._foreign:
            return 0.0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
            self._cancelled -= 1
        if not self._timers:
            return _LONGEST_S
        return max(0.0, min(_LONGEST_S, self._timers[0][0] - self.now()))

    def _due(self) -> None:
        now = self.now()
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:  # what they start themselves comes in the next turn, however soon it is due
            if timer.call is None:
                self._cancelled -= 1
                continue
            call, args = timer.call, timer.args
            timer.call, timer.args = None, ()
            self._guarded(call, args)

    def _guarded(self, call: Callable[..., None], args: tuple[Any, ...]) -> bool:
        """False: it raised, and that was reported."""
        try:
            call(*args)
        except Exception as error:
            self.report(error)
            return False
        return True

    def report(self, error: Exception) -> None:
        """Log what should not have happened in this thread, with where it did; never raises."""
        with contextlib.suppress(Exception):
            trace = "".join(traceback.format_exception(error))
            self.say(logging.ERROR, "in the thread of the sockets: %s\n%s", (error, trace))
