"""What a reader knows of the cloud: the states that directories told it, merged, and who listens where (pure).

Each **source**, a directory or a Redis host, makes claims. A claim is in force when it is the newest of all sources for
its place: the greatest (incarnation, version). Claims outlive their source: a directory that is silent takes nothing
away (zmq-patterns-usage: state is cached, so that the directory is no single point of failure). They end when

- a source says that the state is gone: its own claim, and those of sources that cannot be asked just now;
- a source that came back with a complete snapshot did not list it for ``lease_s`` (a restarted directory is empty until
  the pipelines have announced themselves again).

A newer state replaces the one before as a whole; only the topics of records that came or went are worked out again
(``TopicIndex``). Sources that tell the same state share one object.

Lookups are single reads of a dict whose values are never changed, only replaced: other threads may use them while the
owner's thread feeds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from broker.memory import compact
from broker.oslo.directory.wire import (
    RECORDS_TOTAL_MAX,
    DirectoryKind,
    DirectoryMessage,
    Gone,
    States,
    Welcome,
)
from broker.oslo.names import BACKLOG_LETTER, Pipeline
from broker.oslo.records import STATES_MAX, Place, Record, State

__all__ = ["HERE", "Replica", "Server"]

HERE: Final = "here"
"""The source that stands for what was announced to a node's own directory."""
LEASE_S: Final = 5.0
"""Of a source that has not said its own yet."""
ENDED_LEASES: Final = 2.0
"""So many leases it is remembered that a state has ended: a silent source is noticed to be silent within one."""
_NO_POOLS: Final[Mapping[str | None, tuple[tuple[str, str], ...]]] = MappingProxyType({})

StateHook = Callable[[State | None, State | None], None]
"""Takes the state of a place that was in force, and the one that is now; None: none."""


Key = tuple[str, str]
"""(exchange, topic)"""
Listeners = tuple[tuple[str, str], ...]
"""(node, listener) pairs, sorted."""

_REQUESTS: Final = frozenset({str(Pipeline.CALL), str(Pipeline.CAST)})


class Server(NamedTuple):
    """One listener for requests."""

    server: str
    listener: str
    node: str
    pipelines: frozenset[str]
    """``call``, ``cast`` or both: how it is reached."""


_Item = TypeVar("_Item", str, tuple[str, str])
_Value = TypeVar("_Value")
_Step = tuple[bool, Place, Record]
"""(came, whose, what)"""
_Steps = dict[Key, list[_Step]]


class TopicIndex:
    """Three indexes over the records of all states in force.

    ``note`` collects what came and went, ``settle`` works out the topics that it touched. A record counts once for each
    place, so noting it twice changes nothing.

    Attributes:
        servers: sorted by (server, listener, node).
        nodes: those with a server that takes fan-outs, sorted.
        pools: listeners of notifications, by pool; backlogs (``names.BACKLOG_LETTER``) only where a pool has no others.
    """

    def __init__(self) -> None:
        self.servers: dict[Key, tuple[Server, ...]] = {}
        self.nodes: dict[Key, tuple[str, ...]] = {}
        self.pools: dict[Key, Mapping[str | None, Listeners]] = {}
        self._pooled: dict[Key, Mapping[str | None, Listeners]] = {}
        self._requests: _Steps = {}
        self._fanouts: _Steps = {}
        self._notices: _Steps = {}

    def note(self, place: Place, came: Iterable[Record], went: Iterable[Record]) -> None:
        """What the state of ``place`` has now and had not before, and the other way round."""
        steps = self._notices if place[1] == Pipeline.NOTIFY else self._fanouts
        if place[1] in _REQUESTS:
            steps = self._requests
        for is_new, records in ((False, went), (True, came)):
            for record in records:
                steps.setdefault((record.exchange, record.topic), []).append((is_new, place, record))

    def settle(self) -> None:
        """Replace the values of all topics that were touched since."""
        for key, steps in self._requests.items():
            _put(self.servers, key, _served(self.servers.get(key, ()), steps))
        for key, steps in self._fanouts.items():
            nodes = [(came, node) for came, (node, _pipeline), _record in steps]
            _put(self.nodes, key, _sorted(self.nodes.get(key, ()), nodes))
        for key, steps in self._notices.items():
            pools = _pooled(self._pooled.get(key, {}), steps)
            _put(self._pooled, key, pools)
            _put(self.pools, key, _awake(pools))
        self._requests, self._fanouts, self._notices = {}, {}, {}
        self.servers, self.nodes, self.pools = compact(self.servers), compact(self.nodes), compact(self.pools)
        self._pooled = compact(self._pooled)


