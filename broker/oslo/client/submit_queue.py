"""What callers have handed over and the thread of the sockets has not looked at yet: bounded, so that they wait.

The bound is small on purpose. A caller that never waits keeps the interpreter's lock, and the thread of the sockets
gets it once in some milliseconds; a caller that waits for room lets it work through everything at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from broker.oslo.client.waiting import Waiters
from broker.oslo.reactor import natives

HANDED_MSGS: Final = 128
HANDED_BYTES: Final = 8 << 20


class SubmitQueue:
    """The count of what waits between callers and the thread of the sockets: the messages themselves are posted to it.

    Callers count what they give, under a real lock; the thread of the sockets counts what it takes.
    """

    def __init__(self, msgs_max: int = HANDED_MSGS, bytes_max: int = HANDED_BYTES) -> None:
        self._msgs_max = msgs_max
        self._bytes_max = bytes_max
        self._lock = natives.allocate_lock()
        self._given = self._given_bytes = 0
        self._taken = self._taken_bytes = 0
        self._waiters = Waiters()

    @property
    def waiting(self) -> int:
        """Messages that were given and not taken."""
        return self._given - self._taken

    def give(self, size: int) -> bool:
        """Make room for a message of ``size`` bytes; False: there is none. By callers."""
        with self._lock:
            msgs = self._given - self._taken
            if msgs >= self._msgs_max or (
                msgs and self._given_bytes - self._taken_bytes + size > self._bytes_max
            ):
                return False
            self._given += 1
            self._given_bytes += size
            return True

    def take(self, size: int) -> None:
        """It is looked at. By the thread of the sockets."""
        self._taken += 1
        self._taken_bytes += size
        if self._waiters and 2 * (self._given - self._taken) <= self._msgs_max:
            self.wake()

    def wake(self) -> None:
        """There may be room, here or further on: everyone who waits tries again."""
        self._waiters.wake()

    def wait(self, timeout_s: float, ready: Callable[[], bool]) -> None:
        """Wait until ``ready`` says that it is worth a try, at most ``timeout_s``; asked after each ``wake``."""
        end_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while left_s > 0:
            self._waiters.wait(left_s, ready)
            if ready():
                return
            left_s = end_s - time.monotonic()

    def has_room(self) -> bool:
        """Whether a message that is not large would find room."""
        return (
            self._given - self._taken < self._msgs_max
            and self._given_bytes - self._taken_bytes < self._bytes_max
        )
