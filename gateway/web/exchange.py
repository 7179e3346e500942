"""HTTP calls as a Link: what a session sends waits here until the handler writes it into the response.

Of a plain call the handler waits for its one answer, which needs no queue. What follows the first answer of a stream
the handler takes as fast as its client reads; what waits is counted in the outbox like at any other link of a web
client (``websocket.outbox``): over high water the session is told (``choked``), over its cap, or over the budget of all
clients, the link ends and the client gets an error instead of a silent hole. Nothing here writes to a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.errors import LinkClosed, LinkError
from broker.identity import PeerInfo
from broker.transport.link import Link, Options
from broker.wire.message import Message
from gateway.websocket.outbox import WebOutbox

if TYPE_CHECKING:
    from gateway.sessions.session import Session

TAGS: Final = 2**31
"""Calls of one link before their matchtags begin anew; 0 tells no responses."""


class ExchangeLink(Link):
    """The link of one session over HTTP.

    Attributes:
        session: whose it is, while it is open.
        over: called when it ends.
        code: the close code with which the session ended the exchange; 0 while it lives or when nobody said one.
    """

    __slots__ = ("_answer", "_calls", "_news", "_reading", "_tag", "code", "over", "session")

    outbox: WebOutbox

    def __init__(self, peer: PeerInfo, options: Options) -> None:
        super().__init__(peer, options)
        self.outbox = WebOutbox(self, options.limits, options.budget)
        self._news = asyncio.Event()
        self._reading = asyncio.Event()
        self._calls = 0
        self._tag = b""
        self._answer: asyncio.Future[Message | None] | None = None
        self.code = 0
        self.over: Callable[[], None] | None = None
        self.session: Session | None = None

    # -- from the session ----------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Answer the handler, or keep what follows for it; see ``Link.send``."""
        answer = self._answer
        if self.ended is not None or answer is None or message.tag != self._tag:
            self.outbox.discarded += 1  # what says no to a notice may come behind the end of its request
        elif not answer.done():
            self.outbox.sent += 1
            self.outbox.progress += 1
            answer.set_result(message)
        else:
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
        """End with ``error``; whoever waits for an answer, or in ``take``, hears of it."""
        over, self.over = self.over, None
        if over is not None:
            over()
        self.finish(error)
        self.session = None  # which has this link: a cycle else
        self._news.set()
        self._reading.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    # -- from the handler ----------------------------------------------------------------------

    async def put(self, message: Message) -> asyncio.Future[Message | None]:
        """Send a request, as soon as one may be sent; the one before was answered, or had no answer.

        Returns what will be its response, or the first one of a stream: None when the link ends before.
        """
        await self._reading.wait()
        self._calls = self._calls % (TAGS - 1) + 1
        self._tag = message.tag = self._calls.to_bytes(4, "big")
        self._answer = answer = asyncio.get_running_loop().create_future()
        if self.receiver is not None and self.ended is None:
            self.receiver.received(self, [message])
        elif not answer.done():
            answer.set_result(None)
        return answer

    @property
    def has_answer(self) -> bool:
        """Whether the response to the last request has come, or the first one of a stream."""
        answer = self._answer
        return answer is not None and answer.done() and not answer.cancelled() and answer.result() is not None

    async def take(self) -> Message | None:
        """The oldest message that waits; None once the link has ended."""
        while not self.outbox.queue and self.ended is None:
            self._news.clear()
            await self._news.wait()
        if self.ended is not None:
            return None
        message: Message = self.outbox.dequeue()
        self._took(1)
        return message

    def take_rest(self) -> list[Message]:
        """What else waits, in order."""
        messages: list[Message] = [self.outbox.dequeue() for _ in range(len(self.outbox.queue or ()))]
        self._took(len(messages))
        return messages

    def _took(self, count: int) -> None:
        self.outbox.sent += count
        self.outbox.progress += 1
        self.outbox.drained()
