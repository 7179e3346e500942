"""The broker's OPEN, the answer to everybody else's (NFP, "OPEN")."""

from __future__ import annotations

from broker import __version__
from broker.nfp import opening
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender


class Greeting:
    """What is the same for all.

    Args:
        keepalive_ms: interval of KEEPALIVE. multiplier: intervals of silence after which the other side is dead.

    Attributes:
        epoch: another one after the store was lost; peers then begin anew.
    """

    def __init__(self, keepalive_ms: int, multiplier: int, epoch: str = "") -> None:
        self._keepalive_ms = keepalive_ms
        self._multiplier = multiplier
        self.epoch = epoch

    def answer(self, packet: Packet, features: frozenset[str]) -> Packet:
        """The answer to the OPEN ``packet``, with the features granted."""
        said = opening.BrokerOpen(
            "headgate", __version__, self._keepalive_ms, self._multiplier, features, self.epoch
        )
        return Packet(Sender.BROKER, Command.OPEN, dialect=packet.dialect, body=opening.write(said))
