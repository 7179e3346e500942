"""Calls and casts, in the thread of the sockets: choose a server, send, choose again where nobody has it yet.

A message is given to another server only when it is certain that none has it: libzmq did not take it, or the proxy of
the node said REFUSED. What libzmq took and its connection may have lost is sent again to the same server only, which
knows by the id whether it has it: it takes it, or answers once more, or goes on with what it has begun. A call whose
server cannot be asked any more ends at once, since nobody knows whether it ran.

What cannot be sent now waits, and is tried again when the directory changes, when a node is back, and from time to
time (``retry_queue``).
"""

# compiled: mypyc

from __future__ import annotations

import logging
from typing import Final

from broker.awake import StallMeter
from broker.oslo.client.cast_sender import CastSender
from broker.oslo.client.chooser import Chooser
from broker.oslo.client.node_link import Cast, LinkHandlers, NodeLink
from broker.oslo.client.node_links import ClientContext, NodeLinks
from broker.oslo.client.pending_calls import PendingCall, PendingCalls
from broker.oslo.client.repeats import MessageIds
from broker.oslo.client.retry_queue import RetryQueue
from broker.oslo.client.routing import Servers
from broker.oslo.client.timeout_text import timeout_text
from broker.oslo.contract import CallTimeout, Closed, OsloFailure, Refused, Undelivered, Unroutable
from broker.oslo.frames import Envelope, Kind, Malformed, decode
from broker.oslo.names import REASONS, Pipeline, Reason
from broker.oslo.reactor import Timer
from broker.oslo.reactor.socket import Frames

PENDING_MAX: Final = 65_536
"""Calls that may be pending; more are refused (callers that wait are far fewer: they have a thread each)."""
CONFIRM_S: Final = 30.0
"""How long a cast that was sent waits to be told that a server has it."""
REPEAT_S: Final = 0.1
"""Before a call that was repeated is repeated once more, where its server has no room."""
_AGAIN: Final = (Reason.NO_ROUTE, Reason.BUSY, Reason.LEAVING)


