"""Rate-limits answers and log lines for failed authentication, by address.

Good credentials always pass, whoever else fails from the same address: tokens and cookies are 256 random bits and
JWTs are signed, so there is nothing to guess, and a broken client behind a shared proxy must not lock its neighbours
out. What is limited is what failing costs: log lines, and answers that ask the client to come again at once.
"""

from __future__ import annotations

from typing import Final

from broker.rates import Bucket, Buckets
from gateway.identity.proxies import group_of

BURST: Final = 10
"""Failures of one address that are told apart."""
PER_S: Final = 0.5
"""How fast they are forgiven: one in two seconds."""
LINES_BURST: Final = 50
LINES_PER_S: Final = 10.0
"""Log lines of all addresses together: many addresses must not fill the disk either."""


class Attempts:
    """The failures of all addresses; ``now`` is a clock that never goes back, seconds.

    Attributes:
        failed: refused credentials so far.
        silenced: those of them that were not logged.
    """

    def __init__(self) -> None:
        self.failed = 0
        self.silenced = 0
        self._buckets = Buckets(PER_S, BURST)
        self._lines: Bucket | None = None

    def fail(self, address: str, now: float) -> tuple[bool, bool]:
        """Count a failure: whether the address stays within its rate, and whether to log it."""
        self.failed += 1
        within = self._buckets.of(group_of(address), now).grant(now, 1) == 1
        if self._lines is None:
            self._lines = Bucket(LINES_PER_S, LINES_BURST, now)
        told = within and self._lines.grant(now, 1) == 1
        self.silenced += not told
        return within, told
