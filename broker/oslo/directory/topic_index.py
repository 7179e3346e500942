"""Who listens where, by (exchange, topic): tuples that are replaced, not changed, and only where touched (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from broker.memory import compact
from broker.oslo.names import Pipeline
from broker.oslo.records import Place, Record

Key = tuple[str, str]
"""(exchange, topic)"""
Listeners = tuple[tuple[str, str], ...]
"""(node, listener) pairs, sorted."""

SPLICES_MAX: Final = 64
"""Up to so many changes of one topic are spliced into its tuple; more are cheaper with one sort."""
_REQUESTS: Final = frozenset({str(Pipeline.CALL), str(Pipeline.CAST)})


class Server(NamedTuple):
    """One listener for requests."""

    server: str
    listener: str
    node: str
    pipelines: frozenset[str]
    """``call``, ``cast`` or both: how it is reached."""


_Seat = tuple[str, str, str]
_Item = TypeVar("_Item", str, tuple[str, str])
_Step = tuple[bool, Place, Record]
"""(added, whose, what)"""


class TopicIndex:
    """Three indexes over the records of all states in force.

    ``note`` collects, ``settle`` works out what was touched. A record counts once for each place, so noting it twice
    changes nothing.
    """

    def __init__(self) -> None:
        self.servers: dict[Key, tuple[Server, ...]] = {}
        self.nodes: dict[Key, tuple[str, ...]] = {}
        self.pools: dict[Key, Mapping[str | None, Listeners]] = {}
        self._requests: dict[Key, list[_Step]] = {}
        self._fanouts: dict[Key, list[_Step]] = {}
        self._notices: dict[Key, list[_Step]] = {}
        self._sets: dict[tuple[str, ...], frozenset[str]] = {}

    def note(self, place: Place, added: Iterable[Record], removed: Iterable[Record]) -> None:
        """The state at ``place`` lost ``removed`` and then gained ``added``."""
        pipeline = place[1]
        steps = self._notices if pipeline == Pipeline.NOTIFY else self._fanouts
        if pipeline in _REQUESTS:
            steps = self._requests
        for gained, records in ((False, removed), (True, added)):
            for record in records:
                steps.setdefault((record.exchange, record.topic), []).append((gained, place, record))

    def settle(self) -> None:
        """Replace the values of all keys that were noted since."""
        for key, steps in self._requests.items():
            _put(self.servers, key, self._seated(self.servers.get(key, ()), steps))
        for key, steps in self._fanouts.items():
            _put(self.nodes, key, _noded(self.nodes.get(key, ()), steps))
        for key, steps in self._notices.items():
            old = self.pools.get(key)
            pooled = _pooled({} if old is None else dict(old), steps)
            if pooled:
                self.pools[key] = MappingProxyType(pooled)
            else:
                self.pools.pop(key, None)
        self._requests, self._fanouts, self._notices = {}, {}, {}
        self.servers, self.nodes, self.pools = compact(self.servers), compact(self.nodes), compact(self.pools)

    def _seated(self, old: tuple[Server, ...], steps: list[_Step]) -> tuple[Server, ...]:
        if len(steps) > SPLICES_MAX:
            seats: dict[_Seat, Server] = {(one.server, one.listener, one.node): one for one in old}
            for gained, (node, pipeline), record in steps:
                seat = (record.server, record.listener, node)
                server = self._server(seats.get(seat), seat, pipeline, gained)
                if server is None:
                    seats.pop(seat, None)
                else:
                    seats[seat] = server
            return tuple(sorted(seats.values()))
        new = list(old)
        for gained, (node, pipeline), record in steps:
            seat = (record.server, record.listener, node)
            at = bisect_left(new, seat)
            here = at < len(new) and new[at][:3] == seat
            server = self._server(new[at] if here else None, seat, pipeline, gained)
            new[at : at + here] = () if server is None else (server,)
        return tuple(new)

    def _server(self, old: Server | None, seat: _Seat, pipeline: str, gained: bool) -> Server | None:
        """The entry of a listener that was ``old`` after it gained or lost a pipeline; None: none left."""
        pipelines = {pipeline} if gained else set()
        if old is not None:
            pipelines = {*old.pipelines, pipeline} if gained else {*old.pipelines} - {pipeline}
        if not pipelines:
            return None
        return Server(*seat, self._same(pipelines))

    def _same(self, pipelines: set[str]) -> frozenset[str]:
        """One object for each set: there are three."""
        return self._sets.setdefault(tuple(sorted(pipelines)), frozenset(pipelines))


def _put(shelf: dict[Key, tuple[Server, ...]] | dict[Key, tuple[str, ...]], key: Key, value: tuple) -> None:  # type: ignore[type-arg]
    if value:
        shelf[key] = value
    else:
        shelf.pop(key, None)


def _noded(old: tuple[str, ...], steps: list[_Step]) -> tuple[str, ...]:
    return _spliced(old, [(gained, node) for gained, (node, _pipeline), _record in steps])


def _pooled(pools: dict[str | None, Listeners], steps: list[_Step]) -> dict[str | None, Listeners]:
    touched: dict[str | None, list[tuple[bool, tuple[str, str]]]] = {}
    for gained, (node, _pipeline), record in steps:
        touched.setdefault(record.pool, []).append((gained, (node, record.listener)))
    for pool, changes in touched.items():
        pairs = _spliced(pools.get(pool, ()), changes)
        if pairs:
            pools[pool] = pairs
        else:
            pools.pop(pool, None)
    return pools


def _spliced(old: tuple[_Item, ...], changes: list[tuple[bool, _Item]]) -> tuple[_Item, ...]:
    """The sorted ``old`` after each item was gained (True) or lost."""
    if len(changes) > SPLICES_MAX:
        last = {item: gained for gained, item in changes}
        kept = {item for item in old if item not in last}
        return tuple(sorted(kept | {item for item, gained in last.items() if gained}))
    new = list(old)
    for gained, item in changes:
        at = bisect_left(new, item)
        here = at < len(new) and new[at] == item
        new[at : at + here] = (item,) if gained else ()
    return tuple(new)
