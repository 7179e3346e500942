"""Events: numbered by rank 0, in order down every link, to the subscribers (RFC 3, "Event Message Type"; RFC 12).

An event travels unnumbered up to rank 0, which numbers it and sends it down to every broker; subscriptions are
filtered only where a client is attached. Prefixes are plain strings ("" is everything, "foo" matches "foobar").

Order. A link carries events and all else in one queue. So the answer to ``event.publish``, which rank 0 sends once it
has distributed the event, is behind that event on every link of its way; and what its receiver asks next is behind the
event on every way through the tree: whichever broker gets that request has sent the event to its subscribers before.
That costs nothing and keeps nothing. An event *message* has no answer: what its sender asks next of its own broker
overtakes it on its way to rank 0 and back.

While there is no parent, events wait for one (``flow.HeldEvents``).
"""

# compiled: mypyc

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Final

from broker.identity import NOBODY, Role
from broker.routing.counters import EventStats, MessageCounters
from broker.routing.flow import Flow, HeldEvents
from broker.routing.port import CHILD, CLIENT, OWN, PARENT, Port, Stamp
from broker.routing.recording import IN, OUT, Recording
from broker.wire.audience import PREFIX_MAX_BYTES, Audiences, Confidants, Prefixes
from broker.wire.event_history import FrameHistory
from broker.wire.message import DELIMITER, PRIVATE, ROUTE, Message
from broker.wire.parts import part_data, part_size
from broker.wire.shares import EVENT_BYTES, cost
from broker.wire.topic import is_reserved

log = logging.getLogger("headgate")

PREFIXES_MAX: Final = 4096
"""Distinct prefixes one client may subscribe to; beyond it ENOSPC."""
LONG_HEAD_BYTES: Final = 5
"""Size field in front of a topic of 255 bytes or more, in its part."""
DELIVERY_BYTES: Final = 512
"""Cost of the delivery of a small event: the time in which so many bytes are delivered."""
MARKS_MAX: Final = 64
"""Marks remembered per port, one for each credentials that its events bear."""


