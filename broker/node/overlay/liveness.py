"""Who has been silent for how long, and what follows. Time is an argument; no clock is read here.

::

    we sent nothing for torpid_min_s                     a keepalive (to a parent, and to a child of ours)
    a child said nothing for torpid_max_s                it is torpid
    a neighbour of ours said nothing for LOST_S, or      it is lost, like one whose connection ended
    for four times the torpid_min_s of its hello

A neighbour that is deployed flux-core told no torpid_min_s, and sends children none: it is lost with its connection.

Nothing is recorded per message: a count that its owner keeps anyway (messages received from a child, sent to the
parent) is compared at each pulse. The measured silence may be up to one pulse shorter than the real one, never longer.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.transport.outbox import Outbox

SYNC_MAX_S: Final = 5.0
"""Longest time between two looks, heartbeat or not, as in deployed flux-core."""
LOST_S: Final = 20.0
"""TCP, too, gives a connection up whose peer's machine is silent for so long (``sockets.Probing``)."""
_LOST_KEEPALIVES: Final = 4
"""Of which one at least has to come: with two looks between, a keepalive is at most twice its time late."""


def lost_after_s(keepalive_s: float, least_s: float = LOST_S) -> float:
    """Silence that means loss of a neighbour that sends a keepalive each ``keepalive_s`` (0: none); 0.0 is never."""
    return max(least_s, _LOST_KEEPALIVES * keepalive_s) if keepalive_s > 0 else 0.0


class SilenceTimer:
    """How long a count has stood still.

    Args:
        count: its present value. now: seconds of a clock (for ours: monotonic; for that of others: those in which we
            were there, ``Overlay.watched``).
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

    def restart(self, now: float) -> None:
        """Begin anew, though the count stands still."""
        self._moved = now


class KeepaliveTimer(SilenceTimer):
    """Our own silence towards one neighbour.

    Args:
        longest_s: what hello told it: beyond a multiple of that it would take us for lost.
    """

    __slots__ = ("_longest_s",)

    def __init__(self, count: int, now: float, longest_s: float = inf) -> None:
        super().__init__(count, now)
        self._longest_s: float = longest_s

    def due(self, outbox: Outbox[Any], now: float, keepalive_s: float) -> bool:
        """True when a keepalive has to be sent. What waits in the outbox will be heard without one."""
        silent = self.seconds(outbox.sent, now) >= min(keepalive_s, self._longest_s)
        return silent and not (outbox.unflushed or outbox.queue)


class TorpidTimer(SilenceTimer):
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
