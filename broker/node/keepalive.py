"""Keepalives to peers of the older dialects (RFC 3 CMB1, "Background").

"Keepalives are control messages used by one peer to indicate to another peer that it is still alive when it is not
otherwise communicating." Both CMB1 texts have them between any two peers; in Flux v1 control messages belong to the
tree, whose links do this by themselves (``overlay.liveness``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.node.overlay.control import heartbeat
from broker.node.overlay.liveness import KeepaliveTimer
from broker.routing.port import Port

if TYPE_CHECKING:
    from broker.node.broker import Broker


class Keepalives:
    """Speaks up on quiet CMB1 links.

    A peer that sends none itself is left alone: the texts ask for nothing, and TCP notices a dead connection.

    Args:
        broker: whose clients. quiet_s: seconds without a message to a peer after which it gets a keepalive.

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
                self._broker.router.tally.sent_controls += 1
                port.send(heartbeat())
