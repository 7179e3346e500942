"""One socket to one node and pipeline: what waits for it, whether it moves, whether it is full (seed 003).

A node's link is connected at its first use: over the node's folder when the node is our own, else to the TCP endpoint
that its state names. The sockets are IMMEDIATE: libzmq takes messages only while the node is connected, so that
whatever it has not taken can be taken back and given to another one. A link that holds messages and has moved none of
them for ``DOWN_S`` is **down**: it is passed over until it takes something again. A link that holds as many as it may
is **full**: callers wait.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import zmq

from broker.errors import HeadgateError
from broker.oslo.contract import Address, Settings
from broker.oslo.names import Pipeline, entry_file
from broker.oslo.reactor import Pipe, Reactor, Timer
from broker.oslo.reactor.pipe import FLUSH_MSGS, Frames
from broker.oslo.reactor.tuning import KeepAlive, Tuning, tune_local, tune_tcp
from broker.oslo.records import State
from broker.oslo.station.figures import Figures
from broker.transport.curve import Certificate, CurveClient, generate, load

DOWN_S: Final = 1.0
"""Longer than a connection takes to be made; what waits for a node for so long is given to another one."""
WATCH_S: Final = 0.2
GRACE_S: Final = 5.0
"""How long the socket to a node that is gone is kept: it may still answer calls."""
_KINDS: Final = {
    Pipeline.CALL: zmq.DEALER,
    Pipeline.CAST: zmq.PUSH,
    Pipeline.FANOUT: zmq.XPUB,
    Pipeline.NOTIFY: zmq.XPUB,
}
_EVENTS: Final = int(zmq.EVENTS)
_POLLOUT: Final = int(zmq.POLLOUT)


class Sized(Protocol):
    """Something to send."""

    size: int


Parcel = TypeVar("Parcel", bound=Sized)


class Cast:
    """A request for one server that wants no answer. ``listener``: who was chosen."""

    __slots__ = ("address", "body", "listener", "size")

    def __init__(self, address: Address, body: bytes) -> None:
        self.address = address
        self.body = body
        self.listener = ""
        self.size = len(body)


class NodeLink(Pipe, Generic[Parcel]):
    """A socket to one node; its outbox holds parcels, which become frames when libzmq takes them.

    Attributes:
        node, pipeline, endpoint: whose it is.
        down, full: see the module.
        filters: subscriptions of the node, for sockets that publish.
        missed: filters of which the node was given up, until it subscribes.
    """

    def __init__(
        self, links: Links[Parcel], trade: Trade[Parcel], node: str, endpoint: str, sock: zmq.Socket[bytes]
    ) -> None:
        self.node = node
        self.pipeline = trade.pipeline
        self.endpoint = endpoint
        self.down = self.full = False
        self.filters: set[bytes] = set()
        self.missed: set[bytes] = set()
        self._links = links
        self._pack, self._posted, self._stalled = trade.pack, trade.posted, trade.stalled
        self._parcels: deque[Parcel] = deque()
        self._parcel_bytes = 0
        self._moved_s = 0.0
        receive = trade.received
        take = None if receive is None else (lambda frames, _origin: receive(self, frames))
        super().__init__(links.reactor, sock, take)

    @property
    def waiting(self) -> int:
        """Messages in the outbox."""
        return len(self._parcels)

    def submit(self, parcel: Parcel) -> None:
        """Send it, or let it wait; whoever made it has looked at ``full`` before."""
        if self.closed:
            return
        if not self._parcels:
            self._reactor.touch(self)
            if self._post(parcel):
                return
            self._moved_s = self._reactor.now()
            self._links.watch(self)
        self._parcels.append(parcel)
        self._parcel_bytes += parcel.size
        self._try_later()
        if not self.full and self._beyond(1.0):
            self.full = True
            self._links.note_full(self)

    def take_parcels(self) -> list[Parcel]:
        """Empty the outbox: what libzmq never had, oldest first."""
        parcels = list(self._parcels)
        self._parcels.clear()
        self._parcel_bytes = 0
        self._relieve()
        return parcels

    def _beyond(self, part: float) -> bool:
        settings = self._links.settings
        return (
            len(self._parcels) >= part * settings.outbox_msgs
            or self._parcel_bytes >= part * settings.outbox_bytes
        )

    def _post(self, parcel: Parcel) -> bool:
        """False: libzmq has no room for it, or no connection."""
        frames = self._pack(parcel, self)
        if frames is None:
            return True
        if not self._write(frames):
            return False
        if self._posted is not None:
            self._posted(parcel, self)
        if self.down:
            self.down = False
            self._links.note_up(self)
        return True

    def _blocked(self) -> bool:
        return bool(self._parcels)

    def _flush(self) -> None:
        """Send what waits, up to a budget."""
        parcels = self._parcels
        moved = 0
        while parcels and moved < FLUSH_MSGS:
            if not self._post(parcels[0]):
                self._try_later()
                break
            self._parcel_bytes -= parcels.popleft().size
            moved += 1
        else:
            if parcels:
                self._reactor.touch(self)  # the budget is used up
        if moved:
            self._moved_s = self._reactor.now()
            self._relieve()

    def _relieve(self) -> None:
        if self.full and not self._beyond(0.5):
            self.full = False
            self._links.note_room(self)

    def check(self, now: float) -> bool:
        """Look whether it is down, or up again. False: it need not be looked at for now."""
        if self.closed:
            return False
        if self.down:
            if not self._parcels and int(self.sock.get(_EVENTS)) & _POLLOUT:
                self.down = False
                self._links.note_up(self)
        elif self._parcels and now - self._moved_s > DOWN_S:
            self.down = True
            self._links.note_down(self)
            self._stalled(self)
        return self.down or bool(self._parcels)


@dataclass(frozen=True, slots=True)
class Trade(Generic[Parcel]):
    """What one pipeline's links do.

    Attributes:
        pack: the frames of a parcel; None: it is not wanted any more.
        posted: libzmq has it; None: nobody wants to know.
        received: a message came; None: the socket does not read.
        stalled: the link is down, or its node is gone: find another one for its parcels.
        in_use: whether answers may still come over a link whose node is gone.
    """

    pipeline: Pipeline
    pack: Callable[[Parcel, NodeLink[Parcel]], Frames | None]
    posted: Callable[[Parcel, NodeLink[Parcel]], None] | None
    received: Callable[[NodeLink[Parcel], list[bytes]], None] | None
    stalled: Callable[[NodeLink[Parcel]], None]
    in_use: Callable[[NodeLink[Parcel]], bool] | None = None


class Links(Generic[Parcel]):
    """The links of one pipeline.

    Args:
        state: what the directory says of a node's pipeline.
        is_home: whether a node is the one whose folder we have.
        changed: called when a link has room again, or is up or down.
        figures: where lines are logged that would be repeated.

    Attributes:
        down, full: nodes, see the module; replaced, never changed, so that callers may read them.
        bad: both.
        blocking: nodes that are full and not down: what is published there has to wait for them.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        trade: Trade[Parcel],
        state: Callable[[str, str], State | None],
        is_home: Callable[[str], bool],
        changed: Callable[[], None],
        figures: Figures,
    ) -> None:
        self.reactor = reactor
        self.settings = settings
        self.pipeline = trade.pipeline
        self.down: frozenset[str] = frozenset()
        self.full: frozenset[str] = frozenset()
        self.bad: frozenset[str] = frozenset()
        self.blocking: frozenset[str] = frozenset()
        self._trade = trade
        self._state = state
        self._is_home = is_home
        self._changed = changed
        self._figures = figures
        self._links: dict[str, NodeLink[Parcel]] = {}
        self._watched: dict[NodeLink[Parcel], None] = {}
        self._retired: set[NodeLink[Parcel]] = set()
        self._timer: Timer | None = None
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
        state = self._state(node, self._trade.pipeline)
        endpoint = "" if state is None else self._endpoint(state)
        if state is None or not endpoint:
            return None
        try:
            sock = self._socket(state, endpoint)
        except (zmq.ZMQError, HeadgateError) as error:
            self._figures.say(
                "%s: no socket for node %s: %s", self.pipeline, node, str(error), level=logging.ERROR
            )
            return None
        link = NodeLink(self, self._trade, node, endpoint, sock)
        self._links[node] = link
        return link

    # ------------------------------------------------------------ sockets

    def _endpoint(self, state: State) -> str:
        if self._is_home(state.node):
            path = os.path.join(self.settings.ipc_dir, entry_file(self._trade.pipeline))
            if os.path.exists(path):
                return f"ipc://{path}"
        if state.endpoint and self.settings.curve_cert and not state.key:
            text = "%s of node %s offers no key: it is passed over, since we were told to speak CURVE"
            self._figures.say(text, self.pipeline, state.node)
            return ""
        return state.endpoint

    def _socket(self, state: State, endpoint: str) -> zmq.Socket[bytes]:
        assert self.reactor.context is not None
        sock: zmq.Socket[bytes] = self.reactor.context.socket(_KINDS[self._trade.pipeline])
        try:
            self._connect(sock, state, endpoint)
        except BaseException:
            sock.close(0)
            raise
        return sock

    def _connect(self, sock: zmq.Socket[bytes], state: State, endpoint: str) -> None:
        if endpoint.startswith("ipc:"):
            tune_local(sock)
        else:
            tune_tcp(sock, Tuning(KeepAlive(*self.settings.keepalive), curve=self._curve(state)))
        if "[" in endpoint:
            sock.set(zmq.IPV6, 1)
        # a publishing socket must forget the subscriptions of a node with its connection
        sock.set(zmq.IMMEDIATE, 1)
        if sock.type == zmq.XPUB:
            sock.set(zmq.XPUB_NODROP, 1)
        sock.connect(endpoint)

    def _curve(self, state: State) -> CurveClient | None:
        if not state.key:
            return None
        if self._certificate is None:
            path = self.settings.curve_cert
            self._certificate = load(path) if path else generate()
        return CurveClient(self._certificate, state.key)

    # ------------------------------------------------------------ news

    def node_changed(self, node: str) -> None:
        """The directory says something new of ``node``: it may be gone, or reached elsewhere."""
        link = self._links.get(node)
        if link is None:
            return
        state = self._state(node, self._trade.pipeline)
        if state is not None and (link.endpoint.startswith("ipc:") or link.endpoint == self._endpoint(state)):
            return
        del self._links[node]
        self._unwatch(link)
        self._trade.stalled(link)
        self._retired.add(link)
        self.reactor.call_later(GRACE_S, self._retire, link)

    def _retire(self, link: NodeLink[Parcel]) -> None:
        if link.closed:
            return
        if self._trade.in_use is not None and self._trade.in_use(link):
            self.reactor.call_later(GRACE_S, self._retire, link)
            return
        self._retired.discard(link)
        link.close()

    def watch(self, link: NodeLink[Parcel]) -> None:
        """``link`` holds messages: look at it from time to time."""
        self._watched[link] = None
        if self._timer is None:
            self._timer = self.reactor.call_later(WATCH_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self.reactor.now()
        for link in list(self._watched):
            if not link.check(now):
                self._watched.pop(link, None)
        if self._watched and self._timer is None:
            self._timer = self.reactor.call_later(WATCH_S, self._look)

    def _unwatch(self, link: NodeLink[Parcel]) -> None:
        self._watched.pop(link, None)
        self._forget(link.node)

    def _forget(self, node: str) -> None:
        self.down -= {node}
        self.full -= {node}
        self._restate()

    def note_full(self, link: NodeLink[Parcel]) -> None:
        """It holds as much as it may."""
        self.full |= {link.node}
        self._restate()

    def note_room(self, link: NodeLink[Parcel]) -> None:
        """It has room again."""
        if self._links.get(link.node) is link:
            self.full -= {link.node}
            self._restate()

    def note_down(self, link: NodeLink[Parcel]) -> None:
        """It does not move."""
        self.down |= {link.node}
        self._restate()
        self.reactor.say(
            logging.WARNING,
            "%s: node %s (%s) takes nothing for %.1f s: passed over until it does",
            (self._trade.pipeline, link.node, link.endpoint, DOWN_S),
        )

    def note_up(self, link: NodeLink[Parcel]) -> None:
        """It moves again."""
        if self._links.get(link.node) is link:
            self.down -= {link.node}
            self._restate()
            self.reactor.say(
                logging.INFO, "%s: node %s (%s) is back", (self._trade.pipeline, link.node, link.endpoint)
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

    def told(self) -> dict[str, Any]:
        """For status: each node's link."""
        return {
            link.node: {
                "type": zmq.SocketType(_KINDS[self.pipeline]).name,
                "endpoint": link.endpoint,
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
        if self._timer is not None:
            self._timer.cancel()
        for link in [*self._links.values(), *self._retired]:
            left += link.waiting
            link.close(linger_ms)
        self._links.clear()
        self._retired.clear()
        return left
