"""Calls that wait for responses: matchtags, single responses, streams (RFC 6).

Rules of this file. A matchtag is unique among the calls that wait and is given up only by a response with
flag STREAMING clear or a nonzero errnum (RFC 6, "Matchtag Field"); a call nobody waits for any more
(timeout, cancelled task, left stream) keeps its tag until then. 0 is never given to a call that wants a
response. Tags count upwards and wrap at 2**32, so that a late duplicate meets no other call.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, Protocol, Self

from broker.client.nearby import directed
from broker.errors import HeadgateError, LinkError, Overrun, RpcError
from broker.serving.request import Received
from broker.wire.message import NORESPONSE, STREAMING, UPSTREAM, Message, request
from broker.wire.payload import encode_json
from broker.wire.topic import service_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from broker.client.nearby import Nearby
    from broker.inbox import Inbox

_NO_ERROR: Final = b"\0\0\0\0"
_MAX_TAG: Final = 0xFFFFFFFF


class Response(Received):
    """The answer to a request, or one of the answers of a stream (RFC 6)."""

    __slots__ = ()

    @property
    def errnum(self) -> int:
        """0, or the POSIX error number; nonzero only where a raw ``request`` was made: ``rpc`` raises it."""
        return self.message.errnum

    def error(self) -> RpcError:
        """The RpcError this response stands for, with the service's text or the system's."""
        return RpcError(self.message.errnum, self.text, self.topic)


class Waiter(Protocol):
    """The receiver of the responses with one matchtag."""

    def answered(self, message: Message) -> None:
        """A response came; ``is_last`` tells whether more may come."""

    def failed(self, error: LinkError) -> None:
        """The link ended: none will come."""

    @property
    def over(self) -> bool:
        """Whether nobody wants a response any more."""


def is_last(message: Message) -> bool:
    """True for the last response of its call: STREAMING clear or errnum nonzero (RFC 6, "Matchtag Field")."""
    head = message.head
    return not head[4] & STREAMING or head[13:] != _NO_ERROR


def same_error(error: LinkError) -> LinkError:
    """An error of its own for one more waiter: a shared one would collect every waiter's traceback."""
    return type(error)(str(error), error.errno)


class Single:
    """Waits for one response."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Message]) -> None:
        self.future = future

    @property
    def over(self) -> bool:
        """Whether the task that awaited it was cancelled."""
        return self.future.done()

    def answered(self, message: Message) -> None:
        """Hand the response to the task that awaits it, if it still does."""
        if not self.future.done():
            self.future.set_result(message)

    def failed(self, error: LinkError) -> None:
        """Raise ``error`` where the response is awaited."""
        if not self.future.done():
            self.future.set_exception(same_error(error))
            self.future.exception()  # the link's end is told elsewhere too: no "never retrieved" noise


class PendingCalls:
    """The calls of one link that wait for responses.

    Attributes:
        unmatched: responses that no call waits for, dropped.
    """

    __slots__ = ("_last", "_max_pending", "_waiting", "ended", "unmatched")

    def __init__(self, max_pending: int) -> None:
        self._waiting: dict[bytes, Waiter] = {}
        self._max_pending = max_pending
        self._last = 0
        self.unmatched = 0
        self.ended: LinkError | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: Waiter, message: Message) -> None:
        """Give ``message`` a matchtag and let ``waiter`` have its responses.

        Raises:
            LinkError: the link has ended. HeadgateError: EAGAIN, too many calls wait.
        """
        if self.ended is not None:
            raise same_error(self.ended)
        waiting = self._waiting
        if len(waiting) >= self._max_pending:
            raise HeadgateError(f"{len(waiting)} calls wait for responses on this link already", errno.EAGAIN)
        tag = self._free_tag()
        waiting[tag] = waiter
        message.tag = tag

    def _free_tag(self) -> bytes:
        while True:
            number = self._last = self._last % _MAX_TAG + 1
            tag = number.to_bytes(4, "big")
            if tag not in self._waiting:
                return tag

    def answered(self, message: Message) -> None:
        """A response came from the link."""
        tag = message.tag
        waiter = self._waiting.get(tag)
        if waiter is None:
            self.unmatched += 1
            return
        if is_last(message):
            del self._waiting[tag]
        waiter.answered(message)

    def wants(self, message: Message) -> bool:
        """Whether somebody waits for a response to this request."""
        waiter = self._waiting.get(message.tag)
        return waiter is not None and not waiter.over

    def end(self, error: LinkError) -> None:
        """The link ended for good: fail every call, and every later ``add``."""
        self.ended = error
        self.fail(error)

    def fail(self, error: LinkError) -> None:
        """The link ended, and another follows: fail every call that waits."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            waiter.failed(error)


