"""How long a neighbour has been silent, and what follows. Time is an argument; no clock is read here.

::

    we sent nothing for torpid_min_s                     a keepalive (to a parent, and to a child of ours)
    a child said nothing for torpid_max_s                it is torpid
    a neighbour of ours said nothing for LOST_S, or      it is lost, like one whose connection ended
    for four times the torpid_min_s of its hello
    a client of an older dialect was sent nothing        a keepalive (``Keepalives``)

A neighbour that is deployed flux-core told no torpid_min_s, and sends children none: it is lost with its connection.

Nothing is recorded per message: a count that its owner keeps anyway (messages received from a child, sent to the
parent) is compared at each pulse. The measured silence may be up to one pulse shorter than the real one, never longer.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from broker.node.overlay.control import heartbeat
from broker.routing.port import Port

if TYPE_CHECKING:
    from broker.node.broker import Broker
    from broker.transport.outbox import Outbox

SYNC_MAX_S: Final = 5.0
"""Longest time between two looks, heartbeat or not, as in deployed flux-core."""
LOST_S: Final = 20.0
"""TCP, too, gives a connection up whose peer's machine is silent for so long (``dialing.Probing``)."""
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


class Keepalives:
    """Sends keepalives on quiet CMB1 links.

    "Keepalives are control messages used by one peer to indicate to another peer that it is still alive when it is not
    otherwise communicating" (RFC 3 CMB1, "Background"). Both CMB1 texts have them between any two peers; in Flux v1
    control messages belong to the tree. A peer that sends none itself is left alone: the texts ask for nothing, and
    TCP notices a dead connection.

    Args:
        broker: the one whose clients are kept alive.
        quiet_s: seconds without a message to a peer after which it gets a keepalive.

    Attributes:
        sent: keepalives so far.
    """

    def __init__(self, broker: Broker, quiet_s: float) -> None:
        self.sent = 0
        self._broker = broker
        self._quiet_s = quiet_s
        self._timers: dict[Port, KeepaliveTimer] = {}

    def sweep(self, now: float) -> None:
        """Called now and then, ``now`` in monotonic seconds; what was quiet is known up to one call too late."""
        ports = [port for port in self._broker.router.ports if port.cmb1]
        self._timers = {
            port: self._timers.get(port) or KeepaliveTimer(port.link.outbox.sent, now) for port in ports
        }
        for port, keepalive in self._timers.items():
            if keepalive.due(port.link.outbox, now, self._quiet_s):
                self.sent += 1
                self._broker.router.counters.sent_controls += 1
                port.send(heartbeat())
