"""Sends over a link, and lets tasks send while it takes what it is given.

Concurrency: one event loop, any number of tasks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.transport.link import Link
    from broker.wire.message import Message

AT_A_TIME: Final = 64
"""Waiting tasks that go on in one turn of the loop: others find the gate shut again, and are not woken in vain."""
FLUSH_BYTES: Final = 256 << 10
"""What was sent is handed to the transport after so many bytes, within one turn of the loop, too: many tasks may send
in the same one, and those behind have to see that the link is full."""


class Gate:
    """Open, or shut; who waits goes on in the order of coming, and nobody overtakes them.

    Attributes:
        link: where it leads.
    """

    __slots__ = ("_open", "_turns", "_unflushed_bytes", "_waiting", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self._unflushed_bytes = 0
        self._open = asyncio.Event()
        self._open.set()
        self._turns = asyncio.Semaphore(AT_A_TIME)
        self._waiting = 0

    def send(self, message: Message) -> None:
        """Queue ``message``, whether the gate is open or not."""
        self.link.send(message)
        self._unflushed_bytes += message.size
        if self._unflushed_bytes >= FLUSH_BYTES:
            self._unflushed_bytes = 0
            self.link.flusher.flush_now(self.link)

    @property
    def free(self) -> bool:
        """Whether ``passed`` would not wait."""
        return self._open.is_set() and not self._waiting

    def turn(self, open_: bool) -> None:
        """Open or shut it."""
        if open_:
            self._open.set()
        else:
            self._open.clear()

    async def passed(self) -> None:
        """Wait until it is open and those before have passed; whoever sends then does it before the next wait."""
        if self.free:
            return
        self._waiting += 1
        try:
            async with self._turns:
                while not self._open.is_set():
                    await self._open.wait()
        finally:
            self._waiting -= 1
