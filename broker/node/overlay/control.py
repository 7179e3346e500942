"""Control messages between a child and its parent, and the status of a subtree that they carry, as deployed flux-core
numbers, names and computes it.

Control messages are never routed (RFC 3, "Control message type"). Those about events, between Headgate brokers, stand
in ``routing.flow``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from broker.wire.message import Message, control

HEARTBEAT: Final = 0
"""Still here: to the parent, and to a Headgate child, after silence; the status word is 0. Deployed parents send none,
and deployed children would log one as unknown."""
STATUS: Final = 1
"""Child to parent: the status word is that of its subtree."""
DISCONNECT: Final = 2
"""Parent to child: leave now. The status word is 0."""


class Status(IntEnum):
    """Health of a broker and everything below it; the number travels in hello and CONTROL."""

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


def heartbeat() -> Message:
    """To a neighbour: still here."""
    return control(HEARTBEAT)


def status(number: int) -> Message:
    """Child to parent: the status of the subtree is now ``number``."""
    return control(STATUS, number)


def disconnect() -> Message:
    """Parent to child: leave now."""
    return control(DISCONNECT)
