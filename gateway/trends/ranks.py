"""The brokers behind a gateway, one by one (pure): where each stands in the tree, how it is, and what flows.

Filled by answers to ``overlay.topology``, ``overlay.health`` and ``broker.stats-get``; rates are differences of two
answers, without what the gateway itself asked. Of a broker that does not answer nothing is known but for how long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, Final, NamedTuple

from gateway.trends.answers import Answer, Counts, Figures, Health, Shape, Stats, read

RANKS_MAX: Final = 64
"""Brokers with charts of their own, the first ones."""
ROWS_MAX: Final = 512
"""Of one answer."""
CLIENTS_MAX: Final = 4096
"""Clients of brokers that are kept, over all of them."""
CLIENTS_SHOWN: Final = 500
TYPES: Final = ("request", "response", "event", "control")
OF_CALLS: Final = TYPES[:2]
GONE: Final = frozenset(("lost", "offline"))
KINDS_MAX: Final = 16
KIND_MAX: Final = 32
ERROR_MAX: Final = 200
"""Kinds of links that are told, characters of each and of what a broker says is wrong."""
SILENT_S: Final = 2.0
"""A broker that owes an answer for so long is silent."""
COUNTED: Final = ("pending", "links", "outbox_bytes")
"""Levels that a broker of ours tells; flux-core's does not."""


class Before(NamedTuple):
    """What a broker had counted, and when."""

    at: float
    rx: Counts
    tx: Counts
    drops: int
    asked: int


class Rank:
    """One broker.

    Attributes:
        rank, parent, children: its place. status, since, error: its health as the tree tells it, since when by the
            clock, why. placed: the tree knows it.
        waiting: when it was asked first of what it has not answered; None: it owes nothing.
        said: why it did not answer. ms: round trip. rx, tx: messages a second by type; None: not known.
        told: its levels, and drops by reason since its start. kinds: links by kind. clients: who is attached.
        number: of its newest change. asked: questions of the gateway that came here, or passed.
    """

    __slots__ = (
        "asked",
        "before",
        "children",
        "clients",
        "dropped",
        "error",
        "kinds",
        "ms",
        "number",
        "parent",
        "placed",
        "rank",
        "rx",
        "said",
        "since",
        "status",
        "told",
        "tx",
        "waiting",
    )

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.parent: int | None = None
        self.children: list[int] = []
        self.placed = False
        self.status = "unknown"
        self.since: float | None = None
        self.error = ""
        self.waiting: float | None = None
        self.number = self.asked = 0
        self.said = ""
        self.told: dict[str, Any] = {}
        self.kinds: Mapping[str, int] = {}
        self.clients: Sequence[Answer] = ()
        self.forget()

    def forget(self) -> None:
        """Forget its rates: it does not answer, and what it counted meanwhile is no rate of a second."""
        self.before: Before | None = None
        self.rx: dict[str, float] | None = None
        self.tx: dict[str, float] | None = None
        self.ms: float | None = None
        self.dropped = 0.0

    def take(self, told: Stats, at: float, ms: float, clients: int) -> None:
        """An answer to ``broker.stats-get``, the time by the clock, its round trip, how many clients to keep."""
        before, drops = self.before, sum((told.drops or {}).values())
        if before is not None and at > before.at:
            seconds = at - before.at
            asked = self.asked - before.asked
            self.rx = _rates(told.rx or {}, before.rx, seconds, asked)
            self.tx = _rates(told.tx or {}, before.tx, seconds, asked)
            self.dropped = _rise(drops, before.drops, seconds)
        self.before = Before(at, told.rx or {}, told.tx or {}, drops, self.asked)
        self.ms, self.waiting, self.said = ms, None, ""
        self.told = {name: getattr(told, name) for name in (*COUNTED, "drops")}
        peers = told.peers or []
        kinds = Counter(str(peer.get("kind"))[:KIND_MAX] for peer in peers)
        self.kinds = dict(kinds.most_common(KINDS_MAX))
        of_clients = (peer for peer in peers if peer.get("kind") == "client")
        self.clients = [peer for peer, _ in zip(of_clients, range(clients), strict=False)]

    def silent_s(self, now: float) -> float:
        """Seconds for which it has not answered; 0 below two."""
        seconds = 0.0 if self.waiting is None else now - self.waiting
        return seconds if seconds >= SILENT_S else 0.0

    def row(self, now: float, owner: bool) -> dict[str, Any]:
        """As ``gateway.ranks`` tells it, to the owner or to another one."""
        return {
            "rank": self.rank,
            "parent": self.parent,
            "status": self.status,
            "since_s": None if self.since is None else round(now - self.since, 1),
            "error": self.error or ("" if self.status in GONE else self.said),
            "silent_s": round(self.silent_s(now), 1),
            "rx": self.rx,
            "tx": self.tx,
            "ms": self.ms,
            **{name: self.told.get(name) for name in (*COUNTED, "drops")},
            "kinds": self.kinds if owner else {},
        }


