"""Who listens where, by (exchange, topic): tuples that are replaced, not changed, and only where touched (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from broker.memory import compact
from broker.oslo.names import BACKLOG_LETTER, Pipeline
from broker.oslo.records import Place, Record

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
