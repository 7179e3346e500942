"""How much each of many holds, such as the streams of each user, for limits on each and on all together (pure)."""

# compiled: mypyc

from __future__ import annotations

from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class Holdings(Generic[Holder]):
    """Counts by holder; a holder of nothing takes no room.

    Attributes:
        total: what all hold together.

    >>> streams: Holdings[str] = Holdings()
    >>> streams.add("ada"), streams.add("bob", 2), streams.add("ada", -1)
    (None, None, None)
    >>> streams.of("ada"), streams.of("bob"), streams.total, streams.counts
    (0, 2, 2, {'bob': 2})
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: dict[Holder, int] = {}
        self.total: int = 0

    def of(self, holder: Holder) -> int:
        """What it holds."""
        return self.counts.get(holder, 0)

    def add(self, holder: Holder, more: int = 1) -> None:
        """It holds so much more; less, where ``more`` is negative."""
        self.total += more
        held = self.counts.get(holder, 0) + more
        if held:
            self.counts[holder] = held
        else:
            self.counts.pop(holder, None)

    def clear(self) -> None:
        """Nobody holds anything."""
        self.counts.clear()
        self.total = 0
