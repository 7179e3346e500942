"""Subscribers of a publishing socket of a proxy: who they are, what they hear, and those that read nothing.

**Who has subscribed to what.** The socket is an XPUB in manual mode: it reports every subscription, and its peer hears
only what was granted. Each connection has a name that no other ever has. What a peer takes back comes with that name;
what ends with a connection comes without, once for each filter it had subscribed to. So a filter counts its
subscriptions, and:

- asking twice on one connection counts once, as it ends once;
- an end with a name counts only where that connection had subscribed: nobody ends the subscriptions of others;
- a nameless end is taken for that of a refused subscription as long as there is one: the filter may then seem to be
  heard until all who asked for it are gone, which costs nobody a message;
- filters are limited in number, for each user and in total; a subscription that was passed over is remembered in one of
  a fixed number of places, so that its nameless end is not taken for another one's.

**Who reads nothing** is noticed by what the kernel holds for it, and cut off before too much waits. libzmq holds as
many messages for a subscriber as its limit says, whatever their size, and does not tell how many they are. The kernel
tells how much a peer of a UNIX socket has not read. Where that is something, and the same at each look, its buffer is
full for good, or filled anew each time that the peer reads: which one cannot be told. So a connection is shut down when
its buffer has looked the same for ``STILL_S``, and more was published meanwhile than may wait, not counting what fits a
message of usual size: those are limited by their number.

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
from collections import Counter
from collections.abc import Callable
from typing import Final
from zlib import crc32

import zmq

from broker.awake import StallMeter
from broker.holdings import Holdings
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.socket import SocketEvents
from broker.sockets import peer_credentials

FILTERS_MAX: Final = 65_536
"""Filters in all, as many as a state has records."""
FILTERS_OF_USER_MAX: Final = 32_768
"""Filters that one user brings in, so that nobody takes the place of all others."""
NAMES_SPARE: Final = 64
"""Names that a filter remembers beyond its subscriptions before those of ended connections are sorted out."""
_PLACES: Final = 1 << 16
STILL_S: Final = 1.0
"""Nobody is cut off sooner: a healthy process may be without a processor for a while."""
LOOK_S: Final = 0.5
TYPICAL_BYTES: Final = 8 << 10
"""Of a message, generously: what is beyond it is not foreseen where messages are counted."""
PORTIONS: Final = 4
"""Looks while as much is published as may wait."""
_COUNT: Final = struct.Struct("i")


class _Subscribed:
    """One filter: how many hear it, how many may not, who they are (and were), which user brought it in."""

    __slots__ = ("granted", "names", "refused", "user")

    def __init__(self, user: int) -> None:
        self.granted = 0
        self.refused = 0
        self.user = user
        self.names: dict[str, bool] = {}


class GrantedSubscriptions:
    """The filters of one publishing socket.

    Args:
        alive: whether the process at the end of the connection of that name may still be there.
    """

    def __init__(self, alive: Callable[[str], bool]) -> None:
        self._alive = alive
        self._filters: dict[bytes, _Subscribed] = {}
        self._of_user: Holdings[int] = Holdings()
        self._heard: dict[bytes, None] = {}
        self._passed_over: Counter[int] = Counter()

    def __len__(self) -> int:
        """Filters that somebody hears."""
        return len(self._heard)

    def __contains__(self, data: object) -> bool:
        """Whether somebody hears that filter."""
        return data in self._heard

    def heard(self) -> list[bytes]:
        """Filters that somebody hears, in the order they began."""
        return list(self._heard)

    def count(self, data: bytes) -> int:
        """Connections that hear that filter."""
        known = self._filters.get(data)
        return 0 if known is None else known.granted

    def names(self, data: bytes) -> list[str]:
        """Connections that were granted that filter, some of which may have ended."""
        known = self._filters.get(data)
        return [] if known is None else [name for name, granted in known.names.items() if granted]

    def has_room(self, data: bytes, user: int) -> bool:
        """Whether the limits allow a subscription of ``user`` to that filter."""
        if data in self._filters:
            return True
        return len(self._filters) < FILTERS_MAX and self._of_user.of(user) < FILTERS_OF_USER_MAX

    def pass_over(self, data: bytes) -> None:
        """Ignore this subscription, but remember that the end of it will be reported, without a name."""
        self._passed_over[crc32(data) % _PLACES] += 1

    def add(self, data: bytes, name: str, user: int, *, granted: bool) -> bool:
        """A subscription of the connection ``name``; True when it is the first that hears the filter."""
        known = self._filters.get(data)
        if known is None:
            known = self._filters[data] = _Subscribed(user)
            self._of_user.add(user)
        elif name in known.names:
            return False
        known.names[name] = granted
        if len(known.names) > known.granted + known.refused + NAMES_SPARE:
            self._sort_out(known, name)
        if not granted:
            known.refused += 1
            return False
        known.granted += 1
        self._heard[data] = None
        return known.granted == 1

    def remove(self, data: bytes, name: str) -> bool | None:
        """The end of a subscription; True when it was the last that heard the filter, None when there was none.

        ``name`` "": its connection ended.
        """
        if not name and self._passed_over and self._end_passed_over(data):
            return None
        known = self._filters.get(data)
        if known is None or (name and name not in known.names):
            return None
        was_granted = known.names.pop(name) if name else False
        if known.refused and (not was_granted or not known.granted):
            known.refused -= 1
        else:
            known.granted -= 1
        if known.refused + known.granted == 0:
            self._forget(data, known)
        if known.granted or data not in self._heard:
            return False
        del self._heard[data]
        return True

    def _end_passed_over(self, data: bytes) -> bool:
        place = crc32(data) % _PLACES
        if not self._passed_over[place]:
            return False
        self._passed_over[place] -= 1
        if not self._passed_over[place]:
            del self._passed_over[place]
        return True

    def _forget(self, data: bytes, known: _Subscribed) -> None:
        del self._filters[data]
        self._of_user.add(known.user, -1)

    def _sort_out(self, known: _Subscribed, newest: str) -> None:
        """Forget names of ended processes; where that is not enough, the oldest ones."""
        for name in [name for name in known.names if name != newest and not self._alive(name)]:
            del known.names[name]
        while len(known.names) > known.granted + known.refused + NAMES_SPARE:
            del known.names[next(iter(known.names))]


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