class CallSender:
    """The calls and casts of one client.

    Attributes:
        calls: pending ones.
        ids: of calls, and of casts that are confirmed.
        call_links, cast_links: sockets to nodes.
    """

    def __init__(self, context: ClientContext) -> None:
        self.calls = PendingCalls()
        self.ids = MessageIds()
        self._reactor = context.reactor
        self._settings = context.settings
        self._routes = context.routes
        self._submit_queue = context.submit_queue
        self._counters = context.counters
        self._chooser: Chooser = Chooser()
        self._retries = RetryQueue(context.reactor, context.routes, self._place)
        self._alarm: Timer | None = None
        self._alarm_s = 0.0
        self._stall = StallMeter(context.reactor.now)
        self._closed = False
        self.call_links: NodeLinks[PendingCall] = NodeLinks(
            context,
            LinkHandlers(
                Pipeline.CALL,
                pack=self._packed_call,
                posted=self._note_sent,
                received=self.on_proxy_message,
                stalled=self._call_stalled,
                resend=self._take_unanswered,
                in_use=self._awaits,
            ),
            self._on_link_change,
        )
        self._cast_sender = CastSender(context, self._chooser, self._cast_by_call, self._on_link_change)
        self.cast = self._cast_sender.cast
        self.cast_links = self._cast_sender.links

    def open(self) -> None:
        """The client begins: the directory has ``ready_s`` from now on to answer."""
        self._retries.open(self._settings.ready_s)

    # ------------------------------------------------------------ calls

    def start(self, call: PendingCall) -> None:
        """Send a call, or a cast that is to be confirmed; its ``done`` is called in any case."""
        if self._closed:
            call.finish(Closed(f"{call.address}: the session is closed"))
            return
        if len(self.calls) >= PENDING_MAX:
            call.finish(Refused(f"{call.address}: {PENDING_MAX} calls are pending already", Reason.BUSY))
            return
        self._counters.counts["calls"] += 1
        if call.monitor_s is not None:
            call.beaten(self._reactor.now())
        self.calls.add(call)
        try:
            self._arm()
            self._place(call)
        except Exception as error:  # whoever called must not wait for what nobody works on
            self._broken(call, error)

    def _broken(self, call: PendingCall, error: Exception) -> None:
        self._reactor.report(error)
        self._counters.count("refused")
        self._finish(call, Undelivered(f"{call.address}: not sent, since {type(error).__name__}: {error}"))

    def abandon(self, call: PendingCall) -> None:
        """Nobody waits for it any more."""
        self.calls.pop(call.id)
        call.over = True

    def cut_off(self, owner: object) -> None:
        """End all calls of one session."""
        for call in self.calls:
            if call.owner is owner:
                self._finish(call, call.cut())

    def _finish(self, call: PendingCall, answer: bytes | OsloFailure) -> None:
        self.calls.pop(call.id)
        try:
            call.finish(answer)
        except Exception as error:  # of whoever asked; others must have their answers all the same
            self._reactor.say(
                logging.ERROR, "%s: whoever called cannot take the answer: %r", (str(call.address), error)
            )

    def _place(self, call: PendingCall) -> None:
        """Choose a server and hand the call to its node's link, or let it wait for the next try."""
        servers = self._routes.for_calls(call.address)
        links = self.call_links
        for _ in range(len(servers)):
            one = self._chooser.choose(call.address, servers, links.bad, call.tried or ())
            if one is None:
                break
            link = links.get(one.node)
            if link is not None:
                call.listener = one.listener
                call.link = link
                call.sent = False
                link.submit(call)
                return
            self._refused_by(call, one.listener)
        self._no_place(call, servers)

    def _refused_by(self, call: PendingCall, listener: str) -> None:
        if call.tried is None:
            call.tried = set()
        call.tried.add(listener)

    def _no_place(self, call: PendingCall, servers: Servers) -> None:
        known = bool(servers) or self._routes.synced
        if call.mandatory and known and (not servers or self._all_refused(call, servers)):
            self._counters.count("unroutable")
            self._finish(call, Unroutable(f"{call.address}: nobody listens there"))
        elif call.mandatory and not known and self._retries.overdue:
            self._counters.count("refused")
            text = f"{call.address}: not known whether anybody listens: no answer from {self._routes.whereabouts()}"
            self._finish(call, Undelivered(text))  # not Unroutable: that is for those who know
        elif call.kind is Kind.CAST and not call.mandatory and known and not servers:
            self._cast_sender.nobody(call.address)
            self._finish(call, b"")
        else:
            self._retries.add(call)

    def _all_refused(self, call: PendingCall, servers: Servers) -> bool:
        tried = call.tried
        return (
            call.refusal == Reason.NO_ROUTE
            and tried is not None
            and all(s.listener in tried for s in servers)
        )

    # ------------------------------------------------------------ the links of calls

    def _packed_call(self, call: PendingCall, _link: NodeLink[PendingCall]) -> Frames | None:
        try:
            head = call.head(self._reactor.now())
        except Exception as error:
            self._broken(call, error)
            return None
        return None if head is None else (head, call.body)

    def _note_sent(self, call: PendingCall, _link: NodeLink[PendingCall]) -> None:
        call.sent = True
        if call.repeated and call.monitor_s is not None:
            call.beaten(self._reactor.now())
            self.calls.watch(call)
            self._arm()

    def on_proxy_message(self, link: NodeLink[PendingCall], frames: list[bytes]) -> None:
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
            self._retries.retry_after_answer(call.address)
        elif kind == Kind.BEAT:
            call.beaten(self._reactor.now())
        elif kind == Kind.TAKEN and call.kind is Kind.CAST:
            self._finish(call, b"")
        elif kind == Kind.REFUSED:
            self._refused(call, link, envelope, frames[1])
        else:
            self._counters.count("malformed")

    def _refused(
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
        if call.repeated:
            self._repeat_refused(call, link, reason)
            return
        if call.tries is not None and reason == Reason.BUSY:
            call.tries -= 1
            if call.tries < 0:
                self._counters.count("refused")
                self._finish(call, Undelivered(f"{call.address}: node {link.node}: {REASONS[Reason.BUSY]}"))
                return
        self._counters.counts["chosen_again"] += 1
        call.refusal = reason
        self._refused_by(call, call.listener)
        self._place(call)

    # ------------------------------------------------------------ connections that end

    def _take_unanswered(self, link: NodeLink[PendingCall]) -> list[PendingCall]:
        """What was sent over ``link`` and is not answered: its server is asked whether it has it."""
        again = [call for call in self.calls if call.link is link and call.sent]
        for call in again:
            call.sent, call.repeated = False, True
            call.unheard()
        self._counters.count("repeated", len(again))
        if self.call_links.known(link.node) is link:
            return again
        for call in again:
            self._repeat(call, link)
        return []

    def _repeat_refused(self, call: PendingCall, link: NodeLink[PendingCall], reason: int) -> None:
        if reason == Reason.NO_ROUTE:
            self._repeat_lost(call)
        else:
            call.sent = False
            self._reactor.call_later(REPEAT_S, self._repeat, call, link)

    def _repeat(self, call: PendingCall, link: NodeLink[PendingCall]) -> None:
        """Ask the node of ``link``, wherever it is reached now."""
        if call.over:
            return
        there = self.call_links.get(link.node)
        if there is None:
            self._repeat_lost(call)
        else:
            call.link = there
            there.submit(call)

    def _repeat_lost(self, call: PendingCall) -> None:
        """Nobody can say any more what became of it: its caller hears so now, not at the end of its time."""
        self._counters.count("refused")
        text = "its server is gone, with the connection that it was sent over: it may have been executed"
        self._finish(call, Undelivered(f"{call.address}: {text}"))

    def _call_stalled(self, link: NodeLink[PendingCall]) -> None:
        """Its node takes nothing, or is gone: other servers, where there are any."""
        gone = self.call_links.known(link.node) is not link
        for call in link.take_parcels():
            if call.over:
                continue
            if call.repeated:
                self._repeat(call, link)
            elif gone:
                self._place(call)
            elif any(one.node not in self.call_links.down for one in self._routes.for_calls(call.address)):
                self._counters.counts["chosen_again"] += 1
                self._place(call)
            else:
                link.submit(call)

    def _awaits(self, link: NodeLink[PendingCall]) -> bool:
        return any(call.link is link for call in self.calls)

    # ------------------------------------------------------------ time

    def _arm(self) -> None:
        end_s = self.calls.next_end_s()
        if end_s is None or (self._alarm is not None and self._alarm_s <= end_s):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_s = end_s
        self._stall.wakes_at(end_s)
        self._alarm = self._reactor.call_later(max(end_s - self._reactor.now(), 0.0), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self._reactor.now()
        self.calls.forgive(self._stall.stalled_s(), now)
        for call in self.calls.pop_due(now):
            if call.kind is Kind.CAST:
                self._counters.count("refused")
                self._finish(call, Undelivered(f"{call.address}: no confirmation that a server has it"))
            else:
                self._counters.count("timed_out")
                self._finish(call, CallTimeout(self._timeout_text(call), monitor=call.monitored_out))
        self._arm()

    def _timeout_text(self, call: PendingCall) -> str:
        link = call.link if isinstance(call.link, NodeLink) else None
        servers = self._routes.for_calls(call.address)
        refused = self.call_links.unknown_key(each.node for each in servers)
        return timeout_text(call, link, servers, self._routes, self.call_links.down, refused)

    # ------------------------------------------------------------ casts

    def _cast_by_call(self, cast: Cast) -> None:
        """A server that is not reached by the pipeline of casts: by that of calls, where nothing is lost silently."""
        due_s = self._reactor.now() + CONFIRM_S
        call = PendingCall(
            cast.address, cast.body, self.ids.next(), self._cast_done, kind=Kind.CAST, due_s=due_s
        )
        if len(self.calls) >= PENDING_MAX:
            self._counters.count("refused")
            return
        self.calls.add(call)
        self._arm()
        self._place(call)

    def _cast_done(self, answer: bytes | OsloFailure) -> None:
        if isinstance(answer, OsloFailure):
            self._counters.count("lost")
            self._counters.say("a cast was lost: %s", str(answer))

    # ------------------------------------------------------------ news

    def directory_changed(self, nodes: set[str]) -> None:
        """Somebody has come or gone; ``nodes``: those that are reached elsewhere, or no more."""
        for node in nodes:
            self.call_links.node_changed(node)
            self.cast_links.node_changed(node)
        self._retries.retry()

    def _on_link_change(self) -> None:
        """Some link is up, down, full or has room."""
        self._submit_queue.wake()
        self._retries.retry_soon()

    # ------------------------------------------------------------ end

    @property
    def waiting(self) -> int:
        """What may still leave by itself."""
        return self.call_links.waiting + self.cast_links.waiting

    def end_calls(self) -> None:
        """Nothing is called any more: who waits is told so; casts go on."""
        self._closed = self._cast_sender.closed = True
        for call in self.calls:
            if call.kind is Kind.CALL:
                self._finish(call, call.cut())

    def close(self, linger_ms: int) -> None:
        """Close all sockets."""
        self._closed = self._cast_sender.closed = True
        for call in self.calls:
            self._finish(call, call.cut())
        if self._alarm is not None:
            self._alarm.cancel()
        self._retries.close()
        self.call_links.close(linger_ms)
        left = self.cast_links.close(linger_ms)
        if left:
            self._counters.count("unflushed", left)
