"""An HTTP exchange as a Link: what a session sends waits here until the handler writes it into the response.

The handler takes messages as fast as its client reads; what waits is counted in the outbox like at any other link of
a web client (``websocket.outbox``): over high water the session is told (``choked``), over its cap, or over the
budget of all clients, the link ends and the client gets an error instead of a silent hole. Nothing here writes to a
socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.errors import LinkClosed, LinkError
from broker.identity import PeerInfo
from broker.transport.link import Link, Options
from broker.wire.message import Message
from gateway.websocket.outbox import WebOutbox


class ExchangeLink(Link):
    """The link of one HTTP request.

    Attributes:
        over: called when it ends.
        code: the close code with which the session ended the exchange; 0 while it lives or when nobody said one.
    """

    __slots__ = ("_news", "_reading", "code", "over")

    outbox: WebOutbox

    def __init__(self, peer: PeerInfo, options: Options) -> None:
        super().__init__(peer, options)
        self.outbox = WebOutbox(self, options.limits, options.budget)
        self._news = asyncio.Event()
        self._reading = asyncio.Event()
        self.code = 0
        self.over: Callable[[], None] | None = None

    # -- from the session ----------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Keep ``message`` for the handler; see ``Link.send``."""
        if self.ended is not None:
            self.outbox.discarded += 1
            return
        self.outbox.enqueue(message, message.size)
        self._news.set()

    def flush(self) -> None:
        """Nothing: the handler takes what is there."""

    def tell(self, obj: dict[str, Any]) -> None:
        """Take a control object; a plain exchange has no place for any."""

    def pause(self) -> None:
        """The upstream is slow: no further request is sent until ``resume``."""
        self._reading.clear()

    def resume(self) -> None:
        """Requests may be sent again."""
        self._reading.set()

    def close_with(self, code: int, reason: str = "") -> None:
        """End with a close code of ``gateway.closes``."""
        self.code = self.code or code
        self.close(reason)

    def close(self, reason: str = "") -> None:
        """End; what the handler did not take is discarded."""
        self.abort(LinkClosed(reason or "closed"))

    def abort(self, error: LinkError) -> None:
        """End with ``error``; whoever waits in ``take`` hears of it."""
        if self.ended is None and self.over is not None:
            self.over()
        self.finish(error)
        self._news.set()
        self._reading.set()

    # -- from the handler ----------------------------------------------------------------------

    async def writable(self) -> None:
        """Wait until a request may be sent."""
        await self._reading.wait()

    async def take(self) -> Message | None:
        """The oldest message that waits; None once the link has ended."""
        if not await self._something():
            return None
        message: Message = self.outbox.dequeue()
        self._took(1)
        return message

    def taken(self) -> list[Message]:
        """What else waits, in order."""
        messages: list[Message] = [self.outbox.dequeue() for _ in range(len(self.outbox.queue or ()))]
        self._took(len(messages))
        return messages

    async def _something(self) -> bool:
        """Wait until something waits; False once the link has ended."""
        while not self.outbox.queue and self.ended is None:
            self._news.clear()
            await self._news.wait()
        return self.ended is None

    def _took(self, count: int) -> None:
        self.outbox.sent += count
        self.outbox.progress += 1
        self.outbox.settle()
