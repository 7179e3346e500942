"""The listening side: one ROUTER socket, one link per connection that has sent something.

libzmq tells little about single peers of a ROUTER, so three facts are put together. Each message carries the user id
that ``zap`` gave to its connection, so it is known which connection it belongs to, whatever identity the peer chose.
It carries the connection's descriptor, and the monitor reports the descriptor of a connection that was lost. And a
descriptor that is still the same socket (its inode says so) can be shut down, which is the only way to end one
connection of a ROUTER.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final

import zmq

from broker.errors import ConfigError, LinkEnded, LinkError
from broker.identity import PeerInfo
from broker.transport.batching import data_of
from broker.transport.link import Accept, Listener, Options
from broker.transport.zeromq.accepted import ConnectionState, RouterLink
from broker.transport.zeromq.address import Endpoint, contact, listening_at, parse
from broker.transport.zeromq.binding import bind
from broker.transport.zeromq.connection import inode, shut_down
from broker.transport.zeromq.drain import Pump
from broker.transport.zeromq.handover import SharedAddress, shared_address
from broker.transport.zeromq.hub import Hub, came_within, hub
from broker.transport.zeromq.monitor import FAILED, Monitor
from broker.transport.zeromq.tuning import LINGER_MS, NOBLOCK, serve_curve, tune
from broker.transport.zeromq.zap import ListenerPolicy
from broker.wire.dialects import dialect

log = logging.getLogger("headgate")
_EVENTS: Final = (
    int(zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED) | FAILED
)
_DRAIN_TURNS: Final = 64
"""A lost peer's link ends when the socket is drained, or after so many turns if others keep it full."""
_REMEMBERED: Final = 1024
"""Ended connections whose late messages are recognised and dropped."""
_UNBIND_S: Final = 1.0
_GRACE_S: Final = 1.0
"""After another has taken over, for so long a connection may show up that the kernel gave to the former listener."""


class ListenerState(Enum):
    """Where a listener stands; it goes through these from top to bottom, and may leave some out."""

    LISTENING = "listening"
    SUPERSEDED = "superseded"
    """A successor gets what connects to the address (``renew``); the connections that are here stay."""
    STOPPED = "stopped"
    """Nobody comes in any more (``stop``); links stay."""
    UNBINDING = "unbinding"
    """The last link has ended, and libzmq is asked to give the address back."""
    CLOSED = "closed"