class Events:
    """Numbering, order and subscriptions of one broker.

    Attributes:
        sequence: at rank 0 the last number given; elsewhere the last one seen (0: none yet).
        expects_first: a new numbering is followed from its beginning on: whatever comes before the first number seen
            is missing.
        on_gap: called with (last seen, now seen) when numbers are missing or a new numbering began.
        guest_max: largest payload of a guest's event.
        load: what deliveries have cost so far: of each event ``DELIVERY_BYTES``, or its bytes, times its receivers.
        history: the last events, at rank 0; None: none are kept.
        flow: how far events may run ahead of the slowest broker.
        stats: what was published here, by topic.
    """

    __slots__ = (
        "_add",
        "_both",
        "_children",
        "_confidants",
        "_counters",
        "_held",
        "_matches",
        "_out_brokers",
        "_out_count",
        "_out_mark",
        "_own_mark",
        "_parent",
        "_recording",
        "_stamp",
        "_subscribers",
        "_topic_part_max",
        "expects_first",
        "flow",
        "guest_max",
        "history",
        "load",
        "on_gap",
        "rank",
        "sequence",
        "stats",
    )

    def __init__(
        self,
        rank: int,
        stamp: Stamp,
        counters: MessageCounters,
        stats: EventStats,
        topic_max_bytes: int = 1024,
        guest_max: int = 1 << 18,
    ) -> None:
        self.rank: int = rank
        self.sequence: int = 0
        self.expects_first: bool = False
        self.on_gap: Callable[[int, int], None] | None = None
        self.load: int = 0
        self.guest_max: int = guest_max
        self.flow: Flow = Flow(counters)
        self.history: FrameHistory | None = None
        self.stats: EventStats = stats
        self._stamp: Stamp = stamp
        self._counters: MessageCounters = counters
        self._topic_part_max: int = topic_max_bytes + LONG_HEAD_BYTES
        self._parent: Port | None = None
        self._children: tuple[Port, ...] = ()
        self._held: HeldEvents = HeldEvents()
        self._subscribers: Prefixes[dict[Port, None]] = Prefixes()
        self._confidants: Confidants[Port] = Confidants()
        self._matches: Audiences[Port] = Audiences()
        self._recording: Recording | None = None
        self._add: Callable[[bytes], None] | None = None
        self._both: bool = False
        self._own_mark: bytes = b""
        self._out_brokers: int = -1
        self._out_count: int = -1
        self._out_mark: bytes = b""

    def record(self, recording: Recording | None, own: Port) -> None:
        """Record events from now on, or no more; ``own`` is the port that the broker's own ones come from."""
        self._recording = recording
        self._add = None
        self._both = False
        self._out_count = -1
        if recording is not None:
            self._add = recording.add
            self._both = recording.both
            self._own_mark = recording.mark(IN, own.peer, 0, own.cred.userid)

    # -- subscriptions -------------------------------------------------------------------------

    def attach(self, port: Port) -> None:
        """A neighbour of the tree takes part; clients do so by subscribing."""
        if port.kind == CHILD:
            self._children = (*self._children, port)
            self.flow.attach_child(port)
        elif port.kind == PARENT:
            self._parent = port
            self.flow.attach_parent(port)

    def detach(self, port: Port) -> None:
        """Forget ``port`` and its subscriptions."""
        self._children = tuple(child for child in self._children if child is not port)
        if self._parent is port:
            self._parent = None
        self.flow.detach(port)
        for prefix in list(port.subscriptions):
            port.subscriptions[prefix] = 1  # however often it subscribed
            self.unsubscribe(port, prefix)

    def subscribe(self, port: Port, prefix: bytes) -> int:
        """Count one more subscription of ``port``; returns 0, ENOSPC or ENAMETOOLONG."""
        if len(prefix) > PREFIX_MAX_BYTES:
            return errno.ENAMETOOLONG
        count = port.subscriptions.get(prefix, 0)
        if not count and len(port.subscriptions) >= PREFIXES_MAX:
            return errno.ENOSPC
        if not port.subscriptions:
            self._confidants.add(port, port.cred.userid, port.owner or port.kind == OWN)
        port.subscriptions[prefix] = count + 1
        if not count:
            port.user.subscriptions += 1
            ports = self._subscribers.get(prefix)
            if ports is None:
                self._subscribers.add(prefix, {port: None})
            else:
                ports[port] = None
            self._matches.forget(prefix)
        return 0

    def unsubscribe(self, port: Port, prefix: bytes) -> int:
        """Take one subscription back; returns 0 or ENOENT."""
        count = port.subscriptions.get(prefix, 0)
        if not count:
            return errno.ENOENT
        if count > 1:
            port.subscriptions[prefix] = count - 1
            return 0
        del port.subscriptions[prefix]
        port.user.subscriptions -= 1
        if not port.subscriptions:
            self._confidants.remove(port, port.cred.userid)
        ports = self._subscribers.get(prefix)
        assert ports is not None
        del ports[port]
        if not ports:
            self._subscribers.remove(prefix)
        self._matches.forget(prefix)
        return 0

    # -- the way of an event -------------------------------------------------------------------

    def receive(self, port: Port, message: Message) -> None:
        """An event of ``port``: number and distribute it, or send it on up."""
        self._counters.events += 1
        window = port.window
        if window is not None:
            window.received += cost(message)
            if window.received >= window.due:
                self.flow.send_window(port, window)
        if not message.topic_part:
            self._counters.drop("event without topic")
            return
        head = message.head
        received = head[5:13]
        stamped = port.stamps.get(received) or self._stamp(port, received)
        # what comes from the parent has a number: without it there would be a gap
        if len(message.topic_part) > self._topic_part_max and port.kind != PARENT:
            self._refuse(port, message, stamped, errno.EPROTO, "event with too long a topic")
            return
        # its size alone, 0: nobody could choose it by a prefix
        if len(message.topic_part) == 1 and port.kind != PARENT:
            self._refuse(port, message, stamped, errno.EPROTO, "event with an empty topic")
            return
        # a guest's event is held against the limit of the broker it came in at: behind that it is let through
        guest = not stamped[7] & Role.OWNER
        if (
            len(message.payload_part) > self.guest_max
            and guest
            and port.kind == CLIENT
            and part_size(message.payload_part) > self.guest_max
        ):
            self._refuse(port, message, stamped, errno.EMSGSIZE, "event of a guest above guest_event_bytes")
            return
        # what rank 0 numbered comes through, or there would be a gap; rooms that act on such topics check again
        if (
            guest
            and port.kind != PARENT
            and is_reserved(bytes(part_data(message.topic_part) or b""), stamped[7])
        ):
            self._refuse(port, message, stamped, errno.EPERM, "event of a guest with a topic of the owner's")
            return
        message.head = b"".join((head[:4], bytes((head[4] | ROUTE,)), stamped, head[13:]))
        message.front = DELIMITER
        mark = b""
        if self._add is not None:
            mark = port.marks.get(received) or self._mark(port, received)
        if port.kind == PARENT:
            self._follow(message, mark)
        elif self.rank == 0:
            self.publish(message, mark)
        elif self._parent is not None:
            self._counters.delivered_events += 1
            if mark:
                self._record(mark, message)
                self._record_out(message, self._parent.peer, 1, 1)
            self._parent.send(message)
            flow = self.flow
            flow.up += cost(message)
            if flow.up > flow.up_mark:
                flow.update()
        else:
            self._hold(message, mark)

    def _refuse(self, port: Port, message: Message, stamped: bytes, errnum: int, why: str) -> None:
        self._counters.drop(why)
        if port.kind == CLIENT:
            topic = bytes(part_data(message.topic_part) or b"")
            self.stats.refused(topic, errnum, why, int.from_bytes(stamped[:4], "big"))

    def _hold(self, message: Message, mark: bytes) -> None:
        """There is no parent: keep what would have gone there."""
        # recorded only where it is kept: what is lost here never was on its way
        if self._held.add(message):
            self._record(mark, message)
            return
        self._counters.drop("event beyond what waits for a parent")
        if self._held.refused == 1:
            log.warning("no parent: no more events are kept for it, the next ones of some users are lost")

    def send_held(self) -> None:
        """A parent was attached: what waited for one goes before anything else."""
        parent = self._parent
        assert parent is not None
        messages = self._held.take()
        if not messages:
            return
        log.info("%d events that waited for a parent go up", len(messages))
        self._counters.delivered_events += len(messages)
        for message in messages:
            self._record_out(message, parent.peer, 1, 1)
            parent.send(message)
            self.flow.up += cost(message)
        self.flow.update()

    def publish(self, message: Message, mark: bytes = b"") -> int:
        """Number a stamped event and distribute it; rank 0 only. Returns its sequence.

        ``mark`` goes in front of it when events are recorded; default: that of the broker's own.
        """
        stats = self.stats.known.get(message.topic_part)
        if stats is None:
            stats = self.stats.of(message)
        stats.calls += 1
        self.sequence = sequence = self.sequence % 0xFFFFFFFF + 1
        message.head = message.head[:13] + sequence.to_bytes(4, "big")
        if self._add is not None:
            self._record(mark or self._own_mark, message)
        if self.history is not None:
            self.history.add(message, sequence)
        self.distribute(message)
        return sequence

    def _follow(self, message: Message, mark: bytes) -> None:
        """An event from the parent: check its number, then distribute it."""
        if mark:
            self._record(mark, message)
        sequence = message.sequence
        last = self.sequence
        # 0 is "none seen yet", so numbers wrap from 2**32 - 1 to 1
        if sequence != last % 0xFFFFFFFF + 1 and (last or self.expects_first):
            # the parent sent it twice: subscribers get it once
            if sequence == last:
                self._counters.drop("duplicate event")
                return
            if self.on_gap is not None:
                self.on_gap(last, sequence)
        self.sequence = sequence
        self.distribute(message)

    def distribute(self, message: Message) -> None:
        """Down to every child broker, and to the subscribers attached here."""
        children = self._children
        for child in children:
            child.send(message)
        ports = self._matches.found.get(message.topic_part)
        if message.head[4] & PRIVATE:
            ports = self._allowed(message)
        elif ports is None:
            ports = self._match(message.topic_part)
        for port in ports:
            port.send(message)
        count = len(ports) + len(children)
        self._counters.delivered_events += count
        size = len(message.topic_part) + len(message.payload_part)
        self.load += (size if size > DELIVERY_BYTES else DELIVERY_BYTES) * count
        if self._both:
            self._record_out(message, 0, count, len(children))
        if children:
            flow = self.flow
            flow.down += EVENT_BYTES + size  # as ``cost`` says
            if flow.down > flow.down_mark:
                flow.update()

    # -- recording -----------------------------------------------------------------------------

    def _mark(self, port: Port, received: bytes) -> bytes:
        """The mark of an event of ``port`` that came with credentials ``received``, remembered at the port."""
        recording = self._recording
        assert recording is not None
        if len(port.marks) >= MARKS_MAX:
            port.marks = {}
        claimed = int.from_bytes(received[:4], "big")
        mark = port.marks[received] = recording.mark(IN, port.peer, 0, claimed)
        return mark

    def _record(self, mark: bytes, message: Message) -> None:
        add = self._add
        if add is not None:
            frame = message.framed()  # first: no mark stands alone
            add(mark)
            add(frame)

    def _record_out(self, message: Message, peer: int, count: int, brokers: int) -> None:
        """One record, however many got it: ``count`` stands where other records have the other end's number, and how
        many of them are ``brokers`` where they have the userid that was claimed.
        """
        recording = self._recording
        if recording is None or not self._both:
            return
        if peer:
            self._record(recording.mark(OUT, peer, count, brokers), message)
            return
        if count != self._out_count or brokers != self._out_brokers:
            self._out_count, self._out_brokers = count, brokers
            self._out_mark = recording.mark(OUT, 0, count, brokers)
        self._record(self._out_mark, message)

    def _match(self, topic_part: bytes) -> tuple[Port, ...]:
        topic = bytes(part_data(topic_part) or b"")
        found: dict[Port, None] = {}
        for ports in self._subscribers.matching(topic):
            found.update(ports)
        return self._matches.keep(topic, topic_part, tuple(found))

    def _allowed(self, message: Message) -> tuple[Port, ...]:
        """The receivers of a private event; never remembered."""
        asking = self._subscribers.matching(bytes(part_data(message.topic_part) or b""))
        userid = message.userid
        return tuple(
            port
            for port in self._confidants.of(userid)
            if may_see(port, userid) and any(port in ports for ports in asking)
        )

    def prefixes(self) -> dict[bytes, int]:
        """Prefix -> number of clients subscribed here."""
        return {prefix: len(ports) for prefix, ports in self._subscribers.items()}


def may_see(port: Port, userid: int) -> bool:
    """A private event reaches the owner and its sender's userid only (RFC 12, "Event Privacy"); nobody's the owner."""
    return (
        port.owner
        or port.kind == OWN
        or (port.kind == CLIENT and port.cred.userid == userid and userid != NOBODY)
    )
