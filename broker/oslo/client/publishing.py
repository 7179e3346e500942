"""Fan-outs and notifications, in the thread of the sockets: published once to each node, once the node has subscribed.

What waits for the subscription of a node is said at ``PublishingLink``; everything else goes on meanwhile
(zmq-patterns-usage, "PUB/SUB for FANOUT CAST", "PUB/SUB for Notifier"). It is as bounded as what waits for a
socket: beyond it callers wait (``busy``).

A notification names the listeners that shall have it: one of each pool, in turn, one copy to each node of them.
"""

# compiled: mypyc

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from broker.oslo.client.links import LOST_S, NodeLink, Sender
from broker.oslo.client.resend import Parcel
from broker.oslo.client.routing import Chooser
from broker.oslo.contract import Address
from broker.oslo.frames import NO_ID, Kind, encode, fanout_filter, notify_filter, read_filter, repeated
from broker.oslo.names import CHOSEN_MAX, Pipeline
from broker.oslo.reactor import Timer
from broker.oslo.reactor.socket import Frames
from broker.oslo.reactor.tuning import Tuning

if TYPE_CHECKING:
    from broker.oslo.client.client import Client

TOPICS_MAX: Final = 16_384
"""Topics whose nodes are remembered; beyond it all are forgotten and looked up anew."""

Chosen = tuple[tuple[str, str | None], ...]
"""Of a notification on one node: the listeners that shall have it, with their pools."""


class Publication:
    """A fan-out or notification that a caller has handed over; ``id``: from the time that it is published."""

    __slots__ = ("address", "body", "id", "size")

    def __init__(self, address: Address, body: bytes) -> None:
        self.address = address
        self.body = body
        self.size = len(body)
        self.id = NO_ID


class Copy(Parcel):
    """What one node gets of a publication: filter, envelope and body.

    Attributes:
        due_s: when it has waited for a subscription for long enough.
    """

    __slots__ = ("chosen", "due_s", "frames", "node", "publication")

    def __init__(self, publication: Publication, node: str, chosen: Chosen, frames: Frames) -> None:
        super().__init__(publication.size)
        self.publication = publication
        self.node = node
        self.chosen = chosen
        self.frames = frames
        self.due_s = 0.0

    def mark_repeated(self) -> None:
        """See ``Parcel``."""
        self.repeated = True
        self.frames = (self.frames[0], repeated(self.frames[1]), self.frames[2])


class PublishingLink(NodeLink[Copy]):
    """What is published to one node waits until the node has subscribed, for each filter by itself.

    A publishing socket drops what nobody has subscribed to, and a node subscribes when its connection is there. So a
    copy for a node that the directory lists waits until the node has subscribed, ``fanout_wait_s`` at most: that is the
    time of a restart, since a proxy that is being started subscribes when its servers and listeners have come back.
    Directories list a node for a lease only; where they say that it is gone, nothing waits. What waited in vain is
    counted, and the filter is not waited for again until it is subscribed to.
    """

    def __init__(
        self, sender: Sender[Copy], node: str, endpoint: str, tuning: Tuning, node_key: str = ""
    ) -> None:
        self._held: dict[bytes, deque[Copy]] = {}
        self._held_msgs = self._held_bytes = 0
        self._missed: set[bytes] = set()
        self._timer: Timer | None = None
        super().__init__(sender, node, endpoint, tuning, node_key)

    @property
    def away(self) -> bool:
        """Nothing is subscribed: it is not connected, as far as we see."""
        return not self.filters

    @property
    def waiting(self) -> int:
        """Messages in the outbox, and those that wait for a subscription."""
        return super().waiting + self._held_msgs

    @property
    def waiting_bytes(self) -> int:
        """Their bodies."""
        return super().waiting_bytes + self._held_bytes

    @property
    def draining(self) -> bool:
        """See ``NodeLink``; what waits for it to come back does not."""
        return super().draining and not self.away

    def submit(self, parcel: Copy) -> None:
        """Send it, or let it wait, for room or for the subscription."""
        data = parcel.frames[0]
        if data in self.filters:
            super().submit(parcel)
        elif data in self._missed or (self.full and self.down):
            self._sender.lose(parcel)
        else:
            self._hold(data, parcel)

    def _hold(self, data: bytes, copy: Copy) -> None:
        copy.due_s = self._reactor.now() + self._sender.settings.fanout_wait_s
        self._held.setdefault(data, deque()).append(copy)
        self._held_msgs += 1
        self._held_bytes += copy.size
        self._arm(copy.due_s)
        self._fill()

    def _release(self, data: bytes) -> deque[Copy]:
        held = self._held.pop(data, None) or deque()
        self._held_msgs -= len(held)
        self._held_bytes -= sum(copy.size for copy in held)
        return held

    # ------------------------------------------------------------ subscriptions

    def subscribed(self, data: bytes) -> None:
        """The node hears that filter from now on."""
        self.filters.add(data)
        self._missed.discard(data)
        for copy in self._release(data):
            super().submit(copy)
        self._relieve()

    def unsubscribed(self, data: bytes) -> None:
        """It does not hear it any more; what was not sent yet waits for it to come back, in its order."""
        self.filters.discard(data)
        outbox = self.take_parcels()
        for copy in outbox:
            if copy.frames[0] == data:
                self._hold(data, copy)
            else:
                super().submit(copy)

    def drop_held(self, data: bytes) -> None:
        """The subscription to that filter is not waited for any more."""
        dropped = self._release(data)
        self._relieve()
        for copy in dropped:
            self._sender.lose(copy)

    def take_all(self) -> list[Copy]:
        """See ``NodeLink``: what waits for subscriptions, too, of each filter in its order."""
        held = [copy for data in list(self._held) for copy in self._release(data)]
        return [*self.take_parcels(), *held]

    def _arm(self, due_s: float) -> None:
        if self._timer is None and not self.closed:
            self._timer = self._reactor.call_later(max(due_s - self._reactor.now(), 0.0), self._late)

    def _late(self) -> None:
        """Give up what has waited for long enough."""
        self._timer = None
        now_s = self._reactor.now()
        for data, held in list(self._held.items()):
            if held[0].due_s <= now_s:
                self._missed.add(data)
                self.drop_held(data)
        if self._held:
            self._arm(min(held[0].due_s for held in self._held.values()))

    # ------------------------------------------------------------ connections that end

    def _resend_lost(self) -> None:
        """What may be lost, what was not sent, what waits: in this order, for each filter."""
        if self.closed:
            return
        if self._readable():  # that it has unsubscribed, by ending: what is sent before we know goes nowhere
            self._reactor.check_after_turn(self)
            self._interrupted = self._reactor.call_later(LOST_S, self._resend_lost)
            return
        self._interrupted = None
        for copy in [*self._sender.take_lost(self), *self.take_all()]:
            self.submit(copy)

    def close(self, linger_ms: int = 0) -> None:
        """See ``Socket.close``."""
        if self._timer is not None:
            self._timer.cancel()
        super().close(linger_ms)


