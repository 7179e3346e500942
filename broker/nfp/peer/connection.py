"""One DEALER socket with one connection, and the session that is spoken over it, from OPEN to its loss.

libzmq's own reconnection is not used: a peer that comes back has to begin with OPEN, and must know that what was under
way is lost. So every session has a socket of its own, as the text asks (NFP, "Opening and Closing a Connection").
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import zmq

from broker.errors import DecodeError, LinkBroken, LinkEnded, LinkError, LinkRefused
from broker.nfp.frames import Body, Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.nfp.opening import broker_of, read_any
from broker.nfp.peer.channel import Receiver
from broker.transport.curve import CurveClient
from broker.transport.zeromq import drain
from broker.transport.zeromq.address import Endpoint, unproven
from broker.transport.zeromq.connection import refuse_listener
from broker.transport.zeromq.hub import Hub
from broker.transport.zeromq.monitor import FAILED, Monitor
from broker.transport.zeromq.tuning import LINGER_MS, MORE_NOBLOCK, NO_RECONNECT_MS, NOBLOCK, join_curve, tune

if TYPE_CHECKING:
    from broker.nfp.peer.dealer import DealerChannel

log = logging.getLogger("headgate")
_EVENTS: Final = (
    int(
        zmq.EVENT_CONNECTED
        | zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_DISCONNECTED
        | zmq.EVENT_CONNECT_RETRIED
    )
    | FAILED
)
OUT_MSGS: Final = 10_000
"""Messages that wait in the outbox; deployed NorFab holds as many."""
OUT_BYTES: Final = 64 << 20
"""Bytes that wait; one larger message may wait alone."""
MESSAGE_BYTES: Final = 256 << 20
"""Largest part that libzmq accepts from a broker."""
COPY_BYTES: Final = 32 << 10
"""The body of a larger message is handed to libzmq without copying; below, counting references costs more."""


class Pump(drain.Pump):
    """A pump whose socket may be written to from another thread, too, by who holds ``lock``."""

    __slots__ = ("_lock",)

    def __init__(self, hub: Hub, sock: zmq.Socket[bytes], owner: Connection, lock: threading.RLock) -> None:
        self._lock = lock
        super().__init__(hub, sock, owner)

    def sent(self) -> None:
        """See ``drain.Pump``."""
        with self._lock:
            super().sent()

    def turn(self) -> None:
        """See ``drain.Pump``."""
        with self._lock:
            super().turn()

    def close(self, linger_ms: int) -> None:
        """See ``drain.Pump``."""
        with self._lock:
            super().close(linger_ms)


class Connection:
    """A DEALER that dials one endpoint once.

    Args:
        identity: of the peer. session: is handed what comes.

    Attributes:
        opened: resolves when the handshake is over; a LinkError when it failed.
    """

    def __init__(
        self, hub: Hub, endpoint: Endpoint, identity: bytes, curve: CurveClient | None, session: BrokerSession
    ) -> None:
        self._hub = hub
        self._session = session
        self._text = endpoint.text
        self._unproven = unproven(endpoint, curve)
        self._outbox: deque[tuple[Sequence[Body], int]] = deque()
        self._waiting_bytes = 0
        self._flushing = False
        self._leaving: LinkError | None = None
        self._over = False
        self._lock = threading.RLock()
        """Whoever uses the socket holds it; another thread does so while the loop is blocked."""
        self.opened: asyncio.Future[None] = hub.loop.create_future()
        self._sock = hub.open(zmq.DEALER)
        # without pyzmq's checks for draft sockets, a call for each frame
        self._send: Any = super(zmq.Socket, self._sock).send
        self._recv: Any = self._sock.recv
        try:
            self._pump = Pump(hub, self._sock, self, self._lock)
        except BaseException:
            hub.close(self._sock, 0)
            raise
        try:
            self._monitor = Monitor(hub, self._sock, _EVENTS, self._happened)
        except BaseException:  # such as no descriptor left
            self._pump.close(0)
            raise
        try:
            tune(self._sock, MESSAGE_BYTES)
            join_curve(self._sock, curve)
            self._sock.set(zmq.IPV6, int(endpoint.ipv6))
            self._sock.set(zmq.ROUTING_ID, identity)
            self._sock.set(zmq.RECONNECT_IVL, NO_RECONNECT_MS)
            self._sock.connect(self._text)
        except BaseException:
            self.close(0)
            raise

    @property
    def waiting(self) -> int:
        """Messages in the outbox."""
        return len(self._outbox)

    @property
    def full(self) -> bool:
        """True when ``send`` takes nothing."""
        return len(self._outbox) >= OUT_MSGS or (self._waiting_bytes >= OUT_BYTES and bool(self._outbox))

    def send(self, frames: Sequence[Body]) -> bool:
        """Queue one message for the end of this turn of the loop; False when the outbox is full."""
        if self.full or self._over:
            return False
        self._put(frames)
        if not self._flushing:
            self._flushing = True
            self._hub.loop.call_soon(self.flush)
        return True

    def _put(self, frames: Sequence[Body]) -> None:
        size = sum(map(len, frames))
        with self._lock:
            self._outbox.append((frames, size))
            self._waiting_bytes += size

    def flush(self) -> None:
        """Hand libzmq what it takes; the rest follows when it has room."""
        self._flushing = False
        if self._over or not self._outbox:
            return
        if not self._write():
            self._pump.waiting[self] = None
        self._pump.sent()
        self._session.room()

    def _write(self) -> bool:
        """Whether libzmq has taken all that waits."""
        outbox, send = self._outbox, self._send
        with self._lock:
            try:
                while outbox:
                    frames, size = outbox[0]
                    copy = size <= COPY_BYTES
                    send(frames[0], MORE_NOBLOCK)  # only the first may find no room
                    for frame in frames[1:-1]:
                        send(frame, MORE_NOBLOCK)
                    send(frames[-1], NOBLOCK, copy)
                    outbox.popleft()
                    self._waiting_bytes -= size
            except zmq.Again:
                return False
        return True

    def send_from_thread(self, frames: Sequence[Body]) -> bool:
        """Send one message at once, behind what waits; for another thread while that of the loop is blocked."""
        with self._lock:
            if self.full or self._over:
                return False
            self._put(frames)
            self._write()
            self._hub.loop.call_soon_threadsafe(self._sent_by_thread)
        return True

    def _sent_by_thread(self) -> None:
        """The loop goes on: the rest is to be written, and a send may have swallowed news (see ``drain``)."""
        self.flush()
        self._pump.wake()

    def take(self) -> int:
        """Read one message (drain.Owner)."""
        recv = self._recv
        frame = recv(NOBLOCK, False)
        frames = [frame.bytes]
        while frame.more:
            frame = recv(NOBLOCK, False)
            frames.append(frame.bytes)
        try:
            self._session.took(frames)
        except Exception:
            log.exception("%s: a message could not be handled", self._text)
        return sum(map(len, frames))

    def deliver(self, drained: bool) -> None:
        """A turn is over; after the last one of a lost connection the session learns of it (drain.Owner)."""
        if drained and self._leaving is not None and not self._over:
            error = self._leaving
            self.close(0)
            self._session.ended(self, error)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Give the socket back; libzmq goes on sending for ``linger_ms`` what it was handed. Harmless twice."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._outbox.clear()
            if not self.opened.done():
                self.opened.cancel()
            self._monitor.close()
            self._pump.close(linger_ms)

    def _happened(self, event: int, value: int) -> None:
        if self.opened.done():
            if event == zmq.EVENT_DISCONNECTED and self._leaving is None:
                self._leaving = LinkEnded(f"{self._text} ended the connection")
                self._pump.wake()
        elif event == zmq.EVENT_CONNECTED:
            if refused := refuse_listener(value, self._unproven):
                self.opened.set_exception(refused)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.opened.set_result(None)
        else:
            self.opened.set_exception(failure(self._text, event, value))


def failure(where: str, event: int, value: int) -> LinkError:
    """What a connection that never opened died of, as far as libzmq tells."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return LinkRefused(f"{where} refused us (ZAP {value})", errno.EACCES)
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return LinkRefused(f"{where}: one side speaks CURVE and the other plaintext", errno.EPROTO)
        return LinkRefused(f"{where} breaks the ZMTP handshake (libzmq code {value:#x})", errno.EPROTO)
    if event == zmq.EVENT_CONNECT_RETRIED:
        return LinkBroken(f"{where}: nobody answers there", errno.ECONNREFUSED)
    return LinkEnded(f"{where} hung up during the handshake", errno.ECONNRESET)


