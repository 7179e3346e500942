"""Fan-outs and notifications, in the thread of the sockets: published once to each node, once the node has subscribed.

A publishing socket drops what nobody has subscribed to, and a node subscribes when the connection is there: so a
message waits, with all that follow at the same filter, until every node that the directory lists has subscribed, at
most ``fanout_wait_s``. Nodes that have not by then are logged, counted and not waited for again until they do.
Everything else goes on meanwhile (seed 003, "PUB/SUB for FANOUT CAST", "PUB/SUB for Notifier"). What waits for the
subscription of a node is as bounded as what waits for its socket: beyond it callers wait (``busy``).

A notification names the listeners that shall have it: one of each pool, in turn, one copy to each node of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from broker.oslo.client.chooser import PoolChooser
from broker.oslo.client.counters import ClientCounters
from broker.oslo.client.folder import TrustedFolder
from broker.oslo.client.handoff import Handoff
from broker.oslo.client.node_link import LinkHandlers, NodeLink
from broker.oslo.client.node_links import NodeLinks
from broker.oslo.client.routing import RoutingTable
from broker.oslo.contract import Settings
from broker.oslo.frames import Kind, encode, fanout_filter, new_id, notify_filter
from broker.oslo.names import CHOSEN_MAX, Pipeline
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.pipe import Frames

FILTERS_MAX: Final = 16_384
"""Filters remembered; those where nothing waits are forgotten beyond it."""


class Publication:
    """A fan-out or notification that a caller has handed over."""

    __slots__ = ("awaited", "body", "due_s", "exchange", "size", "topic")

    def __init__(self, exchange: str, topic: str, body: bytes) -> None:
        self.exchange = exchange
        self.topic = topic
        self.body = body
        self.size = len(body)
        self.due_s = 0.0
        self.awaited: Sequence[str] = ()
        """Nodes whose subscription it waits for."""


class Copy:
    """What one node gets."""

    __slots__ = ("frames", "size")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.size = len(frames[2])


class _Filter:
    """Attributes: ``data``: the bytes of it; ``waiting``: publications, oldest first, none may overtake another."""

    __slots__ = ("data", "timer", "waiting")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.waiting: deque[Publication] = deque()
        self.timer: Timer | None = None


class Publisher(ABC):
    """What fan-outs and notifications have in common; see the two below.

    Attributes:
        links: publishing sockets.
        awaited: nodes for whose subscriptions as much waits as may; replaced, never changed.
    """

    pipeline: Pipeline
    what: str

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        routes: RoutingTable,
        folder: TrustedFolder,
        handoff: Handoff,
        counters: ClientCounters,
    ) -> None:
        self.awaited: frozenset[str] = frozenset()
        self._awaited: dict[str, tuple[int, int]] = {}
        self._reactor = reactor
        self._settings = settings
        self._routes = routes
        self._handoff = handoff
        self._counters = counters
        self._filters: dict[tuple[str, str], _Filter] = {}
        self._by_data: dict[bytes, _Filter] = {}
        self._closed = False
        self.links: NodeLinks[Copy] = NodeLinks(
            reactor,
            settings,
            LinkHandlers(self.pipeline, self._pack, None, self._subscribed, self._stalled),
            routes,
            folder,
            handoff.wake,
            counters,
        )

    # ------------------------------------------------------------ each kind

    @abstractmethod
    def nodes(self, exchange: str, topic: str) -> Sequence[str]:
        """Where somebody listens, any thread."""

    @abstractmethod
    def _targets(self, publication: Publication) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Node and chosen listeners of each copy."""

    @abstractmethod
    def _data(self, exchange: str, topic: str) -> bytes:
        """The filter."""

    @abstractmethod
    def _head(self, publication: Publication, listeners: tuple[str, ...], number: bytes) -> bytes:
        """The envelope of one copy."""

    # ------------------------------------------------------------ from callers

    def busy(self, exchange: str, topic: str) -> bool:
        """Whether a node of the topic has as much to wait for as it may, any thread."""
        blocking, awaited = self.links.blocking, self.awaited
        if not (blocking or awaited):
            return False
        nodes = self.nodes(exchange, topic)
        return not (blocking.isdisjoint(nodes) and awaited.isdisjoint(nodes))

    def publish(self, publication: Publication) -> None:
        """A publication that was handed over."""
        self._handoff.take(publication.size)
        if self._closed:
            self._counters.count("unflushed")
            return
        self._counters.counts[self.what] += 1
        key = (publication.exchange, publication.topic)
        each = self._filters.get(key)
        if each is None:
            each = self._new_filter(key)
        if each.waiting or not self._send(each, publication, last=False):
            publication.due_s = self._reactor.now() + self._settings.fanout_wait_s
            each.waiting.append(publication)
            self._await(each, publication)
            self._wait(each)

    def _new_filter(self, key: tuple[str, str]) -> _Filter:
        if len(self._filters) >= FILTERS_MAX:
            for old, each in list(self._filters.items()):
                if not each.waiting:
                    del self._filters[old], self._by_data[each.data]
        each = self._filters[key] = _Filter(self._data(*key))
        self._by_data[each.data] = each
        return each

    # ------------------------------------------------------------ waiting for subscriptions

    def _wait(self, each: _Filter) -> None:
        if each.timer is None and each.waiting:
            delay_s = max(each.waiting[0].due_s - self._reactor.now(), 0.0)
            each.timer = self._reactor.call_later(delay_s, self._late, each)

    def _await(self, each: _Filter, publication: Publication) -> None:
        """Count what waits at the nodes that it waits for."""
        nodes = self.nodes(publication.exchange, publication.topic)
        publication.awaited = [node for node in nodes if self._worth_waiting(each, node)] or nodes
        settings = self._settings
        for node in publication.awaited:
            msgs, size = self._awaited.get(node, (0, 0))
            msgs, size = self._awaited[node] = (msgs + 1, size + publication.size)
            if msgs >= settings.outbox_msgs or size >= settings.outbox_bytes:
                self.awaited |= {node}

    def _awaited_for(self, publication: Publication) -> None:
        """It waits no more."""
        settings = self._settings
        for node in publication.awaited:
            msgs, size = self._awaited[node]
            msgs, size = self._awaited[node] = (msgs - 1, size - publication.size)
            if not msgs:
                del self._awaited[node]
            if (
                node in self.awaited
                and 2 * msgs <= settings.outbox_msgs
                and 2 * size <= settings.outbox_bytes
            ):
                self.awaited -= {node}
                self._handoff.wake()

    def _late(self, each: _Filter) -> None:
        each.timer = None
        self._go_on(each)

    def _go_on(self, each: _Filter) -> None:
        """Send what waits at a filter and need not wait any more, in order."""
        now = self._reactor.now()
        while each.waiting:
            if not self._send(each, each.waiting[0], last=each.waiting[0].due_s <= now):
                break
            self._awaited_for(each.waiting.popleft())
        if not each.waiting and each.timer is not None:
            each.timer.cancel()
            each.timer = None
        self._wait(each)

    def _send(self, each: _Filter, publication: Publication, *, last: bool) -> bool:
        """Publish it to all its nodes. False: one of them is worth waiting for, and nothing was sent.

        ``last``: its time is over: it goes to those that are there.
        """
        nodes = self.nodes(publication.exchange, publication.topic)
        if not nodes:
            if not last and not self._routes.synced:
                return False
            self._counters.count("nobody")
            self._counters.say(
                "%s for %s/%s dropped: nobody listens there",
                self.what,
                publication.exchange,
                publication.topic,
            )
            return True
        for node in nodes:
            if self._worth_waiting(each, node):
                if not last:
                    return False
                self.links.known(node).missed.add(each.data)  # type: ignore[union-attr]
        number = new_id()
        for node, listeners in self._targets(publication):
            self._copy(each, node, (each.data, self._head(publication, listeners, number), publication.body))
        return True

    def _worth_waiting(self, each: _Filter, node: str) -> bool:
        """It has not subscribed yet, and was not given up."""
        link = self.links.known(node) or self.links.get(node)
        return link is not None and each.data not in link.filters and each.data not in link.missed

    def _reaches(self, data: bytes, node: str) -> bool:
        link = self.links.known(node)
        return link is not None and data in link.filters and not link.down

    def _overflows(self, link: NodeLink[Copy]) -> bool:
        """Down and full: callers do not wait for it, so that what is for it now has no place."""
        return link.full and link.down

    def _copy(self, each: _Filter, node: str, frames: Frames) -> None:
        link = self.links.known(node)
        if link is None or each.data not in link.filters or self._overflows(link):
            self._counters.count("not_reached")
            self._counters.say("%s: node %s was not reached at %.200r", self.what, node, each.data)
            return
        link.submit(Copy(frames))

    # ------------------------------------------------------------ links

    def _pack(self, copy: Copy, link: NodeLink[Copy]) -> Frames | None:
        if copy.frames[0] not in link.filters:  # it has unsubscribed, or its connection was lost
            self._counters.count("not_reached")
            return None
        return copy.frames

    def _subscribed(self, link: NodeLink[Copy], frames: list[bytes]) -> None:
        data = frames[0]
        if len(frames) != 1 or data[:1] not in (b"\0", b"\1"):
            self._counters.count("malformed")
            return
        known = self._by_data.get(data[1:])
        if data[:1] == b"\0":
            link.filters.discard(data[1:])
            return
        link.filters.add(data[1:] if known is None else known.data)
        link.missed.discard(data[1:])
        if known is not None and known.waiting:
            self._go_on(known)

    def _stalled(self, link: NodeLink[Copy]) -> None:
        """It takes nothing, or its node is gone. While it is there, what was published for it waits for it."""
        if self.links.known(link.node) is not link:
            lost = len(link.take_parcels())
            if lost:
                self._counters.count("not_reached", lost)

    def directory_changed(self, nodes: set[str]) -> None:
        """``nodes`` are reached elsewhere, or no more; others may have come."""
        for node in nodes:
            self.links.node_changed(node)
        for each in list(self._filters.values()):
            if each.waiting:
                self._go_on(each)

    # ------------------------------------------------------------ end

    @property
    def waiting(self) -> int:
        """What may still leave."""
        return self.links.waiting + sum(len(each.waiting) for each in self._filters.values())

    def close(self, linger_ms: int) -> None:
        """Send what waits to those that are there, then close all sockets."""
        self._closed = True
        for each in self._filters.values():
            if each.timer is not None:
                each.timer.cancel()
            while each.waiting:
                publication = each.waiting.popleft()
                self._awaited_for(publication)
                self._send(each, publication, last=True)
        left = self.links.close(linger_ms)
        if left:
            self._counters.count("unflushed", left)


