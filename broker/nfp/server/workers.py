"""What workers send (NFP, "NFP/Worker")."""

from __future__ import annotations

from typing import Final

from broker.nfp import opening
from broker.nfp.contract import FEATURES, Peer
from broker.nfp.frames import Packet
from broker.nfp.names import Command
from broker.nfp.server.greeting import Greeting
from broker.nfp.server.seams import Dispatch

_OPEN: Final = Command.OPEN
WORKER_FEATURES: Final = FEATURES - {"push"}


class Workers:
    """Acts on packets with the header NFPW01.

    Args:
        dispatch: where they go. greeting: the answer to OPEN.
    """

    def __init__(self, dispatch: Dispatch, greeting: Greeting) -> None:
        self._dispatch = dispatch
        self._greeting = greeting

    def handle(self, peer: Peer, packet: Packet, now: float) -> None:
        """Act on ``packet``."""
        if packet.command is not _OPEN:
            self._dispatch.worker(peer, packet, now)
            return
        offer = opening.read_worker(packet.body)
        peer.features = offer.features & WORKER_FEATURES
        if self._dispatch.worker_opened(peer, offer, now):
            peer.send(self._greeting.answer(packet, peer.features))

    def broke(self, peer: Peer, packet: Packet, error: Exception) -> None:
        """Nothing to say: a worker expects no answer."""
