"""What is known of each address that clients send to, so that it is read and judged once (pure).

A client repeats the same few addresses. Their bytes, with who sends, are the key of what was found out: the names, the
access control's decision, the listener that was chosen, and the credentials as the envelope has them.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.identity import Credentials
from broker.name_stats import NameStats
from broker.oslo.frames import HEAD_BYTES, MAGIC, STAMP_AT, STAMP_END, VERSION, Malformed, decode
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.listeners import Listener, Listeners
from broker.oslo.proxy.topic_stats import TopicStats

# read where it is used, not folded by the compiler: tests change it
ROUTES_MAX: int = 16_384
"""Addresses that are remembered; then all are forgotten and found again."""
TAIL_BYTES_MAX: Final = 1100
"""Longest address that is remembered: exchange, topic, server and one listener."""
TRIES_MAX: Final = 8
"""Listeners of a topic that one message is tried on when their queues are full."""
BEGIN: Final = MAGIC + bytes([VERSION])
ID_AT: Final = 24


class CachedRoute:
    """One address, as one user sends to it.

    Attributes:
        stamp: userid and rolemask as the envelope has them.
        allowed: the access control's decision.
        chosen: the listener that the client has chosen; "" none.
        stats: where messages that go there are counted.
        local: that one, when it is here, fits, and is the only one named: the envelope then needs no other address.
    """

    __slots__ = ("allowed", "chosen", "exchange", "local", "server", "stamp", "stats", "topic")

    def __init__(
        self, who: Credentials, names: tuple[str, str, str], chosen: str, allowed: bool, stats: NameStats
    ) -> None:
        self.stamp = who.encode()
        self.stats: NameStats = stats
        self.allowed = allowed
        self.exchange, self.topic, self.server = names
        self.chosen = chosen
        self.local: Listener | None = None


class RouteCache:
    """The ways of one pipeline.

    Attributes:
        known: by (who, bytes of the address); the hot path looks here directly.
    """

    def __init__(self, acl: AccessControl, listeners: Listeners, topics: TopicStats) -> None:
        self.known: dict[tuple[Credentials, bytes], CachedRoute] = {}
        self._acl = acl
        self._listeners = listeners
        self._topics = topics

    def meet(self, who: Credentials, head: bytes) -> CachedRoute:
        """Read, judge and remember the address of the envelope ``head``.

        Raises:
            Malformed: it is no envelope, or has no topic.
        """
        envelope = decode(head)
        if not envelope.topic:
            raise Malformed("saw an envelope without topic, expected where it is to go")
        allowed = self._acl.may_send(who, envelope.exchange, envelope.topic)
        names = (envelope.exchange, envelope.topic, envelope.server)
        listened = self._listeners.listened(names[:2])
        stats = self._topics.of(envelope.exchange, envelope.topic, listened=listened)
        route_to = CachedRoute(
            who, names, envelope.listener if len(envelope.listeners) == 1 else "", allowed, stats
        )
        tail = head[HEAD_BYTES:]
        if len(tail) <= TAIL_BYTES_MAX:
            if len(self.known) >= ROUTES_MAX:
                self.known.clear()
            self.known[(who, tail)] = route_to
        return route_to

    def choose(self, route_to: CachedRoute) -> Listener | None:
        """Who is to have a message that goes this way: the chosen one, else whose turn it is; None: nobody."""
        if route_to.chosen:
            local = self._listeners.fitting(
                route_to.exchange, route_to.topic, route_to.server, route_to.chosen
            )
            if local is not None:
                route_to.local = local
                return local
        route_to.local = None
        return self._listeners.turn((route_to.exchange, route_to.topic, route_to.server, None))


def stamped_for(head: bytes, route_to: CachedRoute, local: Listener) -> bytes:
    """The envelope ``head`` with the sender's credentials, and the listener that shall have it."""
    if local is route_to.local:
        return head[:STAMP_AT] + route_to.stamp + head[STAMP_END:]
    tail = local.tail_for(route_to.server) if route_to.server else local.tail
    return head[:STAMP_AT] + route_to.stamp + head[STAMP_END:HEAD_BYTES] + tail
