"""Subscribers that read nothing: noticed by what the kernel holds for them, cut off before too much waits for them.

libzmq holds as many messages for a subscriber as its limit says, whatever their size, and does not tell how many they
are. The kernel tells how much a peer of a UNIX socket has not read. Where that is something, and the same at each look,
its buffer is full for good, or filled anew each time that the peer reads: which one cannot be told. So a connection is
shut down when its buffer has looked the same for ``STILL_S``, and more was published meanwhile than may wait, not
counting what fits a message of usual size: those are limited by their number.

libzmq then ends the connection and frees what waited. The process sees that when it goes on, connects and subscribes
anew. Time in which this process was stopped, too, shows nothing: the machine stood still. What was published counts all
the same: it waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final

import zmq

from broker.awake import StallMeter
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.socket import SocketEvents
from broker.sockets import peer_credentials

STILL_S: Final = 1.0
"""Nobody is cut off sooner: a healthy process may be without a processor for a while."""
LOOK_S: Final = 0.5
TYPICAL_BYTES: Final = 8 << 10
"""Of a message, generously: what is beyond it is not foreseen where messages are counted."""
PORTIONS: Final = 4
"""Looks while as much is published as may wait."""
_COUNT: Final = struct.Struct("i")


class _Peer:
    """A connection: a descriptor of our own of its socket; what it had not read, since when, and how much was published
    until then.
    """

    __slots__ = ("pid", "published", "since_s", "sock", "unread")

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.unread = 0
        self.since_s = 0.0
        self.published = 0


class SlowConsumers:
    """Watches the connections of one socket that is bound to a file; made before that, ``close`` comes before its end.

    Args:
        reactor: whose thread.
        sock: the publishing one.
        path: of its file.
        bytes_max: what may be published while one reads nothing, beyond messages of usual size.
        cut: told the pid of each one that is cut off.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: zmq.Socket[bytes],
        path: str,
        *,
        bytes_max: int,
        cut: Callable[[int], None],
    ) -> None:
        self._reactor = reactor
        self._path = path
        self._bytes_max = bytes_max
        self._cut = cut
        self._peers: dict[int, _Peer] = {}
        self._published = 0
        self._look_at = 0
        self._stall = StallMeter(reactor.now)
        self._events = SocketEvents(
            reactor, sock, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED, self._happened
        )
        self._arm()

    def published(self, size: int) -> None:
        """A message of so many bytes was, for whomever."""
        if size <= TYPICAL_BYTES:
            return
        self._published += size - TYPICAL_BYTES
        if self._published >= self._look_at:
            self._look_at = self._published + max(self._bytes_max // PORTIONS, 1)
            self._look()

    def shut_down(self, pid: int) -> None:
        """End all connections of one process."""
        for peer in self._peers.values():
            if peer.pid == pid:
                with contextlib.suppress(OSError):
                    peer.sock.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------ who is there

    def _happened(self, event: int, descriptor: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            self._forget(descriptor)
        elif event == zmq.EVENT_ACCEPTED:
            self._forget(descriptor)
            with contextlib.suppress(OSError):  # it has gone already
                self._meet(descriptor)

    def _meet(self, descriptor: int) -> None:
        # a descriptor of our own: the number may belong to something else by the time it is used
        sock = socket.socket(fileno=fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0))
        if sock.family != socket.AF_UNIX or sock.getsockname() != self._path:
            sock.close()
            return
        self._peers[descriptor] = _Peer(sock, peer_credentials(sock)[0])

    def _forget(self, descriptor: int) -> None:
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            peer.sock.close()

    # ------------------------------------------------------------ who reads

    def _arm(self) -> None:
        self._stall.wakes_at(self._reactor.now() + LOOK_S)
        self._timer: Timer = self._reactor.call_later(LOOK_S, self._tick)

    def _tick(self) -> None:
        try:
            self._look()
        finally:
            self._arm()

    def _look(self) -> None:
        now_s = self._reactor.now()
        stalled_s = self._stall.stalled_s()
        for peer in list(self._peers.values()):
            peer.since_s = min(peer.since_s + stalled_s, now_s)
            unread = _unread(peer.sock)
            if not unread or unread != peer.unread:
                peer.unread, peer.since_s, peer.published = unread, now_s, self._published
            elif now_s - peer.since_s >= STILL_S and self._published - peer.published > self._bytes_max:
                peer.unread = 0
                with contextlib.suppress(OSError):
                    peer.sock.shutdown(socket.SHUT_RDWR)
                self._cut(peer.pid)

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Watch no longer. Harmless twice."""
        self._timer.cancel()
        self._events.close()
        for descriptor in list(self._peers):
            self._forget(descriptor)


def _unread(sock: socket.socket) -> int:
    """Bytes that the peer has not read, as the kernel counts them."""
    try:
        return int(_COUNT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(_COUNT.size)))[0])
    except OSError:
        return 0
