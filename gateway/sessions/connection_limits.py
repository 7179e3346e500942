"""How many connections each user has, where processes need not count them together.

Those that several processes count are in the shared store (``identity.leases.Connections``).
"""

from __future__ import annotations

from collections import Counter


class LocalConnectionLimits:
    """Connections of each user in this process alone."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def acquire(self, user: str, limit: int) -> bool:
        """Count one more unless ``limit`` are there."""
        if self._count[user] >= limit:
            return False
        self._count[user] += 1
        return True

    def release(self, user: str) -> None:
        """Take one back."""
        self._count[user] -= 1
        if not self._count[user]:
            del self._count[user]

    def uncertain(self, user: str) -> bool:
        """Never: memory is the truth."""
        return False
