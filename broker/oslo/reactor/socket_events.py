"""What happens to the connections of one ZeroMQ socket, as libzmq's monitor tells it, on a reactor."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import zmq

from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.pipe import Pipe

_EVENT: Final = struct.Struct("=HI")


class SocketEvents:
    """Watches ``sock``, from before it is bound or connected until ``close``, which comes before its end.

    Args:
        reactor: whose thread; open.
        sock: the socket.
        events: bits of ``zmq.EVENT_*``.
        happened: takes the event and its value: a descriptor, in most cases.
    """

    def __init__(
        self, reactor: Reactor, sock: zmq.Socket[bytes], events: int, happened: Callable[[int, int], None]
    ) -> None:
        assert reactor.context is not None
        self._sock = sock
        self._happened = happened
        where = f"inproc://events-{id(self)}"
        sock.monitor(where, events)
        news: zmq.Socket[bytes] = reactor.context.socket(zmq.PAIR)
        news.set(zmq.RCVHWM, 0)  # or libzmq's own thread would wait for us
        news.set(zmq.LINGER, 0)
        news.connect(where)
        self._news = Pipe(reactor, news, self._came)

    def _came(self, frames: list[bytes], _origin: str) -> None:
        self._happened(*_EVENT.unpack(frames[0]))

    def close(self) -> None:
        """Watch no longer. Harmless twice."""
        if not self._news.closed:
            self._sock.disable_monitor()
            self._news.close()
