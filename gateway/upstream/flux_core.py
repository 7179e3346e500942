"""Adapts the upstream to flux-core: two behaviours of its local connector.

**It answers some requests itself, without the hops they came with** (``event.*``, ``service.*``): these are sent as
calls of our own, and their answers get hop and matchtag back (``Trunk.relay``).

**It keys by link what it does when a client goes**: one ``X.disconnect`` for each service the link ever asked, from the
first sender it saw there. While the gateway lives that is enough, because it sends the notices of each session itself,
and deployed services tell senders apart by their hop. But if it is killed, only the first session's streams would end;
those of the others, ``rexec`` processes among them, would go on for ever. So a session that opens a streaming call
gets a link of its own, and its calls end with the process that held them. From then on all its calls take that link,
so that they keep their order; what is sent while it is still being dialled waits. If it cannot be had, the session
stays on the shared one. ``event.publish`` always takes the shared one, by which events come: its answer is behind its
event there.

Headgate's router has neither habit and needs none of this.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from broker.errors import HeadgateError, LinkClosed, LinkError
from broker.transport.registry import dial
from broker.wire.message import DELIMITER, NORESPONSE, REQUEST, RESPONSE, STREAMING, Message
from broker.wire.parts import encode_part
from gateway.upstream.trunk import PUBLISH, Trunk, UpstreamReceiver

if TYPE_CHECKING:
    from broker.transport.link import Link, Options

log = logging.getLogger("headgate")

OF_THE_CONNECTOR: Final = frozenset(
    encode_part(topic)
    for topic in (b"event.subscribe", b"event.unsubscribe", b"service.add", b"service.remove")
)
"""Topic parts of requests that a deployed connector answers itself, even with flag NORESPONSE."""
LINKS_MAX: Final = 1024
"""Links beside the shared one; further sessions stay on that. A flux-core has a descriptor for each."""
WAITING_MAX: Final = 1024
"""Messages that may wait for a link being dialled; beyond it the session stays on the shared one."""
WAITING_MAX_BYTES: Final = 4 << 20
"""Bytes that may wait for all of them: the session whose message is beyond it stays on the shared one."""


class FluxCoreAdapter:
    """The way to a flux-core: one trunk, and beside it the links of sessions that stream, which end with it.

    Args:
        uri: of the upstream. options: of a link. trunk: the shared link.
        receiver: gets what comes.

    Attributes:
        waiting_bytes: of messages that wait for links being dialled.
    """

    def __init__(self, uri: str, options: Options, trunk: Trunk, receiver: UpstreamReceiver) -> None:
        self._uri = uri
        self._options = options
        self._trunk = trunk
        self._receiver = receiver
        self._links: dict[bytes, _Own] = {}
        self._dials: set[asyncio.Task[None]] = set()
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._links)

    def send(self, message: Message) -> None:
        """Send a session's message by the link that is right for it."""
        head, front = message.head, message.front
        if head[3] != REQUEST:
            self._trunk.send(message)
            return
        if message.topic_part in OF_THE_CONNECTOR:
            if head[4] & NORESPONSE:
                message.front = DELIMITER
                self._trunk.send(message)
            else:
                self._trunk.relay(message)
            return
        # its answer has to be behind its event, which comes by the shared link
        if message.topic_part == PUBLISH:
            self._trunk.send(message)
            return
        own = self._links.get(front)
        if own is None and head[4] & STREAMING and len(self._links) < LINKS_MAX:
            own = self._open(front)
        if own is None:
            self._trunk.send(message)
        else:
            own.send(message)

    def forget(self, front: bytes) -> None:
        """The session with the route stack ``front`` has ended and sent its notices: end its link."""
        own = self._links.pop(front, None)
        if own is not None:
            own.close()

    async def close(self) -> None:
        """The trunk has ended: end all links and whatever is dialled."""
        links, self._links = self._links, {}
        for own in links.values():
            own.close()
        for task in self._dials:
            task.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)

    def _open(self, front: bytes) -> _Own:
        own = self._links[front] = _Own(front, self)
        name = f"upstream {self._uri}, link {len(self._links)}"
        task = asyncio.get_running_loop().create_task(self._dial(own), name=name)
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)
        return own

    async def _dial(self, own: _Own) -> None:
        try:
            link = await dial(self._uri, self._options)
        except HeadgateError as error:
            log.warning("upstream: no link of its own for a session that streams: %s", error)
            own.share(self._trunk.link)
        except Exception:
            log.exception("upstream: a fault while dialling a link for a session that streams")
            own.share(self._trunk.link)
        else:
            own.dialled(link)

    def lost(self, own: _Own, error: LinkError) -> None:
        """A session's link ended by itself: its calls will not be answered."""
        if self._links.get(own.front) is own:
            del self._links[own.front]
            if self._trunk.ended is None:
                log.warning("upstream: the link of a session that streams ended: %s", error)
                self._receiver.fail_calls(own.front)

    def received(self, messages: list[Message]) -> None:
        """What a session's link brought."""
        for message in messages:
            if message.head[3] == RESPONSE and len(message.front) > len(DELIMITER):
                self._receiver.answered(message)


class _Own:
    """The calls of one session (``broker.transport.link.Receiver``).

    Attributes:
        front: the route stack of its requests: its hop and the delimiter.
    """

    __slots__ = ("_closed", "_link", "_waiting", "_waiting_bytes", "_way", "front")

    def __init__(self, front: bytes, way: FluxCoreAdapter) -> None:
        self.front = front
        self._way = way
        self._link: Link | None = None
        self._waiting: list[Message] = []
        self._waiting_bytes = 0
        self._closed = False

    def send(self, message: Message) -> None:
        """Send, or keep until there is a link."""
        if self._link is not None:
            self._link.send(message)
        else:
            self._waiting.append(message)
            self._waiting_bytes += message.size
            self._way.waiting_bytes += message.size
            if len(self._waiting) > WAITING_MAX or self._way.waiting_bytes > WAITING_MAX_BYTES:
                self.share(self._way._trunk.link)

    def dialled(self, link: Link) -> None:
        """There is a link: use it, unless the session has ended or does without by now."""
        if self._link is None:
            self._use(link)
            link.start(self)
        if self._closed or self._link is not link:
            link.close("not needed any more")

    def share(self, trunk: Link) -> None:
        """There is none: use the shared one."""
        if self._link is None:
            self._use(trunk)

    def close(self) -> None:
        """The session has ended; a link that is being dialled takes its notices first."""
        self._closed = True
        link = self._link
        if link is not None and link.receiver is self:
            link.close("the session has ended")

    def _use(self, link: Link) -> None:
        self._link = link
        waiting, self._waiting = self._waiting, []
        self._way.waiting_bytes -= self._waiting_bytes
        self._waiting_bytes = 0
        for message in waiting:
            link.send(message)

    # -- from the link -------------------------------------------------------------------------

    def received(self, link: Link, messages: list[Message]) -> None:
        """Responses; what they make us send leaves in one flush (``Receiver``)."""
        flusher = link.flusher
        outer, flusher.batch = flusher.batch, True
        try:
            self._way.received(messages)
        finally:
            flusher.batch = outer
            if not outer:
                flusher.flush()

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The link is gone (``Receiver``)."""
        if not isinstance(error, LinkClosed):
            self._way.lost(self, error)

    def link_choked(self, link: Link, choked: bool) -> None:
        """Above high water: its cap, a small one, ends it if the upstream does not read (``Receiver``)."""
