"""Calls and casts, in the thread of the sockets: choose a server, send, choose again where nobody has it yet.

A message is given to another server only when it is certain that none has it: libzmq did not take it, or the proxy of
the node said REFUSED. What libzmq took and its connection may have lost is sent again to the same server only, which
knows by the id whether it has it: it takes it, or answers once more, or goes on with what it has begun. A call whose
server cannot be asked any more ends at once, since nobody knows whether it ran.

What cannot be sent now waits, and is tried again when the directory changes, when a node is back, and from time to
time (``RetryQueue``).
"""

# compiled: mypyc

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.awake import StallMeter
from broker.oslo.client.links import NodeLink, Sender
from broker.oslo.client.resend import Parcel
from broker.oslo.client.routing import Chooser, RoutingTable, Servers
from broker.oslo.contract import Address, CallTimeout, Closed, OsloFailure, Refused, Undelivered, Unroutable
from broker.oslo.directory.state import Server
from broker.oslo.frames import NO_ID, Envelope, Flag, Kind, Malformed, decode, encode
from broker.oslo.names import REASONS, Pipeline, Reason
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.socket import Frames

if TYPE_CHECKING:
    from broker.oslo.client.client import Client

PENDING_MAX: Final = 65_536
"""Calls that may be pending; more are refused (callers that wait are far fewer: they have a thread each)."""
CONFIRM_S: Final = 30.0
"""How long a cast that was sent waits to be told that a server has it."""
REPEAT_S: Final = 0.1
"""Before a call that was repeated is repeated once more, where its server has no room."""
LEAST_S: Final = 0.05
"""A call that had less time was not kept by the network: a first connection alone may take as long."""
_AGAIN: Final = (Reason.NO_ROUTE, Reason.BUSY, Reason.LEAVING)
Answer = bytes | OsloFailure
SPARE: Final = 64
"""Entries of answered calls that the heap may always keep."""

_CONFIRM: Final = int(Flag.CONFIRM)
_MANDATORY: Final = int(Flag.MANDATORY)
_REPEATED: Final = int(Flag.REPEATED)
_U32_MAX: Final = 0xFFFFFFFF

PAUSE_S: Final = 0.1
"""Between two rounds through servers that refused, or whose nodes are down."""
ROUND_MAX: Final = 256
"""Calls of one topic that are tried after a pause: a server that is full refuses each of them."""