class Publisher(Sender[Copy]):
    """What fan-outs and notifications have in common; see the two below.

    Args:
        client: whose.
        pipeline: of one of them.
        kind: of its messages.
        what: their counter.
        new_filter: of an exchange and topic.
    """

    def __init__(
        self,
        client: Client,
        pipeline: Pipeline,
        kind: Kind,
        what: str,
        new_filter: Callable[[str, str], bytes],
    ) -> None:
        super().__init__(client, pipeline)
        self._kind = kind
        self._what = what
        self._new_filter = new_filter

    # ------------------------------------------------------------ each kind

    @abstractmethod
    def nodes(self, exchange: str, topic: str) -> Sequence[str]:
        """Where somebody listens, any thread."""

    @abstractmethod
    def _targets(self, address: Address) -> Iterable[tuple[str, Chosen]]:
        """Where the copies go."""

    # ------------------------------------------------------------ from callers

    def busy(self, address: Address) -> bool:
        """Whether as much as may waits for a node of the topic, any thread."""
        blocking = self.blocking
        return bool(blocking) and not blocking.isdisjoint(self.nodes(address.exchange, address.topic))

    def start(self, publication: Publication) -> None:
        """A publication that was handed over."""
        if not self._takes(publication.size, self._what):
            return
        publication.id = self.ids.next()
        nobody = True
        for node, chosen in self._targets(publication.address):
            nobody = False
            self.place(self._copy(publication, node, chosen))
        if nobody:
            self.note_nobody(self._what, publication.address)

    def _copy(self, publication: Publication, node: str, chosen: Chosen) -> Copy:
        exchange, topic = publication.address.exchange, publication.address.topic
        listeners = tuple(listener for listener, _pool in chosen)
        head = encode(self._kind, exchange, topic, listeners=listeners, id=publication.id)
        return Copy(publication, node, chosen, (self._new_filter(exchange, topic), head, publication.body))

    # ------------------------------------------------------------ what the links ask for

    def _new_link(self, node: str, endpoint: str, tuning: Tuning, node_key: str) -> NodeLink[Copy]:
        return PublishingLink(self, node, endpoint, tuning, node_key)

    def pack(self, parcel: Copy) -> Frames:
        """See ``Sender``."""
        return parcel.frames

    def on_message(self, link: NodeLink[Copy], frames: list[bytes], _origin: str) -> None:
        """A node has subscribed, or unsubscribed."""
        assert isinstance(link, PublishingLink)
        data = frames[0]
        if len(frames) != 1 or data[:1] not in (b"\0", b"\1"):
            self._counters.count("malformed")
        elif data[:1] == b"\0":
            link.unsubscribed(data[1:])
        else:
            link.subscribed(data[1:])

    def place(self, parcel: Copy) -> None:
        """Hand a copy to the link of its node, wherever that is reached now."""
        self.send_again(parcel.node, parcel)

    def lose(self, parcel: Copy) -> None:
        """Its node does not get it."""
        self._counters.count("not_reached")
        text = "%s: node %s was not reached at %.200r"
        self._counters.say(text, self._what, parcel.node, parcel.frames[0])

    def directory_changed(self, nodes: set[str]) -> None:
        """See ``Sender``."""
        super().directory_changed(nodes)
        for link in list(self._links.values()):
            assert isinstance(link, PublishingLink)
            for data in list(link._held):
                names = read_filter(data)
                if names is not None and link.node not in self.nodes(*names):
                    link.drop_held(data)  # nobody listens there any more


