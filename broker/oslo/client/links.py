"""The links of one pipeline: one to each node that is used, what waits for it, whether it moves, whether it is full.

The sockets are IMMEDIATE: libzmq takes messages only while the node is connected, so that whatever it has not taken
can be taken back and given to another one. A link that holds messages and has moved none of them for ``down_s`` is
**down**: it is passed over until it takes something again. A link that holds as many as it may is **full**: callers
wait.

What libzmq has taken is lost with its connection. So when a connection ends, what was sent over it lately goes first,
marked as repeated, when the node is back (``resend``).

A node's link is connected at its first use: over the node's folder when the node is our own, else to the TCP endpoint
that its state names.
"""

# compiled: mypyc

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import zmq

from broker.awake import StallMeter
from broker.errors import HeadgateError
from broker.oslo.client.resend import MessageIds, Parcel, ResendBuffer
from broker.oslo.contract import Address
from broker.oslo.names import Pipeline, entry_file
from broker.oslo.reactor import Timer
from broker.oslo.reactor.link import Link
from broker.oslo.reactor.socket import FLUSH_MSGS, Frames
from broker.oslo.reactor.tuning import KeepAlive, Tuning
from broker.oslo.records import State
from broker.transport.curve import Certificate, CurveClient, generate, load
from broker.trust import folder_objection, is_kept

if TYPE_CHECKING:
    from broker.oslo.client.client import Client

DOWN_S: Final = 1.0
"""Longer than a connection takes to be made; what waits for a node for so long is given to another one."""
NOTIFY_DOWN_S: Final = 6.0
"""The same for notifications, which have nowhere else to go: a proxy reads none for 5 s while a slow listener moves."""
LOST_S: Final = 0.02
"""Between the word that a connection has ended and the next message: libzmq goes on taking some for it meanwhile."""
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
_EVENTS: Final = int(zmq.EVENTS)
_POLLOUT: Final = int(zmq.POLLOUT)

P = TypeVar("P", bound=Parcel)


class TrustedFolder:
    """The folder of the node's sockets: used only where nobody else can have made it.

    Whoever owns the folder reads what is sent there and is believed: ``broker.trust`` says whose it may be. While there
    is none below a folder where everybody may make one (``/tmp``) it is not connected to either: libzmq would take
    whatever comes.

    Args:
        say: logs a line, not too often.
    """

    def __init__(self, path: str, say: Callable[..., None]) -> None:
        self._path = path
        self._say = say

    def usable(self) -> bool:
        """Whether its sockets may be connected to now; why not is logged."""
        text = folder_objection(self._path)
        if text:
            self._say("the proxy of this node is not spoken to: %s", text)
            return False
        return os.path.exists(self._path) or is_kept(os.path.dirname(os.path.abspath(self._path)))

    def endpoint(self, name: str) -> str:
        """Of the file ``name``."""
        return f"ipc://{os.path.join(self._path, name)}"


