"""A session with a broker, over a connection of its own, from OPEN to its loss.

A peer that comes back has to begin with OPEN, and must know that what was under way is lost. So every session has a
socket of its own, as the text asks (NFP, "Opening and Closing a Connection").
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.bounded_queue import BoundedQueue
from broker.errors import DecodeError, LinkError
from broker.nfp.frames import HEADS_BYTES_MAX, Body, Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.nfp.opening import broker_of, read_any
from broker.nfp.peer.channel import Receiver
from broker.transport.batching import Part
from broker.transport.zeromq.connection import Connection as Opened
from broker.transport.zeromq.pipe import Pipe

if TYPE_CHECKING:
    from broker.nfp.peer.dealer import DealerChannel

log = logging.getLogger("headgate")
OUT_MSGS: Final = 10_000
"""Messages that wait in the outbox; deployed NorFab holds as many."""
OUT_BYTES: Final = 64 << 20
"""Bytes that wait; one larger message may wait alone."""
MESSAGE_BYTES: Final = 256 << 20
"""Largest body that is taken from a broker."""


class BrokerSession:
    """What is said over one connection (``pipe.Owner``), from OPEN to its loss.

    Args:
        sock, opened: the connection; the socket is this object's from here on.
        broker: its address.

    Attributes:
        begun: the receiver knows of it. why: it ended, "" before. refused: why the broker does not serve us, as it said
            in its OPEN; "" when it does.
        over: resolves at the end.
    """

    def __init__(
        self, channel: DealerChannel, receiver: Receiver, broker: str, sock: socket.socket, opened: Opened
    ) -> None:
        self.broker = broker
        self.begun = False
        self.why = self.refused = ""
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._channel = channel
        self._receiver = receiver
        self._traffic = channel.traffic
        self._received = channel.traffic.received
        self._opened: dict[str, Any] | None = None
        self._message_bytes = 0
        self._early: list[Packet] = []
        self._outbox: BoundedQueue[Sequence[Body]] = BoundedQueue(OUT_MSGS, OUT_BYTES)
        self._flushing = self._closed = False
        opened.limit(MESSAGE_BYTES + HEADS_BYTES_MAX, MESSAGE_BYTES)
        self._pipe = Pipe(sock, opened, broker, self)
        self._pipe.resume()

    @property
    def waiting(self) -> int:
        """Messages that were not written yet."""
        return len(self._outbox)

    @property
    def trouble(self) -> str:
        """Of a session that has begun without OPEN, and in which nothing has come yet; "" in any other."""
        if self._opened is not None or self._traffic.received > self._received:
            return ""
        name = self._channel.name
        return f"{self.broker} has said nothing yet; perhaps another peer is connected as {name!r}"

    # -- what is sent -----------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether ``send`` would take a packet."""
        return self.begun and not self.over.done() and not self._outbox.full

    def send(self, packet: Packet) -> bool:
        """Queue ``packet``, which leaves at the end of this turn of the loop; False: it is over, or the outbox is full.

        What the broker would end the connection for is dropped, and nobody tries it again: who knows what to do about a
        large body looks at ``BrokerOpen.message_bytes`` before.
        """
        if self._message_bytes and packet.body is not None and len(packet.body) > self._message_bytes:
            log.error(
                "%s: dropped a %s of %d bytes, %s takes %d (nfp.message_bytes_max)",
                self._channel.name,
                packet.command.name,
                len(packet.body),
                self.broker,
                self._message_bytes,
            )
            return True
        if not self._queue(packet):
            return False
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        self._traffic.sent += 1
        return True

    def send_from_thread(self, packet: Packet) -> bool:
        """See ``DealerChannel.send_from_thread``."""
        with self._pipe.lock:
            if not self.writable or not self._queue(packet):
                return False
            self._fill()
            self._pipe.write()
        self._loop.call_soon_threadsafe(self._flush)  # once the loop goes on
        return True

    def _queue(self, packet: Packet) -> bool:
        if self._outbox.full or self._closed or self.over.done():
            return False
        frames = encode(packet)
        with self._pipe.lock:
            self._outbox.add(frames, sum(map(len, frames)))
        return True

    def _flush(self) -> None:
        """Write what the kernel takes; the rest follows when it has room."""
        self._flushing = False
        if not self._closed:
            self._fill()
            self._pipe.flush()
            self._channel.note_room()

    def _fill(self) -> None:
        outbox, pipe = self._outbox, self._pipe
        with pipe.lock:
            while outbox and pipe.add(outbox[0]):
                outbox.pop()

    # -- beginning and end ------------------------------------------------------------------------

    def begin(self, opened: dict[str, Any] | None) -> None:
        """Tell the receiver; then hand it what came before."""
        again, self.begun, self._opened = self.begun, True, opened
        if not again:
            self._channel.note_begin(self, opened)
        self._tell(self._receiver.on_connect, self.broker, opened)
        early, self._early = self._early, []
        for packet in early:
            self._tell(self._receiver.on_packet, packet)
        self._channel.note_room()

    def end(self, why: str) -> None:
        """Over; what was queued is not sent any more."""
        if not self.over.done():
            self.why = why
            self.over.set_result(None)

    def close(self) -> None:
        """Give the socket back; what was written follows, unless the session is over. Harmless twice."""
        with self._pipe.lock:
            self._closed = True
            self._outbox.clear()
            if self.over.done() and not self.over.cancelled():
                self._pipe.abort()
            else:
                self._pipe.close()

    def tell_lost(self) -> None:
        """The receiver learns of the end."""
        self._tell(self._receiver.on_disconnect, self.why)

    def _tell(self, call: Callable[..., None], *what: Any) -> None:
        try:
            call(*what)
        except Exception:
            log.exception("%s: what the broker %s said could not be handled", self._channel.name, self.broker)

    # -- from the connection (pipe.Owner) ---------------------------------------------------------

    def received(self, messages: list[list[Part]]) -> None:
        """See ``pipe.Owner``."""
        for frames in messages:
            try:
                self._take(frames)
            except Exception:
                log.exception("%s: a message could not be handled", self.broker)

    def room(self) -> None:
        """See ``pipe.Owner``."""
        self._flush()

    def ended(self, error: LinkError) -> None:
        """See ``pipe.Owner``."""
        self._closed = True
        self.end(str(error))

    def _take(self, frames: Sequence[Body]) -> None:
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
            self._take_open(packet)
        elif packet.command is Command.DISCONNECT:
            # one from before our OPEN asks for the new session that this already is
            if self.begun:
                text = packet.data[:64].decode("utf-8", "replace")
                self.end(f"it said DISCONNECT{f': {text}' if text else ''}")
        elif self.begun:
            self._receiver.on_packet(packet)
        else:
            self._early.append(packet)

    def _take_open(self, packet: Packet) -> None:
        opened = read_any(packet.data)
        if not isinstance(opened, dict):
            self._traffic.invalid += 1
            log.warning("%s: the OPEN of %s is no JSON object", self._channel.name, self.broker)
            return
        said = broker_of(opened)
        self.refused, self._message_bytes = said.refused, said.message_bytes
        if self.refused:
            self.end(f"it refused us: {self.refused}")
            return
        self._channel.note_answer(self)
        known = self._opened
        if known is not None and known.get("epoch") != opened.get("epoch"):
            self.end("it was started anew")
        elif known is None:
            self.begin(opened)
