"""What libzmq tells of a socket's connections.

Two traps are closed here. libzmq's I/O thread blocks when nobody reads its events, so the queue is unbounded and
monitoring is switched off before the reading end closes. And the descriptor of a ZeroMQ socket is edge-triggered,
so it is always read until nothing is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

import zmq

from broker.transport.zeromq.tuning import EVENTS, NOBLOCK, POLLIN

if TYPE_CHECKING:
    from broker.transport.zeromq.hub import Hub

EVENT = Struct("=HI")
_numbers = itertools.count(1)
FAILED: Final = int(
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Monitor:
    """Reports events of one socket as ``report(event, value)``; ``value`` is a descriptor, an errno or a code."""

    def __init__(
        self, hub: Hub, sock: zmq.Socket[bytes], events: int, report: Callable[[int, int], None]
    ) -> None:
        self._hub = hub
        self._watched = sock
        self._stopped = False
        self._report = report
        place = f"inproc://monitor-{next(_numbers)}"
        self._sock = hub.open(zmq.PAIR)
        try:
            self._sock.set(zmq.RCVHWM, 0)
            sock.monitor(place, events)
            self._sock.connect(place)
            self._fd = int(self._sock.get(zmq.FD))
            hub.loop.add_reader(self._fd, self.drain)
        except BaseException:  # such as no descriptor left
            sock.disable_monitor()
            hub.close(self._sock, 0)
            raise
        hub.loop.call_soon(self.drain)  # what connect took in is not signalled again

    def drain(self) -> None:
        """Report everything that has happened up to now."""
        sock = self._sock
        while not self._stopped and int(sock.get(EVENTS)) & POLLIN:
            event, value = EVENT.unpack(sock.recv(NOBLOCK))
            sock.recv(NOBLOCK)  # the endpoint; always there, as the second part of the same message
            self._report(event, value)

    def close(self) -> None:
        """Stop; to be called before the watched socket is closed."""
        if not self._stopped:
            self.stop()
            self._watched.disable_monitor()
            self._hub.close(self._sock, 0)

    def stop(self) -> zmq.Socket[bytes]:
        """Report nothing any more; the socket that has libzmq's reports goes to the caller."""
        self._stopped = True
        self._hub.loop.remove_reader(self._fd)
        return self._sock
