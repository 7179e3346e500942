"""How many refusals a second are recorded: whoever only reaches a port must not fill the disk (sans I/O)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

REFUSALS_PER_S: Final = 100
"""Links turned away that are recorded in a second, and at once after a pause; as many as a gateway reports of its
users. The rest is counted."""


class TokenBucket:
    """A token bucket of ``per_s`` records a second, which holds what comes in one second.

    Args:
        per_s: records a second. clock: monotonic seconds.

    >>> now = [0.0]
    >>> ration = TokenBucket(2, clock=lambda: now[0])
    >>> [ration.admits() for _ in range(4)], ration.owed(), ration.owed()
    ([True, True, False, False], 2, 0)
    >>> now[0] = 0.5
    >>> ration.admits(), ration.admits()
    (True, False)
    """

    __slots__ = ("_clock", "_left_out", "_per_s", "_seen", "_tokens")

    def __init__(self, per_s: int = REFUSALS_PER_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = float(per_s)
        self._clock = clock
        self._tokens = self._per_s
        self._seen = clock()
        self._left_out = 0

    def admits(self) -> bool:
        """Whether one more is recorded now; False counts it as left out."""
        now = self._clock()
        self._tokens = min(self._per_s, self._tokens + (now - self._seen) * self._per_s)
        self._seen = now
        if self._tokens < 1.0:
            self._left_out += 1
            return False
        self._tokens -= 1.0
        return True

    def owed(self) -> int:
        """How many were left out since this was asked last; to be recorded."""
        left_out, self._left_out = self._left_out, 0
        return left_out
