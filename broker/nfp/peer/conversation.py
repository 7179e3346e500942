"""One conversation with a broker: from OPEN, over one connection, to its loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from broker.errors import DecodeError, LinkError
from broker.nfp.frames import Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.nfp.opening import read_any
from broker.nfp.peer.channel import Receiver, Traffic

if TYPE_CHECKING:
    from broker.nfp.peer.connection import Connection

log = logging.getLogger("headgate")


class Owner(Protocol):
    """The channel that has the conversation."""

    name: str
    traffic: Traffic

    def begun(self, talk: Conversation, opened: dict[str, Any] | None) -> None:
        """It begins; ``send`` takes packets from now on."""

    def answered(self, talk: Conversation) -> None:
        """The broker answered OPEN."""

    def roomy(self) -> None:
        """The outbox has become shorter."""


class Conversation:
    """See the module; what a connection.User is, it is.

    Attributes:
        connection: set once it is made. begun: the receiver knows of it. why: it ended, "" before.
        over: resolves at the end.
    """

    def __init__(self, channel: Owner, receiver: Receiver, broker: str) -> None:
        self.broker = broker
        self.connection: Connection
        self.begun = False
        self.why = ""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._receiver = receiver
        self._traffic = channel.traffic
        self._opened: dict[str, Any] | None = None
        self._early: list[Packet] = []

    @property
    def waiting(self) -> int:
        """Messages that libzmq has not taken yet."""
        return self.connection.waiting

    @property
    def writable(self) -> bool:
        """Whether ``send`` would take a packet."""
        return self.begun and not self.over.done() and not self.connection.full

    def send(self, packet: Packet) -> bool:
        """See ``Channel.send``."""
        return self.begun and not self.over.done() and self.send_now(packet)

    def send_now(self, packet: Packet) -> bool:
        """Send even before the conversation has begun."""
        frames = encode(packet)
        sent = self.connection.send(frames)
        self._traffic.sent += sent
        return sent

    # -- beginning and end ------------------------------------------------------------------------

    def begin(self, opened: dict[str, Any] | None) -> None:
        """Tell the receiver; then hand it what came before."""
        again, self.begun, self._opened = self.begun, True, opened
        if not again:
            self._channel.begun(self, opened)
        self._tell(lambda: self._receiver.connected(self.broker, opened))
        early, self._early = self._early, []
        for packet in early:
            self._tell(lambda packet=packet: self._receiver.received(packet))  # type: ignore[misc]
        self._channel.roomy()

    def end(self, why: str) -> None:
        """Over; what was queued is not sent any more."""
        if not self.over.done():
            self.why = why
            self.over.set_result(None)

    def close(self) -> None:
        """Give the socket back; libzmq still sends what it was handed, unless the conversation is over."""
        if self.over.done() and not self.over.cancelled():
            self.connection.close(0)
        else:
            self.connection.close()

    def tell_lost(self) -> None:
        """The receiver learns of the end."""
        self._tell(lambda: self._receiver.lost(self.why))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("%s: what the broker %s said could not be handled", self._channel.name, self.broker)

    # -- connection.User --------------------------------------------------------------------------

    def took(self, frames: list[bytes]) -> None:
        """A message came."""
        if self.over.done():
            return
        self._traffic.received += 1
        try:
            packet = decode(frames)
            if packet.sender is not Sender.BROKER:
                raise DecodeError(f"header {bytes(packet.sender)!r}, expected that of a broker")
        except DecodeError as error:
            self._traffic.invalid += 1
            log.warning("%s: dropped a message of %s: %s", self._channel.name, self.broker, error)
            return
        if packet.command is Command.OPEN:
            self._answered(packet)
        elif packet.command is Command.DISCONNECT:
            # one from before our OPEN asks for the new conversation that this already is
            if self.begun:
                text = packet.data[:64].decode("utf-8", "replace")
                self.end(f"it said DISCONNECT{f': {text}' if text else ''}")
        elif self.begun:
            self._tell(lambda: self._receiver.received(packet))
        else:
            self._early.append(packet)

    def _answered(self, packet: Packet) -> None:
        opened = read_any(packet.data)
        if not isinstance(opened, dict):
            self._traffic.invalid += 1
            log.warning("%s: the OPEN of %s is no JSON object", self._channel.name, self.broker)
            return
        self._channel.answered(self)
        known = self._opened
        if known is not None and known.get("epoch") != opened.get("epoch"):
            self.end("it was started anew")
        elif known is None:
            self.begin(opened)

    def ended(self, connection: Connection, error: LinkError) -> None:
        """The connection is lost."""
        self.end(str(error))

    def room(self) -> None:
        """The outbox has become shorter."""
        self._channel.roomy()
