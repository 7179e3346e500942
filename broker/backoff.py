"""The pauses between attempts: one law for every room that dials, reconnects or starts something anew.

The bound of the pause doubles with each failure in a row, up to a limit. What worked and was lost again at once is one
more failure: only what lasted begins anew. Otherwise two that displace each other, such as two processes of one rank,
would take turns without a pause for ever.
"""

from __future__ import annotations

import random
from typing import Final

LASTED: Final = 2.0
"""What lasted so many times the longest pause was well, unless told otherwise: of two that displace each other, either
lasts no longer than a pause of the other and its attempt."""


class Backoff:
    """The pauses of one that tries again.

    Args:
        first_s: bound of the first pause. longest_s: the limit.
        lasted_s: what lived longer was well, and begins anew. None: ``LASTED`` times the limit.
        spread: each pause is a random part of the bound (full jitter), so that the many who lost the same peer do not
            all come back at once. False: the bound itself, for what a process does to its own children and files.

    Attributes:
        failures: in a row, since it last was well.
    """

    __slots__ = ("_first_s", "_lasted_s", "_longest_s", "_spread", "failures")

    def __init__(
        self, first_s: float, longest_s: float, lasted_s: float | None = None, *, spread: bool = True
    ) -> None:
        self.failures = 0
        self._first_s = first_s
        self._longest_s = longest_s
        self._lasted_s = LASTED * longest_s if lasted_s is None else lasted_s
        self._spread = spread

    def after(self, lived_s: float = 0.0, longest_s: float | None = None) -> float:
        """Return the pause in seconds after a life of ``lived_s``; 0 is an attempt that failed.

        Args:
            lived_s: seconds that it lasted.
            longest_s: a lower limit for this pause; what it cuts off does not lengthen later ones.
        """
        if lived_s > self._lasted_s:
            self.failures = 0
        self.failures += 1
        bound_s = float(min(self._first_s * 2.0 ** min(self.failures - 1, 32), self._longest_s))
        if longest_s is not None and bound_s > longest_s:
            bound_s = longest_s
            self.failures -= 1
        return random.uniform(0.0, bound_s) if self._spread else bound_s

    def reset(self) -> None:
        """It is well, whatever its age: the next pause is the first again."""
        self.failures = 0
