"""What a node's directory has from elsewhere: links to other directories, and the states it tells them.

Only states that this node's own pipelines announced are told, and the replica believes nobody else about this node, so
nothing goes round in a circle.

When keys change (``renew``), a link that is alive goes on as it is: its connection does not end by that. One that is
not tries the new keys and the former ones in turn, since the directories get theirs at different times.
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


TRY_S: float = 3.0
"""So long a directory has to answer before other keys are tried: read where it is used, tests change it."""


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
        self._reactor = reactor
        self._replica = replica
        self._config = config
        self._node = config.node
        self._incarnation = incarnation
        self._curves = [curve_to_directory(certificate, config.directory_key)]
        self._tried_s = reactor.now()
        self.links = [self._link(endpoint) for endpoint in dict.fromkeys(config.directories)]

    def _link(self, endpoint: str) -> DirectoryLink:
        return DirectoryLink(
            self._reactor,
            endpoint,
            self._replica,
            tuning=Tuning(KeepAlive(*self._config.keepalive), curve=self._curves[0]),
            known=self._other,
            pulse_s=self._config.beat_s,
        )

    def renew(self, config: NodeConfig, certificate: Certificate | None) -> None:
        """Connect with the keys of ``config`` and ``certificate`` from now on, where a connection has to be made."""
        curve = curve_to_directory(certificate, config.directory_key)
        if curve != self._curves[0]:
            self._curves = [curve, self._curves[0]]

    def tick(self) -> None:
        """Try other keys where a directory does not answer; about once a second."""
        if len(self._curves) == 1 or self._reactor.now() - self._tried_s < TRY_S:
            return
        away = [index for index, link in enumerate(self.links) if not (link.alive or link.closed)]
        if not away:
            return
        self._tried_s = self._reactor.now()
        for index in away:
            former = self.links[index]
            former.close()
            link = self.links[index] = self._link(former.endpoint)
            for state in former.announced():
                link.announce(state)
        self._curves.reverse()

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

    def away(self, place: Place) -> None:
        """One of our own pipelines is started again in a moment."""
        for link in self.links:
            link.away(place)

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
