"""The answer of ``broker.calls``, checked as a whole before anything of it counts: for adding brokers up (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from broker.name_stats import TEXT_MAX

CALL: Final = "call"
OF_SERVICES: Final = (CALL, "event")
"""Kinds whose names begin with that of a service."""

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Positive = Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(max_length=255)]
Errno = Annotated[str, Meta(pattern=r"^[0-9]{1,10}\Z")]


class LastError(Struct):
    """The newest error of a method; ``time`` in seconds since 1970. A text is cut: a sum of brokers keeps many."""

    errnum: Count
    text: str
    userid: Count
    time: float

    def __post_init__(self) -> None:
        self.text = self.text[:TEXT_MAX]


class MethodReport(Struct):
    """One method: since it was begun, but for ``open``, which is now."""

    calls: Count
    open: Count
    errors: Annotated[dict[Errno, Count], Meta(max_length=64)]
    buckets: Annotated[list[Count], Meta(max_length=64)] = []
    last_error: LastError | None = None


class ServiceReport(Struct):
    """One service of the broker, or of a client of it."""

    builtin: bool
    provider: str = ""


class CallReport(Struct):
    """All of one broker: its methods by topic, and by kind what else has figures, such as events."""

    bounds_ns: Annotated[list[Positive], Meta(min_length=1, max_length=64)]
    services: dict[str, ServiceReport]
    methods: dict[str, MethodReport]
    others: Annotated[dict[Name, dict[str, MethodReport]], Meta(max_length=8)] = {}
    silent: list[Name] = []
    """Parts of the broker that told nothing."""


class Providers:
    """The provider of each service.

    Args:
        own: services that are nobody's, beside those that are built in.

    Attributes:
        ranks: service of a client -> the broker that it is attached to.
    """

    __slots__ = ("_own", "ranks")

    def __init__(self, *own: str) -> None:
        self.ranks: dict[str, int] = {}
        self._own = set(own)

    def take(self, rank: int, services: Mapping[str, ServiceReport]) -> None:
        """What a broker told of its services."""
        for name, service in services.items():
            if service.builtin:
                self._own.add(name)
            else:
                self.ranks[name] = rank

    def is_own(self, kind: str, name: str) -> bool:
        """Whether it is a call of a service that is built in, or an event of one."""
        return kind in OF_SERVICES and name.partition(".")[0] in self._own

    def rank_of(self, totals: Totals) -> int | None:
        """For calls the rank of the provider, None where it is unknown; for anything else a rank that reported it."""
        return self.ranks.get(totals.name.partition(".")[0]) if totals.kind == CALL else totals.rank


class Totals:
    """One method, or what else is counted so, over some brokers.

    Args:
        kind: what it is: a call, an event, and so on. name: of a call its topic.

    Attributes:
        rank: one of the brokers that told of it.
        calls, errors (by errno), buckets: so many since the look before. open: not answered yet.
        last: its newest error. last_rank: the broker that told of that.
    """

    __slots__ = ("buckets", "calls", "errors", "kind", "last", "last_rank", "name", "open", "rank")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.rank = self.last_rank = 0
        self.last: LastError | None = None
        self.rest()

    def rest(self) -> None:
        """Nothing came since the look before, and nothing is open."""
        self.calls = self.open = 0
        self.errors: Counter[str] = Counter()
        self.buckets: Counter[int] = Counter()

    def take(self, rank: int, told: MethodReport, before: MethodReport | None) -> None:
        """Add the increase since ``before``; the full count where the counter was reset in between."""
        if before is None or told.calls < before.calls:
            before = MethodReport(0, 0, {})
        self.rank = rank
        self.calls += told.calls - before.calls
        self.open += told.open
        if told.errors != before.errors:
            self.errors += Counter(told.errors) - Counter(before.errors)
        if told.buckets != before.buckets:  # most methods rest from one look to the next
            self.buckets += _counted(told.buckets) - _counted(before.buckets)
        self._erred(told.last_error, rank)

    def add(self, other: Totals) -> None:
        """Add what other brokers told."""
        self.rank = other.rank
        self.calls += other.calls
        self.open += other.open
        if other.errors:
            self.errors.update(other.errors)
        if other.buckets:
            self.buckets.update(other.buckets)
        self._erred(other.last, other.last_rank)

    def _erred(self, last: LastError | None, rank: int) -> None:
        if last is not None and (self.last is None or last.time > self.last.time):
            self.last, self.last_rank = last, rank

    @property
    def failed(self) -> int:
        """Calls that ended with an error."""
        return self.errors.total()


def _counted(buckets: Sequence[int]) -> Counter[int]:
    return Counter(dict(enumerate(buckets)))


def percentile(buckets: Mapping[int, int], percent: int) -> int | None:
    """The least bucket of a histogram up to which so many percent of all are; None where there are none.

    >>> percentile({31: 98, 1023: 2}, 50), percentile({31: 98, 1023: 2}, 99), percentile({}, 50)
    (31, 1023, None)
    """
    total = sum(buckets.values())
    wanted, seen = -(-total * percent // 100), 0  # rounded up: of ten, the 99th percentile is the last
    for bucket in sorted(buckets) if total else ():
        seen += buckets[bucket]
        if seen >= wanted:
            return bucket
    return None


def latency(buckets: Mapping[int, int], bounds_ns: Sequence[int], percent: int) -> tuple[int, bool] | None:
    """The bound within which so many percent were answered and False, or the last one and True: above it; None: there
    are none. ``buckets`` are counted by the number of their bound.

    >>> latency({1: 9, 2: 1}, [10, 20], 50), latency({1: 9, 2: 1}, [10, 20], 99), latency({}, [], 50)
    ((20, False), (20, True), None)
    """
    at = percentile(buckets, percent)
    if at is None or not bounds_ns:
        return None
    return bounds_ns[min(at, len(bounds_ns) - 1)], at >= len(bounds_ns)