class Fanouts(Publisher):
    """To every server of a topic."""

    pipeline = Pipeline.FANOUT
    what = "fanouts"

    def nodes(self, exchange: str, topic: str) -> Sequence[str]:
        """See ``Publisher.nodes``."""
        return self._routes.replica.fanout_nodes(exchange, topic)

    def _data(self, exchange: str, topic: str) -> bytes:
        return fanout_filter(exchange, topic)

    def _targets(self, publication: Publication) -> Sequence[tuple[str, tuple[str, ...]]]:
        return [(node, ()) for node in self.nodes(publication.exchange, publication.topic)]

    def _head(self, publication: Publication, listeners: tuple[str, ...], number: bytes) -> bytes:
        return encode(Kind.FANOUT, publication.exchange, publication.topic, id=number)


class Notifications(Publisher):
    """To one listener of each pool."""

    pipeline = Pipeline.NOTIFY
    what = "notifications"

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        routes: RoutingTable,
        folder: TrustedFolder,
        handoff: Handoff,
        counters: ClientCounters,
    ) -> None:
        super().__init__(reactor, settings, routes, folder, handoff, counters)
        self._chooser = PoolChooser()
        self._nodes: dict[tuple[str, str], tuple[object, tuple[str, ...]]] = {}

    def nodes(self, exchange: str, topic: str) -> Sequence[str]:
        """See ``Publisher.nodes``."""
        pools = self._routes.replica.pools(exchange, topic)
        if not pools:
            return ()
        key = (exchange, topic)
        known = self._nodes.get(key)
        if known is None or known[0] is not pools:
            if len(self._nodes) >= FILTERS_MAX:
                self._nodes.clear()
            found = tuple(sorted({node for listeners in pools.values() for node, _listener in listeners}))
            known = self._nodes[key] = (pools, found)
        return known[1]

    def _data(self, exchange: str, topic: str) -> bytes:
        return notify_filter(exchange, topic)

    def _targets(self, publication: Publication) -> Sequence[tuple[str, tuple[str, ...]]]:
        exchange, topic = publication.exchange, publication.topic
        data = self._filters[(exchange, topic)].data
        chosen: dict[str, list[str]] = {}
        pools = self._routes.replica.pools(exchange, topic)
        away = {node for node in self.nodes(exchange, topic) if not self._reaches(data, node)}
        for pool, listeners in pools.items():
            key = (exchange, topic, pool)
            one = self._chooser.choose(key, listeners, away) or self._chooser.choose(key, listeners)
            if one is not None:
                chosen.setdefault(one[0], []).append(one[1])
        return [
            (node, tuple(listeners[at : at + CHOSEN_MAX]))
            for node, listeners in chosen.items()
            for at in range(0, len(listeners), CHOSEN_MAX)
        ]

    def _head(self, publication: Publication, listeners: tuple[str, ...], number: bytes) -> bytes:
        return encode(Kind.NOTIFY, publication.exchange, publication.topic, listeners=listeners, id=number)
