"""A handle's way to its broker: the link in use, the gate in front of it, what waits for answers, and how both end.

Where the far end keeps what a client misses (a gateway), the end of a link is not the end of the connection: another
one is dialled (``reconnecting``). Calls that wait fail with the reason, because nobody knows whether they were carried
out; services are registered again; subscriptions go on where they were (``Position``).
Requests that are made meanwhile wait, at most HELD_MAX of them, and so does ``writable``.

Every queue between the link and its consumers has an end (``Limits``).

Concurrency: a connection belongs to the event loop that made it; any number of its tasks may use it at once. Nothing
here reads the link: messages are handed over as they arrive (``Receiver``) and never wait for a consumer.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from broker.client.calls import PendingCalls, Single
from broker.client.reconnecting import Position
from broker.client.service import Service, Services
from broker.client.subscriptions import SubscriptionTable
from broker.errors import LinkClosed, LinkError
from broker.wire import message as wire
from broker.wire.message import Message
from broker.wire.payload import encode_text

if TYPE_CHECKING:
    from types import TracebackType

    from broker.client.reconnecting import Reconnecting
    from broker.transport.link import Link

AT_A_TIME: Final = 64
"""Waiting tasks that go on in one turn of the loop: they may fill the link, and the others would be woken in vain."""
FLUSH_BYTES: Final = 256 << 10
"""So many bytes are handed to the transport at once, even within one turn of the loop: many tasks may send in the same
turn, and the later ones have to see that the link is full."""
HELD_MAX: Final = 1024
"""Requests that may wait for a link to come back; beyond it EAGAIN."""
_DRAIN_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one handle; none can be switched off."""

    pending_calls: int = 1 << 20
    """Calls that wait for responses, abandoned ones included; beyond it EAGAIN."""
    stream_msgs: int = 4096
    """Responses one stream buffers; beyond it the stream is cancelled and raises Overrun."""
    stream_bytes: int = 64 << 20
    """The same in bytes."""
    event_msgs: int = 16384
    """Events one subscription buffers; what comes while it is full is lost to it and counted."""
    event_bytes: int = 64 << 20
    """The same in bytes."""
    service_tasks: int = 1024
    """Requests one service handles at a time."""
    service_waiting: int = 65536
    """Requests that wait behind those; beyond it EAGAIN."""
    drain_s: float = 2.0
    """How long leaving waits, in seconds, for a slow broker to take what was sent."""


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


