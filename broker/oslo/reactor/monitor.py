"""What happens to the connections of one ZeroMQ socket, as libzmq's monitor tells it, on a reactor."""

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