class BrokerSession:
    """What is said over one connection, from OPEN to its loss.

    Attributes:
        connection: set once it is made. begun: the receiver knows of it. why: it ended, "" before. refused: why the
            broker does not serve us, as it said in its OPEN; "" when it does.
        over: resolves at the end.
    """

    def __init__(self, channel: DealerChannel, receiver: Receiver, broker: str) -> None:
        self.broker = broker
        self.connection: Connection
        self.begun = False
        self.why = self.refused = ""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._receiver = receiver
        self._traffic = channel.traffic
        self._received = channel.traffic.received
        self._opened: dict[str, Any] | None = None
        self._message_bytes = 0
        self._early: list[Packet] = []

    @property
    def waiting(self) -> int:
        """Messages that libzmq has not taken yet."""
        return self.connection.waiting

    @property
    def trouble(self) -> str:
        """Of a session that has begun without OPEN, and in which nothing has come yet; "" in any other."""
        if self._opened is not None or self._traffic.received > self._received:
            return ""
        name = self._channel.name
        return f"{self.broker} has said nothing yet; perhaps another peer is connected as {name!r}"

    @property
    def writable(self) -> bool:
        """Whether ``send`` would take a packet."""
        return self.begun and not self.over.done() and not self.connection.full

    def send(self, packet: Packet) -> bool:
        """See ``Channel.send``."""
        return self.begun and not self.over.done() and self.send_now(packet)

    def send_now(self, packet: Packet) -> bool:
        """Send even before the session has begun.

        What the broker would end the connection for is dropped, and nobody tries it again: who knows what to do about a
        large body looks at ``BrokerOpen.message_bytes`` before.
        """
        if self._message_bytes and packet.body is not None and len(packet.body) > self._message_bytes:
            text = "%s: dropped a %s of %d bytes, %s takes %d (nfp.message_bytes_max)"
            log.error(
                text,
                self._channel.name,
                packet.command.name,
                len(packet.body),
                self.broker,
                self._message_bytes,
            )
            return True
        frames = encode(packet)
        sent = self.connection.send(frames)
        self._traffic.sent += sent
        return sent

    def send_from_thread(self, packet: Packet) -> bool:
        """See ``DealerChannel.send_from_thread``."""
        return self.begun and not self.over.done() and self.connection.send_from_thread(encode(packet))

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
        """Give the socket back; libzmq still sends what it was handed, unless the session is over."""
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

    # -- from the connection ----------------------------------------------------------------------

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
            # one from before our OPEN asks for the new session that this already is
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
        said = broker_of(opened)
        self.refused, self._message_bytes = said.refused, said.message_bytes
        if self.refused:
            self.end(f"it refused us: {self.refused}")
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
