"""Who has been silent for how long. Time is an argument; no clock is read here.

Nothing is recorded per message: a count that its owner keeps anyway (messages received from a child, sent to the
parent) is compared at each pulse. A silence is therefore known up to one pulse too short, never too long.
"""

from __future__ import annotations

from typing import Final

SYNC_MAX_S: Final = 5.0
"""Longest time between two looks, heartbeat or not, as in deployed flux-core."""


class Silence:
    """How long a count has stood still.

    Args:
        count: its present value. now: monotonic seconds.
    """

    __slots__ = ("_count", "_moved")

    def __init__(self, count: int, now: float) -> None:
        self._count: int = count
        self._moved: float = now

    def seconds(self, count: int, now: float) -> float:
        """Seconds since ``count`` was first seen at its present value; 0 when it has just moved."""
        if count != self._count:
            self._count, self._moved = count, now
        return now - self._moved


class Torpor(Silence):
    """Whether a child is torpid: silent for ``torpid_max_s`` seconds though its link stands.

    Attributes:
        torpid: as of the last ``check``.
    """

    __slots__ = ("torpid",)

    def __init__(self, count: int, now: float) -> None:
        super().__init__(count, now)
        self.torpid: bool = False

    def check(self, count: int, now: float, torpid_max_s: float) -> bool:
        """True when ``torpid`` changed; a ``torpid_max_s`` of 0 means that nobody is ever torpid."""
        torpid = self.seconds(count, now) >= torpid_max_s > 0
        changed = torpid is not self.torpid
        self.torpid = torpid
        return changed
