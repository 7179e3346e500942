"""Closed jobs after a restart, read bit by bit while the broker works already (NFP, "Reliability").

A broker may remember tens of thousands, and must listen within a second. Their uuids are known from the start: what is
said about a job that is not read yet waits until it is, which is a moment, since such jobs are read first. So the same
POST again is answered and not run again, and a worker is told that its result is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice

from broker.nfp.dispatch.model import OPEN
from broker.nfp.dispatch.state import State

# bounds are read where they are used, not folded by the compiler: tests lower them
READ_AT_ONCE: int = 128
"""Jobs read at a time: a few milliseconds of the loop."""
LATER_MAX: int = 10_000
"""Calls that wait for jobs to be read."""
LATER_MAX_BYTES: int = 64 * 1024 * 1024
"""Bodies in them."""


class Recall:
    """What is said about jobs that are not read yet, and what comes of it.

    Args:
        state: ``unread`` is filled and emptied here.

    Attributes:
        since: when the snapshot was taken up.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._later: dict[str, list[Callable[[float], None]]] = {}
        self._size = 0
        self._bytes = 0
        self.since = 0.0

    def __len__(self) -> int:
        return self._size

    def begin(self, uuids: Iterable[str], now: float) -> None:
        """These are closed jobs, the latest end first."""
        self._state.unread.update(dict.fromkeys(uuids))
        self.since = now

    def later(self, uuid: str, call: Callable[[float], None], size: int = 0) -> None:
        """Have ``call(now)`` made once the job is read; ``size`` are the bytes it holds. Too many are dropped."""
        if self._size >= LATER_MAX or self._bytes + size > LATER_MAX_BYTES:
            self._state.counts.unroutable += 1
            return
        self._size += 1
        self._bytes += size
        self._later.setdefault(uuid, []).append(call)

    def wanted(self) -> list[str]:
        """The jobs to read next; [] when all are read."""
        uuids = dict.fromkeys(islice(chain(self._later, self._state.unread), 2 * READ_AT_ONCE))
        return list(islice(uuids, READ_AT_ONCE))

    def done(self, uuids: Iterable[str], now: float) -> None:
        """These jobs are read, or are not there."""
        state = self._state
        calls: list[Callable[[float], None]] = []
        for uuid in uuids:
            state.unread.pop(uuid, None)
            calls += self._later.pop(uuid, ())
        if not state.unread:
            self._in_order()
        if not self._later:
            self._bytes = 0
        self._size -= len(calls)
        for call in calls:
            call(now)

    def _in_order(self) -> None:
        """What was asked for was read out of turn, and all of it behind the jobs that have come since."""
        state = self._state
        closed = sorted(state.closed, key=lambda order: order.closed_at)
        state.closed.clear()
        state.closed.extend(closed)
        orders = sorted(
            chain(closed, (order for order in state.orders.values() if order.state == OPEN)),
            key=lambda order: order.added_at,
        )
        state.orders.clear()
        state.orders.update((order.uuid, order) for order in orders)
