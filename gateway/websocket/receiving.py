"""The receive buffer that WebSocket links share: how much each read takes, and which link gets it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from broker.transport.link import Receiver

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.websocket.link import WebSocketLink

READ_BYTES: Final = 128 << 10
"""One read at most, as on UNIX sockets: of a large message, which costs little but its bytes."""
TURN_BYTES: Final = 16 << 10
"""What a turn of the loop takes in small messages before others get their part: some 150 calls, 5 ms ..."""
SHORT_BYTES: Final = 2 << 10
"""... and what each link may read after that in the same turn."""

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBuffer] = WeakKeyDictionary()


class WebReceiver(Receiver, Protocol):
    """Who gets what comes out of the link of a web client."""

    def control(self, obj: dict[str, Any]) -> None:
        """A control object of the client, in order with its messages."""

    def refused(self, message: Message, text: str) -> None:
        """A request of the client that is none, in order with its messages: what could be read of it, and why not."""


class ReadBuffer:
    """The receive buffer that all links of a loop share: links keep only their partial frames.

    What is inflated counts in the turn as what is read does. Whoever has more waits, one link behind the other, and is
    not read meanwhile: it goes on at the beginning of a later turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._whole = memoryview(bytearray(READ_BYTES))
        self._turn, self._short = self._whole[:TURN_BYTES], self._whole[:SHORT_BYTES]
        self._taken = 0
        self._late: deque[WebSocketLink] = deque()

    def room(self, missing: int) -> memoryview:
        """Where the next read of a link goes, of whose present message ``missing`` bytes have not come."""
        if missing >= TURN_BYTES:
            return self._whole
        return self._turn if self._taken < TURN_BYTES else self._short

    def take(self, count: int) -> bytes:
        """The bytes of a read."""
        if not self._taken:
            self._loop.call_soon(self._begin)
        self._taken += count
        return bytes(self._whole[:count])

    @property
    def spare(self) -> int:
        """How many bytes may be inflated yet in this turn; 0 and less: none."""
        return TURN_BYTES - self._taken

    def made(self, count: int) -> None:
        """So many bytes more are to be handled in this turn."""
        if not self._taken and count:
            self._loop.call_soon(self._begin)
        self._taken += count

    def later(self, link: WebSocketLink) -> None:
        """``link`` goes on when it is its turn."""
        self._late.append(link)
        if not self._taken:
            self.made(1)  # for the turn to come at all

    def _begin(self) -> None:
        self._taken = 0
        late = self._late
        while late and self.spare > 0:
            late.popleft().continue_reading()


def shared_buffer() -> ReadBuffer:
    """The buffer of the running loop."""
    loop = asyncio.get_running_loop()
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = ReadBuffer(loop)
    return buffer
