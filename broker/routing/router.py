"""Routes requests and responses. A decision is cached for each kind of request; a response goes back along the route
stack (RFC 3, "Request Routing").

Theory of operation. A request that looks like an earlier one of its port (same topic, flags, credentials as received,
nodeid) gets the same ``Decision`` from the port's cache; only the first walks the rules in ``_decide``. Whatever
changes routing (a service, a neighbour, a full outbox) drops the caches. A delivered request that wants an answer
stands in its origin's ``pending`` under (rest of stack, matchtag); a response passes only if it comes from the
port the request went to, so nobody can answer for somebody else.

Route stacks. A hop is pushed when a request leaves us: the origin's, and towards a child our own uuid too, because
the child answers with the stack it received. A response loses its top hop here, except towards the parent, which
wants its own uuid back.

Rules of this file: nothing here recurses: what a built-in service answers comes back through the caller's work queue.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from broker.identity import USERID_UNKNOWN
from broker.routing.counters import NOTICE, CallStats, EventStats, MessageCounters
from broker.routing.events import Events
from broker.routing.open_calls import (
    NO_TAG,
    answered_unusual,
    arm,
    disarm,
    find,
    notice_key,
    track_unusual,
)
from broker.routing.port import CHILD, CLIENT, PARENT, UNCOUNTED, Decision, OpenCall, Port, Stamp
from broker.routing.recording import (
    Recording,
    forget_marks,
    mark_answer,
    mark_request,
    record_denied,
    record_out,
    record_request,
    record_response,
)
from broker.routing.request_routing import LINK_TOPICS, ServiceTable, resolve, too_deep
from broker.routing.topology import Topology
from broker.routing.users import UserLimits, Users
from broker.wire.message import (
    DELIMITER,
    NORESPONSE,
    ROUTE,
    STREAMING,
    TOPIC,
    Message,
    response,
)
from broker.wire.parts import encode_part, part_data

AdmitRequest = Callable[[Port, Port, int], bool]
"""``admit_request(origin, target, size)``: target is choked; whether a request of so many bytes may pass."""
NO_ERROR: Final = b"\0\0\0\0"
CACHE_MAX: Final = 512
"""Decisions kept per port; a client that uses more distinct requests than that decides anew."""
HEADS_MAX: Final = 64
"""Response headers remembered per port: they differ in flags, credentials and errnum."""


class Router:
    """The routing state of one broker.

    Args:
        rank: own rank. topology: the tree. uuid: own uuid (36 characters), new with each incarnation.
        own: the broker's own port: built-in services and the broker's own calls.
        stamp: see ``Stamp``. admit_request: see ``AdmitRequest``.
        pending_max: calls one client may have open; those that come over a tree link share no such cap.
        pending_total: open calls of all ports together (see ``users.hold_call_caps``).
        user_limits: what the links of one user may hold together.
        routes_max: hops a client may bring along. topic_max_bytes: longest topic of requests and of events without
            number; at least 255. guest_event_bytes: largest payload of a guest's event.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        uuid: str,
        own: Port,
        stamp: Stamp,
        admit_request: AdmitRequest,
        *,
        pending_max: int = 65536,
        pending_total: int = 1 << 20,
        routes_max: int = 16,
        topic_max_bytes: int = 1024,
        guest_event_bytes: int = 1 << 18,
        user_limits: UserLimits | None = None,
    ) -> None:
        self.rank: int = rank
        self.topology: Topology = topology
        self.uuid: str = uuid
        self.own: Port = own
        self.pending_max: int = pending_max
        self.pending_total: int = pending_total
        self.routes_max: int = routes_max
        self.topic_max_bytes: int = topic_max_bytes
        self.services: ServiceTable = ServiceTable()
        self.users: Users = Users(user_limits or UserLimits())
        self.counters: MessageCounters = MessageCounters()
        self.call_stats: CallStats = CallStats()
        own.pending_max = pending_total
        self.events: Events = Events(
            rank, stamp, self.counters, EventStats(self.call_stats), topic_max_bytes, guest_event_bytes
        )
        self.find_elsewhere: Callable[[str], str] | None = None
        """(topic) -> where its service is instead, for people; "" when nobody knows."""
        self.parent: Port | None = None
        self.children: dict[int, Port] = {}
        self.ports: set[Port] = {own}
        self._recording: Recording | None = None
        self._records: list[bytes] | None = None
        self._stamp: Stamp = stamp
        self._admit_request: AdmitRequest = admit_request
        self._hop: bytes = encode_part(uuid.encode())
        self._by_hop: dict[bytes, Port] = {own.hop: own}
        self._decided: set[Port] = set()
        """Ports that may have decisions in their caches."""

    # -- attaching -----------------------------------------------------------------------------

    def attach(self, port: Port) -> None:
        """Take ``port`` into the tables; a child or parent becomes a neighbour of the tree."""
        self.ports.add(port)
        self._by_hop[port.hop] = port
        port.pending_max = self.pending_max if port.kind == CLIENT else self.pending_total
        if port.kind == CHILD:
            self.children[port.rank] = port
        elif port.kind == PARENT:
            self.parent = port
        self.events.attach(port)
        # a new client provides nothing yet: what was decided before holds
        if port.kind == CLIENT:
            self.users.attach(port)
        else:
            self.invalidate()

    def detach(self, port: Port) -> None:
        """Take ``port`` out of the tables; what is owed is ``departure``'s work."""
        port.live = False
        self.ports.discard(port)
        self._decided.discard(port)
        # a peer may be back, with the same uuid, before its former link is known lost: the table names the new one then
        if self._by_hop.get(port.hop) is port:
            del self._by_hop[port.hop]
        if port.kind == CHILD and self.children.get(port.rank) is port:
            del self.children[port.rank]
        elif self.parent is port:
            self.parent = None
        self.events.detach(port)
        if port.kind == CLIENT:
            self.users.detach(port)
        # no decision leads to a client that never registered a service
        if port.kind != CLIENT or port.provided:
            self.invalidate()

    def reincarnate(self, uuid: str) -> None:
        """Take a new uuid, the neighbours being gone; responses that name the former one are dropped and counted."""
        self.uuid = uuid
        self._hop = encode_part(uuid.encode())
        self.invalidate()

    def port_of(self, request: Message) -> Port | None:
        """The port a delivered request came from, by its top route."""
        front = request.front
        return self._by_hop.get(front[: front[0] + 1]) if front else None

    def invalidate(self) -> None:
        """Routing changed: forget every decision."""
        for port in self._decided:
            port.forget_decisions()
        self._decided.clear()

    def set_busy(self, port: Port, busy: bool) -> None:
        """The outbox of ``port`` crossed a water mark."""
        port.busy = busy
        # while it is busy nothing about it is remembered (``_decide``), so nothing is to be forgotten when it is not
        if busy:
            self.invalidate()

    # -- requests ------------------------------------------------------------------------------

    def request(self, port: Port, message: Message) -> None:
        """Forward one request of ``port``, or answer it."""
        self.counters.requests += 1
        head = message.head
        # frames alike that follow each other share these objects (see ``wire.framing``): no table is asked
        if head is port.last_head and message.topic_part is port.last_topic:
            decision = port.last
        else:
            decision = port.cache.get(message.topic_part + head)
            if decision is not None:
                port.last_head, port.last_topic, port.last = head, message.topic_part, decision
        if decision is None:
            decision = self._decide(port, message)
            if decision is None:
                self.counters.refused_requests += 1
                return
        front, tag, calls = message.front, message.tag, decision.calls
        stack, method = decision.front, decision.method
        # a gateway's sessions send many at a time: their stack is the same object then, as head and topic are
        if front is decision.sender_front and decision.sender is not None and decision.sender.listed:
            calls, stack = decision.sender, decision.sender_stack
        elif front != DELIMITER:
            if not self._find_sender(port, message, decision):
                self.counters.refused_requests += 1
                return
            calls, stack = decision.sender, decision.sender_stack
        elif decision.notice_pending:
            self._arm_plain(port, decision, message)
        if calls is not None:
            pending = port.pending
            key = calls.front + tag
            if tag == NO_TAG or key in pending or len(pending) >= port.pending_max:
                refusal = track_unusual(port, calls, decision, key)
                if refusal:
                    self.answer(port, message, errno.EAGAIN, refusal)
                    self.counters.refused_requests += 1
                    return
            else:
                pending[key] = calls
                if method is UNCOUNTED:
                    calls.open[key] = OpenCall(decision, -1)
                else:
                    calls.open[key] = OpenCall(decision, self.call_stats.now_ns)
                    method.open += 1
        method.calls += 1
        message.head = decision.head
        message.front = stack
        if self._records is not None:
            record_request(self._records, decision, message)
        decision.target.send(message)

    def _decide(self, port: Port, message: Message) -> Decision | None:
        """Walk the routing rules for one request; None when it was answered or dropped."""
        name = part_data(message.topic_part)
        if name is None:
            self.counters.drop("request without topic")
            return None
        if len(name) > self.topic_max_bytes:  # pending calls, decisions and notices keep it
            self.answer(port, message, errno.EPROTO, f"topic above {self.topic_max_bytes} bytes")
            return None
        topic = bytes(name)
        seen = message.head
        flags = seen[4]
        target = resolve(self, port, message, topic)
        if target is None:
            return None
        if target.kind == CLIENT and b"." not in topic and not (port.strict or target.strict):
            self.answer(port, message, errno.ENOSYS)  # deployed connectors pass no bare name on
            return None
        notice = topic.endswith(NOTICE)
        owed = notice and disarm(port, message, topic)
        # a port that calls itself cannot wait for itself; a notice that is owed has to arrive, or its service keeps
        # what the sender had
        if (
            target.busy
            and target is not port
            and not owed
            and not self._admit_request(port, target, message.size)
        ):
            self.answer(port, message, errno.EAGAIN, f"{target.name} does not keep up with its requests")
            return None
        received = seen[5:13]
        stamped = port.stamps.get(received) or self._stamp(port, received)
        head = b"".join((seen[:4], bytes((flags | ROUTE | TOPIC,)), stamped, seen[13:]))
        # down the tree our own hop goes on top, as flux-core's does: the response brings it back (``response``)
        push = self._hop + port.hop if target.kind == CHILD else port.hop
        decision = Decision(port, target, message.topic_part, head, push)
        link_topic = target is self.own and topic in LINK_TOPICS
        if not flags & NORESPONSE or (link_topic and port.kind == CLIENT and not port.strict):
            decision.calls = find(port, decision, DELIMITER)
        if port.kind == CLIENT and not notice:
            decision.method = self.call_stats.of(topic)
        # deployed connectors answer link topics once, whatever the flags
        decision.single_response = link_topic or not flags & STREAMING
        if self._recording is not None:
            mark_request(self._recording, self.own, decision, int.from_bytes(received[:4], "big"))
        if not notice:  # which is rare, and each disarms something: it is decided anew
            if port.kind == CLIENT and decision.calls is not None:
                decision.notice_key = notice_key(topic, seen)
                decision.notice_pending = True
                if message.front == DELIMITER:
                    self._arm_plain(port, decision, message)
            if not target.busy:  # else each has to be admitted; ``set_busy`` forgets what was decided before
                if len(port.cache) >= CACHE_MAX:
                    port.cache = {}
                self._decided.add(port)
                port.cache[message.topic_part + seen] = decision
        return decision

    def unregistered(self, port: Port, message: Message, topic: bytes) -> None:
        """Answer ENOSYS with the deployed text, and behind it where the service is, if that is known."""
        name = topic.decode("utf-8", "replace")
        where = self.find_elsewhere(name) if self.find_elsewhere is not None else ""
        text = f"No service matching {name} is registered"
        self.answer(port, message, errno.ENOSYS, f"{text} here: {where}" if where else text)

    def _find_sender(self, port: Port, message: Message, decision: Decision) -> bool:
        """Make ``decision.sender`` the sender behind ``port`` that asks; False when its request was dropped or
        answered.
        """
        front = message.front
        if port.kind != CHILD or not front:  # a child's stack is taken as it is
            front = self._stack_below(port, message, decision)
        if not front:
            return False
        calls = decision.calls
        if calls is not None:
            calls = port.calls.get(front + decision.calls_key) or find(port, decision, front)
        decision.sender, decision.sender_stack = calls, decision.route_prefix + front
        # where more notices are owed than may be, each request tries again to arm its own
        is_armed = port.kind == CLIENT and decision.notice_key + front in port.notices
        decision.sender_front = message.front if is_armed else None
        return True

    def _stack_below(self, port: Port, message: Message, decision: Decision) -> bytes:
        """The route stack below the origin's own hop; b"" when the request was dropped or answered."""
        front = message.front or DELIMITER
        one_hop = len(front) == front[0] + 2  # a gateway's: no need to count
        if not one_hop and port.kind == CLIENT and too_deep(front, self.routes_max):
            self.answer(port, message, errno.EPROTO, f"more than {self.routes_max} routes, or too long ones")
            return b""
        if port.kind == PARENT:  # which put its own hop on top, as we do for children
            hop = port.hop
            if front[: len(hop)] != hop:
                self.counters.drop("request from the parent without its hop")
                return b""
            return front[len(hop) :]
        if decision.notice_key:
            if front == DELIMITER:
                self._arm_plain(port, decision, message)
            else:
                arm(port, decision, front, message, self.pending_max)
        return front

    def _arm_plain(self, port: Port, decision: Decision, message: Message) -> None:
        """The link itself asks, for the first time since the decision was made."""
        decision.notice_pending = False
        arm(port, decision, DELIMITER, message, self.pending_max)

    # -- responses -----------------------------------------------------------------------------

    def response(self, port: Port, message: Message) -> None:
        """Pass one response of ``port`` on to the origin of its request, or drop and count it."""
        self.counters.responses += 1
        front = message.front
        if port.kind == CHILD:
            if not front.startswith(self._hop):
                self._stray("response from a child without our hop")
                return
            front = front[len(self._hop) :]
        origin = self._by_hop.get(front[:37])  # a hop: its size in a byte, and a uuid of 36 characters
        if origin is None:
            self._stray("response to an unknown route")
            return
        head = message.head
        known = port.heads.get(head)
        if known is None:
            known = self._learn(port, head)
        stamped, failed = known
        rest = front[37:]
        key = rest + message.tag
        calls = origin.pending.get(key)
        call: OpenCall | None = None
        if calls is None or calls.target is not port:
            decision = answered_unusual(origin, port, key, rest, failed)
            if decision is None:
                self._stray("response to no open call")
                return
            if not 0 < len(message.topic_part) <= self.topic_max_bytes:  # a call beside it may have another
                message.topic_part = decision.topic_part
        else:
            call = calls.open[key]
            decision = call.decision
            message.topic_part = decision.topic_part  # "copied from the request", whatever the provider wrote
            # RFC 6, "Matchtags": an error ends a stream; without STREAMING the first response is the last
            if failed or decision.single_response:
                del origin.pending[key]
                del calls.open[key]
        message.head = stamped
        method = decision.method
        if method is not UNCOUNTED:
            self.call_stats.answered(decision, call, message, failed)
        records = self._records
        if origin.kind != PARENT:  # which looks for its own hop on top, as we do above
            front = rest
        # a record has the stack as it came, our hop on it, so that it joins that of its request
        if records is None:
            message.front = front
        else:
            if decision.answer_head != head:
                mark_answer(self._recording, self.own, decision, port, head)
            record_response(records, decision, message, front, origin is self.own)
        origin.send(message)

    def _stray(self, reason: str) -> None:
        """A response is for nobody."""
        self.counters.stray_responses += 1
        self.counters.drop(reason)

    def _learn(self, port: Port, head: bytes) -> tuple[bytes, bool]:
        """(stamped header, is it an error) for a response header of ``port``, remembered."""
        received = head[5:13]
        stamped = port.stamps.get(received) or self._stamp(port, received)
        if len(port.heads) >= HEADS_MAX:
            port.heads = {}
        forwarded = b"".join((head[:4], bytes((head[4] | TOPIC,)), stamped, head[13:]))
        known = port.heads[head] = (forwarded, head[13:] != NO_ERROR)
        return known

    def answer(self, port: Port, message: Message, errnum: int, text: str = "") -> None:
        """Answer a request of ``port`` that was not forwarded; counted only when NORESPONSE is set.

        A notice to a service that is not there is not even counted: nobody is left to be told of its sender's end.
        """
        received = message.head[5:13]
        stamped = port.stamps.get(received) or self._stamp(port, received)
        if self._recording is not None and port is not self.own and port.live:
            denied = message.copy()
            denied.head = b"".join((message.head[:5], stamped, message.head[13:]))
            record_denied(self._recording, port, None, denied, int.from_bytes(received[:4], "big"), errnum)
        if port.kind == CLIENT:
            self.call_stats.refused(message, errnum, text, int.from_bytes(stamped[:4], "big"))
        if message.flags & NORESPONSE:
            if errnum != errno.ENOSYS or not message.topic_part.endswith(NOTICE):
                self.counters.drop(f"request without response: errno {errnum}")
            return
        self.counters.answered += 1
        cred = self.own.cred
        payload = text.encode() + b"\0" if text else None
        answer = response(message, payload, errnum=errnum, userid=cred.userid, rolemask=cred.rolemask)
        self.deliver(port, answer, self.own)

    def deliver(self, port: Port, message: Message, source: Port) -> None:
        """Send what this broker itself made on behalf of ``source``."""
        if self._recording is not None:
            record_out(self._recording, port, source, message)
        port.send(message)

    # -- recording -----------------------------------------------------------------------------

    @property
    def recording(self) -> Recording | None:
        """The recorder of what passes (see ``recording``); None: nothing is recorded. A port without a number yet is
        recorded as 0.
        """
        return self._recording

    @recording.setter
    def recording(self, recording: Recording | None) -> None:
        self._recording = recording
        self._records = None if recording is None else recording.items
        self.events.record(recording, self.own)
        forget_marks(self.ports)

    def record_refusal(self, request: Message, errnum: int) -> None:
        """A built-in service refused a request that was delivered to it."""
        port = self.port_of(request)
        if self._recording is None or port is None or port is self.own:
            return
        key = request.front[len(port.hop) :] + request.tag
        calls = port.pending.get(key)  # None: it wanted no response, and nobody keeps what it claimed
        claimed = USERID_UNKNOWN if calls is None else calls.decisions(key)[0].claimed
        record_denied(self._recording, port, self.own, request, claimed, errnum)
