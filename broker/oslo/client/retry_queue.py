"""Calls that have no place now: nobody listens yet, nothing is known yet, or all servers have refused or are down.

They are tried again when there is news, and every ``PAUSE_S``, in the order in which they came; one of them
whenever a call to their topic is answered, since its server has room for another one then. Trying costs time: a
round ends at the first one of a topic for whom there is no place, and after ``ROUND_MAX`` of those that would only
be refused again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.oslo.client.pending_calls import PendingCall
from broker.oslo.client.routing import RoutingTable
from broker.oslo.contract import Address
from broker.oslo.reactor import Reactor, Timer

PAUSE_S: Final = 0.1
"""Between two rounds through servers that refused, or whose nodes are down."""
ROUND_MAX: Final = 256
"""Calls of one topic that are tried after a pause: a server that is full refuses each of them."""


class RetryQueue:
    """The calls of one client that wait to be tried again.

    Args:
        place: finds a place for a call, or ends it, or adds it again (its ``link`` is None then).
    """

    def __init__(self, reactor: Reactor, routes: RoutingTable, place: Callable[[PendingCall], None]) -> None:
        self._reactor = reactor
        self._routes = routes
        self._place = place
        self._waiting: dict[tuple[str, str], deque[PendingCall]] = {}
        self._pause: Timer | None = None
        self._until_s = 0.0
        self._was_synced = False

    def open(self, ready_s: float) -> None:
        """The directory has ``ready_s`` from now on to answer."""
        self._until_s = self._reactor.now() + ready_s

    @property
    def overdue(self) -> bool:
        """The directory should have answered by now."""
        return self._reactor.now() >= self._until_s

    def add(self, call: PendingCall) -> None:
        """Keep ``call`` until there is a place for it: at the end of those of its topic."""
        call.link = None
        self._waiting.setdefault((call.address.exchange, call.address.topic), deque()).append(call)
        self._arm()

    def retry(self) -> None:
        """Look for places: something has changed."""
        if self._waiting:
            self._retry_all(False)

    def retry_soon(self) -> None:
        """As ``retry``, not from within what brings it."""
        if self._waiting:
            self._reactor.call_soon(self.retry)

    def retry_after_answer(self, address: Address) -> None:
        """A server at that topic has answered: the call that waits longest may have the place, unless its tries are
        counted: those are one in each pause.
        """
        key = (address.exchange, address.topic)
        calls = self._waiting.get(key)
        while calls and (calls[0].over or calls[0].tries is None):
            call = calls.popleft()
            if not calls:
                del self._waiting[key]
            if not call.over:
                call.tried = None
                self._place(call)
                return

    def close(self) -> None:
        """Forget all of them."""
        if self._pause is not None:
            self._pause.cancel()
        self._waiting.clear()

    def _arm(self) -> None:
        if self._waiting and self._pause is None:
            self._pause = self._reactor.call_later(PAUSE_S, self._retry_after_pause)

    def _retry_after_pause(self) -> None:
        self._pause = None
        self._retry_all(True)

    def _retry_all(self, paused: bool) -> None:
        synced = self._routes.synced
        everything = synced is not self._was_synced or (not synced and self.overdue)
        self._was_synced = synced
        for key in list(self._waiting):
            calls = [call for call in self._waiting.pop(key) if not call.over]
            if everything or self._routes.replica.servers(*key):
                calls = self._round(calls, paused, everything)
            if calls:  # they are older than those that were added again meanwhile
                self._waiting[key] = deque([*calls, *self._waiting.get(key, ())])
        self._arm()

    def _round(self, calls: list[PendingCall], paused: bool, everything: bool) -> list[PendingCall]:
        """Try them; returns those that were not tried. After a pause those who have refused may be asked again."""
        for at, call in enumerate(calls):
            if paused and at >= ROUND_MAX and not everything:
                return calls[at:]
            if paused:
                call.tried = None
            self._place(call)
            nowhere = call.link is None and not (call.over or call.tried or call.address.server)
            if nowhere and not everything:
                return calls[at + 1 :]
        return []