def _put(index: dict[Key, _Value], key: Key, value: _Value) -> None:
    if value:
        index[key] = value
    else:
        index.pop(key, None)


def _served(old: tuple[Server, ...], steps: list[_Step]) -> tuple[Server, ...]:
    servers = list(old)
    for came, (node, pipeline), record in steps:
        which = (record.server, record.listener, node)
        at = bisect_left(servers, which)
        known = at < len(servers) and servers[at][:3] == which
        before = servers[at].pipelines if known else frozenset[str]()
        after = before | {pipeline} if came else before - {pipeline}
        servers[at : at + known] = [Server(*which, after)] if after else []
    return tuple(servers)


def _pooled(old: Mapping[str | None, Listeners], steps: list[_Step]) -> Mapping[str | None, Listeners]:
    touched: dict[str | None, list[tuple[bool, tuple[str, str]]]] = {}
    for came, (node, _pipeline), record in steps:
        touched.setdefault(record.pool, []).append((came, (node, record.listener)))
    pools = dict(old)
    for pool, pairs in touched.items():
        pools[pool] = _sorted(pools.pop(pool, ()), pairs)
    return MappingProxyType({pool: listeners for pool, listeners in pools.items() if listeners})


def _awake(pools: Mapping[str | None, Listeners]) -> Mapping[str | None, Listeners]:
    """``pools`` without the backlogs of those that have other listeners; the same where there are none."""
    if not any(listener[:1] == BACKLOG_LETTER for each in pools.values() for _node, listener in each):
        return pools
    awake = {
        pool: tuple(pair for pair in each if pair[1][:1] != BACKLOG_LETTER) or each
        for pool, each in pools.items()
    }
    return MappingProxyType(awake)


def _sorted(old: tuple[_Item, ...], steps: list[tuple[bool, _Item]]) -> tuple[_Item, ...]:
    items = list(old)
    for came, item in steps:
        at = bisect_left(items, item)
        known = items[at : at + 1] == [item]
        items[at : at + known] = [item] if came else []
    return tuple(items)


@dataclass(slots=True)
class _Source:
    """What one source has told.

    Attributes:
        passed_over: the node of which it is not believed; "" none.
        claims: newest state of each place.
        records: of all of them.
        listed: places in the snapshot that is being told; None between snapshots.
        doubtful: places that its last snapshot did not list, until when they are kept.
        live: it has said WELCOME and was not lost since.
        told_all: it has completed a snapshot.
    """

    passed_over: str
    incarnation: int = 0
    lease_s: float = LEASE_S
    live: bool = False
    told_all: bool = False
    claims: dict[Place, State] = field(default_factory=dict)
    records: int = 0
    listed: set[Place] | None = None
    doubtful: dict[Place, float] = field(default_factory=dict)

    def vouches(self, place: Place) -> bool:
        """True when it would say so again if it were asked now."""
        return self.live and place in self.claims and place not in self.doubtful