class Sender(ABC, Generic[P]):
    """What one pipeline of a client sends, and its links, one to each node that is used.

    Args:
        client: whose; its ``routes`` say where a node's pipeline is, and whether it is the one whose folder we have.
        pipeline: which one.

    Attributes:
        ids: of its messages.
        closed: nothing more is taken.
        down, full: nodes, see the module; replaced, never changed, so that callers may read them.
        bad: both.
        blocking: nodes that are full and not down: what is published there has to wait for them.
    """

    def __init__(self, client: Client, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.ids = MessageIds()
        self.closed = False
        self.reactor = client.reactor
        self.settings = client.settings
        self.down: frozenset[str] = frozenset()
        self.full: frozenset[str] = frozenset()
        self.bad: frozenset[str] = frozenset()
        self.blocking: frozenset[str] = frozenset()
        self._client = client
        self._routes = client.routes
        self._folder = client.folder
        self._submit_queue = client.submit_queue
        self._counters = client.counters
        self._sent: ResendBuffer[P] = ResendBuffer(client.reactor.now)
        self._stall = StallMeter(client.reactor.now)
        self._links: dict[str, NodeLink[P]] = {}
        self._watched: dict[NodeLink[P], None] = {}
        self._retired: set[NodeLink[P]] = set()
        self._timer: Timer | None = None
        self._away_timer: Timer | None = None
        self._certificate: Certificate | None = None

    # ------------------------------------------------------------ each pipeline

    @abstractmethod
    def pack(self, parcel: P) -> Frames | None:
        """The frames of a parcel; None: it is not wanted any more."""

    def on_message(self, link: NodeLink[P], frames: list[bytes], _origin: str) -> None:
        """A node's proxy sent something; casts have no way back."""

    @abstractmethod
    def place(self, parcel: P) -> None:
        """Find a node for a parcel that nobody has."""

    def has_others(self, parcel: P) -> bool:
        """Whether there is another node for it, one that is not down; without one it waits for its own."""
        return False

    def note_sent(self, parcel: P) -> None:
        """``parcel`` went over its link: libzmq has it."""
        self._sent.note_sent(parcel)

    def take_sent(self, link: NodeLink[P]) -> list[P]:
        """Forget what went over ``link``; returns what of it may be lost with its connection, oldest first."""
        return self._sent.take(link)

    def lose(self, parcel: P) -> None:
        """The node that may have it, so that nobody else may, is gone."""
        self._counters.count("lost")

    def in_use(self, link: NodeLink[P]) -> bool:
        """Whether answers may still come over a link whose node is gone."""
        return False

    def _takes(self, size: int, what: str) -> bool:
        """Whether a message that a caller has handed over is still taken; it is counted as ``what``."""
        self._submit_queue.take(size)
        self._counters.counts["unflushed" if self.closed else what] += 1
        return not self.closed

    def note_nobody(self, what: str, address: Address) -> None:
        """A message has nobody to hear it."""
        self._counters.count("nobody")
        self._counters.say("%s to %s dropped: nobody listens there", what, str(address))

    # ------------------------------------------------------------ links

    def known(self, node: str) -> NodeLink[P] | None:
        """The link to ``node`` when it was used before."""
        return self._links.get(node)

    def get(self, node: str) -> NodeLink[P] | None:
        """The link to ``node``, connected now if need be; None: it offers nothing that we may connect to."""
        link = self._links.get(node)
        if link is not None:
            return link
        state = self._routes.replica.state(node, self.pipeline)
        endpoint = "" if state is None else self._endpoint(state)
        if state is None or not endpoint:
            return None
        try:
            curve = CurveClient(self._own_certificate(), state.key) if state.key else None
            tuning = Tuning(KeepAlive(*self.settings.keepalive), self.settings.message_bytes_max, curve)
            link = self._new_link(node, endpoint, tuning, state.key)
        except (zmq.ZMQError, HeadgateError) as error:
            text = "%s: no socket for node %s: %s"
            self._counters.say(text, self.pipeline, node, str(error), level=logging.ERROR)
            return None
        self._links[node] = link
        if link.movable and self._away_timer is None:
            self._away_timer = self.reactor.call_later(AWAY_LOOK_S, self._look_for_moved)
        return link

    def _new_link(self, node: str, endpoint: str, tuning: Tuning, node_key: str) -> NodeLink[P]:
        return NodeLink(self, node, endpoint, tuning, node_key)

    def _endpoint(self, state: State) -> str:
        if self._routes.is_home(state.node):
            endpoint = self._folder.endpoint(entry_file(self.pipeline))
            if os.path.exists(endpoint.removeprefix("ipc://")) and self._folder.usable():
                return endpoint
        if state.endpoint and self.settings.curve_cert and not state.key:
            text = "%s of node %s offers no key: it is passed over, since we were told to speak CURVE"
            self._counters.say(text, self.pipeline, state.node)
            return ""
        return state.endpoint

    def _own_certificate(self) -> Certificate:
        """Read again for each link, so that a new one is taken; while it cannot be read, the one we had."""
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

    def _look_for_moved(self) -> None:
        movable = [link for link in self._links.values() if link.movable]
        self._away_timer = self.reactor.call_later(AWAY_LOOK_S, self._look_for_moved) if movable else None
        for link in movable:
            link.check_peer(link.away)

    def unknown_key(self, nodes: Iterable[str]) -> str:
        """Our CURVE key, when one of ``nodes`` does not let it in; "" none that we know of."""
        links = (self._links.get(node) for node in nodes)
        return next((link.unknown_key for link in links if link and link.unknown_key), "")

    # ------------------------------------------------------------ news

    def directory_changed(self, nodes: set[str]) -> None:
        """``nodes`` are reached elsewhere, or no more; others may have come."""
        for node in nodes:
            self.node_changed(node)

    def node_changed(self, node: str) -> None:
        """The directory says something new of ``node``: it may be gone, or reached elsewhere."""
        link = self._links.get(node)
        if link is None:
            return
        state = self._routes.replica.state(node, self.pipeline)
        if state is not None and (link.endpoint.startswith("ipc:") or link.endpoint == self._endpoint(state)):
            if link.endpoint.startswith("ipc:") or state.key == link.node_key:
                return
            if link.draining:  # its connection goes on: first what waits for it
                self.reactor.call_later(WATCH_S, self.node_changed, node)
                return
        del self._links[node]
        self._unwatch(link)
        self.reroute(link)
        self._retired.add(link)
        self.reactor.call_later(GRACE_S, self._retire, link)

    def _retire(self, link: NodeLink[P]) -> None:
        if link.closed:
            return
        if self.in_use(link):
            self.reactor.call_later(GRACE_S, self._retire, link)
            return
        self._retired.discard(link)
        link.close()

    def reroute(self, link: NodeLink[P]) -> None:
        """It takes nothing, or its node is gone or elsewhere: what waits for it goes to others, where there are any."""
        gone = self._links.get(link.node) is not link
        for parcel in link.take_all() if gone else link.take_parcels():
            if parcel.over:
                continue
            others = self.has_others(parcel)
            if parcel.repeated:
                self.send_again(link.node, parcel)
            elif gone or others:
                self._counters.counts["chosen_again"] += others
                self.place(parcel)
            else:
                link.submit(parcel)

    def take_lost(self, link: NodeLink[P]) -> list[P]:
        """The connection of ``link`` has ended: what is to be sent over it again, marked as repeated, oldest first."""
        again = self.take_sent(link)
        for parcel in again:
            parcel.mark_repeated()
        self._counters.count("repeated", len(again))
        if self._links.get(link.node) is link:
            return again
        for parcel in again:
            self.send_again(link.node, parcel)
        return []

    def send_again(self, node: str, parcel: P) -> None:
        """``node`` may have it, so nobody else may: there, wherever it is reached now."""
        there = self.get(node)
        if there is None:
            self.lose(parcel)
        else:
            there.submit(parcel)

    # ------------------------------------------------------------ which of them move

    def watch(self, link: NodeLink[P]) -> None:
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

    def _unwatch(self, link: NodeLink[P]) -> None:
        self._watched.pop(link, None)
        self.down -= {link.node}
        self.full -= {link.node}
        self._restate()

    def note_change(self, link: NodeLink[P]) -> None:
        """It is full or has room again, is down or up."""
        if self._links.get(link.node) is not link:
            return  # its node is reached elsewhere, or gone
        one = {link.node}
        was_down = link.node in self.down
        self.down = self.down | one if link.down else self.down - one
        self.full = self.full | one if link.full else self.full - one
        self._restate()
        if link.down and not was_down:
            text = "%s: node %s (%s) takes nothing for %.1f s: passed over until it does"
            values = (self.pipeline, link.node, link.endpoint, link.down_s)
            self.reactor.say(logging.WARNING, text, values)
        elif was_down and not link.down:
            text = "%s: node %s (%s) is back"
            self.reactor.say(logging.INFO, text, (self.pipeline, link.node, link.endpoint))

    def _restate(self) -> None:
        self.bad = self.down | self.full
        self.blocking = self.full - self.down
        self._client.on_link_change()

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
                "at": link.at,
                "sent": link.sent,
                "sent_bytes": link.sent_bytes,
                "received": link.received,
                "waiting": link.waiting,
                "down": link.down,
                "filters": len(link.filters),
            }
            for link in self._links.values()
        }

    def close(self, linger_ms: int) -> None:
        """Close all sockets; what was left in their outboxes is counted."""
        self.closed = True
        left = 0
        for timer in (self._timer, self._away_timer):
            if timer is not None:
                timer.cancel()
        for link in [*self._links.values(), *self._retired]:
            left += sum(not parcel.over for parcel in link.take_all())
            link.close(linger_ms)
        self._links.clear()
        self._retired.clear()
        if left:
            self._counters.count("unflushed", left)


