"""The pipelines whose messages are for one server each, CALL and CAST: what is known of each address.

A client repeats the same few addresses. Their bytes, with who sends, are the key of what was found out: the names, the
access control's decision, the listener that was chosen, and the credentials as the envelope has them.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final

from broker.identity import Credentials
from broker.name_stats import NameStats
from broker.oslo.frames import HEAD_BYTES, MAGIC, STAMP_AT, STAMP_END, VERSION, Flag, Malformed, decode
from broker.oslo.names import Reason
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.listeners import Listener, Listeners
from broker.oslo.proxy.pipeline import ListenerRoom, TopicStats
from broker.oslo.proxy.registration import CannotOpen, ServerLink
from broker.oslo.reactor.socket import Frames
from broker.oslo.records import Opening
from broker.transport.curve import Certificate

# read where it is used, not folded by the compiler: tests change it
ROUTES_MAX: int = 16_384
"""Addresses that are remembered; then all are forgotten and found again."""
TAIL_BYTES_MAX: Final = 1100
"""Longest address that is remembered: exchange, topic, server and one listener."""
TRIES_MAX: Final = 8
"""Listeners of a topic that one message is tried on when their queues are full."""
BEGIN: Final = MAGIC + bytes([VERSION])
FLAGS_AT: Final = 5
ID_AT: Final = 24
REPEATED: Final = int(Flag.REPEATED)


class CachedRoute:
    """One address, as one user sends to it.

    Attributes:
        names: exchange, topic and server; "" any of the topic.
        stamp: userid and rolemask as the envelope has them.
        allowed: the access control's decision.
        chosen: the listener that the client has chosen; "" none.
        stats: where messages that go there are counted.
        local: that one, when it is here, fits, and is the only one named: the envelope then needs no other address.
    """

    __slots__ = ("allowed", "chosen", "local", "names", "stamp", "stats")

    def __init__(
        self, who: Credentials, names: tuple[str, str, str], chosen: str, allowed: bool, stats: NameStats
    ) -> None:
        self.stamp = who.encode()
        self.stats: NameStats = stats
        self.allowed = allowed
        self.names = names
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
            local = self._listeners.fitting(*route_to.names, route_to.chosen)
            if local is not None:
                route_to.local = local
                return local
        route_to.local = None
        return self._listeners.turn((*route_to.names, None))


def stamped_for(head: bytes, route_to: CachedRoute, local: Listener) -> bytes:
    """The envelope ``head`` with the sender's credentials, and the listener that shall have it."""
    if local is route_to.local:
        return head[:STAMP_AT] + route_to.stamp + head[STAMP_END:]
    server = route_to.names[2]
    tail = local.tail_for(server) if server else local.tail
    return head[:STAMP_AT] + route_to.stamp + head[STAMP_END:HEAD_BYTES] + tail


class DirectRoom(ListenerRoom):
    """See the module; arguments and attributes as ``PipelineRoom``'s.

    Attributes:
        to_server: frames of a message on its way to a server's process, with the router's id; what is said there has
            others.
    """

    to_server: ClassVar[int]

    @abstractmethod
    def _redeliver(self, frames: Frames) -> None:
        """That message waited for a listener which has ended."""

    def _register(self, undo: contextlib.ExitStack, listeners: Listeners) -> None:
        self._routes = RouteCache(self._acl, listeners, self.topics)
        self._known = self._routes.known
        super()._register(undo, listeners)

    def renew(self, certificate: Certificate | None) -> int:
        """See ``PipelineRoom.renew``."""
        self._known.clear()
        return super().renew(certificate)

    # ------------------------------------------------------------ listeners

    def open_listener(self, link: ServerLink, opening: Opening) -> None:
        """See ``Registration``."""
        if len(opening.records) != 1:
            raise CannotOpen(Reason.MALFORMED, f"saw {len(opening.records)} records, expected 1")
        record = opening.records[0]
        if not (record.topic and record.server):
            raise CannotOpen(Reason.MALFORMED, "saw a record without topic or server, expected both")
        if not self.listeners.listened((record.exchange, record.topic)):
            self._known.clear()  # what was counted as a name that may be made up has figures of its own from now on
        self.listeners.open(opening, link)
        self._announcer.add(opening.records)

    def _end_listener(self, link: ServerLink, ended: Listener) -> None:
        end = b"\0" + ended.id.encode()
        for frames in self.servers.sift(
            link.rid, lambda frames: len(frames) == self.to_server and frames[1].endswith(end)
        ):
            self._redeliver(frames)
        self.listeners.resume(link)

    def on_link_end(self, link: ServerLink, waiting: list[Frames]) -> None:
        """See ``Registration``: another listener of its address may have what waited."""
        for frames in waiting:
            if len(frames) == self.to_server:
                self._redeliver(frames)

    # ------------------------------------------------------------ who gets a message

    def _listener_for(self, route_to: CachedRoute, head: bytes) -> Listener | None:
        """Who is to have a message that goes this way. None: nobody is there, or it was sent before, and whoever may
        have had it then is not there any more.
        """
        local = route_to.local
        if local is None or not local.alive:
            local = self._routes.choose(route_to)
        if local is not None and head[FLAGS_AT] & REPEATED and local.id != route_to.chosen:
            return None
        return local

    def _others(
        self, tried: Listener | None, names: tuple[str, str, str], head: bytes
    ) -> Iterator[tuple[Listener, bytes]]:
        """Others at ``names`` (exchange, topic, server) than the one that was tried, in turn, with the envelope that
        each of them gets. What was sent before is for the first one only.
        """
        if not head[FLAGS_AT] & REPEATED:
            for local in self.listeners.turns((*names, None), TRIES_MAX):
                if local is not tried:
                    yield local, head[:HEAD_BYTES] + local.tail_for(names[2])

    # ------------------------------------------------------------ what is told

    def _bad(self, name: str, who: Credentials, text: str) -> None:
        self.counters.count_dropped(name, "dropped a message of uid %d: %s", who.userid, text)
