"""A connection whose link was closed: its peer gets what is left of it, and then the end.

Closing a socket of TCP at once would lose what is on its way: where anything of the peer is unread, or still comes, the
kernel answers with RST and forgets what it has not sent. So the connection is ended in our direction, and kept until
the peer ends its own, for a bounded time.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

LOOK_S: Final = 0.25
"""How often it is looked at whether the peer still takes something."""
IDLE_S: Final = 1.0
"""A connection is kept for so long while the peer takes nothing and does not end it, where nobody says otherwise ..."""
LEAVE_S: Final = 10.0
"""... and never longer than this."""
_SKIPPED_BYTES: Final = 64 << 10
_leaving: WeakKeyDictionary[asyncio.AbstractEventLoop, set[Leaving]] = WeakKeyDictionary()


async def all_left(seconds: float) -> None:
    """Wait until the peers of all closed links have what is left, for so long at most: the loop is about to end."""
    left = [each.left for each in _leaving.get(asyncio.get_running_loop(), ())]
    if left:
        await asyncio.wait(left, timeout=seconds)


class Leaving:
    """Sends, reads and forgets what comes, and closes the socket.

    Args:
        sock: is owned by this from here on; nobody watches it.
        rest: bytes that come first.
        forms: what comes behind them; ``encode(forms)`` takes some of them and returns their bytes, b"" at the end.
        is_told: that says goodbye, and the peer ends the connection. We do not end it first: asyncio's TLS would forget
            what it has not read.
        is_answer: hears what comes; True: that was the peer's last word, and the connection ends when all has left.
        idle_s: see ``IDLE_S``.

    Attributes:
        left: resolves when it is over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        rest: bytes | memoryview,
        forms: deque[Any],
        encode: Callable[[deque[Any]], bytes | bytearray],
        is_told: bool = False,
        is_answer: Callable[[bytes], bool] = lambda _data: False,
        idle_s: float = IDLE_S,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._rest = rest
        self._forms = forms
        self._encode = encode
        self._is_told = is_told
        self._is_answer = is_answer
        self._idle_max_s = idle_s
        self._is_over = self._moved = False
        self._idle_s = self._left_s = 0.0
        self.left: asyncio.Future[None] = loop.create_future()
        _leaving.setdefault(loop, set()).add(self)
        loop.add_reader(sock.fileno(), self._skip)
        loop.add_writer(sock.fileno(), self._send)
        self._timer = loop.call_later(LOOK_S, self._look)
        self._send()  # now: the process may leave

    def _send(self) -> None:
        try:
            # kept before anything is tried: it cannot be made again
            while self._rest or (piece := self._encode(self._forms)):
                self._rest = self._rest or memoryview(piece)
                self._rest = memoryview(self._rest)[self._sock.send(self._rest) :]
                self._moved = True
            self._loop.remove_writer(self._sock.fileno())
            if not self._is_told:
                self._sock.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the peer does not want the rest
            self._close()
            return
        if self._is_over or self._sock.family == socket.AF_UNIX:  # here nothing is lost by closing
            self._close()

    def _skip(self) -> None:
        try:
            data = self._sock.recv(_SKIPPED_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._is_over = not data or self._is_answer(data)
        if self._is_over and (self._rest or self._forms):  # it sends no more, and may still read
            self._loop.remove_reader(self._sock.fileno())
        elif self._is_over:
            self._close()

    def _look(self) -> None:
        self._left_s += LOOK_S
        self._idle_s = 0.0 if self._moved else self._idle_s + LOOK_S
        self._moved = False
        if self._idle_s >= self._idle_max_s or self._left_s >= LEAVE_S:
            self._close()
        else:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _close(self) -> None:
        fd = self._sock.fileno()
        if fd >= 0:
            _leaving[self._loop].discard(self)
            if not self.left.done():
                self.left.set_result(None)
            self._timer.cancel()
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._sock.close()
            self._forms.clear()
            self._rest = b""
