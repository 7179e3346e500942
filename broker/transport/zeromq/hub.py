"""What all ZeroMQ sockets of one event loop share: the context with its I/O thread, and the ZAP handler.

The context is made for the first socket and ends after the last, so that a process which forks before it connects,
or closes its links, is left without threads and descriptors.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final
from weakref import WeakKeyDictionary

import zmq

from broker.transport.zeromq.zap import Judge, Zap

_MAX_SOCKETS: Final = 16_384
"""libzmq's own default is 1023; a link needs three with its monitor."""
_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


class Hub:
    """The context of one loop; opens and closes every ZeroMQ socket on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._open = 0
        self._zap: Zap | None = None

    def open(self, kind: int) -> zmq.Socket[bytes]:
        """A new socket; give it back to ``close``."""
        sock = self._context.socket(kind)
        self._open += 1
        return sock

    def close(self, sock: zmq.Socket[bytes], linger_ms: int) -> None:
        """Close ``sock``; libzmq goes on sending for ``linger_ms``. The last one ends the context."""
        sock.close(linger_ms)
        self._open -= 1
        if self._open == 0:
            self._retire()

    def guard(self, sock: zmq.Socket[bytes], gate: Judge) -> bytes:
        """Let ``gate`` judge whoever connects to ``sock``; returns the ZAP domain, to be given to ``unguard``."""
        if self._zap is None:
            self._zap = Zap(self._context.socket(zmq.ROUTER), self.loop)
        domain = self._zap.add(gate)
        sock.set(zmq.ZAP_DOMAIN, domain)
        return domain

    def unguard(self, domain: bytes) -> None:
        """Forget the gate of ``domain``: from now on nobody gets in there."""
        if self._zap is not None:
            self._zap.remove(domain)

    def _retire(self) -> None:
        if _hubs.get(self.loop) is self:
            del _hubs[self.loop]
        if self._zap is not None:
            self._zap.close()
        # term waits for lingering sockets, at most LINGER_MS: off the loop, and joined at the process's end
        threading.Thread(target=self._context.term, name="zeromq-term").start()


def hub() -> Hub:
    """The hub of the running loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub(loop)
    return found