class Fanouts(Publisher):
    """To every server of a topic."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, Pipeline.FANOUT, Kind.FANOUT, "fanouts", fanout_filter)

    def nodes(self, exchange: str, topic: str) -> Sequence[str]:
        """See ``Publisher.nodes``."""
        return self._routes.replica.fanout_nodes(exchange, topic)

    def _targets(self, address: Address) -> Iterable[tuple[str, Chosen]]:
        return [(node, ()) for node in self.nodes(address.exchange, address.topic)]


class Notifications(Publisher):
    """To one listener of each pool."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, Pipeline.NOTIFY, Kind.NOTIFY, "notifications", notify_filter)
        self._chooser = Chooser[tuple[str, str]](node_at=0)
        self._nodes: dict[tuple[str, str], tuple[object, tuple[str, ...]]] = {}

    def nodes(self, exchange: str, topic: str) -> Sequence[str]:
        """See ``Publisher.nodes``."""
        pools = self._routes.replica.pools(exchange, topic)
        if not pools:
            return ()
        key = (exchange, topic)
        known = self._nodes.get(key)
        if known is None or known[0] is not pools:
            if len(self._nodes) >= TOPICS_MAX:
                self._nodes.clear()
            found = tuple(sorted({node for listeners in pools.values() for node, _listener in listeners}))
            known = self._nodes[key] = (pools, found)
        return known[1]

    def _targets(self, address: Address) -> Iterable[tuple[str, Chosen]]:
        pools = self._routes.replica.pools(address.exchange, address.topic)
        return self._choose(address, pools, self._away(address), anyway=True)

    def _choose(
        self, address: Address, among: Iterable[str | None], away: frozenset[str], *, anyway: bool
    ) -> list[tuple[str, Chosen]]:
        """The next listener of each pool, on a node that is not ``away``; else, with ``anyway``, on one that is."""
        exchange, topic = address.exchange, address.topic
        pools = self._routes.replica.pools(exchange, topic)
        chosen: dict[str, list[tuple[str, str | None]]] = {}
        for pool in among:
            key, listeners = (exchange, topic, pool), pools.get(pool, ())
            one = self._chooser.choose(key, listeners, away)
            if one is None and anyway:
                one = self._chooser.choose(key, listeners)
            if one is not None:
                chosen.setdefault(one[0], []).append((one[1], pool))
        return [
            (node, tuple(listeners[at : at + CHOSEN_MAX]))
            for node, listeners in chosen.items()
            for at in range(0, len(listeners), CHOSEN_MAX)
        ]

    def lose(self, parcel: Copy) -> None:
        """See ``Publisher``; another node may have it, unless this one may have it already."""
        if parcel.repeated or not self._give_to_others(parcel):
            super().lose(parcel)

    def _give_to_others(self, copy: Copy) -> bool:
        """Give a copy that its node never had to others of the same pools; False: not all pools have some."""
        address = copy.publication.address
        away = self._away(address) | {copy.node}
        pools = [pool for _listener, pool in copy.chosen]
        others = self._choose(address, pools, away, anyway=False)
        # or nodes that nobody can connect to would pass it to each other for ever
        while unreached := frozenset(node for node, _chosen in others if self.get(node) is None):
            away |= unreached
            others = self._choose(address, pools, away, anyway=False)
        for node, chosen in others:
            self.place(self._copy(copy.publication, node, chosen))
        return sum(len(chosen) for _node, chosen in others) == len(pools)

    def _away(self, address: Address) -> frozenset[str]:
        """Nodes of the topic that hear nothing of it now."""
        exchange, topic = address.exchange, address.topic
        data = self._new_filter(exchange, topic)
        return frozenset(node for node in self.nodes(exchange, topic) if not self._reaches(data, node))

    def _reaches(self, data: bytes, node: str) -> bool:
        link = self.known(node)  # made for the first message: without one it would never be chosen
        return link is None or (data in link.filters and not link.down)
