"""Watches the CURVE handshake of a socket that connects: a peer that does not know our key says so, once.

libzmq gives such a connection up for good, without a word but to a monitor of the socket. Whoever connects has to tell
the operator and to try again: keys are listed while processes run. The monitor costs two descriptors, so it is taken
away when the handshake has succeeded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from struct import Struct
from typing import Final

import zmq

from broker.oslo.reactor.loop import Reactor
from broker.oslo.reactor.pipe import Pipe

_EVENT: Final = Struct("=HI")
_REFUSED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_SUCCEEDED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_STOPPED: Final = int(zmq.EVENT_MONITOR_STOPPED)
_numbers = itertools.count(1)


class HandshakeMonitor:
    """The monitor of ``sock``, from now until it has succeeded, or until the socket is closed and ``close`` is called.

    Args:
        reactor: whose thread; open.
        sock: with CURVE set up, not yet connected.
        told: called with False each time the peer refuses our key, with True when it has taken it.
    """

    def __init__(self, reactor: Reactor, sock: zmq.Socket[bytes], told: Callable[[bool], None]) -> None:
        self._sock = sock
        self._told = told
        assert reactor.context is not None
        place = f"inproc://headgate.handshake-{next(_numbers)}"
        sock.monitor(place, _REFUSED | _SUCCEEDED | _STOPPED)
        pair = reactor.context.socket(zmq.PAIR)
        pair.set(zmq.LINGER, 0)
        self._pipe = Pipe(reactor, pair, self._event)
        pair.connect(place)
        reactor.touch(self._pipe)

    @property
    def closed(self) -> bool:
        """It watches no more."""
        return self._pipe.closed

    def close(self) -> None:
        """Watch no more; the socket has to be closed before. Harmless twice."""
        self._pipe.close()

    def _event(self, frames: list[bytes], _origin: str) -> None:
        if len(frames[0]) != _EVENT.size:
            return
        event, _value = _EVENT.unpack(frames[0])
        if event == _REFUSED:
            self._told(False)
        elif event == _STOPPED:
            self.close()
        elif not self._sock.closed:
            self._sock.disable_monitor()
            self._told(True)
