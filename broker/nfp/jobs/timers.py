"""Deadlines on one heap; time comes from outside."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final

RETRY_S: Final = 1.0
"""A worker whose timer is lost is never buried, a job without its timer never expires: a failed one is tried again."""
_SWEEP_MIN: Final = 256
"""Cancelled entries below this many are not worth a sweep."""


class Timer:
    """An entry; ``when`` is monotonic seconds, inf once it is due or cancelled."""

    __slots__ = ("call", "what", "when")

    def __init__(self, when: float, call: Callable[[Any, float], None], what: Any) -> None:
        self.when = when
        self.call: Callable[[Any, float], None] | None = call
        self.what = what


class Timers:
    """Adding costs O(log n), cancelling O(1): cancelled entries are swept out when they are the half."""

    __slots__ = ("_cancelled", "_heap", "_order")

    def __init__(self) -> None:
        # the key stands beside the timer: cancelling changes the timer, never its place
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, when: float, call: Callable[[Any, float], None], what: Any) -> Timer:
        """Have ``call(what, now)`` called once ``when`` is reached."""
        self._order += 1
        timer = Timer(when, call, what)
        heappush(self._heap, (when, self._order, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """It will not be called; None, and one that is over already, is no error."""
        if timer is None or timer.call is None:
            return
        timer.call = timer.what = None
        timer.when = inf
        self._cancelled += 1
        if self._cancelled > _SWEEP_MIN and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._cancelled = 0

    @property
    def due(self) -> float:
        """When the next one is due, inf with none. May be early by one that was cancelled."""
        return self._heap[0][0] if self._heap else inf

    def run(self, now: float) -> None:
        """Call what is due. Timers added meanwhile for now or earlier run too.

        One that fails is called again ``RETRY_S`` later; the first failure is raised once all others were called.
        """
        failure: Exception | None = None
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            call, what = timer.call, timer.what
            if call is None:
                self._cancelled -= 1
                continue
            timer.call = timer.what = None
            timer.when = inf
            try:
                call(what, now)
            except Exception as error:
                failure = failure or error
                self._put_back(timer, now + RETRY_S, call, what)
        if failure is not None:
            raise failure

    def _put_back(self, timer: Timer, when: float, call: Callable[[Any, float], None], what: Any) -> None:
        """The same timer, which its owner may cancel."""
        self._order += 1
        timer.call, timer.what, timer.when = call, what, when
        heappush(self._heap, (when, self._order, timer))
