"""What all ZeroMQ sockets of one event loop share: the context with its I/O thread, and the ZAP handler.

The context is made for the first socket and ends after the last, so that a process which forks before it connects,
or closes its links, is left without threads and descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import zmq

from broker.transport.zeromq.connection import shut_down
from broker.transport.zeromq.monitor import EVENT
from broker.transport.zeromq.zap import Zap, ZapPolicy

_MAX_SOCKETS: Final = 16_384
"""libzmq's own default is 1023; a link needs three with its monitor."""
_BREAK_MS: Final = 1_000
"""How long a connection that was shut down is waited for: libzmq sees that at once, unless its thread gets no time."""
LOOKS: Final = 4
"""A wait is cut into so many: a stop of this process uses up one, and libzmq has the others."""
_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


class Hub:
    """The context of one loop; opens and closes every ZeroMQ socket on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._open = 0
        self._closing: list[threading.Thread] = []
        self._zap: Zap | None = None

    def open(self, kind: int) -> zmq.Socket[bytes]:
        """A new socket; give it back to ``close``."""
        sock = self._context.socket(kind)
        self._open += 1
        return sock

    def close(self, sock: zmq.Socket[bytes], linger_ms: int) -> None:
        """Close ``sock``; libzmq goes on sending for ``linger_ms``. The last one ends the context."""
        sock.close(linger_ms)
        self._closed(1)

    def close_connected(
        self, sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes], fd: int, number: int
    ) -> None:
        """Close ``sock`` and what monitors it, in a thread: first its one connection, ``fd`` of inode ``number``.

        libzmq 4.3.5 aborts the process when a connection breaks that took half a message and whose socket is closed
        just then. So it has to be gone before.
        """
        self._closing = [each for each in self._closing if each.is_alive()]
        self._closing += _in_thread("zeromq-close", _break_and_close, sock, monitor, fd, number)
        self._closed(2)

    def _closed(self, sockets: int) -> None:
        self._open -= sockets
        if self._open == 0:
            self._retire()

    def guard(self, sock: zmq.Socket[bytes], gate: ZapPolicy) -> bytes:
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
        # it waits for lingering sockets, at most LINGER_MS: off the loop, and joined at the process's end
        _in_thread("zeromq-term", self._end)

    def _end(self) -> None:
        for closing in self._closing:
            closing.join()
        self._context.term()


def _in_thread(name: str, function: Callable[..., None], *args: Any) -> list[threading.Thread]:
    """Call ``function`` in a thread, which is returned; at the end of the process, which starts none, at once."""
    thread = threading.Thread(target=function, args=args, name=name)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 and later, behind the main thread's end, such as in an atexit function
        function(*args)
        return []
    return [thread]


def _break_and_close(sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes], fd: int, number: int) -> None:
    shut_down(fd, number)
    poller = zmq.Poller()
    for each in (sock, monitor):
        poller.register(each, zmq.POLLIN)
    looks = 0
    while looks < LOOKS:
        ready = dict(poller.poll(_BREAK_MS // LOOKS))
        looks += not ready
        if monitor in ready and EVENT.unpack(monitor.recv_multipart()[0])[0] == zmq.EVENT_DISCONNECTED:
            break
        if sock in ready:  # as long as it is full, libzmq does not look at its connection
            sock.recv_multipart()
    sock.disable_monitor()
    monitor.close(0)
    sock.close(0)


async def came_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for what libzmq does at once, in ``LOOKS``; False: it did not."""
    for _ in range(LOOKS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds / LOOKS):
                return await event.wait()
    return False


def hub() -> Hub:
    """The hub of the running loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub(loop)
    return found