class Replica:
    """The merged states of several sources. One thread feeds; lookups may come from any.

    Args:
        node: of this node only the source ``HERE`` is believed; "" no such node.
        states_max: states of one source; more are dropped and counted.
        records_max: records of one source.

    Attributes:
        version: counts the changes of what is in force.
        synced: True once some source has told all it knows.
        on_change: called after a message or a tick that changed what is in force.
        on_state: called for each state that changed.
        counts: ``applied`` messages, ``overflow`` states without room.
    """

    def __init__(
        self, node: str = "", *, states_max: int = STATES_MAX, records_max: int = RECORDS_TOTAL_MAX
    ) -> None:
        self.version = 0
        self.synced = False
        self.on_change: list[Callable[[], None]] = []
        self.on_state: list[StateHook] = []
        self.counts = {"applied": 0, "overflow": 0}
        self._node = node
        self._states_max = states_max
        self._records_max = records_max
        self._sources: dict[str, _Source] = {}
        self._force: dict[Place, State] = {}
        self._ended: dict[Place, tuple[int, float]] = {}
        self._index = TopicIndex()
        self._changed = False

    # ------------------------------------------------------------ lookups, from any thread

    def servers(self, exchange: str, topic: str) -> tuple[Server, ...]:
        """Who serves requests there, sorted by (server, listener, node); strict order for a strict round robin."""
        return self._index.servers.get((exchange, topic), ())

    def fanout_nodes(self, exchange: str, topic: str) -> tuple[str, ...]:
        """Nodes with a server that takes fan-outs of that topic, sorted."""
        return self._index.nodes.get((exchange, topic), ())

    def pools(self, exchange: str, topic: str) -> Mapping[str | None, tuple[tuple[str, str], ...]]:
        """Of each pool its (node, listener) pairs, sorted; ``topic`` has its priority at the end."""
        return self._index.pools.get((exchange, topic), _NO_POOLS)

    def state(self, node: str, pipeline: str) -> State | None:
        """What that pipeline offers and where it is reached; None: not known."""
        return self._force.get((node, pipeline))

    def states(self) -> tuple[State, ...]:
        """All that are in force; only for the thread that feeds."""
        return tuple(self._force.values())

    def told_all(self, source: str) -> bool:
        """True once ``source`` has completed a snapshot."""
        one = self._sources.get(source)
        return one is not None and one.told_all

    def status(self) -> dict[str, Any]:
        """For status."""
        sources = {
            name: {"live": each.live, "states": len(each.claims), "doubtful": len(each.doubtful)}
            for name, each in self._sources.items()
        }
        return {
            "synced": self.synced,
            "version": self.version,
            "states": len(self._force),
            "sources": sources,
            **self.counts,
        }

    # ------------------------------------------------------------ news

    def feed(self, source: str, message: DirectoryMessage, now: float) -> None:
        """Take what ``source`` said: from its first WELCOME on, and again from the next one once it was lost."""
        one = self._sources.get(source)
        if one is None:
            one = self._sources[source] = _Source("" if source == HERE else self._node)
        if message.kind == DirectoryKind.WELCOME:
            self._welcome(one, message.body)
        elif one.live and message.kind == DirectoryKind.STATES:
            self._states(one, message.body, now)
        elif one.live and message.kind == DirectoryKind.GONE:
            for gone in message.body:
                self._gone(one, gone, now)
        self.counts["applied"] += 1
        self._settle()

    def source_lost(self, source: str, now: float) -> None:
        """``source`` is silent: what it told stays, except for what others have ended in the meantime."""
        one = self._sources.get(source)
        if one is None or not one.live:
            return
        one.live = False
        one.listed = None
        self._withdraw_ended(one)
        self._settle()

    def forget(self, source: str) -> None:
        """``source`` is not asked any more, and nothing that it said counts."""
        one = self._sources.get(source)
        if one is None:
            return
        for place in list(one.claims):
            self._drop(one, place)
        del self._sources[source]
        self._settle()

    def tick(self, now: float) -> None:
        """Let go what was kept for a time; about once a second."""
        for one in self._sources.values():
            for place in [place for place, until in one.doubtful.items() if until <= now]:
                self._end(one, place, one.claims[place].incarnation, now)
        for place in [place for place, (_incarnation, until) in self._ended.items() if until <= now]:
            del self._ended[place]
        self._settle()

    # ------------------------------------------------------------ each kind

    def _welcome(self, one: _Source, welcome: Welcome) -> None:
        if one.incarnation != welcome.incarnation:
            one.doubtful.clear()  # its grace begins anew: it was restarted once more
        one.incarnation = welcome.incarnation
        one.lease_s = welcome.lease_s
        one.live = True
        one.listed = set()

    def _states(self, one: _Source, body: States, now: float) -> None:
        for state in body.states:
            if state.node == one.passed_over:
                continue
            if one.listed is not None:
                one.listed.add(state.place)
            one.doubtful.pop(state.place, None)
            self._claim(one, state)
        if body.complete:
            listed, one.listed = one.listed, None
            self.synced = self._changed = one.told_all = True
            if listed is not None:
                for place in one.claims.keys() - listed:
                    one.doubtful.setdefault(place, now + one.lease_s)
                self._withdraw_ended(one)

    def _gone(self, one: _Source, gone: Gone, now: float) -> None:
        state = one.claims.get(gone.place)
        if gone.node != one.passed_over and (state is None or state.incarnation <= gone.incarnation):
            self._end(one, gone.place, gone.incarnation, now)

    # ------------------------------------------------------------ claims

    def _claim(self, one: _Source, state: State) -> None:
        place = state.place
        before, known = one.claims.get(place), self._force.get(place)
        more = len(state.records) - (0 if before is None else len(before.records))
        if one.records + more > self._records_max or (before is None and len(one.claims) >= self._states_max):
            self.counts["overflow"] += 1
            self._drop(one, place)
            return
        one.claims[place] = known if known is not None and known == state else state
        one.records += more
        self._weigh(place)

    def _drop(self, one: _Source, place: Place) -> None:
        state = one.claims.pop(place, None)
        one.doubtful.pop(place, None)
        if state is not None:
            one.records -= len(state.records)
            self._weigh(place)

    def _withdraw(self, one: _Source, place: Place, incarnation: int) -> None:
        state = one.claims.get(place)
        if state is not None and state.incarnation <= incarnation and not one.vouches(place):
            self._drop(one, place)

    def _withdraw_ended(self, one: _Source) -> None:
        for place, (incarnation, _until) in self._ended.items():
            self._withdraw(one, place, incarnation)

    def _end(self, one: _Source, place: Place, incarnation: int, now: float) -> None:
        self._drop(one, place)
        for other in self._sources.values():
            self._withdraw(other, place, incarnation)
        if place in self._ended or len(self._ended) < self._states_max:
            longest_s = max(each.lease_s for each in self._sources.values())
            known, _until = self._ended.get(place, (0, 0.0))
            self._ended[place] = (max(known, incarnation), now + ENDED_LEASES * longest_s)

    # ------------------------------------------------------------ what is in force

    def _weigh(self, place: Place) -> None:
        """Another claim may be the newest now; of several that are, the one that is in force stays."""
        before = self._force.get(place)
        claims = [one.claims[place] for one in self._sources.values() if place in one.claims]
        after = max(claims, key=lambda state: (state.age, state is before), default=None)
        if after is before:
            return
        if after is None:
            del self._force[place]
        else:
            self._force[place] = after
        was = frozenset[Record]() if before is None else frozenset(before.records)
        now = frozenset[Record]() if after is None else frozenset(after.records)
        self._index.note(place, now - was, was - now)
        self._changed = True
        for hook in self.on_state:
            hook(before, after)

    def _settle(self) -> None:
        if not self._changed:
            return
        self._changed = False
        self._index.settle()
        self.version += 1
        for call in self.on_change:
            call()
