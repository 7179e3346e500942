"""READY, KEEPALIVE and the broker's silence (NFP, "Opening and Closing a Connection" and "Keepaliving")."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.opening import BrokerOpen
from broker.nfp.peer.channel import Channel

KEEPALIVE_S: Final = BrokerOpen().keepalive_ms / 1000
"""Between keepalives, with a broker that does not say; deployed NorFab's is fixed."""
MULTIPLIER: Final = BrokerOpen().multiplier


class Presence:
    """One worker's word that it is there, and its ear for the broker.

    Args:
        channel: to the broker. service: what READY registers.

    Attributes:
        interval_s, multiplier: in use. sent, received: keepalives. since: loop time of READY, 0 when not registered.
    """

    def __init__(self, channel: Channel, service: str, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._service = service
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._spoke = 0.0
        self._frugal = False
        self.interval_s = KEEPALIVE_S
        self.multiplier = MULTIPLIER
        self.sent = 0
        self.received = 0
        self.since = 0.0

    @property
    def registered(self) -> bool:
        """READY was sent in this conversation."""
        return self.since > 0

    @property
    def silence_s(self) -> float:
        """How long the broker may be silent."""
        return self.interval_s * self.multiplier

    @property
    def sure(self) -> bool:
        """Whether the broker was heard so lately that it cannot have given us up without a word."""
        return self.registered and self._loop.time() - self._heard < self.silence_s

    @property
    def hold_s(self) -> float:
        """How long the broker may still be silent; 0 when not registered."""
        return round(self._heard + self.silence_s - self._loop.time(), 1) if self.registered else 0.0

    def begin(self, opened: dict[str, Any] | None) -> None:
        """Register; called again when the broker's OPEN comes late, which changes the timing only."""
        self.interval_s, self.multiplier = KEEPALIVE_S, MULTIPLIER
        self._frugal = opened is not None
        if opened is not None:
            self.interval_s = _positive(opened.get("keepalive_ms"), self.interval_s * 1000) / 1000
            self.multiplier = int(_positive(opened.get("multiplier"), self.multiplier))
        self._heard = self._spoke = self._loop.time()
        if not self.registered:
            self.since = self._loop.time()
            self._channel.send(Packet(Sender.WORKER, Command.READY, service=self._service))
        self._arm()

    def end(self) -> None:
        """The conversation is over."""
        self.since = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def heard(self, packet: Packet) -> None:
        """Any packet of the broker's says that it is there."""
        self._heard = self._loop.time()
        self.received += packet.command is Command.KEEPALIVE

    def spoke(self) -> None:
        """Something was sent: as good as a KEEPALIVE, except to deployed NorFab, whose broker counts only these."""
        if self._frugal:
            self._spoke = self._loop.time()

    def leave(self) -> None:
        """Say goodbye: no further jobs."""
        if self.registered:
            self._channel.send(
                Packet(Sender.WORKER, Command.DISCONNECT, service=self._service, body=_goodbye(self._frugal))
            )
        self.end()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._spoke + self.interval_s
        self._timer = self._loop.call_at(min(due, self._heard + self.silence_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._heard >= self.silence_s:
            self._channel.reopen(f"the broker was silent for {self.silence_s:g} s")
            return
        if not self._frugal or now - self._spoke >= self.interval_s:
            self._channel.send(Packet(Sender.WORKER, Command.KEEPALIVE, service=self._service))
            self._spoke = now
            self.sent += 1
        self._arm()


def _goodbye(ours: bool) -> bytes | None:
    """DISCONNECT's body: deployed NorFab writes and expects none."""
    return b"shutdown" if ours else None


def _positive(said: Any, unsaid: float) -> float:
    return float(said) if isinstance(said, (int, float)) and said > 0 else unsaid
