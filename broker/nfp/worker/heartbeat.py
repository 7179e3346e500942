"""READY, KEEPALIVE and the broker's silence (NFP, "Opening and Closing a Connection" and "Keepaliving")."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.opening import BrokerOpen, broker_of
from broker.nfp.peer.channel import Channel
from broker.nfp.peer.liveness import BrokerLiveness

KEEPALIVE_S: Final = BrokerOpen().keepalive_ms / 1000
"""Between keepalives, with a broker that does not say; deployed NorFab's is fixed."""
MULTIPLIER: Final = BrokerOpen().multiplier


class Heartbeat:
    """One worker's word that it is there, and its ear for the broker, whose silence is measured as a client's is.

    Args:
        channel: to the broker. service: what READY registers.

    Attributes:
        registered: READY was sent in this conversation. interval_s, multiplier: in use. silence_s: how long the
        broker may be silent. sent, received: keepalives.
    """

    def __init__(self, channel: Channel, service: str, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._service = service
        self._loop = loop
        # it says KEEPALIVE by itself: something is always awaited, and it need not be asked
        self._liveness = BrokerLiveness(channel, lambda: True, lambda: None, loop)
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._sent_at = 0.0
        self._broker_is_ours = False
        self.interval_s = KEEPALIVE_S
        self.multiplier = MULTIPLIER
        self.silence_s = KEEPALIVE_S * MULTIPLIER
        self.sent = 0
        self.received = 0
        self.registered = False

    @property
    def broker_is_there(self) -> bool:
        """Whether the broker was heard so lately that it cannot have given us up without a word: by the clock, also of
        the time in which we were stopped.
        """
        return self.registered and self._loop.time() - self._heard_at < self.silence_s

    @property
    def hold_s(self) -> float:
        """How long the broker may still be silent; 0 when not registered."""
        return round(self._heard_at + self.silence_s - self._loop.time(), 1) if self.registered else 0.0

    def register(self, opened: dict[str, Any] | None) -> None:
        """Register; called again when the broker's OPEN comes late, which changes the timing only."""
        self._broker_is_ours = opened is not None
        said = broker_of(opened or {})
        self.interval_s, self.multiplier = said.keepalive_ms / 1000, said.multiplier
        self.silence_s = self.interval_s * self.multiplier
        self._heard_at = self._sent_at = self._loop.time()
        if not self.registered:
            self.registered = True
            self._channel.send(Packet(Sender.WORKER, Command.READY, service=self._service))
        self._liveness.begin(opened)
        self._arm()

    def stop(self) -> None:
        """The conversation is over."""
        self.registered = False
        self._liveness.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note_received(self, packet: Packet) -> None:
        """Any packet of the broker's says that it is there."""
        self._heard_at = self._loop.time()
        self.received += packet.command is Command.KEEPALIVE

    def note_sent(self) -> None:
        """Something was sent: as good as a KEEPALIVE, except to deployed NorFab, whose broker counts only these."""
        if self._broker_is_ours:
            self._sent_at = self._loop.time()

    def beat_from_thread(self) -> None:
        """The loop is blocked: say in its place that the worker is there, when that is due; see ``LoopWatch``."""
        now, send = self._loop.time(), getattr(self._channel, "send_from_thread", None)
        if self.registered and send is not None and now - self._sent_at >= self.interval_s:
            self.sent += send(Packet(Sender.WORKER, Command.KEEPALIVE, service=self._service))
            self._sent_at = now

    def disconnect(self) -> None:
        """Say goodbye: no further jobs."""
        if self.registered:
            body = b"shutdown" if self._broker_is_ours else None  # deployed NorFab writes and expects none
            self._channel.send(Packet(Sender.WORKER, Command.DISCONNECT, service=self._service, body=body))
        self.stop()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._sent_at + self.interval_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        if not self._broker_is_ours or now - self._sent_at >= self.interval_s:
            self._channel.send(Packet(Sender.WORKER, Command.KEEPALIVE, service=self._service))
            self._sent_at = now
            self.sent += 1
        self._arm()
