"""How much the WebSocket links of a loop read in a turn of it, and who goes on in a later one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.transport.link import Receiver

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.websocket.link import WebSocketLink

TURN_BYTES: Final = 16 << 10
"""What a turn of the loop takes in small messages before others get their part: some 150 calls, 5 ms ..."""
SHORT_BYTES: Final = 2 << 10
"""... and what each link may read after that in the same turn."""


class WebReceiver(Receiver, Protocol):
    """Who gets what comes out of the link of a web client."""

    def control(self, obj: dict[str, Any]) -> None:
        """A control object of the client, in order with its messages."""

    def refused(self, message: Message, text: str) -> None:
        """A request of the client that is none, in order with its messages: what could be read of it, and why not."""


class Turn:
    """What the links of a loop have read in its present turn.

    What is inflated counts as what is read does. Whoever has more waits, one link behind the other, and is not read
    meanwhile: it goes on at the beginning of a later turn.

    Attributes:
        taken: bytes that were read or inflated in it.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._is_over = True
        self._late: dict[WebSocketLink, None] = {}

    def read_bytes(self, missing: int) -> int:
        """What a link may read of whose present message ``missing`` bytes have not come; 0: as much as there is."""
        if self._is_over:
            self._start()
        if missing >= TURN_BYTES:  # of a large message, which costs little but its bytes
            return 0
        return TURN_BYTES if self.taken < TURN_BYTES else SHORT_BYTES

    @property
    def spare(self) -> int:
        """How many bytes may be inflated yet in this turn; 0 and less: none."""
        return TURN_BYTES - self.taken

    def later(self, link: WebSocketLink) -> None:
        """``link`` goes on when it is its turn; harmless twice."""
        self._late[link] = None
        self._start()

    def _start(self) -> None:
        if self._is_over:
            self._is_over = False
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.taken = 0
        self._is_over = True
        late = self._late
        while late and self.spare > 0:
            link = next(iter(late))
            del late[link]
            link.continue_reading()
        if late:
            self._start()
