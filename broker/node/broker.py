"""The corridor: what one read produced goes through ingress and routing, then every outbox it touched is flushed.

Nothing in here awaits, so messages from one link to another stay in order by construction. What handling a message
produces (answers of built-in services, a lost link's affairs, synthesised errors) goes to ``work`` and is handled
after that message and before the next: no recursion. An exception costs its message's link only.

A request from one socket to another, function by function::

    ByteStream._readable      one read, up to 128 KiB
    FluxCodec.feed            bytes -> messages; decode() walks every part, once
    Broker.received           a batch; what exceeds it waits in the Backlog
    Broker.run                one message after the other, by its type:
    Router.request              a request like an earlier one has its Decision in the port's cache; else
    Router._decide                rules (request_routing.resolve) and stamp (ingress decides; the port remembers)
                                then pending[rest of stack + matchtag] = its OpenCalls, and the hop is pushed
    Port.send = StreamLink.send   framed() into the outbox; the link is noted at the Flusher
    Flusher.flush             at the end of the batch (of a long one: on the way, too), each noted link once
    StreamLink.flush          one write; what the kernel does not take is queued in the Outbox

With a journal, ``Router.request`` leaves a mark and the frame in a list just before ``Port.send``, and the end of the
batch hands that list on (``_on_batch_end``; see ``routing.recording``).

Its response comes back the same way through ``Router.response``: the top hop names the origin, ``pending`` proves
that it was asked for, the hop is popped. A request for a built-in service ends in ``_own`` and takes ``work`` to
``Dispatcher.deliver``; events take ``Events.receive``. Where the port is ZeroMQ's, ``zeromq.codec`` stands for
``FluxCodec``.
"""

# compiled: mypyc

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from broker.errors import LinkBroken, LinkError
from broker.identity import Credentials, Role
from broker.ingress.stamping import StampPolicy
from broker.node.backlog import Backlog
from broker.node.calls import OwnCalls
from broker.node.pressure import Pressure
from broker.routing.departure import depart
from broker.routing.events import DELIVERY_BYTES
from broker.routing.port import OWN, PARENT, Port
from broker.routing.recording import Recording
from broker.routing.router import Router
from broker.routing.topology import Topology
from broker.transport.link import Flusher, Link, Receiver
from broker.wire.message import EVENT, REQUEST, RESPONSE, Message

log = logging.getLogger("headgate")

FLUSH_MSGS = 64
"""A long batch is flushed after so many messages: the next process, on another core, begins with it
while the rest is handled here. Fewer would cost more in system calls than it gains."""
OWN_LOAD = 64 * DELIVERY_BYTES
"""Weight of a request for a built-in service in a batch: the time of so many deliveries, 50 us with its answer."""
OWN_BYTE_LOAD = 2
"""And each byte of its payload, which is read and mostly answered with as much."""
STAMPS_MAX = 64
"""Credentials remembered per port as (received -> stamped); an owner link that speaks for many users fills it."""


