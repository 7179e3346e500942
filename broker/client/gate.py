"""Sends over a link, and has tasks wait while that link is full.

Concurrency: one event loop, any number of tasks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.transport.link import Link
    from broker.wire.message import Message

AT_A_TIME: Final = 64
"""Waiting tasks that go on in one turn of the loop: they may fill the link, and the others would be woken in vain."""
FLUSH_BYTES: Final = 256 << 10
"""So many bytes are handed to the transport at once, even within one turn of the loop: many tasks may send in the same
turn, and the later ones have to see that the link is full."""


class Gate:
    """Open or shut. Tasks that wait for it go on in the order in which they came; nobody overtakes them.

    Attributes:
        link: the link that it sends over.
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
    def is_free(self) -> bool:
        """Whether ``wait`` would not wait."""
        return self._open.is_set() and not self._waiting

    def set_open(self, open_: bool) -> None:
        """Open or shut it."""
        if open_:
            self._open.set()
        else:
            self._open.clear()

    async def wait(self) -> None:
        """Wait until it is open and those in front have gone on; a task then sends before it waits again."""
        if self.is_free:
            return
        self._waiting += 1
        try:
            async with self._turns:
                while not self._open.is_set():
                    await self._open.wait()
        finally:
            self._waiting -= 1
