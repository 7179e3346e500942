"""The pipeline of casts: PULL from clients, ROUTER to servers (zmq-patterns-usage, "PUSH/PULL for direct CAST").

::

    client PUSH    [envelope][body]     entry PULL     who: stamped; where: the client's choice, or whose turn it is
    proxy          [envelope][body]     cast.ctl       to the listener's process, within its ``credit``

Nobody is answered. What does not fit into the queue of a listener that does not move goes to another one of the topic,
or is dropped and counted; so is what nobody listens to.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple

import zmq

from broker.identity import Credentials
from broker.oslo.frames import HEAD_BYTES, Flag, Kind, Malformed, dated, decode, overdue
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.credited_queue import CreditedQueue
from broker.oslo.proxy.direct import DirectRoom
from broker.oslo.proxy.local_listeners import LocalListener
from broker.oslo.proxy.registration import RegistrationSocket
from broker.oslo.proxy.route_cache import BEGIN, TRIES_MAX, CachedRoute, stamped_for
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.socket import Frames, Outcome

_CAST: Final = int(Kind.CAST)
_REPEATED: Final = int(Flag.REPEATED)
_FLAGS_AT: Final = 5
_TTL_AT: Final = 8
_TTL_END: Final = 12
_NO_TTL: Final = bytes(4)
_TO_SERVER: Final = 3
"""Frames of a cast on its way to a server's process: the router's id, envelope, body."""


class WaitingCast(NamedTuple):
    """A cast in the queue of a listener."""

    head: bytes
    body: bytes
    size: int
    """Bytes of both."""


CastQueue = CreditedQueue[WaitingCast]


class CastProxy(DirectRoom):
    """One node's pipeline of casts; arguments and attributes as ``PipelineRoom``'s."""

    def __init__(self, reactor: Reactor, config: NodeConfig, acl: AccessControl) -> None:
        limits = (config.queue_msgs, config.queue_bytes)
        super().__init__(reactor, config, acl, Pipeline.CAST, zmq.PULL, limits, _TO_SERVER)
        self._delivered = 0

    def _open(self, undo: contextlib.ExitStack) -> RegistrationSocket:
        return self._register(undo)

    # ------------------------------------------------------------ messages

    def on_client_message(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """A cast: give it to a server."""
        if len(frames) != 2:
            self._bad("malformed", who, f"saw {len(frames)} frames, expected envelope and body")
            return
        head, body = frames
        route_to = self._known.get((who, head[HEAD_BYTES:]))
        if route_to is None or head[:4] != BEGIN:
            route_to = self._meet(head, who)
            if route_to is None:
                return
        if head[4] != _CAST:
            self._bad("unexpected", who, f"saw a message of kind {head[4]}, expected CAST")
            return
        route_to.stats.calls += 1
        if not route_to.allowed:
            self.topics.ended(route_to.stats, Reason.DENIED, who.userid)
            self.counters.count_dropped(
                "denied", "uid %d may not send to %.64s/%.64s", who.userid, route_to.exchange, route_to.topic
            )
            return
        local = route_to.local
        if local is None or not local.alive:
            local = self._routes.choose(route_to)
        if head[_FLAGS_AT] & _REPEATED and (local is None or local.record.listener != route_to.chosen):
            text = "the server at %.64s/%.64s that may have had a cast is gone"
            self.topics.ended(route_to.stats, Reason.NO_ROUTE, who.userid)
            self.counters.count_dropped("repeat_lost", text, route_to.exchange, route_to.topic)
            return
        if local is None:
            self.topics.ended(route_to.stats, Reason.NO_ROUTE, who.userid)
            self.counters.count_dropped(
                "no_route", "nobody listens at %.64s/%.64s", route_to.exchange, route_to.topic
            )
            return
        ttl = head[_TTL_AT:_TTL_END]
        head = stamped_for(head, route_to, local)
        if ttl != _NO_TTL:
            now_s = self._reactor.now()
            head = dated(head, now_s + int.from_bytes(ttl) / 1000, now_s)
        cast = WaitingCast(head, body, len(head) + len(body))
        if not self._offer(local.target, cast):
            self._elsewhere(local, route_to.exchange, route_to.topic, route_to.server, cast)

    def _offer(self, queue: CastQueue, cast: WaitingCast) -> bool:
        """Give it to the listener of ``queue``, or let it wait there; False: there is no room."""
        if not queue.queue and queue.is_open(cast.size):
            self._hand_out(queue, cast)
            return True
        if not queue.has_room:
            self._drop_stale(queue)
            if not queue.has_room:
                return False
        queue.wait(cast)
        self._credit.waits(queue)
        return True

    def _hand_out(self, queue: CastQueue, cast: WaitingCast) -> None:
        if (
            self._registration.socket.send((queue.owner.rid, cast.head, cast.body), credited=True)
            > Outcome.FULL
        ):
            queue.fly(cast.size)
            self._delivered += 1
        else:
            queue.attached = False  # its connection has ended, and its listener does in a moment
            queue.wait_first(cast)

    def _add_credit(self, listener: str, messages: int) -> CastQueue | None:
        queue = super()._add_credit(listener, messages)
        if queue is not None:
            self._drop_stale(queue)
            while queue.queue and queue.is_open(queue.queue[0].size):
                self._hand_out(queue, queue.next_waiting())
                self._drop_stale(queue)
        return queue

    def _drop_stale(self, queue: CastQueue) -> None:
        """Drop the oldest of which the senders have given up."""
        now_s = self._reactor.now()
        while queue.queue and overdue(queue.queue[0].head, now_s):
            self._count_expired(queue.next_waiting())

    def _meet(self, head: bytes, who: Credentials) -> CachedRoute[CastQueue] | None:
        try:
            return self._routes.meet(who, head)
        except Malformed as error:
            self._malformed(error, who)
            return None

    def _elsewhere(
        self,
        tried: LocalListener[CastQueue] | None,
        exchange: str,
        topic: str,
        server: str,
        cast: WaitingCast,
    ) -> None:
        """Another listener of the address may have what its own has no room for, or is no more there to take."""
        here = tried is not None
        userid = decode(cast.head).userid
        if cast.head[_FLAGS_AT] & _REPEATED:
            self.topics.failed(exchange, topic, Reason.BUSY, userid)
            text = "no room at %.64s/%.64s for a cast that was sent again"
            self.counters.count_dropped("repeat_lost", text, exchange, topic)
            return
        for local in self.locals.others(exchange, topic, server, TRIES_MAX):
            if local is tried:
                continue
            here = True
            head = cast.head[:HEAD_BYTES] + local.tail_for(server)
            if self._offer(local.target, WaitingCast(head, cast.body, len(head) + len(cast.body))):
                self.counters.count("chosen_again")
                return
        self.topics.failed(exchange, topic, Reason.BUSY if here else Reason.NO_ROUTE, userid)
        if here:
            self.counters.count_dropped(
                "full", "the queues of the servers at %.64s/%.64s are full", exchange, topic
            )
        else:
            self.counters.count_dropped("no_route", "nobody listens at %.64s/%.64s any more", exchange, topic)

    def _redeliver(self, frames: Frames) -> None:
        if frames[1][4] == _CAST:
            self._delivered -= 1
            self._move(WaitingCast(frames[1], frames[2], len(frames[1]) + len(frames[2])))

    def _end_queue(self, queue: CastQueue) -> None:
        for cast in queue.queue:
            self._move(cast)

    def _move(self, cast: WaitingCast) -> None:
        """What was for a listener that has ended."""
        if overdue(cast.head, self._reactor.now()):
            self._count_expired(cast)
            return
        envelope = decode(cast.head)
        self._elsewhere(None, envelope.exchange, envelope.topic, envelope.server, cast)

    def _count_expired(self, cast: WaitingCast) -> None:
        self.counters.count("expired")
        envelope = decode(cast.head)
        self.topics.failed(envelope.exchange, envelope.topic, Reason.EXPIRED, envelope.userid)

    # ------------------------------------------------------------ state and end

    def _pipeline_status(self) -> dict[str, Any]:
        return {
            **super()._pipeline_status(),
            "waiting": self._queued,
            "back_pressure": self._credit.status(),
        }

    def _counted(self) -> dict[str, int]:
        return {**self.counters.status(), "delivered": self._delivered}

    @property
    def _queued(self) -> int:
        return sum(len(queue.queue) for queue in self.locals.targets())

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent."""
        return super().waiting + self._queued