def _rise(now: float, before: float, seconds: float) -> float:
    """Per second; a counter that was cleared says what it has counted since."""
    return (now - before if now >= before else now) / seconds


def _rates(now: Counts, before: Counts, seconds: float, asked: int) -> dict[str, float]:
    """By type, a second, without our own questions and their answers, which brokers count as they count others'.

    Never below zero: what one round asks may be counted in the next.
    """
    rates = {kind: _rise(now.get(kind, 0), before.get(kind, 0), seconds) for kind in TYPES}
    for kind in OF_CALLS:
        rates[kind] -= asked / seconds
    return {kind: round(max(0.0, rate), 3) for kind, rate in rates.items()}


class Ranks:
    """All of them.

    Attributes:
        ranks: by number. state: of the instance, "" where it is not known.
    """

    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}
        self.state = ""
        self._number = 0

    def of(self, number: int) -> Rank:
        """The broker of this rank."""
        found = self.ranks.get(number)
        if found is None:
            found = self.ranks[number] = Rank(number)
        return found

    def clear(self) -> None:
        """Forget all brokers: the gateway has lost its own."""
        self.ranks.clear()
        self.state = ""

    def _changed(self, rank: Rank) -> None:
        self._number += 1
        rank.number = self._number

    # -- what was told -----------------------------------------------------------------------------

    def note_asked(self, number: int, now: float) -> None:
        """A broker was asked at this time: it owes an answer."""
        rank = self.of(number)
        if rank.waiting is None:
            rank.waiting = now

    def count_question(self, number: int, origin: int) -> None:
        """Count a question of the gateway, whose broker is ``origin``, at each broker that it passes.

        It is no user's traffic, and left out of the rates.
        """
        up, down = self._above(origin), self._above(number)
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        for rank in {*up, *down}:
            self.of(rank).asked += 1

    def _above(self, number: int) -> list[int]:
        """A broker and those above it, as far as the tree is known."""
        found = [number]
        while (
            (rank := self.ranks.get(found[-1])) and rank.parent is not None and len(found) <= len(self.ranks)
        ):
            found.append(rank.parent)
        return found

    def take(self, number: int, answer: Answer, now: float, ms: float) -> None:
        """Take a broker's answer to ``broker.stats-get``.

        Raises:
            ValueError: they are odd.
        """
        told = read(answer, Stats)
        rank = self.of(number)
        rank.take(told, now, ms, max(8, CLIENTS_MAX // len(self.ranks)))
        self._changed(rank)

    def note_failure(self, number: int, text: str, *, answered: bool) -> None:
        """A broker did not tell its figures; ``answered``: it, or somebody on the way, said why."""
        rank = self.of(number)
        rank.forget()
        rank.said = text
        if answered:
            rank.waiting = None
        self._changed(rank)

    def place(self, answer: Answer) -> None:
        """The answer of the root to ``overlay.topology``.

        Raises:
            ValueError: it is no tree; all stay where they are.
        """
        placed: dict[int, tuple[int | None, list[int]]] = {}
        below: list[tuple[Shape, int | None]] = [(read(answer, Shape), None)]
        while below:
            shape, parent = below.pop()
            if shape.rank in placed:
                raise ValueError(f"rank {shape.rank} is there twice")
            children = shape.children or []
            placed[shape.rank] = parent, [child.rank for child in children]
            below += [(child, shape.rank) for child in children]
        for number, (parent, numbers) in placed.items():
            rank = self.of(number)
            if (rank.parent, rank.children, rank.placed) != (parent, numbers, True):
                rank.parent, rank.children, rank.placed = parent, numbers, True
                self._changed(rank)
        for gone in self.ranks.keys() - placed.keys():
            del self.ranks[gone]

    def take_health(self, answer: Answer, now: float) -> None:
        """Take what ``overlay.health`` says of one broker and its children; those below a broker that is gone are, too.

        Raises:
            ValueError: it is odd.
        """
        told = read(answer, Health)
        left = [*(told.children or ()), told]
        while left:
            each = left.pop()
            rank = self.ranks.get(each.rank)
            if rank is None:
                continue
            error = (each.error or "")[:ERROR_MAX]
            if (rank.status, rank.error) != (each.status, error):
                self._changed(rank)
            rank.status, rank.error = each.status, error
            rank.since = None if each.duration is None else now - each.duration
            if each.status in GONE:
                left += [Health(child, each.status, None, each.duration) for child in rank.children]

    # -- what is told ------------------------------------------------------------------------------

    def figures(self) -> Figures:
        """Those of the charts, as of now."""
        figures: Figures = {}
        known = [rank for rank in self.ranks.values() if rank.before is not None]
        flowing = [rank for rank in known if rank.rx is not None]
        for rank in known:
            if rank.rank < RANKS_MAX and rank.ms is not None:
                figures[f"ms:{rank.rank}"] = rank.ms
        if flowing:
            figures |= {f"in:{kind}": rate for kind, rate in _sum(flowing).items()}
            figures["in"] = sum(figures[f"in:{kind}"] for kind in TYPES)
            figures["dropped"] = sum(rank.dropped for rank in flowing)
            figures |= {f"in:{r.rank}": sum((r.rx or {}).values()) for r in flowing if r.rank < RANKS_MAX}
        return figures

    def answer(self, after: int, now: float, owner: bool) -> dict[str, Any]:
        """What changed since the answer whose ``next`` was ``after``: rows, the oldest change first, and totals."""
        rows = [rank for rank in self.ranks.values() if rank.placed and rank.number > after]
        rows.sort(key=lambda rank: rank.number)
        del rows[ROWS_MAX:]
        return {
            "state": self.state,
            "ranks": [rank.row(now, owner) for rank in rows],
            "next": rows[-1].number if rows else after,
            "total": self._total(),
        }

    def _total(self) -> dict[str, Any]:
        ranks = self.ranks.values()
        trips = [rank.ms for rank in ranks if rank.ms is not None]
        drops: Counter[str] = Counter()
        for rank in ranks:
            drops.update(rank.told.get("drops") or {})
        return {
            "rx": _sum([rank for rank in ranks if rank.rx is not None]),
            "ms": median_low(trips) if trips else None,
            "drops": drops if any(rank.told.get("drops") is not None for rank in ranks) else None,
        }

    def clients(self) -> list[dict[str, Any]]:
        """Who is attached to brokers, each with its ``rank``: the first ones."""
        rows = ({**peer, "rank": rank.rank} for rank in self.ranks.values() for peer in rank.clients)
        return [row for row, _ in zip(rows, range(CLIENTS_SHOWN), strict=False)]


def _sum(ranks: Sequence[Rank]) -> dict[str, float]:
    return {kind: sum((rank.rx or {}).get(kind, 0.0) for rank in ranks) for kind in TYPES}
