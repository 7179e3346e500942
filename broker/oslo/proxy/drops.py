"""Listeners that are dropped because their links have ended, or were silent for a lease: some in each turn.

A process with thousands of them would else keep everybody waiting: here, at the directory, and wherever that is heard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.oslo.proxy.server_link import ServerLink
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.socket import Frames

DROPS_MAX: Final = 64
"""Listeners that are dropped in one turn; few are dropped at once."""


class ListenerDrops:
    """What is to be dropped of each link, one of each link in turn.

    Args:
        reactor: whose turns.
        drop: drops one listener of ``link.dropping``.
        finished: takes a link that has ended, and what waited for it, when its last listener was dropped.
    """

    def __init__(
        self,
        reactor: Reactor,
        drop: Callable[[ServerLink, str], None],
        finished: Callable[[ServerLink, list[Frames]], None],
    ) -> None:
        self._reactor = reactor
        self._drop = drop
        self._finished = finished
        self._queue: deque[tuple[ServerLink, deque[str], list[Frames] | None]] = deque()
        self._turn = -1
        self._left = 0

    def put(self, link: ServerLink, waiting: list[Frames] | None = None) -> None:
        """Drop all listeners of ``link``; ``waiting``: it has ended, and that waited for it."""
        link.dropping.update(link.listeners)
        link.listeners = {}
        self._queue.append((link, deque(link.dropping), waiting))
        if len(self._queue) == 1:
            self._go_on()

    def clear(self) -> None:
        """Drop nothing any more."""
        self._queue.clear()

    def _go_on(self) -> None:
        if self._turn != self._reactor.turns:
            self._turn, self._left = self._reactor.turns, DROPS_MAX
        try:
            while self._queue and self._left:
                self._next()
        finally:
            if self._queue:
                self._reactor.call_soon(self._go_on)

    def _next(self) -> None:
        link, listeners, waiting = self._queue.popleft()
        if listeners:
            self._left -= 1
            listener = listeners.popleft()
            self._queue.append((link, listeners, waiting))
            if listener in link.dropping:  # else it has moved to another link meanwhile
                self._drop(link, listener)
        elif waiting is not None:
            self._finished(link, waiting)
