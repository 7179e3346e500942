"""The health of a subtree, as deployed flux-core numbers, names and computes it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class Status(IntEnum):
    """What a broker says of itself and everything below; the number travels in hello and CONTROL."""

    UNKNOWN = 0
    FULL = 1
    """All of it is online."""
    PARTIAL = 2
    """Some of it has not joined, or left in good order."""
    DEGRADED = 3
    """Some of it was lost."""
    LOST = 4
    """It went without a word."""
    OFFLINE = 5
    """It has not joined, or said goodbye."""

    @property
    def label(self) -> str:
        """The name that ``overlay.health`` shows."""
        return self.name.lower()

    @property
    def online(self) -> bool:
        """True while messages can be sent there."""
        return self in _ONLINE


_ONLINE: Final = frozenset((Status.FULL, Status.PARTIAL, Status.DEGRADED))
_MISSING: Final = frozenset((Status.PARTIAL, Status.OFFLINE))
_HURT: Final = frozenset((Status.DEGRADED, Status.LOST))


def read(number: int) -> Status | None:
    """The status that ``number`` stands for; None for a number that means nothing."""
    return Status(number) if 0 <= number <= Status.OFFLINE else None


def combine(children: Iterable[Status]) -> Status:
    """The status of a broker over the statuses of its children; full without children.

    >>> combine([Status.FULL, Status.OFFLINE]).label
    'partial'
    """
    seen = set(children)
    if seen & _HURT:
        return Status.DEGRADED
    return Status.PARTIAL if seen & _MISSING else Status.FULL


class Timed:
    """A status and when it began.

    Args:
        status: the present one. now: monotonic seconds.
    """

    __slots__ = ("since", "status")

    def __init__(self, status: Status, now: float) -> None:
        self.status: Status = status
        self.since: float = now

    def change(self, status: Status, now: float) -> bool:
        """Take on ``status``; False when it is the present one already."""
        if status is self.status:
            return False
        self.status, self.since = status, now
        return True
