"""What one router asks of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker
    from broker.nfp.server.ingress import Ingress


class Door:
    """See ``router.House``; ``ingress`` is where the messages of this router go."""

    def __init__(self, broker: NfpBroker, ingress: Ingress) -> None:
        self._access = broker.access
        self.arrived = broker.arrived
        self.welcome = broker.welcome
        self.handle = ingress.handle
        self.gone = broker.lost
        self.has_room = broker.has_room

    def known(self, key: str) -> bool:
        """See ``House.known``."""
        return self._access.principal_of(key, "") is not None
