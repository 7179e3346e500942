"""A replica of the directory's map: the states of all pipelines, who told them, and who listens where (pure).

The map has for each **place**, a pipeline of a node, the state that is in force: the greatest (incarnation, version)
that anybody claims. Who claims is a **source**: another directory, a Redis host, or ``HERE``, which are the pipelines
and nodes that announce to this directory itself.

**Claims of HERE** have an owner and a lease. An owner is who announces: ``LOCAL_OWNER`` for the node's own pipelines,
the CURVE key of a TCP peer, or the one name of all TCP peers where there is no CURVE. While the lease lives, only its
owner may replace, renew or end a claim; it gives way only to a greater incarnation, or a greater version of its own.
What somebody else said of a pipeline of our own node counts for nothing once that pipeline speaks itself.

**Claims of others** outlive them: a directory that is silent takes nothing away (zmq-patterns-usage: state is cached,
so that the directory is no single point of failure). They end when

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
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from broker.memory import compact
from broker.oslo.directory.wire import (
    RECORDS_TOTAL_MAX,
    RESTART_S,
    DirectoryKind,
    DirectoryMessage,
    Gone,
    States,
    Welcome,
)
from broker.oslo.names import BACKLOG_LETTER, Pipeline
from broker.oslo.records import STATES_MAX, Age, Beat, Place, Record, State

HERE: Final = "here"
"""The source that stands for what was announced to this directory first hand."""
LOCAL_OWNER: Final = "ipc"
FOREIGN: Final = "another key announced it, and its lease lives"
STALE: Final = "a newer one is known"
FULL: Final = "the directory is full"
CATCH_UP: Final = 0.5
"""Of a lease: when ``tick`` is later than that the process itself was stopped, and nobody's silence counts."""
ENDED_LEASES: Final = 2.0
"""So many leases it is remembered that a state has ended: a silent source is noticed to be silent within one."""
_NO_POOLS: Final[Mapping[str | None, tuple[tuple[str, str], ...]]] = MappingProxyType({})

StateHook = Callable[[State | None, State | None], None]
"""Takes the state of a place that was in force, and the one that is now; None: none."""
AnnouncedHook = Callable[[str, State | None, State | None], None]
"""Takes an owner, what it announced at a place before, and what it announces now; None: nothing."""


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


class Answer(NamedTuple):
    """What an announcement led to."""

    refused: str = ""
    """For the announcer: why not."""
    unknown: bool = False
    """It renews something that is not known: it has to say HELLO and announce everything."""
    away: bool = False
    """Other directories shall keep it longer, too."""


@dataclass(slots=True)
class _Claim:
    """What one source says of one place.

    Attributes:
        until: when it ends: the lease of a claim of HERE; of others it is ``inf`` unless their last snapshot did not
            list the place.
        owner: who announced it; only of HERE.
    """

    state: State
    until: float = inf
    owner: str = ""


@dataclass(slots=True)
class _Source:
    """What one source has told.

    Attributes:
        live: it has said WELCOME and was not lost since.
        told_all: it has completed a snapshot.
        listed: places in the snapshot that is being told; None between snapshots.
        records: of all claims.
    """

    lease_s: float
    incarnation: int = 0
    live: bool = True
    told_all: bool = False
    listed: set[Place] | None = None
    records: int = 0
    claims: dict[Place, _Claim] = field(default_factory=dict)