class Broker:
    """One rank: its router, its links, its own port.

    Args:
        rank, topology: place in the tree. uuid, own_uuid: of this incarnation and of its own port.
        owner: uid of the instance owner.
        batch_msgs, batch_deliveries: where a batch ends (see ``backlog``).
        limits: keyword arguments for ``Router`` (``pending_max``, ``routes_max`` and so on).

    Attributes:
        deliver: gets requests for built-in services. observe: gets events the broker itself subscribed to.
        on_control: gets control messages of tree links.
        receiver: gets what links report: this broker, or a tracer that passes it on. answer, publish: put what the
            broker's own end says into routing; a tracer may stand in front of these, too (see ``tracing``).
        on_attached, on_departed: told of every port that came, before it is read, and that went, and why.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        uuid: str,
        own_uuid: str,
        owner: int,
        *,
        batch_msgs: int = 128,
        batch_deliveries: int = 4096,
        limits: dict[str, Any] | None = None,
    ) -> None:
        cred = Credentials(owner, Role.OWNER | Role.LOCAL)
        policy = StampPolicy(Credentials(owner, Role.OWNER), pass_through=True, local=True)
        self.own = Port(OWN, own_uuid, self._own, cred, name="broker", policy=policy)
        self.pressure = Pressure(self)
        self.router = Router(
            rank, topology, uuid, self.own, stamp, self.pressure.admit_request, **(limits or {})
        )
        self.router.events.flow.on_open = self.pressure.release_held
        self.calls = OwnCalls(self.router, self.post)
        self.flusher = Flusher()
        self.backlog = Backlog(self, batch_msgs, batch_deliveries)
        self.work: deque[tuple[Callable[[Any], object], Any]] = deque()
        self.receiver: Receiver = self
        self.answer: Callable[[Message], None] = self._respond
        self.publish: Callable[[Message], int] = self.router.events.publish
        self.deliver: Callable[[Message], None] = self._without_services
        self.observe: Callable[[Message], None] | None = None
        self.on_control: Callable[[Port, Message], None] | None = None
        self.on_departed: list[Callable[[Port, LinkError], None]] = []
        self.on_attached: list[Callable[[Port], None]] = []
        self._on_batch_end: Callable[[], None] | None = None
        self._tick: asyncio.Handle | None = None
        self._active: Port | None = None

    # -- Receiver: what links tell us ----------------------------------------------------------

    def received(self, link: Link, messages: list[Message]) -> None:
        """One read's messages, in order; what exceeds a batch waits in the backlog with the link's reading off."""
        port: Port = link.data
        count = len(messages)
        port.received += count
        done = 0
        if self.backlog.takes(port, count):
            done = self.run(port, messages, 0, min(count, self.backlog.batch_msgs))
        if done < len(messages):
            self.backlog.add(link, port, messages, done)

    def link_ended(self, link: Link, error: LinkError) -> None:
        """A link is gone: its affairs are settled after the message under way."""
        if link.data is not None:
            self.depart(link.data, error)

    def link_choked(self, link: Link, choked: bool) -> None:
        """A link's outbox crossed a water mark."""
        if link.data is not None:
            self.pressure.mark(link.data, choked)

    # -- the corridor --------------------------------------------------------------------------

    def run(self, port: Port, messages: list[Message], start: int, stop: int) -> int:
        """Handle ``messages[start:stop]`` of one port as one batch; returns where it stopped.

        That is before ``stop`` after too many deliveries, or where the events of ``port`` have to wait, and the end of
        ``messages`` when handling one failed.
        """
        router, work, flusher, events = self.router, self.work, self.flusher, self.router.events
        request, response, event, flow = router.request, router.response, events.receive, events.flow
        load = events.load + self.backlog.batch_deliveries * DELIVERY_BYTES
        blocked = flow.blocked
        if blocked or self.pressure.deferred:
            stop = self.pressure.admit(port, messages, start, stop, blocked)
        flusher.batch = True
        self._active = port
        router.call_stats.now_ns = monotonic_ns()
        index = start
        pause = start + FLUSH_MSGS
        try:
            while index < stop:
                if index == pause:
                    flusher.flush()
                    router.call_stats.now_ns = monotonic_ns()
                    pause += FLUSH_MSGS
                    # a request of this batch found its provider full: its caller waits (``Pressure.admit_request``)
                    if self.pressure.is_paused(port):
                        break
                    # publishers have to wait since this batch began: the rest of it is held against shares, too
                    if flow.blocked and not blocked:
                        blocked = True
                        stop = self.pressure.admit(port, messages, index, stop, blocked)
                        continue
                message = messages[index]
                index += 1
                kind = message.head[3]
                if kind == REQUEST:
                    request(port, message)
                elif kind == RESPONSE:
                    response(port, message)
                elif kind == EVENT:
                    event(port, message)
                    if events.load > load:
                        break
                else:
                    self._control(port, message)
                if work:
                    self._run_queued()
                    if events.load > load:
                        break
        except Exception as error:
            self._broke(port, messages[index - 1], error)
            # its link is aborted: what it sent behind the message that failed is not handled
            index = len(messages)
        finally:
            self._run_queued()
            if port.window is not None or flow.handled_due:
                self._handled(port, index - start)
            self._active = None
            flusher.batch = False
            flusher.flush()
            if self._on_batch_end is not None:
                self._on_batch_end()
        return index

    def _handled(self, port: Port, count: int) -> None:
        """A batch is over: neighbours are told what is handled of theirs, most of them beside what they are sent."""
        flow = self.router.events.flow
        if port.window is not None:
            flow.count_handled(port, port.window, count)
        if flow.handled_due:
            for link in self.flusher.touched:
                if link.data in flow.handled_due:
                    flow.send_handled(link.data)

    def _control(self, port: Port, message: Message) -> None:
        """Control messages concern the direct peer only: the tree, or a CMB1 peer's sign of life, which has been
        counted and says no more. Other clients have no business with them.
        """
        self.router.counters.controls += 1
        if self.on_control is not None and not port.cmb1:
            self.on_control(port, message)

    def _run_queued(self) -> None:
        """Handle what handling produced, first in, first out."""
        work = self.work
        while work:
            handle, item = work.popleft()
            try:
                handle(item)
            except Exception:
                log.exception("internal work failed: %r", item)

    def _broke(self, port: Port, message: Message, error: Exception) -> None:
        log.error("%s: handling %r failed", port, message, exc_info=error)
        if port.link is not None:
            port.link.abort(LinkBroken(f"internal error: {type(error).__name__}"))

    def post(self, handle: Callable[[Any], object], item: Any) -> None:
        """Queue work; outside a batch it runs at the next tick of the loop, with one flush for all of it."""
        self.work.append((handle, item))
        # within a batch its end runs the queue; a second tick would flush twice
        if not self.flusher.batch and self._tick is None:
            self._tick = asyncio.get_running_loop().call_soon(self._run_in_tick)

    def _run_in_tick(self) -> None:
        self._tick = None
        self.flusher.batch = True
        self.router.call_stats.now_ns = monotonic_ns()
        try:
            self._run_queued()
        finally:
            self.flusher.batch = False
            self.flusher.flush()
            if self._on_batch_end is not None:
                self._on_batch_end()

    # -- the broker's own port -----------------------------------------------------------------

    def _own(self, message: Message) -> None:
        """Something was routed to this broker itself: for a service, in answer to its own call, or by subscription."""
        kind = message.head[3]
        if kind == REQUEST:
            self.router.events.load += OWN_LOAD + OWN_BYTE_LOAD * len(message.payload_part)
            self.post(self.deliver, message)
        elif kind == RESPONSE:
            self.post(self.calls.answered, message)
        elif self.observe is not None:
            self.post(self.observe, message)

    def _without_services(self, message: Message) -> None:
        """A request for this broker before its services are there."""
        self.router.unregistered(self.own, message, (message.topic or "").encode())

    def respond(self, message: Message) -> None:
        """Route a response of a built-in service."""
        self.post(self.answer, message)

    def _respond(self, message: Message) -> None:
        self.router.response(self.own, message)

    def record(self, recording: Recording | None, on_batch_end: Callable[[], None] | None) -> None:
        """Record what passes from now on, or no more; ``on_batch_end`` is called at the end of each batch."""
        self.router.recording = recording
        self._on_batch_end = on_batch_end

    # -- links come and go ---------------------------------------------------------------------

    def attach(self, port: Port) -> None:
        """Take a port into routing and start its link."""
        self.router.attach(port)
        for callback in self.on_attached:
            callback(port)
        if port.link is not None:
            port.link.data = port
            # hello and its answer passed before the windows: the two ends count them differently
            if port.windowed:
                port.link.outbox.handled(port.link.outbox.sent)
            # a link of the tree was started by its greeting, which hands over from here on
            if port.link.receiver is None:
                port.link.start(self.receiver)
        if port.kind == PARENT:
            self.router.events.send_held()

    def in_turn(self, port: Port) -> bool:
        """True while a batch of ``port`` is handled."""
        return port is self._active

    def depart(self, port: Port, error: LinkError) -> None:
        """The link of ``port`` is gone: its affairs are settled after the message under way."""
        self.post(self._departed, (port, error))

    def _departed(self, what: tuple[Port, LinkError]) -> None:
        """Settle the affairs of a port whose link is gone, once all that it sent before is handled."""
        port, error = what
        # a link may end twice (aborted here, then its socket); what it said before its end waits in the backlog
        if not port.live or self.backlog.last(port, error):
            return
        # its own message ended it: the rest of the batch was sent before that, and is handled before it departs
        if port is self._active:
            asyncio.get_running_loop().call_soon(self.post, self._departed, what)
            return
        reason = "overlay disconnect" if port.kind == PARENT else ""
        self.pressure.forget(port)
        answered = depart(self.router, port, reason)
        if port.link is not None and port.link.outbox.discarded:
            self.router.counters.drop("queued for a link that ended", port.link.outbox.discarded)
        if answered:
            log.info("%s is gone (%s): %d open calls answered", port.name, error, answered)
        elif isinstance(error, LinkBroken):
            log.warning("%s: disconnected: %s", port.name, str(error).removeprefix(f"{port.name}: "))
        for callback in self.on_departed:
            callback(port, error)
        if port.link is not None:
            port.link.data = None  # no circle of the two waits for the collector, with all that they have


def stamp(port: Port, received: bytes) -> bytes:
    """Stamped credentials for what ``port`` sent, remembered at the port (see ``ingress.stamping``)."""
    stamped: bytes = port.policy.stamp(received)
    if len(port.stamps) >= STAMPS_MAX:
        port.stamps = {}
    port.stamps[received] = stamped
    return stamped
