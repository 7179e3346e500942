"""The dialing side with libzmq: one DEALER socket with one connection is one link.

A dropped connection ends the link. libzmq's own reconnection is not used: it would silently lose what was under way,
while a link is reliable or it ends.
"""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Sequence
from typing import Final

import zmq

from broker.errors import LinkBroken, LinkClosed, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.secret import masked
from broker.transport.batching import Form, data_of
from broker.transport.curve import CurveClient
from broker.transport.link import Link, Options
from broker.transport.zeromq.address import Endpoint, unproven
from broker.transport.zeromq.connection import inode, refuse_listener
from broker.transport.zeromq.drain import Pump
from broker.transport.zeromq.hub import Hub, hub
from broker.transport.zeromq.limits import CONNECT_MS
from broker.transport.zeromq.link import ZeromqLink
from broker.transport.zeromq.monitor import FAILED, Monitor
from broker.transport.zeromq.tuning import (
    EVENTS,
    LINGER_MS,
    NO_RECONNECT_MS,
    NOBLOCK,
    POLLOUT,
    join_curve,
    tune,
)

_EVENTS: Final = (
    int(
        zmq.EVENT_CONNECTED
        | zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_DISCONNECTED
        | zmq.EVENT_CONNECT_RETRIED
    )
    | FAILED
)


class DealerLink(ZeromqLink):
    """The link of a dialer.

    Attributes:
        opened: resolves when the handshake is over; a LinkError when it failed.
    """

    __slots__ = ("_draining", "_hub", "_monitor", "_unproven", "opened")

    def __init__(self, the_hub: Hub, endpoint: Endpoint, uri: str, options: Options) -> None:
        curve: CurveClient | None = options.extra.get("curve")
        key = curve.server_key if isinstance(curve, CurveClient) else None
        peer = PeerInfo(uri, key=key, local=endpoint.scheme == "ipc")
        sock = the_hub.open(zmq.DEALER)
        pump = Pump(the_hub, sock, self)
        pump.paused = True
        super().__init__(peer, options, options.extra.get("identity") or str(uuid.uuid4()).encode(), pump)
        self._hub = the_hub
        self._unproven = unproven(endpoint, curve)
        self._draining: LinkError | None = None
        self.opened: asyncio.Future[None] = the_hub.loop.create_future()
        self._monitor = Monitor(the_hub, sock, _EVENTS, self._happened)
        try:
            tune(sock, self._max_bytes)
            join_curve(sock, curve)
            sock.set(zmq.IPV6, int(endpoint.ipv6))
            sock.set(zmq.ROUTING_ID, self.identity)
            sock.set(zmq.RECONNECT_IVL, NO_RECONNECT_MS)
            sock.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
            sock.connect(endpoint.text)
        except BaseException:
            self.release(0)
            raise

    def release(self, linger_ms: int) -> None:
        """Give the sockets back."""
        self._monitor.close()
        self._pump.close(linger_ms)

    def pause(self) -> None:
        """Stop reading; TCP slows the peer down, which ends the link when it has waited ``UNCONFIRMED_MS`` for room."""
        self._pump.paused = True

    def resume(self) -> None:
        """Read again."""
        self._pump.paused = False
        self._pump.wake()

    def abort(self, error: LinkError) -> None:
        """End at once with ``error``."""
        if self.ended is not None:
            return
        if self.fd < 0 or self._draining is not None:
            self.release(0)
        else:
            self._pump.stop()
            self._hub.close_connected(self._sock, self._monitor.stop(), self.fd, self.inode)
        self.finish(error)

    def end_lingering(self, error: LinkError) -> None:
        """See ``ZeromqLink.end_lingering``."""
        self._monitor.close()
        self._pump.paused = True
        if self.unsent:
            self._hub.loop.call_later(LINGER_MS / 1000, self._linger)
        else:
            self.all_sent()
        self.finish(error)

    def _linger(self) -> None:
        if self.unsent and self.lingers():
            self._hub.loop.call_later(LINGER_MS / 1000, self._linger)
        else:
            self.drop_unsent()
            self.all_sent()

    def all_sent(self) -> None:
        """See ``ZeromqLink.all_sent``; libzmq has it and sends it while it lingers."""
        self._pump.close(LINGER_MS)

    def lost(self, error: LinkError) -> None:
        """See ``ZeromqLink.lost``."""
        self._draining = error
        if self.receiver is not None:
            self.resume()

    def take(self) -> int:
        """Read one ZeroMQ message."""
        recv = self._sock.recv
        frame = recv(NOBLOCK, copy=False)
        frames = [frame]
        while frame.more:
            frame = recv(NOBLOCK, copy=False)
            frames.append(frame)
        parts = data_of(frames)
        self.arrived(parts)
        return sum(map(len, parts))

    def deliver(self, drained: bool = True) -> None:
        """A turn is over; after the last one of a lost connection the link ends."""
        if self._arrived:
            super().deliver()
        if drained and self._draining is not None and self.ended is None:
            self.abort(self._draining)

    def _offer(self, group: Sequence[Form]) -> bool:
        """See ``ZeromqLink._offer``; asking for room costs more than failing now and then."""
        try:
            self._put(group)
        except zmq.Again:
            self._pump.waiting[self] = None
            return False
        return True

    def _room(self) -> bool:
        if int(self._sock.get(EVENTS)) & POLLOUT:
            return True
        self._pump.waiting[self] = None
        return False

    def _happened(self, event: int, value: int) -> None:
        if self.opened.done():
            if event == zmq.EVENT_DISCONNECTED and self.ended is None:
                self.lost(LinkEnded(f"{self.peer.address} ended the connection"))
        elif event == zmq.EVENT_CONNECTED:
            self.fd, self.inode = value, inode(value)
            if refused := refuse_listener(value, self._unproven):
                self.opened.set_exception(refused)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.opened.set_result(None)
        else:
            self.opened.set_exception(_failure(self.peer.address, event, value))


def _failure(uri: str, event: int, value: int) -> LinkError:
    """What a connection that never opened died of."""
    uri = masked(uri)
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        why = "our key or user is not on its list, or may not have a connection now"
        return LinkRefused(f"{uri} refused us: ZAP {value}, {why}", errno.EPERM)
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return LinkRefused(f"{uri}: one side speaks CURVE and the other plaintext", errno.EPROTO)
        return LinkRefused(f"{uri} breaks the ZMTP handshake (libzmq code {value:#x})", errno.EPROTO)
    if event == zmq.EVENT_CONNECT_RETRIED:
        return LinkBroken(f"{uri}: connection refused or unreachable", errno.ECONNREFUSED)
    return LinkEnded(f"{uri} hung up during the handshake", errno.ECONNRESET)


async def open_link(endpoint: Endpoint, uri: str, options: Options) -> Link:
    """Connect to a resolved ``endpoint`` and shake hands.

    Raises:
        LinkRefused, LinkBroken, LinkEnded: as ``zmtp.dialing.open_link``.
    """
    link = DealerLink(hub(), endpoint, uri, options)
    try:
        await link.opened
    except BaseException:
        link.ended = LinkClosed("never opened")
        link.release(0)
        raise
    return link