class NodeLink(Link, Generic[P]):
    """A link to one node; its outbox holds parcels, which become frames when libzmq takes them.

    Attributes:
        node, endpoint: whose it is.
        node_key: CURVE key that the node has to have; "" plaintext.
        down, full: see the module.
        down_s: how long it may move nothing.
        filters: subscriptions of the node, for sockets that publish.
    """

    def __init__(
        self, sender: Sender[P], node: str, endpoint: str, tuning: Tuning, node_key: str = ""
    ) -> None:
        self.node = node
        self.node_key = node_key
        self.down = self.full = False
        self.down_s = NOTIFY_DOWN_S if sender.pipeline is Pipeline.NOTIFY else DOWN_S
        self.filters: set[bytes] = set()
        self._sender = sender
        self._interrupted: Timer | None = None
        self._parcels: deque[P] = deque()
        self._parcel_bytes = 0
        self._moved_s = 0.0
        kind = _KINDS[sender.pipeline]
        receive = None if kind == zmq.PUSH else partial(sender.on_message, self)
        super().__init__(sender.reactor, kind, endpoint, receive, tuning=tuning, watched=True)
        self._queue = self._parcels

    @property
    def away(self) -> bool:
        """Nothing can be sent to it now: it is not connected, as far as we see."""
        self._reactor.check_after_turn(self)
        return not int(self.sock.get(_EVENTS)) & _POLLOUT

    @property
    def waiting(self) -> int:
        """Messages in the outbox."""
        return len(self._parcels)

    @property
    def waiting_bytes(self) -> int:
        """Their bodies."""
        return self._parcel_bytes

    @property
    def draining(self) -> bool:
        """Whether what waits for it may still leave."""
        return self.waiting > 0 and not self.down

    def submit(self, parcel: P) -> None:
        """Send it, or let it wait; whoever made it has looked at ``full`` before."""
        if self.closed:
            return
        parcel.link = self
        if not self._parcels:
            self._reactor.check_after_turn(self)
            if self._post(parcel):
                return
            self._begin_to_wait()
        self._parcels.append(parcel)
        self._parcel_bytes += parcel.size
        self._try_later()
        self._fill()

    def _begin_to_wait(self) -> None:
        self._moved_s = self._reactor.now()
        self._sender.watch(self)

    def _fill(self) -> None:
        if not self.full and self._beyond(1.0):
            self.full = True
            self._sender.note_change(self)

    def take_parcels(self) -> list[P]:
        """Empty the outbox: what libzmq never had, oldest first."""
        parcels = list(self._parcels)
        self._parcels.clear()
        self._parcel_bytes = 0
        self._relieve()
        return parcels

    def take_all(self) -> list[P]:
        """All that waits, for whatever reason."""
        return self.take_parcels()

    def _beyond(self, part: float) -> bool:
        settings = self._sender.settings
        return (
            self.waiting >= part * settings.outbox_msgs or self.waiting_bytes >= part * settings.outbox_bytes
        )

    def _post(self, parcel: P) -> bool:
        """False: libzmq has no room for it, or no connection."""
        if self._interrupted is not None:
            return False
        frames = self._sender.pack(parcel)
        if frames is None:
            return True
        if not self._write(frames):
            return False
        self._sender.note_sent(parcel)
        if self.down:
            self.down = False
            self._sender.note_change(self)
        return True

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
                self._reactor.check_after_turn(self)  # the budget is used up
        if moved:
            self._moved_s = self._reactor.now()
            self._relieve()

    def _relieve(self) -> None:
        if self.full and not self._beyond(0.5):
            self.full = False
            self._sender.note_change(self)

    # ------------------------------------------------------------ connections that end

    def on_lost(self) -> None:
        """See ``Link``."""
        if self._interrupted is None and not self.closed:
            self._interrupted = self._reactor.call_later(LOST_S, self._resend_lost)

    def _resend_lost(self) -> None:
        """Put what may be lost before what was not sent yet."""
        self._interrupted = None
        if self.closed:
            return
        again = self._sender.take_lost(self)
        if again:
            if not self._parcels:
                self._begin_to_wait()
            self._parcels.extendleft(reversed(again))
            self._parcel_bytes += sum(parcel.size for parcel in again)
        if self._parcels:
            self._try_later()

    def close(self, linger_ms: int = 0) -> None:
        """See ``Socket.close``."""
        if self._interrupted is not None:
            self._interrupted.cancel()
        super().close(linger_ms)

    # ------------------------------------------------------------ down

    def check(self, now: float, absent: float) -> bool:
        """Look whether it is down, or up again. False: it need not be looked at for now.

        Args:
            now: by the reactor's clock.
            absent: seconds in which this process was stopped: the node is not to blame for them.
        """
        if self.closed:
            return False
        self._moved_s = min(self._moved_s + absent, now)
        if self.down:
            self._reactor.check_after_turn(self)  # asking may take in the news of a message
            if not self._parcels and int(self.sock.get(_EVENTS)) & _POLLOUT:
                self.down = False
                self._sender.note_change(self)
        elif self._parcels and now - self._moved_s > self.down_s:
            self.down = True
            self._sender.note_change(self)
            self._sender.reroute(self)
        return self.down or bool(self._parcels)
