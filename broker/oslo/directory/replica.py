"""What a reader knows of the cloud: the states that directories told it, merged, and who listens where (pure).

Each **source**, a directory or a Redis host, makes claims. A claim is in force when it is the newest of all sources for
its place: the greatest (incarnation, version). Claims outlive their source: a directory that is silent takes nothing
away (seed 003: state is cached, so that the directory is no single point of failure). They end when

- a source says that the state is gone: its own claim, and those of sources that cannot be asked just now;
- a source that came back with a complete snapshot did not list it for ``lease_s`` (a restarted directory is empty until
  the pipelines have announced themselves again).

Sources that tell the same state share one ``Offer``: a change is made once, whichever of them tells it first. It costs
what it says: only the topics that it touches are worked out again (``topic_index``).

Lookups are single reads of a dict whose values are never changed, only replaced, or of an offer's attributes: other
threads may use them while the owner's thread feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from broker.oslo.directory.topic_index import Server, TopicIndex
from broker.oslo.directory.wire import (
    RECORDS_TOTAL_MAX,
    DirectoryKind,
    DirectoryMessage,
    Gone,
    States,
    Welcome,
)
from broker.oslo.records import STATES_MAX, Change, Offer, Place, Record, State

__all__ = ["Replica", "Server"]

LEASE_S: Final = 5.0
"""Of a source that has not said its own yet."""
ENDED_LEASES: Final = 2.0
"""So many leases it is remembered that a state has ended: a silent source is noticed to be silent within one."""
_NO_POOLS: Final[Mapping[str | None, tuple[tuple[str, str], ...]]] = MappingProxyType({})

StateHook = Callable[[Offer | None, Offer | None, Change | None], None]
"""Takes what was in force, what is now, and the change if that is all: it was made to what is both then."""


@dataclass(slots=True)
class _Source:
    """What one source has told.

    Attributes:
        claims: newest offer of each place.
        listed: places in the snapshot that is being told; None between snapshots.
        doubtful: places that its last snapshot did not list, until when they are kept.
        live: it has said WELCOME and was not lost since.
        full: something that it told found no room since its last WELCOME.
        told_all: it has completed a snapshot.
    """

    incarnation: int = 0
    lease_s: float = LEASE_S
    live: bool = False
    full: bool = False
    told_all: bool = False
    claims: dict[Place, Offer] = field(default_factory=dict)
    listed: set[Place] | None = None
    doubtful: dict[Place, float] = field(default_factory=dict)

    def vouches(self, place: Place) -> bool:
        """True when it would say so again if it were asked now."""
        return self.live and place in self.claims and place not in self.doubtful


class Replica:
    """The merged states of several sources. One thread feeds; lookups may come from any.

    Args:
        states_max: states of one source; more are dropped and counted.
        records_max: records of one source.

    Attributes:
        version: counts the changes of what is in force.
        synced: True once some source has told all it knows.
        on_change: called after a message or a tick that changed what is in force.
        on_state: called for each state that changed.
        counts: ``applied`` messages, ``unfitting`` changes (asked for again), ``overflow`` states without room.
    """

    def __init__(self, *, states_max: int = STATES_MAX, records_max: int = RECORDS_TOTAL_MAX) -> None:
        self.version = 0
        self.synced = False
        self.on_change: list[Callable[[], None]] = []
        self.on_state: list[StateHook] = []
        self.counts = {"applied": 0, "unfitting": 0, "overflow": 0}
        self._states_max = states_max
        self._records_max = records_max
        self._sources: dict[str, _Source] = {}
        self._sizes: dict[str, int] = {}
        self._force: dict[Place, Offer] = {}
        self._ended: dict[Place, tuple[int, float]] = {}
        self._shelves = TopicIndex()
        self._changed = False

    # ------------------------------------------------------------ lookups, from any thread

    def servers(self, exchange: str, topic: str) -> tuple[Server, ...]:
        """Who serves requests there, sorted by (server, listener, node); strict order for a strict round robin."""
        return self._shelves.servers.get((exchange, topic), ())

    def fanout_nodes(self, exchange: str, topic: str) -> tuple[str, ...]:
        """Nodes with a server that takes fan-outs of that topic, sorted."""
        return self._shelves.nodes.get((exchange, topic), ())

    def pools(self, exchange: str, topic: str) -> Mapping[str | None, tuple[tuple[str, str], ...]]:
        """Of each pool its (node, listener) pairs, sorted; ``topic`` has its priority at the end."""
        return self._shelves.pools.get((exchange, topic), _NO_POOLS)

    def offer(self, node: str, pipeline: str) -> Offer | None:
        """What that pipeline offers and where it is reached; None: not known."""
        return self._force.get((node, pipeline))

    def states(self) -> tuple[State, ...]:
        """All that are in force, as they are now; only for the thread that feeds."""
        return tuple(offer.state() for offer in self._force.values())

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

    def feed(self, source: str, message: DirectoryMessage, now: float) -> bool:
        """Take what ``source`` said, WELCOME first. False: it does not continue what is known; the source has to be
        asked for all of it. Kinds that say nothing about states are ignored.
        """
        one = self._sources.get(source)
        if one is None:
            one = self._sources[source] = _Source()
            self._sizes[source] = 0
        fits = True
        if message.kind == DirectoryKind.WELCOME:
            self._welcome(one, message.body)
        elif not one.live:
            return False
        elif message.kind == DirectoryKind.STATES:
            self._states(source, one, message.body, now)
        elif message.kind == DirectoryKind.CHANGED:
            fits = self._change(source, one, message.body, now)
        elif message.kind == DirectoryKind.GONE:
            for gone in message.body:
                self._gone(source, one, gone, now)
        self.counts["applied"] += 1
        self._settle()
        return fits

    def source_lost(self, source: str, now: float) -> None:
        """``source`` is silent: what it told stays, except for what others have ended in the meantime."""
        one = self._sources.get(source)
        if one is None or not one.live:
            return
        one.live = False
        one.listed = None
        self._withdraw_ended(source, one)
        self._settle()

    def forget(self, source: str) -> None:
        """``source`` is not asked any more, and nothing that it said counts."""
        one = self._sources.get(source)
        if one is None:
            return
        for place in list(one.claims):
            self._drop(source, one, place)
        del self._sources[source], self._sizes[source]
        self._settle()

    def tick(self, now: float) -> None:
        """Let go what was kept for a time; about once a second."""
        for source, one in self._sources.items():
            for place in [place for place, until in one.doubtful.items() if until <= now]:
                self._end(source, one, place, one.claims[place].incarnation, now)
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
        one.full = False
        one.listed = set()

    def _states(self, source: str, one: _Source, body: States, now: float) -> None:
        for state in body.states:
            if one.listed is not None:
                one.listed.add(state.place)
            one.doubtful.pop(state.place, None)
            self._claim(source, one, state)
        if body.complete:
            listed, one.listed = one.listed, None
            self.synced = self._changed = one.told_all = True
            if listed is not None:
                for place in one.claims.keys() - listed:
                    one.doubtful.setdefault(place, now + one.lease_s)
                self._withdraw_ended(source, one)

    def _change(self, source: str, one: _Source, change: Change, now: float) -> bool:
        offer = one.claims.get(change.place)
        known = offer is not None and (change.incarnation, change.version) <= offer.age
        if not known and (offer is None or not offer.continued_by(change)):
            self.counts["unfitting"] += 1
            return offer is None and one.full  # no room for it: asking for all of it again would not help
        one.doubtful.pop(change.place, None)
        if one.listed is not None:
            one.listed.add(change.place)
        if offer is not None and not known:
            self._grow(source, offer, change)
        return True

    def _gone(self, source: str, one: _Source, gone: Gone, now: float) -> None:
        offer = one.claims.get(gone.place)
        if offer is None or offer.incarnation <= gone.incarnation:
            self._end(source, one, gone.place, gone.incarnation, now)

    # ------------------------------------------------------------ claims

    def _claim(self, source: str, one: _Source, state: State) -> None:
        place = state.place
        before, known = one.claims.get(place), self._force.get(place)
        # one object, however many sources tell it
        offer = known if known is not None and known.says(state) else Offer(state)
        more = len(offer.records) - (0 if before is None else len(before.records))
        if not self._fits(source, more) or (before is None and len(one.claims) >= self._states_max):
            self._overflow(source, one, place)
            return
        one.claims[place] = offer
        self._sizes[source] += more
        self._weigh(place)

    def _grow(self, source: str, offer: Offer, change: Change) -> None:
        """Make ``change``, which ``source`` told of its ``offer``; sources that share it know it by that, too."""
        place = offer.place
        known = self._force.get(place)
        if known is not None and known is not offer and known.age == (change.incarnation, change.version):
            # its owner numbers what it changes: that is what another source has told already
            self._sizes[source] += len(known.records) - len(offer.records)
            self._sources[source].claims[place] = known
            return
        more = offer.after(change)[0] - len(offer.records)
        if not self._fits(source, more):
            self._overflow(source, self._sources[source], place)
            return
        for name, one in self._sources.items():
            if one.claims.get(place) is not offer:
                continue
            if self._fits(name, more):
                self._sizes[name] += more
            else:
                self._overflow(name, one, place)
        offer.apply(change)
        if offer is known:
            self._note(offer, offer, change.added, change.removed, change)
        else:
            self._weigh(place)

    def _fits(self, source: str, more: int) -> bool:
        return self._sizes[source] + more <= self._records_max

    def _overflow(self, source: str, one: _Source, place: Place) -> None:
        self.counts["overflow"] += 1
        one.full = True
        self._drop(source, one, place)

    def _drop(self, source: str, one: _Source, place: Place) -> None:
        offer = one.claims.pop(place, None)
        one.doubtful.pop(place, None)
        if offer is not None:
            self._sizes[source] -= len(offer.records)
            self._weigh(place)

    def _withdraw(self, source: str, one: _Source, place: Place, incarnation: int) -> None:
        offer = one.claims.get(place)
        if offer is not None and offer.incarnation <= incarnation and not one.vouches(place):
            self._drop(source, one, place)

    def _withdraw_ended(self, source: str, one: _Source) -> None:
        for place, (incarnation, _until) in self._ended.items():
            self._withdraw(source, one, place, incarnation)

    def _end(self, source: str, one: _Source, place: Place, incarnation: int, now: float) -> None:
        self._drop(source, one, place)
        for name, other in self._sources.items():
            self._withdraw(name, other, place, incarnation)
        if place in self._ended or len(self._ended) < self._states_max:
            longest_s = max(each.lease_s for each in self._sources.values())
            known, _until = self._ended.get(place, (0, 0.0))
            self._ended[place] = (max(known, incarnation), now + ENDED_LEASES * longest_s)

    # ------------------------------------------------------------ what is in force

    def _weigh(self, place: Place) -> None:
        """Another claim may be the newest now; of several that are, the one that is in force stays."""
        before = self._force.get(place)
        claims = [one.claims[place] for one in self._sources.values() if place in one.claims]
        after = max(claims, key=lambda offer: (offer.age, offer is before), default=None)
        if after is before:
            return
        if after is None:
            del self._force[place]
        else:
            self._force[place] = after
        self._note(before, after, _beyond(after, before), _beyond(before, after), None)

    def _note(
        self,
        before: Offer | None,
        after: Offer | None,
        added: Iterable[Record],
        removed: Iterable[Record],
        change: Change | None,
    ) -> None:
        offer = before if after is None else after
        assert offer is not None
        self._shelves.note(offer.place, added, removed)
        self._changed = True
        for hook in self.on_state:
            hook(before, after, change)

    def _settle(self) -> None:
        if not self._changed:
            return
        self._changed = False
        self._shelves.settle()
        self.version += 1
        for call in self.on_change:
            call()


def _beyond(offer: Offer | None, other: Offer | None) -> list[Record]:
    """Records of ``offer`` that ``other`` does not have."""
    known = () if other is None else other.records
    return [record for record in (() if offer is None else offer.records) if record not in known]
