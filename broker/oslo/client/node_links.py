"""The links of one pipeline: one to each node that is used, and which of them take something.

A node's link is connected at its first use: over the node's folder when the node is our own, else to the TCP endpoint
that its state names; the name of its host is looked up first (``naming``), and again while the node is away.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, NamedTuple

import zmq

from broker.awake import StallMeter
from broker.errors import HeadgateError
from broker.oslo.client.folder import TrustedFolder
from broker.oslo.client.node_link import LinkHandlers, NodeLink, Parcel
from broker.oslo.client.routing import RoutingTable
from broker.oslo.client.submit_queue import SubmitQueue
from broker.oslo.contract import Settings
from broker.oslo.names import Pipeline, entry_file
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.tuning import KeepAlive, Tuning, tune_local, tune_tcp
from broker.oslo.records import State
from broker.transport.curve import Certificate, CurveClient, generate, load

WATCH_S: Final = 0.2
AWAY_LOOK_S: Final = 5.0
"""Between two looks whether nodes reached by name or with CURVE are away: they may have moved, or refuse us."""
GRACE_S: Final = 5.0
"""How long the socket to a node that is gone is kept: it may still answer calls."""
_KINDS: Final = {
    Pipeline.CALL: zmq.DEALER,
    Pipeline.CAST: zmq.PUSH,
    Pipeline.FANOUT: zmq.XPUB,
    Pipeline.NOTIFY: zmq.XPUB,
}


class ClientContext(NamedTuple):
    """What the senders of one client share.

    All of it but ``submit_queue`` and the lookups of ``routes`` is for the thread of the sockets.
    """

    reactor: Reactor
    settings: Settings
    routes: RoutingTable
    folder: TrustedFolder
    submit_queue: SubmitQueue
    counters: Counters


class NodeLinks(Generic[Parcel]):
    """The links of one pipeline.

    Args:
        context: of the client; ``routes`` says where a node's pipeline is, and whether a node is the one whose
            ``folder`` we have.
        changed: called when a link has room again, or is up or down.

    Attributes:
        down, full: nodes, see the module; replaced, never changed, so that callers may read them.
        bad: both.
        blocking: nodes that are full and not down: what is published there has to wait for them.
    """

    def __init__(
        self, context: ClientContext, handlers: LinkHandlers[Parcel], changed: Callable[[], None]
    ) -> None:
        self.reactor = context.reactor
        self.settings = context.settings
        self.pipeline = handlers.pipeline
        self.down: frozenset[str] = frozenset()
        self.full: frozenset[str] = frozenset()
        self.bad: frozenset[str] = frozenset()
        self.blocking: frozenset[str] = frozenset()
        self._handlers = handlers
        self._stall = StallMeter(context.reactor.now)
        self._state = context.routes.state
        self._is_home = context.routes.is_home
        self._folder = context.folder
        self._changed = changed
        self._counters = context.counters
        self._links: dict[str, NodeLink[Parcel]] = {}
        self._watched: dict[NodeLink[Parcel], None] = {}
        self._retired: set[NodeLink[Parcel]] = set()
        self._timer: Timer | None = None
        self._away_timer: Timer | None = None
        self._certificate: Certificate | None = None

    def __iter__(self) -> Iterator[NodeLink[Parcel]]:
        return iter(list(self._links.values()))

    def known(self, node: str) -> NodeLink[Parcel] | None:
        """The link to ``node`` when it was used before."""
        return self._links.get(node)

    def get(self, node: str) -> NodeLink[Parcel] | None:
        """The link to ``node``, connected now if need be; None: it offers nothing that we may connect to."""
        link = self._links.get(node)
        if link is not None:
            return link
        state = self._state(node, self._handlers.pipeline)
        endpoint = "" if state is None else self._endpoint(state)
        if state is None or not endpoint:
            return None
        try:
            curve = None if endpoint.startswith("ipc:") else self._curve(state)
            key = "" if curve is None else curve.certificate.public_key
            made: NodeLink[Parcel] = self._handlers.link_class(
                self, self._handlers, node, endpoint, self._socket(endpoint, curve), key, state.key
            )
        except (zmq.ZMQError, HeadgateError) as error:
            self._counters.say(
                "%s: no socket for node %s: %s", self.pipeline, node, str(error), level=logging.ERROR
            )
            return None
        self._links[node] = link = made
        if link.connection.watched and self._away_timer is None:
            self._away_timer = self.reactor.call_later(AWAY_LOOK_S, self._look_for_moved)
        return link

    def _look_for_moved(self) -> None:
        watched = [link for link in self._links.values() if link.connection.watched]
        self._away_timer = self.reactor.call_later(AWAY_LOOK_S, self._look_for_moved) if watched else None
        for link in watched:
            link.connection.look(link.away)

    def unknown_key(self, nodes: Iterable[str]) -> str:
        """Our CURVE key, when one of ``nodes`` does not let it in; "" none that we know of."""
        links = (self._links.get(node) for node in nodes)
        return next(
            (link.connection.unknown_key for link in links if link and link.connection.unknown_key), ""
        )

    # ------------------------------------------------------------ sockets

    def _endpoint(self, state: State) -> str:
        if self._is_home(state.node):
            path = os.path.join(self.settings.ipc_dir, entry_file(self._handlers.pipeline))
            if os.path.exists(path) and self._folder.usable():
                return f"ipc://{path}"
        if state.endpoint and self.settings.curve_cert and not state.key:
            text = "%s of node %s offers no key: it is passed over, since we were told to speak CURVE"
            self._counters.say(text, self.pipeline, state.node)
            return ""
        return state.endpoint

    def _socket(self, endpoint: str, curve: CurveClient | None) -> zmq.Socket[bytes]:
        assert self.reactor.context is not None
        sock: zmq.Socket[bytes] = self.reactor.context.socket(_KINDS[self._handlers.pipeline])
        try:
            self._tune(sock, endpoint, curve)
        except BaseException:
            sock.close(0)
            raise
        return sock

    def _tune(self, sock: zmq.Socket[bytes], endpoint: str, curve: CurveClient | None) -> None:
        if endpoint.startswith("ipc:"):
            tune_local(sock, self.settings.message_bytes_max)
        else:
            keepalive = KeepAlive(*self.settings.keepalive)
            tune_tcp(sock, Tuning(keepalive, self.settings.message_bytes_max, curve))
        # a publishing socket must forget the subscriptions of a node with its connection
        sock.set(zmq.IMMEDIATE, 1)
        if sock.type == zmq.XPUB:
            sock.set(zmq.XPUB_NODROP, 1)

    def _curve(self, state: State) -> CurveClient | None:
        if not state.key:
            return None
        return CurveClient(self._own_certificate(), state.key)

    def _own_certificate(self) -> Certificate:
        """Read again for each socket, so that a new one is taken; while it cannot be read, the one we had."""
        path = self.settings.curve_cert
        try:
            if path or self._certificate is None:
                self._certificate = load(path) if path else generate()
        except HeadgateError as error:
            if self._certificate is None:
                raise
            text = "%s: the certificate that was read before is used: %s"
            self._counters.say(text, self.pipeline, str(error))
        return self._certificate

    # ------------------------------------------------------------ news

    def node_changed(self, node: str) -> None:
        """The directory says something new of ``node``: it may be gone, or reached elsewhere."""
        link = self._links.get(node)
        if link is None:
            return
        state = self._state(node, self._handlers.pipeline)
        if state is not None and (link.endpoint.startswith("ipc:") or link.endpoint == self._endpoint(state)):
            if link.endpoint.startswith("ipc:") or state.key == link.node_key:
                return
            if link.draining:  # its connection goes on: first what waits for it
                self.reactor.call_later(WATCH_S, self.node_changed, node)
                return
        del self._links[node]
        self._unwatch(link)
        self._handlers.stalled(link)
        self._retired.add(link)
        self.reactor.call_later(GRACE_S, self._retire, link)

    def _retire(self, link: NodeLink[Parcel]) -> None:
        if link.closed:
            return
        if self._handlers.in_use is not None and self._handlers.in_use(link):
            self.reactor.call_later(GRACE_S, self._retire, link)
            return
        self._retired.discard(link)
        link.close()

    def watch(self, link: NodeLink[Parcel]) -> None:
        """``link`` holds messages: look at it from time to time."""
        self._watched[link] = None
        self._look_soon()

    def _look_soon(self) -> None:
        if self._timer is None:
            self._stall.wakes_at(self.reactor.now() + WATCH_S)
            self._timer = self.reactor.call_later(WATCH_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self.reactor.now()
        absent = self._stall.stalled_s()
        for link in list(self._watched):
            if not link.check(now, absent):
                self._watched.pop(link, None)
        if self._watched:
            self._look_soon()

    def _unwatch(self, link: NodeLink[Parcel]) -> None:
        self._watched.pop(link, None)
        self._forget(link.node)

    def _forget(self, node: str) -> None:
        self.down -= {node}
        self.full -= {node}
        self._restate()

    def note_full(self, link: NodeLink[Parcel]) -> None:
        """It holds as much as it may."""
        if self._links.get(link.node) is link:
            self.full |= {link.node}
            self._restate()

    def note_room(self, link: NodeLink[Parcel]) -> None:
        """It has room again."""
        if self._links.get(link.node) is link:
            self.full -= {link.node}
            self._restate()

    def note_down(self, link: NodeLink[Parcel]) -> None:
        """It does not move."""
        if self._links.get(link.node) is not link:
            return  # its node is reached elsewhere, or gone
        self.down |= {link.node}
        self._restate()
        self.reactor.say(
            logging.WARNING,
            "%s: node %s (%s) takes nothing for %.1f s: passed over until it does",
            (self._handlers.pipeline, link.node, link.endpoint, link.down_s),
        )

    def note_up(self, link: NodeLink[Parcel]) -> None:
        """It moves again."""
        if self._links.get(link.node) is link:
            self.down -= {link.node}
            self._restate()
            self.reactor.say(
                logging.INFO, "%s: node %s (%s) is back", (self._handlers.pipeline, link.node, link.endpoint)
            )

    def _restate(self) -> None:
        self.bad = self.down | self.full
        self.blocking = self.full - self.down
        self._changed()

    # ------------------------------------------------------------ end

    @property
    def waiting(self) -> int:
        """Messages in all outboxes of nodes that are not down: those may still leave."""
        return sum(link.waiting for link in self._links.values() if not link.down)

    def status(self) -> dict[str, Any]:
        """For status: each node's link."""
        return {
            link.node: {
                "type": zmq.SocketType(_KINDS[self.pipeline]).name,
                "endpoint": link.endpoint,
                "at": link.connection.at,
                "sent": link.sent,
                "sent_bytes": link.sent_bytes,
                "received": link.received,
                "waiting": link.waiting,
                "down": link.down,
                "filters": len(link.filters),
            }
            for link in self._links.values()
        }

    def close(self, linger_ms: int) -> int:
        """Close all; returns how many messages were left in outboxes."""
        left = 0
        for timer in (self._timer, self._away_timer):
            if timer is not None:
                timer.cancel()
        for link in [*self._links.values(), *self._retired]:
            left += link.waiting
            link.close(linger_ms)
        self._links.clear()
        self._retired.clear()
        return left