class PendingCall(Parcel):
    """A call, or a cast that wants to know that a server has it.

    Args:
        address: where to.
        body: opaque.
        id: 16 bytes.
        kind: CALL or CAST.
        due_s: end of the whole call, on the clock of whoever keeps it; None: never.
        timeout_s: the same, as asked for: for texts.
        monitor_s: seconds without a heartbeat after which it ends, too; None: not monitored.
        mandatory: fails at once when nobody listens.
        tries: for casts: how often a full queue may be found before it fails; None: without end.
        owner: whose it is.

    Attributes:
        done: called with the answer, once.
        end_s: when it ends without news: the nearer one of both deadlines.
        listener: who was chosen.
        sent: libzmq has it; only a refusal allows another choice.
        tried: listeners that refused it.
        answer: None while it is pending.

    It is ``over`` once it is answered.
    """

    __slots__ = (
        "address", "answer", "body", "done", "due_s", "end_s", "id", "kind", "listener", "mandatory", "monitor_s",
        "owner", "refusal", "sent", "timeout_s", "tried", "tries",
    )  # fmt: skip

    def __init__(
        self,
        address: Address,
        body: bytes,
        id: bytes,  # noqa: A002
        done: Callable[[Answer], None],
        *,
        kind: Kind = Kind.CALL,
        due_s: float | None = None,
        timeout_s: float | None = None,
        monitor_s: float | None = None,
        mandatory: bool = False,
        tries: int | None = None,
        owner: object = None,
    ) -> None:
        super().__init__(len(body))
        self.address = address
        self.body = body
        self.id = id
        self.kind = kind
        self.due_s = due_s
        self.timeout_s = timeout_s
        self.monitor_s = monitor_s
        self.mandatory = mandatory
        self.tries = tries
        self.owner = owner
        self.done = done
        self.end_s = due_s
        self.listener = ""
        self.sent = False
        self.tried: set[str] | None = None
        self.refusal = 0
        self.answer: Answer | None = None

    def finish(self, answer: Answer) -> None:
        """Answer it; only the first answer counts."""
        if not self.over:
            self.over = True
            self.answer = answer
            self.done(answer)

    def beaten(self, now: float) -> None:
        """A heartbeat came (or it was sent): a monitored call goes on waiting."""
        if self.monitor_s is not None:
            quiet_s = now + self.monitor_s
            self.end_s = quiet_s if self.due_s is None or quiet_s < self.due_s else self.due_s

    def forgive(self, absent: float, now: float) -> None:
        """So many seconds were nobody's silence: its end is later, ``monitor_s`` from ``now`` at most."""
        quiet_s = self.end_s
        if self.monitor_s is not None and quiet_s is not None:
            self.beaten(min(quiet_s + absent - self.monitor_s, now))

    def mark_repeated(self) -> None:
        """See ``Parcel``; its server cannot be heard for the moment: heartbeats are not waited for until ``beaten``."""
        self.sent, self.repeated = False, True
        self.end_s = self.due_s

    def head(self, now: float) -> bytes | None:
        """Its envelope, when it is sent now; None: it is over, or ends in a moment."""
        if self.over:
            return None
        ttl_ms = 0
        if self.due_s is not None:
            ttl_ms = int((self.due_s - now) * 1000)
            if ttl_ms <= 0:
                return None
        address = self.address
        flags = 0 if self.kind is Kind.CALL else _CONFIRM
        if self.repeated:
            flags |= _REPEATED
        return encode(
            self.kind,
            address.exchange,
            address.topic,
            address.server,
            (self.listener,),
            flags=flags | _MANDATORY if self.mandatory else flags,
            ttl_ms=min(ttl_ms, _U32_MAX),
            word=0 if self.monitor_s is None else min(max(int(self.monitor_s * 1000), 1), _U32_MAX),
            id=self.id,
        )

    def cut(self) -> Closed:
        """What it is told when its session is closed while it waits."""
        if not self.sent:
            return Closed(f"{self.address}: the session was closed before it was sent")
        what = "it may be executed all the same" if self.kind is Kind.CALL else "a server may have it"
        return Closed(f"{self.address}: the session was closed while it waited for its answer; {what}")

    @property
    def patient(self) -> bool:
        """It waits for somebody who listens, until its time is over."""
        return self.kind is Kind.CALL and not self.mandatory

    @property
    def monitored_out(self) -> bool:
        """True when a missing heartbeat ends it, and not its whole time."""
        return self.monitor_s is not None and self.end_s != self.due_s


