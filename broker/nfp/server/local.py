"""Clients and workers in this process: they write packets as others do, and no frame is made of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.errors import LinkClosed
from broker.journal.layout import INPROC
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.peer.channel import Receiver, Traffic
from broker.nfp.principal import Principal
from broker.nfp.server.turn import QueuedPeer

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

log = logging.getLogger("headgate")
_HEAD_BYTES: Final = 200
"""What a packet counts in a queue besides its body."""
RETRY_S: Final = 1.0
"""Whom the broker cut comes back after so long."""
OnPacket = Callable[[Packet], None]


class LocalPeer(QueuedPeer[Packet]):
    """See ``Peer``; made by ``NfpBroker.local_peer``.

    Attributes:
        on_packet: called with every packet for it, in order, in a turn of the loop of its own.
        on_lost: called when the broker cuts it or stops, with the reason.
    """

    def __init__(
        self,
        broker: NfpBroker,
        principal: Principal,
        name: str,
        on_packet: OnPacket,
        features: frozenset[str],
    ) -> None:
        super().__init__(broker, name, name.encode(), principal, "here", INPROC)
        self.features = features
        self.on_packet = on_packet
        self.on_lost: Callable[[str], None] = _unheard

    def __repr__(self) -> str:
        return f"<{self.name} in this process>"

    def send(self, packet: Packet, after: int = 0) -> bool:
        """See ``Peer.send``."""
        if not self.alive:
            return False
        size = _HEAD_BYTES + (0 if packet.body is None else len(packet.body))
        return self._queue(packet, packet, size, after)

    def submit(self, packet: Packet) -> None:
        """Hand the broker a packet, as if it had come from a socket; it acts on it in the next turn of the loop."""
        self._broker.loop.call_soon(self._take, packet)

    def _offer(self, packet: Packet) -> bool:
        self._broker.loop.call_soon(self._deliver, packet)
        return True

    def cut(self, why: str) -> None:
        """The broker ends it."""
        if self.alive:
            log.warning("%s is cut: %s", self, why)
            self.close()
            self._broker.loop.call_soon(self.on_lost, why)

    def close(self) -> None:
        """Leave. Harmless twice."""
        if self.alive:
            self.alive = False
            self.unsent = self._outbox.uuids()
            self._outbox.clear()
            self._broker.turn.forget(self)
            self._broker.local_closed(self)

    def _deliver(self, packet: Packet) -> None:
        if self.alive:
            try:
                self.on_packet(packet)
            except Exception:
                log.exception("%s: %r broke its receiver", self, packet)

    def _take(self, packet: Packet) -> None:
        if self.alive:
            self._broker.ingress.take(self, packet, None, self._broker.clock.now())
            self._broker.turn.soon()


def _unheard(why: str) -> None:
    """Nobody wants to know ``why``."""


class LocalChannel:
    """See ``peer.channel.Channel``: a conversation with the broker in this process.

    Args:
        broker: in this process. name: of the peer. sender: whether it is a client or a worker. principal: who it is.
    """

    def __init__(self, broker: NfpBroker, name: str, sender: Sender, principal: Principal) -> None:
        self._broker = broker
        self.name = name
        self.broker = ""
        self.trouble = "not started"
        self.traffic = Traffic()
        self._sender = sender
        self._principal = principal
        self._peer: LocalPeer | None = None
        self._receiver: Receiver | None = None
        self._open_body: Callable[[], dict[str, Any]] = dict
        self._connected = False
        self._closed = False
        self._retry_timer: asyncio.TimerHandle | None = None

    def start(self, receiver: Receiver, open_body: Callable[[], dict[str, Any]]) -> None:
        """See ``Channel.start``."""
        self._receiver = receiver
        self._open_body = open_body
        self._closed = False
        self._connect()

    def send(self, packet: Packet) -> bool:
        """See ``Channel.send``."""
        if self._peer is None or not self._connected:
            self.traffic.refused += 1
            return False
        self.traffic.sent += 1
        self._peer.submit(packet)
        return True

    async def writable(self) -> None:
        """See ``Channel.writable``; the broker takes packets as fast as they come, so this gives it a turn.

        Raises:
            LinkClosed: the channel was closed.
        """
        if self._closed:
            raise LinkClosed(f"{self.name}: the channel is closed")
        await asyncio.sleep(0)

    def reopen(self, why: str) -> None:
        """See ``Channel.reopen``: it begins again with a new peer, which the broker does not know yet."""
        peer, self._peer = self._peer, None
        if peer is None or self._receiver is None:
            return
        peer.close()
        self._connected = False
        self.trouble = why
        self._receiver.on_disconnect(why)
        asyncio.get_running_loop().call_soon(self._connect)

    async def close(self) -> None:
        """See ``Channel.close``."""
        self._closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if (peer := self._peer) is not None:
            for _ in range(2):  # what was submitted is acted on in the next turn, which may cut it
                await asyncio.sleep(0)
            peer.close()
            self._peer = None
        self._connected = False
        self.trouble = "closed"

    def _connect(self) -> None:
        if self._closed:
            return
        if self._broker.stopping:
            self.trouble = f"{self.name}: the broker stops"
            return
        self._peer = peer = self._broker.local_peer(self._principal, self.name, self._take_packet)
        peer.on_lost = self._peer_lost
        body = msgspec.json.encode(self._open_body())
        peer.submit(Packet(self._sender, Command.OPEN, body=body))

    def _take_packet(self, packet: Packet) -> None:
        receiver = self._receiver
        assert receiver is not None
        self.traffic.received += 1
        if packet.command is Command.OPEN:
            self._connected = True
            self.trouble = ""
            self.traffic.connections += 1
            receiver.on_connect(self.broker, msgspec.json.decode(packet.data))
        elif packet.command is Command.DISCONNECT:
            self.reopen(f"the broker said DISCONNECT: {packet.data[:64].decode('utf-8', 'replace')}")
        else:
            receiver.on_packet(packet)

    def _peer_lost(self, why: str) -> None:
        """The broker ended it, and does not want it back at once."""
        self._peer = None
        if not self._closed:
            self._retry_timer = asyncio.get_running_loop().call_later(RETRY_S, self._connect)
        was, self._connected = self._connected, False
        self.trouble = why
        if was and self._receiver is not None:
            self._receiver.on_disconnect(why)