class Connection:
    """The link of a Handle, and everything that waits for it.

    Args:
        link: not started yet. reconnecting: dials another one when it is lost; None: that is the end.

    Attributes:
        link: the one in use; while there is none, the one before.
    """

    def __init__(
        self, link: Link, limits: Limits | None = None, reconnecting: Reconnecting | None = None
    ) -> None:
        self.link = link
        self._limits = limits or Limits()
        self._calls = PendingCalls(self._limits.pending_calls)
        self._subscriptions = SubscriptionTable(self.request)
        self._services = Services(self)
        self._gate = Gate(link)
        self._reconnecting = reconnecting
        self._lost = False
        self._held: list[Message] = []
        self._on_end: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()
        self._position = Position(self._subscriptions, self._services)
        self._position.follow(link)
        link.start(self)

    # -- life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the services, hand over what was sent (at most ``drain_s``), close the link; harmless twice."""
        try:
            await self._services.close()
            await self._drain()
        finally:
            self.link.close("the client is done")
            self._end(LinkClosed("closed"))

    async def _drain(self) -> None:
        self.link.flusher.flush()
        for _ in range(int(self._limits.drain_s / _DRAIN_POLL_S)):
            if not self.link.outbox.queue or self.link.ended is not None:
                break
            await asyncio.sleep(_DRAIN_POLL_S)  # links tell low water, not emptiness

    @property
    def ended(self) -> LinkError | None:
        """None while the link lives or is dialled again, then why it ended."""
        return self._calls.ended

    async def wait_ended(self) -> LinkError:
        """Wait for the end and return the reason; never raises it."""
        return await asyncio.shield(self._on_end)

    def _end(self, error: LinkError) -> None:
        """The connection has ended for good: tell all that wait."""
        if self._calls.ended is not None:
            return
        if self._reconnecting is not None:
            self._reconnecting.stop()
        self._held = []
        self._gate.set_open(True)
        self._calls.end(error)
        self._position.lost(error)
        self._subscriptions.end(error)
        self._services.link_ended()
        self._on_end.set_result(error)

    # -- from the link -------------------------------------------------------------------------

    def received(self, link: Link, messages: list[Message]) -> None:
        """Take the messages of one read (``Receiver``); the messages that they make us send leave in one write."""
        flusher = link.flusher
        outer, flusher.batch = flusher.batch, True
        try:
            for message in messages:
                kind = message.head[3]
                if kind == wire.RESPONSE:
                    self._calls.answered(message)
                elif kind == wire.REQUEST:
                    self._services.requested(message)
                elif kind == wire.EVENT:
                    self._subscriptions.published(message)
        finally:
            flusher.batch = outer
            if not outer:
                flusher.flush()

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The link is gone: dial another one, or end the connection (``Receiver``)."""
        if self._calls.ended is not None:
            return
        # final: the far end says that another link would end the same way; LinkClosed: we closed it
        if self._reconnecting is None or error.final or isinstance(error, LinkClosed):
            self._end(error)
            return
        self._lost = True
        self._gate.set_open(False)
        self._calls.fail(error)
        self._position.lost(error)
        self._subscriptions.lost()
        self._services.link_ended()
        self._reconnecting.begin(error, self._reconnected, self._end)

    def _reconnected(self, link: Link) -> None:
        """There is a link again: subscriptions and services go on, then the requests that waited are sent."""
        self.link = self._gate.link = link
        self._lost = False
        link.start(self)
        self._position.resume(link)
        self._services.restore()
        held, self._held = self._held, []
        for message in held:
            # a caller that gave up meanwhile (timeout, cancelled) must not have its request carried out late
            if self._calls.wants(message):
                self._gate.send(message)
            else:
                self._calls.answered(wire.response(message, errnum=errno.ECANCELED))
        self._gate.set_open(True)

    def link_choked(self, link: Link, choked: bool) -> None:
        """The broker reads slowly, or does again (``Receiver``)."""
        if not self._lost:
            self._gate.set_open(not choked or self._calls.ended is not None)

    # -- raw -----------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue any message as it is; never waits.

        A link that has ended drops it; while another one is dialled, requests that want a response are kept.
        """
        if not self._lost:
            self._gate.send(message)
        elif message.head[3] == wire.REQUEST and not message.head[4] & wire.NORESPONSE:
            self._hold(message)

    def _hold(self, message: Message) -> None:
        if len(self._held) < HELD_MAX:
            self._held.append(message)
            return
        text = f"{HELD_MAX} requests wait for the connection to come back"
        answer = wire.response(message, encode_text(text), errnum=errno.EAGAIN)
        asyncio.get_running_loop().call_soon(self._calls.answered, answer)

    @property
    def is_writable(self) -> bool:
        """Whether ``writable`` would not wait."""
        return self._gate.is_free

    async def writable(self) -> None:
        """Wait while more than the outbox's high water waits for the broker, and while there is no link; at once on
        one that has ended for good.

        Tasks go on in the order in which they began to wait, and should send before they wait for anything else.
        """
        await self._gate.wait()

    def request(self, message: Message) -> asyncio.Future[Message]:
        """Send a request built by hand; the future gets its response message, whatever its errnum.

        Never waits. The message gets a matchtag of this handle. For many calls in flight at little cost::

            futures = [h.request(wire.request("echo.run", data)) for data in work]
            for future in futures:
                print((await future).payload)

        Raises:
            ValueError: no request, or flag NORESPONSE or STREAMING is set. LinkError: the link has ended.
            HeadgateError: EAGAIN, too many calls wait.
        """
        if message.head[3] != wire.REQUEST or message.head[4] & (wire.NORESPONSE | wire.STREAMING):
            raise ValueError(f"{message!r} is no request with exactly one response: use send() or stream()")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls.add(Single(future), message)
        self.send(message)
        return future

    def attach(self, service: Service) -> None:
        """For Service: deliver requests for its name to it."""
        self._services.attach(service)

    def detach(self, service: Service) -> None:
        """For Service: deliver no more."""
        self._services.detach(service)