class Stream:
    """A streaming call, for the time of a block: ``async for response in stream`` (RFC 6).

    Iteration ends normally at ENODATA (and at ECANCELED once cancelled) and raises RpcError at any other
    errnum. Leaving the block early cancels. Responses wait in a bounded buffer; when it overflows, the
    stream is cancelled, what was buffered is still delivered, and then Overrun is raised: the link itself
    is never paused, because other calls share it.

    Concurrency: one task iterates at a time.

    Attributes:
        request: the request as sent; its matchtag names the stream at the service.
    """

    __slots__ = (
        "_calls",
        "_cancel_topic",
        "_cancelled",
        "_done",
        "_inbox",
        "_nearby",
        "_others",
        "_overrun",
        "_send",
        "request",
    )

    def __init__(
        self,
        message: Message,
        calls: PendingCalls,
        send: Callable[[Message], None],
        inbox: Inbox[Response],
        cancel_topic: str | None,
        nearby: Nearby | None = None,
    ) -> None:
        self.request = message
        self._nearby = nearby
        self._others: list[int] = []
        self._calls = calls
        self._send = send
        self._inbox = inbox
        self._cancel_topic = cancel_topic or f"{service_of(message.topic or '')}.cancel"
        self._cancelled = False
        self._done = False
        self._overrun: Overrun | None = None

    @property
    def ready(self) -> int:
        """Responses that can be had without waiting."""
        return len(self._inbox)

    @property
    def ended(self) -> bool:
        """Whether no more will come than is ``ready``."""
        return self._inbox.end is not None

    @property
    def over(self) -> bool:
        """Whether it was cancelled (``Waiter``)."""
        return self._cancelled

    async def __aenter__(self) -> Self:
        if self._nearby is not None:
            self._others = await self._nearby.ranks(self.request.topic or "", fresh=True)
        self._begin()
        return self

    def _begin(self) -> None:
        """Send it, to the next of the ranks where the service is."""
        if self._others:
            self.request = directed(self.request, self._others.pop(0))
        request = self.request if self._nearby is None else self.request.copy()
        self._calls.add(self, request)
        self.request.tag = request.tag
        self._send(request)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cancel()
        self._inbox.clear()
        self._inbox.finish(StopAsyncIteration())

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Response:
        return await self._inbox.get()

    async def cancel(self) -> None:
        """Ask the service to end the stream: ``SERVICE.cancel {"matchtag": N}`` (RFC 6, "Cancellation").

        Does nothing once the stream has ended or was cancelled. What the service still sends can be read; a
        service without such a method goes on until the stream's block is left, from where on its responses
        are dropped.
        """
        self._cancel()

    def _cancel(self) -> None:
        if self._done or self._cancelled:
            return
        self._cancelled = True
        mine = self.request
        flags = NORESPONSE | (mine.flags & UPSTREAM)
        payload = encode_json({"matchtag": mine.matchtag})
        self._send(request(self._cancel_topic, payload, nodeid=mine.nodeid, flags=flags))

    def answered(self, message: Message) -> None:
        """A response of this stream came."""
        if self._others and message.errnum == errno.ENOSYS and not self._cancelled:
            self._begin()
            return
        response = Response(message)
        if not is_last(message) or not message.errnum:
            self._keep(response)
        if is_last(message):
            self._done = True
            # errnum 0 here: a service that answers a streaming request once, without the flag
            clean = (0, errno.ENODATA, errno.ECANCELED) if self._cancelled else (0, errno.ENODATA)
            self._inbox.finish(StopAsyncIteration() if response.errnum in clean else response.error())

    def _keep(self, response: Response) -> None:
        if self._overrun is not None:
            self._overrun.lost += 1
        elif not self._inbox.put(response, response.message.size) and self._inbox.end is None:
            waits = f"{len(self._inbox)} responses of {response.topic} wait for a reader that does not read"
            self._overrun = Overrun(f"{waits}; the stream was cancelled", lost=1)
            self._inbox.finish(self._overrun)
            self._cancel()

    def failed(self, error: LinkError) -> None:
        """The link ended."""
        self._done = True
        self._inbox.finish(same_error(error))