class Replica:
    """The map, merged of what several sources claim. One thread feeds; lookups may come from any.

    Args:
        node: of this node only HERE is believed; "" no such node.
        lease_s: how long an announcement or a beat is good for, seconds; 0: nobody announces here.
        states_max: states of one source; more are refused, or dropped and counted.
        records_max: records of one source.

    Attributes:
        here: what was announced first hand.
        version: counts the changes of what is in force.
        synced: True once some source has told all it knows.
        on_change: called after a message or a tick that changed what is in force.
        on_state: called for each state that changed.
        on_announced: called for each change of what was announced first hand.
        counts: ``applied`` messages, ``overflow`` states without room.
        leases: what became of announcements, how often.
    """

    def __init__(
        self,
        node: str = "",
        lease_s: float = 0.0,
        *,
        states_max: int = STATES_MAX,
        records_max: int = RECORDS_TOTAL_MAX,
    ) -> None:
        self.here = _Source(lease_s)
        self.version = 0
        self.synced = False
        self.on_change: list[Callable[[], None]] = []
        self.on_state: list[StateHook] = []
        self.on_announced: list[AnnouncedHook] = []
        self.counts = {"applied": 0, "overflow": 0}
        self.leases = dict.fromkeys(
            ("announced", "renewed", "unknown", "left", "away", "expired", "foreign", "stale", "full"), 0
        )
        self._node = node
        self._states_max = states_max
        self._records_max = records_max
        self._sources = {HERE: self.here}
        self._force: dict[Place, State] = {}
        self._ended: dict[Place, tuple[int, float]] = {}
        self._no_room: dict[Place, Age] = {}
        self._ticked: float | None = None
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

    # ------------------------------------------------------------ for the thread that feeds

    def states(self) -> tuple[State, ...]:
        """All that are in force."""
        return tuple(self._force.values())

    def announced(self) -> tuple[State, ...]:
        """All that were announced first hand."""
        return tuple(claim.state for claim in self.here.claims.values())

    def told_all(self, source: str) -> bool:
        """True once ``source`` has completed a snapshot."""
        one = self._sources.get(source)
        return one is not None and one.told_all

    def status(self) -> dict[str, Any]:
        """For status."""
        sources = {
            name: {
                "live": each.live,
                "states": len(each.claims),
                "doubtful": sum(claim.until < inf for claim in each.claims.values()),
            }
            for name, each in self._sources.items()
            if each is not self.here
        }
        return {
            "synced": self.synced,
            "version": self.version,
            "states": len(self._force),
            "sources": sources,
            **self.counts,
        }

    # ------------------------------------------------------------ first hand

    def announce(self, owner: str, state: State, now: float) -> Answer:
        """A pipeline says all of what it offers."""
        place = state.place
        claim = self._claim_for(owner, place)
        if claim is not None:
            if claim.owner != owner:
                return self._refuse("foreign", FOREIGN)
            if state.age < claim.state.age:
                return self._refuse("stale", STALE)
            if state == claim.state:
                self._renew(claim, now)
                return Answer()
        before = self.here.claims.get(place)
        if not self._claim(self.here, _Claim(state, now + self.here.lease_s, owner)):
            if len(self._no_room) < self._states_max:
                self._no_room[place] = state.age
            return self._refuse("full", FULL)
        self.leases["announced"] += 1
        self._tell(owner, None if before is None else before.state, state)
        self._settle()
        return Answer()

    def beat(self, owner: str, beats: Iterable[Beat], now: float) -> Answer:
        """Leases are renewed. Who renews a version that we do not have is asked for it, unless it found no room."""
        unknown, refused = False, ""
        for beat in beats:
            claim = self._claim_for(owner, beat.place)
            if claim is not None and claim.owner != owner:
                refused = self._refuse("foreign", FOREIGN).refused
            elif claim is not None and beat.age < claim.state.age:
                self.leases["stale"] += 1
            else:
                if claim is not None:
                    self._renew(claim, now)
                known = None if claim is None else claim.state.age
                unknown |= beat.age not in (known, self._no_room.get(beat.place))
        self.leases["unknown"] += unknown
        return Answer(refused, unknown)

    def leave(self, owner: str, beat: Beat, now: float, *, returns: bool = False) -> Answer:
        """A pipeline ends; or it ``returns``, and is kept for ``RESTART_S``, or until its next process announces it."""
        claim = self._claim_for(owner, beat.place)
        if claim is None or claim.state.incarnation > beat.incarnation:
            return Answer()
        if claim.owner != owner:
            return self._refuse("foreign", FOREIGN)
        self.leases["away" if returns else "left"] += 1
        if returns:
            claim.until = now + max(RESTART_S, self.here.lease_s)
        else:
            self._end(self.here, beat.place, claim.state.incarnation, now)
            self._settle()
        return Answer(away=returns)

    def _claim_for(self, owner: str, place: Place) -> _Claim | None:
        """The claim of ``place`` that ``owner`` has to mind: our own pipelines mind nothing that others said."""
        claim = self.here.claims.get(place)
        return None if claim is not None and owner == LOCAL_OWNER != claim.owner else claim

    def _renew(self, claim: _Claim, now: float) -> None:
        claim.until = max(claim.until, now + self.here.lease_s)  # it may be away for longer
        self.leases["renewed"] += 1

    def _refuse(self, count: str, reason: str) -> Answer:
        self.leases[count] += 1
        return Answer(reason)

    def _tell(self, owner: str, before: State | None, after: State | None) -> None:
        for hook in self.on_announced:
            hook(owner, before, after)

    # ------------------------------------------------------------ from others

    def feed(self, source: str, message: DirectoryMessage, now: float) -> None:
        """Take what ``source`` said: from its first WELCOME on, and again from the next one once it was lost."""
        one = self._sources.get(source)
        if message.kind == DirectoryKind.WELCOME:
            self._welcome(source, message.body)
        elif one is not None and one.live:
            if message.kind == DirectoryKind.STATES:
                self._states(one, message.body, now)
            elif message.kind == DirectoryKind.GONE:
                for gone in message.body:
                    self._gone(one, gone, now)
        self.counts["applied"] += 1
        self._settle()

    def complete(self, source: str, places: Iterable[Place], until: float) -> None:
        """``source`` has told all it knows: these places; others that it told are kept ``until`` then."""
        one = self._sources.get(source)
        if one is not None and one.live:
            self._changed |= not one.told_all
            self._complete(one, set(places), until)
            self._settle()

    def source_lost(self, source: str) -> None:
        """``source`` is silent: what it told stays, except for what others have ended in the meantime."""
        one = self._sources.get(source)
        if one is not None and one.live:
            one.live = False
            one.listed = None
            self._withdraw_ended(one)
            self._settle()

    def forget(self, source: str) -> None:
        """``source`` is not asked any more, and nothing that it said counts."""
        one = self._sources.get(source)
        if one is not None:
            for place in tuple(one.claims):
                self._drop(one, place)
            del self._sources[source]
            self._settle()

    def tick(self, now: float) -> None:
        """Let go what was kept for a time; about once a second, and at least every quarter of a lease."""
        if self._ticked is not None and now - self._ticked > CATCH_UP * self.here.lease_s:
            for claim in self.here.claims.values():
                claim.until += now - self._ticked
        self._ticked = now
        for one in self._sources.values():
            for place, claim in [each for each in one.claims.items() if each[1].until <= now]:
                self.leases["expired"] += one is self.here
                self._end(one, place, claim.state.incarnation, now)
        for place in [place for place, (_incarnation, until) in self._ended.items() if until <= now]:
            del self._ended[place]
        self._settle()

    def _welcome(self, source: str, welcome: Welcome) -> None:
        one = self._sources.setdefault(source, _Source(welcome.lease_s, welcome.incarnation))
        if one.incarnation != welcome.incarnation:  # its grace begins anew: it was restarted once more
            for claim in one.claims.values():
                claim.until = inf
        one.incarnation = welcome.incarnation
        one.lease_s = welcome.lease_s
        one.live = True
        one.listed = set()

    def _states(self, one: _Source, body: States, now: float) -> None:
        for state in body.states:
            if state.node == self._node:
                continue
            if one.listed is not None:
                one.listed.add(state.place)
            if not self._claim(one, _Claim(state)):
                self.counts["overflow"] += 1
                self._drop(one, state.place)
        if body.complete:
            # between snapshots only a directory that was still gathering says so: it has listed nothing anew
            listed = set(one.claims) if one.listed is None else one.listed
            self._changed = True
            self._complete(one, listed, now + one.lease_s)

    def _complete(self, one: _Source, listed: set[Place], until: float) -> None:
        one.listed = None
        self.synced = one.told_all = True
        for place in one.claims.keys() - listed:
            claim = one.claims[place]
            claim.until = min(claim.until, until)
        self._withdraw_ended(one)

    def _gone(self, one: _Source, gone: Gone, now: float) -> None:
        claim = one.claims.get(gone.place)
        if gone.node != self._node and (claim is None or claim.state.incarnation <= gone.incarnation):
            self._end(one, gone.place, gone.incarnation, now)

    # ------------------------------------------------------------ claims

    def _claim(self, one: _Source, claim: _Claim) -> bool:
        """Put ``claim`` in the place of the one before; False: there is no room."""
        place = claim.state.place
        before, known = one.claims.get(place), self._force.get(place)
        more = len(claim.state.records) - (0 if before is None else len(before.state.records))
        if one.records + more > self._records_max or (before is None and len(one.claims) >= self._states_max):
            return False
        if known is not None and known == claim.state:
            claim.state = known
        one.claims[place] = claim
        one.records += more
        if one is self.here and more < 0:
            self._no_room.clear()
        self._weigh(place)
        return True

    def _drop(self, one: _Source, place: Place) -> None:
        claim = one.claims.pop(place, None)
        if claim is not None:
            one.records -= len(claim.state.records)
            self._weigh(place)
            if one is self.here:
                self._no_room.clear()
                self._tell(claim.owner, claim.state, None)

    def _withdraw(self, one: _Source, place: Place, incarnation: int) -> None:
        """Drop a claim that ``one`` would not make again if it were asked now."""
        claim = one.claims.get(place)
        if claim is None or claim.state.incarnation > incarnation or one is self.here:
            return
        if not one.live or claim.until < inf:
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
        claims = [one.claims[place].state for one in self._sources.values() if place in one.claims]
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