class PendingCalls(dict[bytes, PendingCall]):
    """The pending ones, by id, and when they stop waiting.

    Each is one entry of a dict and one of a heap of deadlines. Nearly all are answered long before their deadline: what
    is left of them in the heap is thrown out when it is more than half of it. A heartbeat moves a deadline without
    touching the heap: an entry that comes up too early goes back in.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[float, bytes]] = []

    def add(self, call: PendingCall) -> None:
        """Keep it until it is taken out or has ended; or its deadline is nearer than it was."""
        self[call.id] = call
        if call.end_s is not None:
            if len(self._ends) > 2 * len(self) + SPARE:
                self._ends = [(end_s, number) for end_s, number in self._ends if number in self]
                heapq.heapify(self._ends)
            heapq.heappush(self._ends, (call.end_s, call.id))

    def forgive(self, absent: float, now: float) -> None:
        """This process was stopped: heartbeats are waited for so much longer, the time of a call is what it was."""
        if not absent:
            return
        for call in self.values():
            if call.monitored_out:
                call.forgive(absent, now)

    def next_end_s(self) -> float | None:
        """When to ask ``pop_due`` next; None: nothing ends."""
        return self._ends[0][0] if self._ends else None

    def pop_due(self, now: float) -> list[PendingCall]:
        """Take out those whose time is over."""
        over: list[PendingCall] = []
        ends = self._ends
        while ends and ends[0][0] <= now:
            number = heapq.heappop(ends)[1]
            call = self.get(number)
            if call is None or call.end_s is None:
                continue
            if call.end_s > now:
                heapq.heappush(ends, (call.end_s, number))
                continue
            del self[number]
            over.append(call)
        return over


class RetryQueue:
    """The calls of one client that have no place now: nobody listens yet, nothing is known yet, or all servers have
    refused or are down.

    They are tried again when there is news, and every ``PAUSE_S``, in the order in which they came; one of them
    whenever a call to their topic is answered, since its server has room for another one then. Trying costs time: a
    round tries none of a topic behind the first one for whom there is no place, and after a pause no more than
    ``ROUND_MAX``, which would only be refused again.

    Args:
        place: finds a place for a call, or ends it, or adds it again (its ``link`` is None then).

    Attributes:
        waiting: those calls, by exchange and topic, in order.
    """

    def __init__(self, reactor: Reactor, routes: RoutingTable, place: Callable[[PendingCall], None]) -> None:
        self._reactor = reactor
        self._routes = routes
        self._place = place
        self.waiting: dict[tuple[str, str], deque[PendingCall]] = {}
        self._pause: Timer | None = None

    def add(self, call: PendingCall) -> None:
        """Keep ``call`` until there is a place for it: at the end of those of its topic."""
        call.link = None
        self.waiting.setdefault((call.address.exchange, call.address.topic), deque()).append(call)
        self._arm()

    def _arm(self) -> None:
        """By itself: compiled, a function that has set ``_pause`` to None takes it for None to its end."""
        if self.waiting and self._pause is None:
            self._pause = self._reactor.call_later(PAUSE_S, self._retry_after_pause)

    def retry(self, paused: bool = False) -> None:
        """Look for places: something has changed, or after a pause; those who have refused may be asked again then."""
        for key in list(self.waiting):
            nobody = not self._routes.replica.servers(*key)
            nowhere = False
            left = deque[PendingCall]()
            calls = [call for call in self.waiting.pop(key) if not call.over]
            for at, call in enumerate(calls):
                if call.patient if nobody else nowhere or (paused and at >= ROUND_MAX):
                    left.append(call)
                    continue
                if paused:
                    call.tried = None
                self._place(call)
                nowhere = not (call.link or call.over or call.tried or call.address.server)
            left.extend(self.waiting.pop(key, ()))  # younger than those that were not tried
            if left:
                self.waiting[key] = left

    def _retry_after_pause(self) -> None:
        self._pause = None
        self.retry(True)
        self._arm()

    def retry_after_answer(self, address: Address) -> None:
        """A server at that topic has answered: the call that waits longest may have the place, unless its tries are
        counted: those are one in each pause.
        """
        key = (address.exchange, address.topic)
        calls = self.waiting.get(key)
        while calls and (calls[0].over or calls[0].tries is None):
            call = calls.popleft()
            if not calls:
                del self.waiting[key]
            if not call.over:
                call.tried = None
                self._place(call)
                return

    def close(self) -> None:
        """Forget all of them."""
        if self._pause is not None:
            self._pause.cancel()
        self.waiting.clear()


class Cast(Parcel):
    """A request for one server that wants no answer.

    Attributes:
        listener: who was chosen.
        id: of the message, from the first time that it is sent.
    """

    __slots__ = ("address", "body", "id", "listener")

    def __init__(self, address: Address, body: bytes) -> None:
        super().__init__(len(body))
        self.address = address
        self.body = body
        self.listener = ""
        self.id = NO_ID


class CallSender(Sender[PendingCall]):
    """The calls of one client, and its casts that want to know that a server has them.

    Attributes:
        calls: pending ones.
    """

    def __init__(self, client: Client, chooser: Chooser[Server]) -> None:
        super().__init__(client, Pipeline.CALL)
        self.calls = PendingCalls()
        self.retries = RetryQueue(client.reactor, client.routes, self.place)
        self._chooser = chooser
        self._alarm: Timer | None = None
        self._alarm_s = 0.0
        self._alarm_stall = StallMeter(client.reactor.now)

    # ------------------------------------------------------------ calls

    def start(self, call: PendingCall) -> None:
        """Send a call, or a cast that is to be confirmed; its ``done`` is called in any case."""
        if self.closed:
            call.finish(Closed(f"{call.address}: the session is closed"))
            return
        if len(self.calls) >= PENDING_MAX:
            call.finish(Refused(f"{call.address}: {PENDING_MAX} calls are pending already", Reason.BUSY))
            return
        self._counters.counts["calls"] += call.owner is not None
        if call.monitor_s is not None:
            call.beaten(self.reactor.now())
        self.calls.add(call)
        try:
            self._arm(call.end_s)
            self.place(call)
        except Exception as error:  # whoever called must not wait for what nobody works on
            self._fail(call, error)

    def confirm(self, cast: Cast) -> None:
        """A cast for a server that is not reached by the pipeline of casts: here nothing is lost silently."""
        due_s = self.reactor.now() + CONFIRM_S
        number = self.ids.next()
        self.start(PendingCall(cast.address, cast.body, number, self._cast_done, kind=Kind.CAST, due_s=due_s))

    def _cast_done(self, answer: bytes | OsloFailure) -> None:
        if isinstance(answer, OsloFailure):
            self._counters.count("lost")
            self._counters.say("a cast was lost: %s", str(answer))

    def _fail(self, call: PendingCall, error: Exception) -> None:
        self.reactor.report(error)
        self._counters.count("refused")
        self._finish(call, Undelivered(f"{call.address}: not sent, since {type(error).__name__}: {error}"))

    def abandon(self, call: PendingCall) -> None:
        """Nobody waits for it any more."""
        self.calls.pop(call.id, None)
        call.over = True

    def cut_off(self, owner: object) -> None:
        """End all calls of one session."""
        for call in list(self.calls.values()):
            if call.owner is owner:
                self._finish(call, call.cut())

    def _finish(self, call: PendingCall, answer: bytes | OsloFailure) -> None:
        self.calls.pop(call.id, None)
        try:
            call.finish(answer)
        except Exception as error:  # of whoever asked; others must have their answers all the same
            self.reactor.say(
                logging.ERROR, "%s: whoever called cannot take the answer: %r", (str(call.address), error)
            )

    def place(self, call: PendingCall) -> None:
        """Choose a server and hand the call to its node's link, or let it wait for the next try."""
        servers = self._routes.find(call.address).calls
        for _ in range(len(servers)):
            one = self._chooser.choose(call.address, servers, self.bad, call.tried or ())
            if one is None:
                break
            link = self.get(one.node)
            if link is not None:
                call.listener = one.listener
                call.sent = False
                link.submit(call)
                return
            self._note_tried(call, one.listener)
        self._no_place(call, servers)

    def _note_tried(self, call: PendingCall, listener: str) -> None:
        if call.tried is None:
            call.tried = set()
        call.tried.add(listener)

    def _no_place(self, call: PendingCall, servers: Servers) -> None:
        known = bool(servers) or self._routes.synced
        if call.mandatory and known and (not servers or self._all_refused(call, servers)):
            self._counters.count("unroutable")
            self._finish(call, Unroutable(f"{call.address}: nobody listens there"))
        elif call.mandatory and not known and self._routes.overdue:
            self._counters.count("refused")
            text = f"{call.address}: not known whether anybody listens: no answer from {self._routes.whereabouts()}"
            self._finish(call, Undelivered(text))  # not Unroutable: that is for those who know
        elif call.kind is Kind.CAST and not call.mandatory and known and not servers:
            self.note_nobody("cast", call.address)
            self._finish(call, b"")
        else:
            self.retries.add(call)

    def _all_refused(self, call: PendingCall, servers: Servers) -> bool:
        tried = call.tried
        return (
            call.refusal == Reason.NO_ROUTE
            and tried is not None
            and all(s.listener in tried for s in servers)
        )

    # ------------------------------------------------------------ what the links ask for

    def pack(self, parcel: PendingCall) -> Frames | None:
        """See ``Sender``."""
        try:
            head = parcel.head(self.reactor.now())
        except Exception as error:
            self._fail(parcel, error)
            return None
        return None if head is None else (head, parcel.body)

    def note_sent(self, parcel: PendingCall) -> None:
        """See ``Sender``."""
        parcel.sent = True
        if parcel.repeated and parcel.monitor_s is not None:
            parcel.beaten(self.reactor.now())
            self.calls.add(parcel)
            self._arm(parcel.end_s)

    def take_sent(self, link: NodeLink[PendingCall]) -> list[PendingCall]:
        """See ``Sender``: all that are not answered; their servers are asked whether they have them."""
        return [call for call in self.calls.values() if call.link is link and call.sent]

    def has_others(self, parcel: PendingCall) -> bool:
        """See ``Sender``."""
        return any(one.node not in self.down for one in self._routes.find(parcel.address).calls)

    def in_use(self, link: NodeLink[PendingCall]) -> bool:
        """See ``Sender``."""
        return any(call.link is link for call in self.calls.values())

    def lose(self, parcel: PendingCall) -> None:
        """Nobody can say any more what became of it: its caller hears so now, not at the end of its time."""
        if not parcel.over:
            self._counters.count("refused")
            text = "its server is gone, with the connection that it was sent over: it may have been executed"
            self._finish(parcel, Undelivered(f"{parcel.address}: {text}"))

    # ------------------------------------------------------------ what comes

    def on_message(self, link: NodeLink[PendingCall], frames: list[bytes], _origin: str) -> None:
        """A node's proxy sent something about a call: its answer, a heartbeat, or that nobody has it."""
        try:
            envelope = decode(frames[0])
        except Malformed:
            self._counters.count("malformed")
            return
        if len(frames) != 2:
            self._counters.count("malformed")
            return
        call = self.calls.get(envelope.id)
        kind = envelope.kind
        if call is None or call.link is not link:
            if kind != Kind.PULSE:  # the proxy looks whether we are here
                self._counters.count("late")
            return
        if kind == Kind.REPLY:
            self._counters.counts["answered"] += 1
            self._finish(call, frames[1])
            if self.retries.waiting:
                self.retries.retry_after_answer(call.address)
        elif kind == Kind.BEAT:
            call.beaten(self.reactor.now())
        elif kind == Kind.TAKEN and call.kind is Kind.CAST:
            self._finish(call, b"")
        elif kind == Kind.REFUSED:
            self._on_refused(call, link, envelope, frames[1])
        else:
            self._counters.count("malformed")

    def _on_refused(
        self, call: PendingCall, link: NodeLink[PendingCall], envelope: Envelope, text: bytes
    ) -> None:
        reason = envelope.reason
        if reason == Reason.EXPIRED and call.due_s is not None:
            return  # it ends in a moment
        if reason not in _AGAIN:
            self._counters.count("refused")
            known = Reason(reason) if reason in Reason._value2member_map_ else Reason.MALFORMED
            said = text[:64].decode(errors="replace") or REASONS[known]
            self._finish(call, Refused(f"{call.address}: node {link.node} refused it: {said}", known))
            return
        if call.repeated and reason == Reason.NO_ROUTE:
            self.lose(call)
            return
        if call.repeated:  # its server has no room for what it was not sent before
            call.sent = False
            self.reactor.call_later(REPEAT_S, self._repeat, call, link.node)
            return
        if call.tries is not None and reason == Reason.BUSY:
            call.tries -= 1
            if call.tries < 0:
                self._counters.count("refused")
                self._finish(call, Undelivered(f"{call.address}: node {link.node}: {REASONS[Reason.BUSY]}"))
                return
        self._counters.counts["chosen_again"] += 1
        call.refusal = reason
        self._note_tried(call, call.listener)
        self.place(call)

    def _repeat(self, call: PendingCall, node: str) -> None:
        if not call.over:
            self.send_again(node, call)

    # ------------------------------------------------------------ time

    def _arm(self, end_s: float | None) -> None:
        """Something ends then."""
        if end_s is None or (self._alarm is not None and self._alarm_s <= end_s):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_s = end_s
        self._alarm_stall.wakes_at(end_s)
        self._alarm = self.reactor.call_later(max(end_s - self.reactor.now(), 0.0), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self.reactor.now()
        self.calls.forgive(self._alarm_stall.stalled_s(), now)
        for call in self.calls.pop_due(now):
            if call.kind is Kind.CAST:
                self._counters.count("refused")
                self._finish(call, Undelivered(f"{call.address}: no confirmation that a server has it"))
            else:
                self._counters.count("timed_out")
                self._finish(call, CallTimeout(self._timeout_text(call), monitor=call.monitored_out))
        self._arm(self.calls.next_end_s())

    def _timeout_text(self, call: PendingCall) -> str:
        """Address, seconds, who listens there, whether the proxy of the node is reached, whether it knows our key."""
        link = call.link if isinstance(call.link, NodeLink) else None
        servers = self._routes.find(call.address).calls
        unknown_key = self.unknown_key(each.node for each in servers)
        if call.monitored_out:
            begin = f"{call.address}: no heartbeat for {call.monitor_s:g} s"
        else:
            begin = f"{call.address}: no answer within {call.timeout_s or 0.0:g} s"
        if not servers:
            if not self._routes.synced:
                return f"{begin}: not known whether anybody listens there, no answer from {self._routes.whereabouts()}"
            return f"{begin}: nobody listens there"
        who = f"{len(servers)} server{'s' if len(servers) > 1 else ''} listen{'' if len(servers) > 1 else 's'} there"
        if link is not None and call.sent:
            where = f"the proxy of node {link.node} ({link.endpoint}) was sent the request"
            what = "and is out of reach now" if link.node in self.down else "and its server has not answered"
            return f"{begin}: {who}; {where} {what}"
        if unknown_key and not call.sent:
            return (
                f"{begin}: {who}; their node does not let our CURVE key {unknown_key} in, nothing was sent: it has to"
                " be in [[oslo.keys]] of that node's proxy, or zmq_curve_cert one that is"
            )
        if (
            (call.timeout_s or 0.0) < LEAST_S
            and not call.refusal
            and (link is None or link.node not in self.down)
        ):
            return f"{begin}: {who}; the time was over before anything was sent"
        if link is not None:
            return f"{begin}: {who}; the proxy of node {link.node} ({link.endpoint}) is out of reach, nothing was sent"
        reason = Reason(call.refusal) if call.refusal else Reason.NONE
        if reason is not Reason.NONE:
            return f"{begin}: {who}; all have refused it, the last time because {REASONS[reason]}"
        nodes = ", ".join(sorted({one.node for one in servers})[:8])
        return f"{begin}: {who}; the proxies of their nodes ({nodes}) are out of reach, nothing was sent"

    # ------------------------------------------------------------ news

    def directory_changed(self, nodes: set[str]) -> None:
        """See ``Sender``."""
        super().directory_changed(nodes)
        self.retries.retry()

    # ------------------------------------------------------------ end

    def end_calls(self) -> None:
        """Nothing is called any more: who waits is told so; casts go on."""
        self.closed = True
        for call in list(self.calls.values()):
            if call.kind is Kind.CALL:
                self._finish(call, call.cut())

    def close(self, linger_ms: int) -> None:
        """Close all sockets."""
        for call in list(self.calls.values()):
            self._finish(call, call.cut())
        if self._alarm is not None:
            self._alarm.cancel()
        self.retries.close()
        super().close(linger_ms)


class CastSender(Sender[Cast]):
    """The casts of one client.

    Args:
        chooser: whose turn it is, over calls and casts.
        confirm: sends one over the pipeline of calls, for a server that is not reached by that of casts.
    """

    def __init__(
        self,
        client: Client,
        chooser: Chooser[Server],
        confirm: Callable[[Cast], None],
    ) -> None:
        super().__init__(client, Pipeline.CAST)
        self._chooser = chooser
        self._confirm = confirm

    def busy(self, address: Address) -> bool:
        """Whether as much as may waits for each node of the address, any thread."""
        return bool(self.full) and self.full.issuperset(self._routes.nodes(address) or ("",))

    def start(self, cast: Cast) -> None:
        """A cast that was handed over."""
        if self._takes(cast.size, "casts"):
            self.place(cast)

    def place(self, parcel: Cast) -> None:
        """Choose a server and hand the cast to its node's link."""
        servers = self._routes.find(parcel.address).casts
        if not servers:
            self.note_nobody("cast", parcel.address)
            return
        choose = self._chooser.choose
        one = choose(parcel.address, servers, self.bad) or choose(parcel.address, servers)
        assert one is not None  # without nodes to pass over there is always one
        if Pipeline.CAST in one.pipelines:
            link = self.get(one.node)
            if link is not None:
                parcel.listener = one.listener
                link.submit(parcel)
                return
        self._confirm(parcel)

    def pack(self, parcel: Cast) -> Frames:
        """See ``Sender``."""
        if parcel.id == NO_ID:
            parcel.id = self.ids.next()
        address = parcel.address
        head = encode(
            Kind.CAST,
            address.exchange,
            address.topic,
            address.server,
            (parcel.listener,),
            flags=_REPEATED if parcel.repeated else 0,
            id=parcel.id,
        )
        return (head, parcel.body)

    def has_others(self, parcel: Cast) -> bool:
        """See ``Sender``."""
        return any(one.node not in self.down for one in self._routes.find(parcel.address).casts)
