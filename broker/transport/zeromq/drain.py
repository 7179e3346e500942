"""Reading a ZeroMQ socket from an event loop: edge-triggered, with a budget.

The descriptor of a ZeroMQ socket says only that its state may have changed. Any call on the socket may take the
change in, after which the descriptor is silent: so EVENTS is asked again after the last message and after every
send, and whoever finds something readable there reads it or arranges to be called again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

import zmq

from broker.transport.zeromq.hub import Hub
from broker.transport.zeromq.tuning import EVENTS, POLLIN

log = logging.getLogger("headgate")
DRAIN_MSGS: Final = 32
DRAIN_BYTES: Final = 256 << 10
"""One turn ends at 32 ZeroMQ messages or 256 KiB, so that other links get theirs. A message of a peer that sends no
batches, with its answer, costs 40 us: a turn of 256 took 10 ms, and whoever called meanwhile waited for several."""
_BURST_MSGS: Final = 16
"""Once messages come in numbers, EVENTS is asked after so many instead of after each: it costs a system call."""
RETRY_S: Final = 0.01
"""While a link waits for room it is tried at least this often: the news of room may have been swallowed by a send to
another peer of the same socket, and EVENTS of a ROUTER does not tell whose room it is."""


class Flushable(Protocol):
    """A link whose outbox waits for room."""

    def flush(self) -> None:
        """Try again."""


class DrainOwner(Protocol):
    """Whose socket it is."""

    def take(self) -> int:
        """Read one ZeroMQ message; return its bytes. Raises zmq.Again when there is none."""

    def deliver(self, drained: bool) -> None:
        """A turn is over: pass on what was taken. ``drained``: nothing is left to take for now."""


class Pump:
    """Moves messages between one ZeroMQ socket and its owner.

    Attributes:
        paused: True while nothing is to be read; call ``wake`` after setting it False.
        waiting: links to flush when libzmq has room again.
    """

    __slots__ = (
        "_events",
        "_fd",
        "_handle",
        "_hub",
        "_owner",
        "_timer",
        "closed",
        "paused",
        "sock",
        "waiting",
    )

    def __init__(self, hub: Hub, sock: zmq.Socket[bytes], owner: DrainOwner) -> None:
        self.sock = sock
        self.paused = False
        self.closed = False
        self.waiting: dict[Flushable, None] = {}
        self._hub = hub
        self._owner = owner
        self._events = cast("Callable[[int], int]", sock.get)
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fd = int(sock.get(zmq.FD))
        hub.loop.add_reader(self._fd, self.turn)
        self.wake()

    def now(self) -> float:
        """Monotonic seconds."""
        return self._hub.loop.time()

    def wake(self) -> None:
        """Take a turn soon."""
        if self._handle is None and not self.closed:
            self._handle = self._hub.loop.call_soon(self.turn)

    def sent(self) -> None:
        """To be called after sending: a send may have swallowed the news that there is something to read."""
        if self.closed:
            return
        if self._events(EVENTS) & POLLIN and not self.paused:
            self.wake()
        if self.waiting:
            self._retry_later()

    def turn(self) -> None:
        """Read up to the budget, let the owner deliver, and flush who waits for room."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self.closed:
            return
        self._owner.deliver(self._read())
        if self.waiting:
            self._retry()

    def close(self, linger_ms: int) -> None:
        """Close the socket; libzmq goes on sending for ``linger_ms``."""
        if not self.closed:
            self.stop()
            self._hub.close(self.sock, linger_ms)

    def stop(self) -> None:
        """Take no more turns; the socket stays open."""
        self.closed = True
        self.waiting.clear()
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()
        self._hub.loop.remove_reader(self._fd)

    def _read(self) -> bool:
        """Whether nothing is left; EVENTS is asked even when paused, or the descriptor would stay readable."""
        messages = size = 0
        burst = 1
        while not self.closed and self._events(EVENTS) & POLLIN and not self.paused:
            if messages >= DRAIN_MSGS or size >= DRAIN_BYTES:
                self.wake()
                return False
            try:
                for _ in range(burst):
                    if self.sock.closed:
                        break
                    size += self._owner.take()
                    messages += 1
            except zmq.Again:
                burst = 1
            else:
                burst = min(2 * burst, _BURST_MSGS)
        return True

    def _retry(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for link in waiting:
            try:
                link.flush()
            except Exception:  # the others must not pay for it
                log.exception("%r could not be flushed", link)
        if self.waiting and not self.closed:
            self._retry_later()

    def _retry_later(self) -> None:
        if self._timer is None:
            self._timer = self._hub.loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        self.turn()
