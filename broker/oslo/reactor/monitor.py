"""What happens to the connections of one ZeroMQ socket, as libzmq's monitor tells it, on a reactor.

``HandshakeMonitor`` watches the CURVE handshake of a socket that connects: a peer that does not know our key says so,
once. libzmq gives such a connection up for good, without a word but to a monitor of the socket. Whoever connects has to
tell the operator and to try again: keys are listed while processes run. The monitor costs two descriptors, so it is
taken away when the handshake has succeeded, unless the end of connections is to be told, too: a socket has one monitor.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Final

import zmq

from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.socket import Socket

_EVENT: Final = struct.Struct("=HI")
_numbers = itertools.count(1)


class SocketEvents:
    """Watches ``sock``, from before it is bound or connected until ``close``.

    Args:
        reactor: whose thread; open.
        sock: the socket; it has one monitor.
        events: bits of ``zmq.EVENT_*``.
        on_event: takes the event and its value: a descriptor, in most cases.
    """

    def __init__(
        self, reactor: Reactor, sock: zmq.Socket[bytes], events: int, on_event: Callable[[int, int], None]
    ) -> None:
        assert reactor.context is not None
        self._sock = sock
        self._on_event = on_event
        where = f"inproc://headgate.events-{next(_numbers)}"
        sock.monitor(where, events)
        news: zmq.Socket[bytes] = reactor.context.socket(zmq.PAIR)
        news.set(zmq.RCVHWM, 0)  # or libzmq's own thread would wait for us
        news.set(zmq.LINGER, 0)
        self._news = Socket(reactor, news, self._on_monitor_message)
        news.connect(where)
        reactor.check_after_turn(self._news)

    @property
    def closed(self) -> bool:
        """Whether it has ended, or was closed."""
        return self._news.closed

    def _on_monitor_message(self, frames: list[bytes], _origin: str) -> None:
        if len(frames[0]) == _EVENT.size:
            self._on_event(*_EVENT.unpack(frames[0]))

    def close(self) -> None:
        """Watch no longer. Harmless twice, and after the end of the socket."""
        if not self._news.closed:
            if not self._sock.closed:
                self._sock.disable_monitor()
            self._news.close()


_REFUSED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_SUCCEEDED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_STOPPED: Final = int(zmq.EVENT_MONITOR_STOPPED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)


class HandshakeMonitor:
    """The monitor of ``sock``, from now until it has succeeded, or until the socket is closed and ``close`` is called.

    Args:
        reactor: whose thread; open.
        sock: with CURVE set up, not yet connected.
        told: called with False each time the peer refuses our key, with True when it has taken it.
        lost: called each time that a connection has ended; None: nobody wants to know.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: zmq.Socket[bytes],
        told: Callable[[bool], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        self._sock = sock
        self._told = told
        self._lost = lost
        ends = 0 if lost is None else _DISCONNECTED
        self._events = SocketEvents(reactor, sock, _REFUSED | _SUCCEEDED | _STOPPED | ends, self._on_event)

    @property
    def closed(self) -> bool:
        """Whether it has ended, or was closed."""
        return self._events.closed

    def close(self) -> None:
        """Watch no more. Harmless twice."""
        self._events.close()

    def _on_event(self, event: int, _value: int) -> None:
        if event == _REFUSED:
            self._told(False)
        elif event == _STOPPED:
            self.close()
        elif event == _DISCONNECTED:
            if self._lost is not None:
                self._lost()
        elif not self._sock.closed:
            if self._lost is None:
                self.close()
            self._told(True)
