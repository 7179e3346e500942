"""What a node's directory has from elsewhere: links to other directories, and the states it tells them.

Only states that this node's own pipelines announced are told, and the replica believes nobody else about this node, so
nothing goes round in a circle.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from broker.oslo.directory.link import DirectoryLink
from broker.oslo.directory.replica import Replica
from broker.oslo.directory.wire import Welcome
from broker.oslo.node import NodeConfig
from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.tuning import KeepAlive, Tuning, curve_to_directory
from broker.oslo.records import Place, State
from broker.transport.curve import Certificate

LEAVE_MS: Final = 200
"""LEAVE has so long to reach the other directories."""


class Uplinks:
    """Links to all of ``config.directories``: written to all, read from all.

    Args:
        reactor: whose thread; open.
        config: of this node.
        replica: what they feed.
        incarnation: of this directory: a link that leads back to it is closed.
        certificate: of this node; None plaintext.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        replica: Replica,
        incarnation: int,
        certificate: Certificate | None = None,
    ) -> None:
        self.kind = "uplinks"
        self.links: list[DirectoryLink] = []
        self._reactor = reactor
        self._replica = replica
        self._node = config.node
        self._incarnation = incarnation
        curve = curve_to_directory(certificate, config.directory_key)
        tuning = Tuning(KeepAlive(*config.keepalive), curve=curve)
        for endpoint in dict.fromkeys(config.directories):
            self.links.append(
                DirectoryLink(
                    reactor,
                    endpoint,
                    replica,
                    tuning=tuning,
                    node=config.node,
                    known=self._other,
                    pulse_s=config.beat_s,
                )
            )

    @property
    def heard_all(self) -> bool:
        """True when each directory has told all it knows, or is ourselves."""
        return all(link.closed or self._replica.told_all(link.endpoint) for link in self.links)

    def announce(self, state: State) -> None:
        """One of our own pipelines announced ``state``."""
        for link in self.links:
            link.announce(state)

    def withdraw(self, place: Place) -> None:
        """One of our own pipelines has ended."""
        for link in self.links:
            link.withdraw(place)

    def status(self) -> list[dict[str, Any]]:
        """For status."""
        return [link.status() for link in self.links]

    def close(self) -> None:
        """End all links; states stay announced until their leases end."""
        for link in self.links:
            link.close(LEAVE_MS)

    def _other(self, welcome: Welcome) -> bool:
        if welcome.node != self._node:
            return True
        if welcome.incarnation != self._incarnation:
            self._reactor.say(
                logging.WARNING,
                "directory: another node is called %s, too; what it offers is not seen here",
                (self._node,),
            )
            return True
        self._reactor.say(logging.INFO, "directory: one of its directories is this node itself", ())
        return False
