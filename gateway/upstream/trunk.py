"""The one link to the upstream: a Handle for the gateway's own calls that also carries all sessions.

Theory of operation. What comes up the link is told apart by its route stack: a response whose stack is empty answers a
call of our own, one with a hop on top belongs to the session whose hop that is. Requests for a name that a session
registered are the session's, those for a service of this handle its own. Events go to the numbering and on to the
receiver in runs; a run is always handed over before the message behind it, so that everybody sees the upstream's order.
Where events are held back because their numbers are in doubt, the answers to ``event.publish`` wait behind them: who
has one may rely on the event being there (see ``broker.routing.events``).
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final, Protocol

from broker.client.calls import is_last
from broker.client.handle import Handle
from broker.wire import message as wire
from broker.wire.message import DELIMITER, Message
from broker.wire.parts import encode_part
from broker.wire.payload import encode_json
from gateway.upstream.numbering import Numbering

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.errors import LinkError
    from broker.transport.link import Link
    from broker.wire.event_history import MessageHistory

log = logging.getLogger("headgate")

WAY_LOST: Final = (errno.EHOSTUNREACH, errno.ECONNRESET)
"""How a broker ends the calls that went a way that is broken now."""
PUBLISH: Final = encode_part(b"event.publish")
"""Topic part of the requests whose answer tells that the event is delivered."""


class UpstreamReceiver(Protocol):
    """Who gets what the upstream brings for sessions; nothing of it may wait."""

    @property
    def history(self) -> MessageHistory:
        """The newest events, their epoch and number, also from one link to the next."""

    def take(self, messages: list[Message], at: int, fault: Callable[[Message, Exception], object]) -> int:
        """What one read brought for sessions, answers and requests, from ``messages[at]`` on.

        Returns:
            The index of the first message that is none of it; how many there are where all are.

        ``fault`` is told of each message that could not be handled: it costs this message only.
        """

    def answered(self, message: Message) -> None:
        """A response whose route stack is not empty."""

    def requested(self, message: Message) -> bool:
        """A request; False when no session serves its name."""

    def published(self, messages: list[Message]) -> None:
        """Events in order, numbered without a hole since the last ``upstream_joined``; the history has them already."""

    async def until_read(self) -> bool:
        """Wait until clients have read most of what they were sent; False: that takes too long."""

    def fail_calls(self, front: bytes) -> None:
        """The link that carried the calls of one session has ended; ``front`` is its route stack."""

    def upstream_joined(self, epoch_changed: bool, missed: int | None) -> None:
        """The upstream is there, or events were missed while it was. What the history has now is behind that; at the
        first time it may have events of before, for which nobody was here.

        Args:
            epoch_changed: the instance's rank 0 is another one, numbers begin anew; also at the first time.
            missed: events nobody here saw, 0 for none, None when that cannot be known.
        """

    def reregister(self) -> None:
        """A fresh link: the services of sessions have to be registered again."""

    def upstream_lost(self, reason: str) -> None:
        """The upstream is gone: no open call will be answered."""

    def upstream_choked(self, choked: bool) -> None:
        """The upstream reads slowly, or does again."""

    def upstream_shut(self, shut: bool) -> None:
        """Events have to wait, or move on again."""


class Trunk(Handle):
    """The owner link to the upstream.

    Args:
        link: not started yet.
        receiver: gets what belongs to sessions.
        on_doubt: called when events are held back until ``numbering.settle``.
        on_choked: called with True when the upstream reads slowly, with False when it does again.
        on_end: called once, at once, when the link has ended.

    Attributes:
        numbering: follows the events' numbers.
        reads: reads that brought something.
        faults: messages whose handling raised; each is logged.
    """

    def __init__(
        self,
        link: Link,
        receiver: UpstreamReceiver,
        *,
        on_doubt: Callable[[], None],
        on_choked: Callable[[bool], None],
        on_end: Callable[[Trunk, LinkError], None],
    ) -> None:
        self._receiver = receiver
        self._on_choked = on_choked
        self._on_end_of_link = on_end
        self._watch: _Watch | None = None
        self.numbering = Numbering(receiver, on_doubt)
        self.reads = 0
        self._asked_at = 0
        self._behind: list[Message] = []  # answers that wait for the events in front of them
        self.faults = 0
        super().__init__(link)

    # -- from the link -------------------------------------------------------------------------

    def received(self, link: Link, messages: list[Message]) -> None:
        """What one read produced, in order; what it makes anybody send leaves in one flush (``Receiver``)."""
        self.reads += 1
        flusher = link.flusher
        outer, flusher.batch = flusher.batch, True
        at, end = 0, len(messages)
        try:
            while at < end:
                begin = at
                while at < end and messages[at].head[3] == wire.EVENT:
                    at += 1
                if at > begin:
                    self._published(messages[begin:at])
                    continue
                if not self.numbering.in_doubt:
                    at = self._receiver.take(messages, at, self._fault)
                if at == begin:  # it is no session's, or has to be looked at more closely
                    self._one(messages[at])
                    at += 1
        finally:
            flusher.batch = outer
            if not outer:
                flusher.flush()

    def _one(self, message: Message) -> None:
        """A message that is no event; a fault while handling it costs this message only."""
        kind = message.head[3]
        try:
            if kind == wire.RESPONSE:
                if len(message.front) > len(DELIMITER):
                    # whoever has this answer relies on the event: it is still held back
                    if message.topic_part == PUBLISH and self.numbering.in_doubt and not message.errnum:
                        self._behind.append(message)
                        return
                    self._receiver.answered(message)
                else:
                    self._calls.answered(message)
            elif kind == wire.REQUEST and not self._receiver.requested(message):
                self._services.requested(message)
            elif kind == wire.CONTROL and message.aux1 == wire.HANDLED:
                self.link.outbox.handled(self._asked_at + message.aux2)
            elif kind == wire.CONTROL and message.aux1 == wire.MARKED:
                self.link.outbox.marked(message.aux2)
            elif kind == wire.CONTROL and message.aux1 in (wire.OPEN, wire.SHUT):
                self._receiver.upstream_shut(message.aux1 == wire.SHUT)
        except Exception as error:
            self._fault(message, error)

    def ask_handled(self) -> None:
        """Have the upstream, a broker of ours, say how many messages it has handled, and when events have to wait:
        sessions wait here, and not in the system's buffers, where each would stand behind all others.
        """
        self.link.send(wire.control(wire.HANDLED))
        outbox = self.link.outbox
        self._asked_at = outbox.sent + len(outbox.unflushed) + len(outbox.queue or ())
        outbox.handled(self._asked_at)

    def _published(self, messages: list[Message]) -> None:
        try:
            for message in messages:
                message.front = DELIMITER  # deployed brokers leave the hops of the way down in it
                self._subscriptions.published(message)
            self.numbering.received(messages)
        except Exception as error:
            self._fault(messages[0], error)

    def _fault(self, message: Message, error: Exception) -> None:
        self.faults += 1
        log.error("upstream: cannot handle %r", message, exc_info=error)

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The link is gone: whoever waits is told, then the upstream (``Receiver``)."""
        first = self.ended is None
        super().link_ended(link, error)
        if first:
            self._on_end_of_link(self, error)

    def link_choked(self, link: Link, choked: bool) -> None:
        """The upstream reads slowly, or does again (``Receiver``)."""
        super().link_choked(link, choked)
        if self.ended is None:
            self._on_choked(choked)

    def settle(self, epoch: str, sequence: int) -> None:
        """End the doubt about the events' numbers (``Numbering.settle``); what waited behind events follows them."""
        self.numbering.settle(epoch, sequence)
        behind, self._behind = self._behind, []
        for message in behind:
            self._one(message)

    # -- for sessions --------------------------------------------------------------------------

    def relay(self, message: Message) -> None:
        """Send a request of a session as one of our own; its answer goes to the session all the same.

        For requests that a deployed broker answers without the hops they came with.
        """
        relayed = _Relayed(self._receiver.answered, message.front, message.tag)
        message.front = DELIMITER
        self._calls.add(relayed, message)
        self.link.send(message)

    # -- rank 0 --------------------------------------------------------------------------------

    def watch_root(self) -> None:
        """Hold a stream from rank 0 open for as long as the way there does; its end puts the numbering in doubt.

        Nothing on a link to rank 0 itself, and while such a stream is open. The broker that loses the way answers
        every call that went it with EHOSTUNREACH, before any event can come a new way.
        """
        if self.numbering.certain or (self._watch is not None and not self._watch.lost):
            return
        self._watch = _Watch(self.numbering.doubt)
        message = wire.request(
            "groups.get", encode_json({"name": "broker.online"}), nodeid=0, flags=wire.STREAMING
        )
        self._calls.add(self._watch, message)
        self.link.send(message)

    @property
    def root_lost(self) -> bool:
        """The way to rank 0 broke since ``watch_root``."""
        return self._watch is not None and self._watch.lost


class _Watch:
    """Waits for the end of a stream (``broker.client.calls.Waiter``)."""

    __slots__ = ("_on_lost", "lost")
    over = False

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self.lost = False

    def answered(self, message: Message) -> None:
        """Only how it ends matters."""
        if not is_last(message):
            return
        if message.errnum in WAY_LOST:
            self.lost = True
            self._on_lost()
        else:
            log.warning(
                "upstream: rank 0 cannot be watched (%s: errno %d): only the numbers of events will show that it was "
                "started again",
                message.topic,
                message.errnum,
            )

    def failed(self, error: LinkError) -> None:
        """The link ended, which is noticed elsewhere."""


class _Relayed:
    """Gives the answer to a relayed request its hop and matchtag back (``broker.client.calls.Waiter``)."""

    __slots__ = ("_answered", "_front", "_tag")
    over = False

    def __init__(self, answered: Callable[[Message], None], front: bytes, tag: bytes) -> None:
        self._answered = answered
        self._front = front
        self._tag = tag

    def answered(self, message: Message) -> None:
        """The one answer."""
        message.front = self._front
        message.tag = self._tag
        self._answered(message)

    def failed(self, error: LinkError) -> None:
        """The link ended: the receiver is told of that for all sessions."""
