"""The pipeline of calls: ROUTER to clients, ROUTER to servers (zmq-patterns-usage, "REQ/REP (ROUTER/DEALER) for CALL").

::

    client DEALER  [envelope][body]              entry ROUTER   who: stamped; where: its choice, or whose turn it is
    proxy          [envelope][route][body]       call.ctl       route: index of the entry's socket, the client's id;
                                                                its ttl is a deadline now (``frames``)
    server DEALER  [envelope][route][body]       call.ctl       REPLY, BEAT, or REFUSED: nobody there does it; only from
                                                                the server that was asked
    proxy          [envelope][text]              call.ctl       REFUSED NO_CALLER: nobody waits for that reply
    proxy          [envelope][body]              entry ROUTER

Nothing is looked up anywhere else: a call costs a few dictionary lookups. Nothing waits for a listener that is out of
credit: another one of the address has it, or the client is told BUSY. A client is answered REFUSED when its message
was not given to anybody; a message that was is never given to another server. Casts come this way when their sender
wants to know that they were taken (``Flag.CONFIRM``), or when the other way is closed.

A reply that finds nobody is what rabbit calls undeliverable (its ``direct_mandatory_flag``): the server did the work,
and its caller does not know. It learns that at its control socket: REFUSED NO_CALLER with the call's id, and a text.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, Final

import zmq

from broker.identity import Credentials
from broker.name_stats import NameStats
from broker.oslo.frames import (
    HEAD_BYTES,
    ID_BYTES,
    STAMP_AT,
    STAMP_END,
    Flag,
    Kind,
    Malformed,
    dated,
    decode,
    encode,
    refusal,
    stamped,
)
from broker.oslo.names import REASONS, Pipeline, Reason
from broker.oslo.proxy.direct import BEGIN, FLAGS_AT, ID_AT, REPEATED, CachedRoute, DirectRoom, stamped_for
from broker.oslo.proxy.listeners import CREDIT_MAX, NO_QUEUE, Listener, Listeners, WaitingMessage
from broker.oslo.proxy.pending import FOREVER_S, GivenCall, PendingReplies
from broker.oslo.proxy.registration import ServerLink
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Frames, Outcome

# times are read where they are used, not folded by the compiler: tests shorten them
SWEEP_S: float = 1.0
"""Between two looks for calls whose time is over."""
ORPHAN_S: float = 2.0
"""What a process sent just before it ended is still accepted for so long after the kernel told of its end."""
PROBE_S: float = 10.0
"""Between two looks whether clients are still there whose calls last: the entries of those that are gone are free for
others. They are sent a PULSE, of which they take no notice."""
LASTING_S: Final = 120.0
"""What has longer to go than this lasts; entries of other calls end soon enough by themselves."""
FRESH_S: float = 5.0
"""For so long after its start a proxy tells no server that its reply finds nobody: it knows no call of before, and who
still waits for one asks again."""
_GONE: Final = b"its caller is gone, or takes nothing"
_GAVE_UP: Final = b"its caller is gone, or has given up"
_PULSE: Final = (encode(Kind.PULSE), b"")
_CALL: Final = int(Kind.CALL)
_CAST: Final = int(Kind.CAST)
_REPLY: Final = int(Kind.REPLY)
_BEAT: Final = int(Kind.BEAT)
_REFUSED: Final = int(Kind.REFUSED)
_CONFIRM: Final = int(Flag.CONFIRM)
_KIND_AT: Final = 4
_TTL_AT: Final = 8
_TTL_END: Final = 12
_NO_TTL: Final = bytes(4)
_INDEX: Final = tuple(bytes([index]) for index in range(4))
_TO_SERVER: Final = 4
"""Frames of a message on its way to a server's process: the router's id, envelope, route, body."""


class CallProxy(DirectRoom):
    """One node's pipeline of calls; arguments and attributes as ``PipelineRoom``'s."""

    pipeline = Pipeline.CALL
    kind = zmq.ROUTER
    replies = frozenset({_REPLY, _BEAT, _REFUSED})
    to_server = _TO_SERVER

    def _open(self, undo: contextlib.ExitStack) -> None:
        reactor = self._reactor
        self._pending = PendingReplies(self._config.pending_max)
        self._calls = self._pending.calls
        self._register(undo, Listeners(NO_QUEUE, _never))
        self.servers.stale = self._stale
        self._sockets = self._frontend.sockets
        for index, socket in enumerate(self._sockets):
            assert isinstance(socket, RouterSocket)
            socket.lost = partial(self._on_client_end, _INDEX[index])
        self._probed_s = self._begun_s = reactor.now()
        self._timer = reactor.call_later(SWEEP_S, self._sweep)
        undo.callback(lambda: self._timer.cancel())  # noqa: PLW0108 (the timer of then)

    # ------------------------------------------------------------ from clients

    def on_client_message(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """A request: give it to a server."""
        if len(frames) != 3:
            self._bad("malformed", who, f"saw {len(frames) - 1} frames, expected envelope and body")
            return
        rid, head, body = frames
        route_to = self._known.get((who, head[HEAD_BYTES:]))
        if route_to is None or head[:_KIND_AT] != BEGIN:
            route_to = self._meet(frames, who, index)
            if route_to is None:
                return
        kind = head[_KIND_AT]
        if kind not in (_CALL, _CAST):
            self._bad("unexpected", who, f"saw a message of kind {kind}, expected CALL or CAST")
            return
        route = _INDEX[index] + rid
        key = route + head[ID_AT:HEAD_BYTES]
        calls, stats = self._calls, route_to.stats
        stats.calls += 1
        if not route_to.allowed:
            self._turn_away(key, stamped(head, who), Reason.DENIED)
        elif key in calls:
            self._turn_away(key, stamped(head, who), Reason.MALFORMED)
        elif not self._pending.has_room(route):
            self.counters.count("pending_full")
            self._turn_away(key, stamped(head, who), Reason.BUSY, self._crowded(route))
        else:
            local = self._listener_for(route_to, head)
            if local is None:
                self._turn_away(key, stamped(head, who), Reason.NO_ROUTE)
                return
            ttl, now_s = head[_TTL_AT:_TTL_END], self._reactor.now()
            due_s = now_s + FOREVER_S
            if ttl != _NO_TTL:
                due_s = now_s + int.from_bytes(ttl) / 1000
                head = dated(head, due_s, now_s)
            head = stamped_for(head, route_to, local)
            outcome = self._offer(local, head, route, body)
            if outcome <= Outcome.FULL:
                full = outcome is Outcome.FULL
                self._elsewhere(local, route_to.names, head, key, body, due_s, full=full)
            elif kind == _CALL:
                self._pending.put(key, GivenCall(local.owner, due_s, False, stats))
            else:
                self._given(local.owner, outcome, key, head, due_s, stats)

    def _offer(self, listener: Listener, head: bytes, route: bytes, body: bytes) -> Outcome:
        """Give it to ``listener``, which has to have credit: but for a call that it may have had already, which needs
        no room there then.
        """
        if not listener.has_credit and not (
            head[FLAGS_AT] & REPEATED and head[_KIND_AT] == _CALL and listener.credit > -CREDIT_MAX
        ):
            return Outcome.FULL
        outcome = self.servers.send([listener.owner.rid, head, route, body])
        if outcome > Outcome.FULL:
            listener.fly(len(head) + len(body))
        return outcome

    def _meet(self, frames: list[bytes], who: Credentials, index: int) -> CachedRoute | None:
        head = frames[1]
        readable = len(head) >= HEAD_BYTES and head[:_KIND_AT] == BEGIN
        reason = Reason.LEAVING
        try:
            if not self.leaving or not readable:
                return self._routes.meet(who, head)
        except Malformed as error:
            reason = Reason.MALFORMED
            self._malformed(error, f"uid {who.userid}")
        if readable:
            self._refuse(_INDEX[index] + frames[0] + head[ID_AT:HEAD_BYTES], head, reason)
        return None

    def _elsewhere(
        self,
        tried: Listener | None,
        names: tuple[str, str, str],
        head: bytes,
        key: bytes,
        body: bytes,
        due_s: float,
        *,
        full: bool = False,
    ) -> None:
        """The one that was chosen has no room (``full``) or has ended: another one may have what was given to nobody
        yet.
        """
        for local, again in self._others(tried, names, head):
            outcome = self._offer(local, again, key[:-ID_BYTES], body)
            if outcome > Outcome.FULL:
                self.counters.count("chosen_again")
                stats = self.topics.of(names[0], names[1], listened=True)
                self._given(local.owner, outcome, key, head, due_s, stats)
                return
            full = full or outcome is Outcome.FULL
        self._turn_away(key, head, Reason.BUSY if full else Reason.NO_ROUTE)

    def _given(
        self, link: ServerLink, outcome: Outcome, key: bytes, head: bytes, due_s: float, stats: NameStats
    ) -> None:
        confirm = bool(head[FLAGS_AT] & _CONFIRM)
        if head[_KIND_AT] == _CALL:
            self._pending.put(key, GivenCall(link, due_s, False, stats))
        elif outcome is Outcome.QUEUED:
            self._pending.put(key, GivenCall(link, due_s, confirm))
        elif confirm:
            self._confirm_taken(key)

    def _confirm_taken(self, key: bytes) -> None:
        self.counters.count("taken")
        self._answer(key, encode(Kind.TAKEN, id=key[-ID_BYTES:]), b"")

    def _turn_away(self, key: bytes, head: bytes, reason: Reason, text: str = "") -> None:
        """Refuse a message that was counted; its envelope is stamped."""
        envelope = decode(head)
        self.topics.failed(envelope.exchange, envelope.topic, reason, envelope.userid)
        self._refuse(key, head, reason, text)

    def _refuse(self, key: bytes, head: bytes, reason: Reason, text: str = "") -> None:
        """Tell the client, unless it is a cast that wants no answer; count it either way."""
        self.counters.count(f"refused_{reason.name.lower()}")
        if head[_KIND_AT] == _CALL or head[FLAGS_AT] & _CONFIRM:
            self._answer(key, refusal(key[-ID_BYTES:], reason), (text or REASONS[reason]).encode())

    def _crowded(self, route: bytes) -> str:
        pending = self._pending
        own, total = len(pending.held.get(route, ())), len(pending)
        return (
            f"{own} calls of this client and {total} of all wait for replies here, of {pending.most} at most"
        )

    def _answer(self, key: bytes, head: bytes, body: bytes) -> None:
        if self._sockets[key[0]].send([key[1:-ID_BYTES], head, body]) <= Outcome.FULL:
            self.counters.count("client_gone")

    # ------------------------------------------------------------ from servers

    def on_server_reply(self, link: ServerLink, frames: list[bytes]) -> None:
        """A server answered, works on it, or refuses it: pass that on to whoever asked this server."""
        if not (len(frames) == _TO_SERVER and len(frames[1]) == HEAD_BYTES and frames[2]):
            self.counters.count_dropped(
                "malformed", "dropped a reply of %s: saw %d frames", link, len(frames) - 1
            )
            return
        _rid, head, route, body = frames
        key = route + head[ID_AT:]
        call = self._calls.get(key)
        kind = head[_KIND_AT]
        if (call is None or call.link is not link) and self._pending.fits(key, link) is None:
            self.counters.count("late_replies" if call is None else "foreign_replies")
            if kind == _REPLY and call is None:
                self._tell_no_caller(link, key, _GAVE_UP)
            return
        if kind != _BEAT:
            self._pending.end(key)
            if kind == _REFUSED:
                self.counters.count("refused_by_server")
        answer = [route[1:], head[:STAMP_AT] + link.stamp + head[STAMP_END:], body]
        if self._sockets[route[0]].send(answer) <= Outcome.FULL:
            self.counters.count("client_gone")
            if kind == _REPLY:
                self._tell_no_caller(link, key, _GONE)

    # ------------------------------------------------------------ callers that are gone

    def _on_client_end(self, index: bytes, rid: bytes, _waited: list[Frames]) -> None:
        """The client ``rid`` is gone: its calls are forgotten."""
        forgotten = self._pending.forget_client(index + rid)
        if forgotten:
            self.counters.count("abandoned", forgotten)

    def _probe_clients(self, now_s: float) -> None:
        """Send a PULSE to each client whose calls last: its socket says so where nobody is there."""
        if now_s < self._probed_s + PROBE_S:
            return
        self._probed_s = now_s
        for route in self._pending.lasting(now_s + LASTING_S):
            socket = self._sockets[route[0]]
            assert isinstance(socket, RouterSocket)
            if not socket.waiting_for(route[1:]):
                socket.send([route[1:], *_PULSE])

    def _tell_no_caller(self, link: ServerLink, key: bytes, text: bytes) -> None:
        """The reply of ``link`` to the call ``key`` finds nobody."""
        if self._reactor.now() >= self._begun_s + FRESH_S:
            self.send_control(link, refusal(key[-ID_BYTES:], Reason.NO_CALLER), text)

    # ------------------------------------------------------------ registrations

    def _redeliver(self, frames: Frames) -> None:
        """What waited for a listener that has ended: another one of its address, or its sender is told."""
        _rid, head, route, body = frames
        key = route + head[ID_AT:HEAD_BYTES]
        call = self._pending.end(key)
        if call is None:
            return
        envelope = decode(head)
        names = (envelope.exchange, envelope.topic, envelope.server)
        self._elsewhere(None, names, head, key, body, call.due_s)

    def on_link_end(self, link: ServerLink, waiting: list[Frames]) -> None:
        """See ``Registration``: what it was to answer is forgotten a little later."""
        super().on_link_end(link, waiting)
        self._reactor.call_later(ORPHAN_S, self._forget, link)

    def _forget(self, link: ServerLink) -> None:
        self.counters.count("orphaned", self._pending.forget(link))

    # ------------------------------------------------------------ queues

    def _stale(self, frames: Frames) -> bool:
        """Whether the sender of what waits has given up; then it is dropped, told so, and takes no credit."""
        if len(frames) != _TO_SERVER:
            return False
        key = frames[2] + frames[1][ID_AT:HEAD_BYTES]
        if not self._pending.stale(key, self._reactor.now()):
            return False
        self._pending.end(key)
        self._turn_away(key, frames[1], Reason.EXPIRED)
        listener = self.listeners.get(frames[1].rpartition(b"\0")[2].decode())
        if listener is not None:
            listener.forget(len(frames[1]) + len(frames[3]))
        return True

    def _flushed(self, frames: Frames) -> None:
        """What waited was given to its server: a cast is finished with that."""
        if len(frames) != _TO_SERVER or frames[1][_KIND_AT] != _CAST:
            return
        key = frames[2] + frames[1][ID_AT:HEAD_BYTES]
        call = self._pending.end(key)
        if call is not None and call.confirm:
            self._confirm_taken(key)

    def _sweep(self) -> None:
        self._timer = self._reactor.call_later(SWEEP_S, self._sweep)
        for link in list(self.links.values()) if self.servers.waiting else ():
            if self.servers.waiting_for(link.rid):
                self.servers.sift(link.rid, self._stale)
        now_s = self._reactor.now()
        self._probe_clients(now_s)
        expired = self._pending.expire(now_s)
        if expired:
            self.counters.count("expired", len(expired))
        for _key, call in expired:
            if call.stats is not None:
                self.topics.ended(call.stats, Reason.EXPIRED)

    # ------------------------------------------------------------ state and end

    def _pipeline_status(self) -> dict[str, Any]:
        return {**super()._pipeline_status(), "pending": len(self._pending)}

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent, and, where the node is left for good, calls that wait for their replies."""
        calls = len(self._calls) if self.leaving else 0
        return calls + self.servers.waiting + sum(socket.waiting for socket in self._sockets)

    def stop(self, reason: str, *, returns: bool) -> None:
        """See ``PipelineRoom.stop``; what comes now is refused, what waits is sent."""
        super().stop(reason, returns=returns)
        if self.leaving:
            self._known.clear()  # so that every message is looked at, and refused


def _never(_listener: Listener, _message: WaitingMessage) -> int:
    """Nothing waits for a listener of calls, so that nothing is sent from a queue."""
    return Outcome.FULL
