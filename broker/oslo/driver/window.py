"""How many messages a server holds that it has not acknowledged: its executor's queue has no bound of its own."""

from __future__ import annotations

import itertools
import threading
from typing import Final

LEAST: Final = 64
"""As many as the threads of a server's executor, by default: with fewer some would be idle."""
LOOK_S: Final = 0.5
"""While it is full it is looked at this often at least."""


class Window:
    """Counts messages handed out and acknowledged.

    One thread hands out (``wait``, ``take``), any thread acknowledges (``give``); only one may wait. A lock of its own
    is not needed: what is taken has one writer, what is given is counted by one instruction.

    Args:
        limit: messages.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._low = limit // 2
        self._taken = 0
        self._given = 0
        self._numbers = itertools.count(1)
        self._room = threading.Event()
        self._waiting = False
        self._open = False

    def wait(self) -> None:
        """Return when fewer than ``limit`` are out; when none were, at once."""
        while self._taken - self._given >= self._limit and not self._open:
            self._room.clear()
            self._waiting = True
            if self._taken - self._given >= self._limit and not self._open:
                self._room.wait(LOOK_S)
        self._waiting = False

    def take(self) -> None:
        """One more is handed out."""
        self._taken += 1

    def give(self) -> None:
        """One was acknowledged or given back."""
        self._given = given = next(self._numbers)
        if self._waiting and self._taken - given <= self._low:
            self._waiting = False
            self._room.set()

    def open(self) -> None:
        """Never wait again: what is left is drained."""
        self._open = True
        self._room.set()
