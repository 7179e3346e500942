"""One DEALER socket with one connection, from the handshake to its loss.

libzmq's own reconnection is not used: a peer that comes back has to begin with OPEN, and must know that what was under
way is lost. So every conversation has a socket of its own, as the text asks (NFP, "Opening and Closing a Connection").
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import zmq

from broker.errors import LinkBroken, LinkEnded, LinkError, LinkRefused
from broker.transport.zeromq.drain import Pump
from broker.transport.zeromq.monitor import FAILED, Monitor
from broker.transport.zeromq.tuning import LINGER_MS, MORE_NOBLOCK, NO_RECONNECT_MS, NOBLOCK, join_curve, tune

if TYPE_CHECKING:
    from broker.nfp.frames import Body
    from broker.transport.curve import CurveClient
    from broker.transport.zeromq.address import Endpoint
    from broker.transport.zeromq.hub import Hub

log = logging.getLogger("headgate")
_EVENTS: Final = (
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED) | FAILED
)
OUT_MSGS: Final = 10_000
"""Messages that wait in the outbox; deployed NorFab holds as many."""
OUT_BYTES: Final = 64 << 20
"""Bytes that wait; one larger message may wait alone."""
MESSAGE_BYTES: Final = 256 << 20
"""Largest part that libzmq accepts from a broker."""
COPY_BYTES: Final = 32 << 10
"""The body of a larger message is handed to libzmq without copying; below, counting references costs more."""


class User(Protocol):
    """Whose connection it is."""

    def took(self, frames: list[bytes]) -> None:
        """A message came."""

    def ended(self, connection: Connection, error: LinkError) -> None:
        """It is lost, and everything that came has been handed over."""

    def room(self) -> None:
        """The outbox has become shorter."""


class Plan(NamedTuple):
    """Whereto and as who."""

    endpoint: Endpoint
    identity: bytes
    curve: CurveClient | None


class Connection:
    """A DEALER that dials one endpoint once.

    Attributes:
        opened: resolves when the handshake is over; a LinkError when it failed.
    """

    __slots__ = (
        "_flushing",
        "_hub",
        "_leaving",
        "_monitor",
        "_outbox",
        "_over",
        "_pump",
        "_recv",
        "_send",
        "_sock",
        "_text",
        "_user",
        "_waiting_bytes",
        "opened",
    )

    def __init__(self, hub: Hub, plan: Plan, user: User) -> None:
        self._hub = hub
        self._user = user
        self._text = plan.endpoint.text
        self._outbox: deque[tuple[Sequence[Body], int]] = deque()
        self._waiting_bytes = 0
        self._flushing = False
        self._leaving: LinkError | None = None
        self._over = False
        self.opened: asyncio.Future[None] = hub.loop.create_future()
        self._sock = hub.open(zmq.DEALER)
        self._send: Any = self._sock.send
        self._recv: Any = self._sock.recv
        try:
            self._pump = Pump(hub, self._sock, self)
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
            join_curve(self._sock, plan.curve)
            self._sock.set(zmq.IPV6, int(plan.endpoint.ipv6))
            self._sock.set(zmq.ROUTING_ID, plan.identity)
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
        size = sum(map(len, frames))
        self._outbox.append((frames, size))
        self._waiting_bytes += size
        if not self._flushing:
            self._flushing = True
            self._hub.loop.call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Hand libzmq what it takes; the rest follows when it has room."""
        self._flushing = False
        outbox = self._outbox
        if self._over or not outbox:
            return
        send = self._send
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
            self._pump.waiting[self] = None
        self._pump.sent()
        self._user.room()

    def take(self) -> int:
        """Read one message (drain.Owner)."""
        recv = self._recv
        frame = recv(NOBLOCK, False)
        frames = [frame.bytes]
        while frame.more:
            frame = recv(NOBLOCK, False)
            frames.append(frame.bytes)
        try:
            self._user.took(frames)
        except Exception:
            log.exception("%s: a message could not be handled", self._text)
        return sum(map(len, frames))

    def deliver(self, drained: bool) -> None:
        """A turn is over; after the last one of a lost connection the user learns of it (drain.Owner)."""
        if drained and self._leaving is not None and not self._over:
            error = self._leaving
            self.close(0)
            self._user.ended(self, error)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Give the socket back; libzmq goes on sending for ``linger_ms`` what it was handed. Harmless twice."""
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