class ZeromqListener(Listener):
    """One ROUTER socket and the links of its peers.

    Args:
        predecessor: the listener whose address this one takes over; new connections come here, its links stay there.

    Attributes:
        state: see ``ListenerState``.
    """

    def __init__(
        self,
        the_hub: Hub,
        endpoint: Endpoint,
        uri: str,
        accept: Accept,
        options: Options,
        predecessor: ZeromqListener | None = None,
    ) -> None:
        self._hub = the_hub
        self._endpoint = endpoint
        self._accept = accept
        self._options = options
        self._shared: SharedAddress = shared_address(endpoint) if predecessor is None else predecessor._shared
        self._gate = ListenerPolicy(uri, options)
        self._links: dict[bytes, RouterLink] = {}
        self._by_fd: dict[int, RouterLink] = {}
        self._connected: set[int] = set()
        self._strangers: dict[int, None] = {}  # with descriptors of the reserve; the oldest first
        self._draining: dict[RouterLink, LinkError] = {}
        self._lingering: dict[RouterLink, asyncio.TimerHandle] = {}
        self._shut_down: set[int] = set()  # descriptors that were shut down and libzmq has not closed yet
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)
        self._touched: list[RouterLink] = []
        self.state = ListenerState.LISTENING
        self._unbound = asyncio.Event()
        self._successor: ZeromqListener | None = None
        self._predecessors: set[ZeromqListener] = set()
        self._handover_timer: asyncio.TimerHandle | None = None
        self._retiring: asyncio.Task[None] | None = None
        self._listening = -1
        self._domain = b""
        # until it is known better: what comes in by a socket that is shared may fail, and be told, at once
        self.address = uri if predecessor is None else predecessor.address
        sock = the_hub.open(zmq.ROUTER)
        self.pump = Pump(the_hub, sock, self)
        try:
            self._monitor = Monitor(the_hub, sock, _EVENTS, self._happened)
        except BaseException:  # such as no descriptor left
            self.pump.close(0)
            raise
        try:
            self._domain = the_hub.guard(sock, self._gate)
            place = self._bind(sock)
        except BaseException:
            self._successor = predecessor  # the address stays its own
            self._close()
            raise
        self._bound = sock.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        if predecessor is None:
            self.address, self.contact_address = place.text, contact(place, parse(uri).host)
        else:
            self.contact_address = predecessor.contact_address

    def _bind(self, sock: zmq.Socket[bytes]) -> Endpoint:
        tune(sock, self._gate.largest_bytes())
        serve_curve(sock, self._options.extra.get("curve"))
        sock.set(zmq.ROUTER_MANDATORY, 1)
        made = self._shared.open()
        if made is not None:
            sock.set(zmq.USE_FD, made)
            self._listening = made
        try:
            place = bind(sock, self._endpoint)
        except ConfigError:
            if made is not None:
                os.close(made)
            raise
        self._monitor.drain()  # libzmq says which socket it made
        self._shared.take(self._listening)
        return place

    def renew(self, extra: Mapping[str, Any]) -> ZeromqListener:
        """See ``Listener.renew``. Connections stay, those in their handshake, too, and take this socket along."""
        if self.state is not ListenerState.LISTENING:
            raise ConfigError(f"{self.address}: nobody listens there any more")
        options = replace(self._options, extra={**self._options.extra, **extra})
        try:
            successor = ZeromqListener(self._hub, self._endpoint, self._gate.uri, self._accept, options, self)
        except zmq.ZMQError as error:  # such as no descriptor left
            raise ConfigError(f"{self.address}: no second socket: {error.strerror}", error.errno) from error
        successor._predecessors = {self, *self._predecessors}
        for predecessor in successor._predecessors:
            predecessor._successor = successor
        self._predecessors.clear()
        self.state = ListenerState.SUPERSEDED
        self._handover_timer = self._hub.loop.call_later(_GRACE_S, self._handover_over)
        return successor

    def _handover_over(self) -> None:
        self._handover_timer = None
        self.close_if_idle()

    async def stop(self) -> None:
        """Let nobody in any more. Links stay, and the address with them; without links it is free on return."""
        for predecessor in list(self._predecessors):
            await predecessor.stop()
        self._gate.shut = True
        if self._retiring is not None:
            await self._retiring
        if self.state in (ListenerState.UNBINDING, ListenerState.CLOSED):
            return
        self.state = ListenerState.STOPPED
        if not self._busy:
            await self._unbind()

    async def _unbind(self) -> None:
        """Stop listening. libzmq 4.3.5 aborts the process when a connection breaks that it is about to unbind and that
        took half a message: so those that were shut down have to be gone first.
        """
        self.state = ListenerState.UNBINDING
        for link, timer in self._lingering.items():
            timer.cancel()
            self._cut(link)
        self._lingering.clear()
        if not await came_within(_UNBIND_S, self._all_closed):
            log.warning("%s: libzmq keeps %d connections that were ended", self.address, len(self._shut_down))
        self.pump.sock.unbind(self._bound)
        if not await came_within(_UNBIND_S, self._unbound):
            text = "%s: libzmq did not confirm within %g s that it stopped listening"
            log.warning(text, self.address, _UNBIND_S)
        self._close()

    # -- reading -------------------------------------------------------------------------------

    def take(self) -> int:
        """Read one ZeroMQ message and put its parts at its link."""
        recv = self.pump.sock.recv
        frame = head = recv(NOBLOCK, copy=False)
        frames = []
        while frame.more:
            frame = recv(NOBLOCK, copy=False)
            frames.append(frame)
        parts = data_of(frames)
        link = self._links.get(head.bytes)
        if link is None or link.connection != head.get("User-Id"):
            link = self._meet(head)
        if link is not None and link.arrived(parts):
            self._touched.append(link)
        return sum(map(len, parts))

    def deliver(self, drained: bool) -> None:
        """A turn is over: links get what arrived, lost ones end."""
        touched, self._touched = self._touched, []
        for link in touched:
            link.deliver()
        for link, error in list(self._draining.items()):
            link.turns += 1
            if drained or link.turns > _DRAIN_TURNS:
                link.release()
                self.end(link, error, 0)

    def deliver_soon(self, link: RouterLink) -> None:
        """``link`` reads again: what it held back goes with the next turn."""
        self._touched.append(link)
        self.pump.wake()

    def _meet(self, head: zmq.Frame) -> RouterLink | None:
        """The first message of a connection: make its link. None when the connection is not to be heard (any more)."""
        self._monitor.drain()
        tag, fd = str(head.get("User-Id")), int(head.get(zmq.SRCFD))
        if tag in self._ended:
            return None
        peer = self._gate.peer(tag, str(head.get("Peer-Address")))
        self._strangers.pop(fd, None)
        if peer is None or self._refuses_reserve(peer, fd):
            self._ended.append(tag)
            shut_down(fd, inode(fd))
            return None
        link = RouterLink(self, peer, head.bytes, tag, fd, self._options)
        for earlier in (self._links.get(link.identity), self._by_fd.get(fd)):
            if earlier is not None:
                self.drain(earlier, LinkEnded(f"{earlier.peer.address} came back as {peer.address}"))
        self._links[link.identity] = self._by_fd[fd] = link
        self._accept(link)
        if fd not in self._connected:
            self.drain(link, LinkEnded(f"{peer.address} ended the connection"))
        return link

    # -- the ends ------------------------------------------------------------------------------

    def drain(self, link: RouterLink, error: LinkError) -> None:
        """End ``link`` with ``error`` once everything that arrived from it is delivered."""
        if link.state is ConnectionState.OPEN:
            link.state = ConnectionState.DRAINING
            self._draining[link] = error
            self.pump.wake()

    def end(self, link: RouterLink, error: LinkError, linger_ms: int) -> None:
        """Forget ``link``, cut its connection after ``linger_ms``, and tell its receiver."""
        if link.ended is not None:
            return
        self._ended.append(link.connection)
        self._draining.pop(link, None)
        self.pump.waiting.pop(link, None)
        if self._links.get(link.identity) is link:
            del self._links[link.identity]
        if self._by_fd.get(link.fd) is link:
            del self._by_fd[link.fd]
        if linger_ms == 0:
            self._cut(link)
        else:
            link.state = ConnectionState.LINGERING
            self._linger(link, linger_ms)
        link.finish(error)
        self.close_if_idle()

    def _linger(self, link: RouterLink, linger_ms: int) -> None:
        self._lingering[link] = self._hub.loop.call_later(linger_ms / 1000, self._lingered, link)

    def _lingered(self, link: RouterLink) -> None:
        del self._lingering[link]
        if link.lingers():
            self._linger(link, LINGER_MS)
            return
        self._cut(link)
        self.close_if_idle()

    def _cut(self, link: RouterLink) -> None:
        link.state = ConnectionState.CLOSED
        link.drop_unsent()
        if shut_down(link.fd, link.inode) and link.fd in self._connected:
            self._shut_down.add(link.fd)  # else libzmq told of its end already
            self._all_closed.clear()

    def _happened(self, event: int, value: int) -> None:
        if event == zmq.EVENT_LISTENING:
            self._listening = value
        elif event == zmq.EVENT_ACCEPTED:
            self._connected.add(value)
            if self._options.reserve.has(value):
                self._count_stranger(value)
        elif event == zmq.EVENT_DISCONNECTED:
            self._disconnected(value)
        elif event == zmq.EVENT_CLOSED:
            if self.state is ListenerState.UNBINDING:
                self._unbound.set()
        elif event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # of those the gate has told why
            text = "%s: a connection failed in its handshake (event %#x, code %#x)"
            log.warning(text, self.address, event, value)

    def _count_stranger(self, fd: int) -> None:
        """A connection has one of the last descriptors. Who it is, is known once it speaks; of those that have not yet,
        too many are not waited for: the oldest goes.
        """
        self._strangers.pop(fd, None)
        self._strangers[fd] = None
        if len(self._strangers) > self._options.reserve.strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            log.warning("%s: few descriptors are left: a connection that said nothing is ended", self.address)
            shut_down(oldest, inode(oldest))

    def _refuses_reserve(self, peer: PeerInfo, fd: int) -> bool:
        refused = self._options.refuses_reserve(peer, fd)
        if refused:
            log.warning("refused %s: what descriptors are left is the owner's", peer.address)
        return refused

    def _disconnected(self, fd: int) -> None:
        self._connected.discard(fd)
        self._shut_down.discard(fd)
        if not self._shut_down:
            self._all_closed.set()
        self._strangers.pop(fd, None)
        link = self._by_fd.get(fd)
        if link is not None:
            self.drain(link, LinkEnded(f"{link.peer.address} ended the connection"))
        self.close_if_idle()

    @property
    def _busy(self) -> bool:
        """Whether a link is open, or has something left to send."""
        return bool(self._links) or any(link.unsent for link in self._lingering)

    def close_if_idle(self) -> None:
        """After ``stop``, the last link takes the socket along; after ``renew``, the last connection does."""
        if self._busy:
            return
        if self.state is ListenerState.STOPPED:
            self._close()
        elif self.state is ListenerState.SUPERSEDED and not (self._connected or self._handover_timer):
            self.state = ListenerState.UNBINDING
            self._retiring = self._hub.loop.create_task(self._unbind(), name="retiring listener")

    def _close(self) -> None:
        self.state = ListenerState.CLOSED
        for timer in self._lingering.values():
            timer.cancel()
        self._lingering.clear()
        if self._handover_timer is not None:
            self._handover_timer.cancel()
        self._hub.unguard(self._domain)
        self._monitor.close()
        self.pump.close(LINGER_MS)
        self._shared.leave(self._listening)
        if self._successor is None:
            self._shared.clear()
        else:
            self._successor._predecessors.discard(self)


async def listen(uri: str, accept: Accept, options: Options) -> Listener:
    """See ``ZeromqTransport.listen``."""
    dialect(options.dialect, options.strict_rfc3)  # says so now if there is none
    endpoint = listening_at(uri, options.extra.get("curve"), options.insecure)
    return ZeromqListener(hub(), endpoint, uri, accept, options)
