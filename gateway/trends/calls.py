"""Rate, errors and duration of calls by method, at each broker and at all of them, as ``broker.calls`` counts (pure).

A method is known by its kind and name: ``call`` and the topic of a call, and what else brokers count: ``event`` by its
topic, jobs of ``nfp``, messages of ``oslo``. What the brokers' own services do is left out, and what a dashboard asks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from broker.call_report import CallReport, LastError, MethodReport, ServiceReport
from broker.figures import TEXT_MAX, readable
from gateway.trends.answers import read
from gateway.trends.figures import Answer, Figures, quantile_ms, rise
from gateway.trends.rings import Ring

METHODS_MAX: Final = 24
"""Methods with charts of their own: the busiest of those that are new, for as long as they are there."""
KEPT_MAX: Final = 16_384
"""Methods that are kept, those of each broker counted: some 2 KB each."""
ROWS_MAX: Final = 100
"""Rows of each kind in an answer."""
SILENT_MAX: Final = 16
"""Parts of one broker that may be silent."""
RECENT: Final = 60
RECENT_STEP_S: Final = 2
"""Values of a method's line, and how far apart."""
PAGES: Final = frozenset(("nfp.services.list", "nfp.workers.list", "nfp.jobs.list"))
"""What an open dashboard asks by itself, again and again."""
GATEWAY: Final = "gateway"
"""The service that gateways answer, and the topic of what they publish: theirs, as the brokers' own are theirs."""
CALL: Final = "call"
OWN_KINDS: Final = (CALL, "event")
"""Kinds whose names begin with that of a service."""
Key = tuple[str, str]
"""Kind and name."""


class Method:
    """One method, at one broker or at all of them.

    Attributes:
        kind, name: which. rank: of a broker that told of it. calls, errors: a second. open: not answered yet.
        buckets: answers since the look before, by time. errnos: errors since the start of the brokers.
        last: the newest error. recent: calls a second of the last minutes.
        counted: calls, errors and buckets as they were told last; None: not told, or long ago.
    """

    __slots__ = (
        "buckets",
        "calls",
        "counted",
        "errnos",
        "errors",
        "kind",
        "last",
        "name",
        "open",
        "rank",
        "recent",
    )

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.rank: int | None = None
        self.recent = Ring(RECENT_STEP_S, RECENT)
        self.counted: tuple[int, int, array[int]] | None = None
        self.errnos: Counter[str] = Counter()
        self.last: Answer | None = None
        self.quiet()

    def quiet(self) -> None:
        """Nothing is known of now."""
        self.calls = self.errors = 0.0
        self.open = 0
        self.buckets: Counter[int] = Counter()

    def take(self, rank: int, told: MethodReport, seconds: float) -> None:
        """What a broker told of it, so many seconds after it had told the last time; 0: it had not."""
        now = (told.calls, sum(told.errors.values()), array("Q", told.buckets))
        then = self.counted or (0, 0, array("Q"))
        self.quiet()
        self.rank = rank
        self.open = told.open
        self.errnos = Counter(told.errors)
        self.last = None if told.last_error is None else _last(told.last_error, rank)
        self.counted = now
        if seconds > 0:
            self.calls = rise(now[0], then[0], seconds)
            self.errors = rise(now[1], then[1], seconds)
            if now[2] != then[2]:
                self.buckets = _risen(now[2], then[2])

    def add(self, other: Method) -> None:
        """That of another broker, too."""
        self.rank = other.rank
        self.calls += other.calls
        self.errors += other.errors
        self.open += other.open
        if other.buckets:
            self.buckets.update(other.buckets)
        if other.errnos:
            self.errnos.update(other.errnos)
        if other.last is not None and (self.last is None or other.last["time"] > self.last["time"]):
            self.last = other.last


def _last(error: LastError, rank: int) -> Answer:
    text = error.text[:TEXT_MAX]
    return {"errnum": error.errnum, "text": text, "userid": error.userid, "time": error.time, "rank": rank}


def _risen(now: array[int], before: array[int]) -> Counter[int]:
    then = [*before, *[0] * (len(now) - len(before))]
    risen = {at: count - earlier for at, (count, earlier) in enumerate(zip(now, then, strict=False))}
    if min(risen.values(), default=0) < 0:
        risen = dict(enumerate(now))
    return Counter({at: count for at, count in risen.items() if count})


class _Broker:
    """What one broker told; ``at``: when, by the clock, None: it has not answered since. ``rated``: it told twice.
    ``silent``: parts of it that told nothing.
    """

    __slots__ = ("at", "methods", "rated", "services", "silent")

    def __init__(self) -> None:
        self.at: float | None = None
        self.rated = False
        self.methods: dict[Key, Method] = {}
        self.services: Mapping[str, ServiceReport] = {}
        self.silent: Sequence[str] = ()


def _told(answer: CallReport) -> Iterator[tuple[Key, MethodReport]]:
    for kind, by_name in {**answer.others, CALL: answer.methods}.items():
        for name, stats in by_name.items():
            if readable(name) == name:
                yield (kind, name), stats


class Calls:
    """All methods.

    Attributes:
        total: added up over all brokers. left_out: methods for which there was no place.
    """

    def __init__(self) -> None:
        self.total: dict[Key, Method] = {}
        self.left_out = 0
        self._brokers: dict[int, _Broker] = {}
        self._bounds_ns: Sequence[int] = ()
        self._builtin = {GATEWAY}
        self._providers: dict[str, int] = {}
        self._kept = 0
        self._named: set[str] = set()
        self._all = Method("", "")
        self._answers: dict[tuple[int | None, bool], dict[str, Any]] = {}
        self._step = 0

    # -- what was told -----------------------------------------------------------------------------

    def took(self, rank: int, told: Answer, at: float, second: int) -> None:
        """An answer of a broker; the time by the clock, and in seconds since 1970.

        Raises:
            ValueError: it is odd; nothing of it counts.
        """
        answer = read(told, CallReport)
        broker = self._brokers.setdefault(rank, _Broker())
        seconds = at - broker.at if broker.at is not None else 0.0
        before, broker.rated = broker.methods, seconds > 0
        broker.at, broker.services, self._bounds_ns = at, answer.services, answer.bounds_ns
        broker.silent = answer.silent[:SILENT_MAX]
        self._builtin |= {name for name, service in broker.services.items() if service.builtin}
        methods: dict[Key, Method] = {}
        for key, stats in _told(answer):
            if not self._of_users(key):
                continue
            if key not in before and self._kept - len(before) + len(methods) >= KEPT_MAX:
                self.left_out += 1
                continue
            method = methods[key] = before.get(key) or Method(*key)
            method.take(rank, stats, seconds)
            if broker.rated:
                method.recent.put(second // RECENT_STEP_S, method.calls)
        self._kept += len(methods) - len(before)
        broker.methods = methods

    def _of_users(self, key: Key) -> bool:
        kind, name = key
        return kind not in OWN_KINDS or (name.partition(".")[0] not in self._builtin and name not in PAGES)

    def forget(self, rank: int) -> None:
        """It does not answer: what it counted meanwhile is no rate of a second."""
        broker = self._brokers.get(rank)
        if broker is not None:
            broker.at, broker.rated = None, False
            for method in broker.methods.values():
                method.quiet()

    def lost(self) -> None:
        """The gateway has no broker: nothing is known."""
        self._brokers.clear()
        self._builtin = {GATEWAY}
        self.total = {}
        self._all = Method("", "")
        self._kept = 0
        self._answers.clear()

    # -- what is told ------------------------------------------------------------------------------

    def count(self, second: int) -> Figures:
        """Add up; the figures of the charts as of now, no rates while no broker was heard twice."""
        self._answers.clear()
        self._step = second // RECENT_STEP_S
        self._builtin, self._providers = {GATEWAY}, {}
        for rank, broker in self._brokers.items():
            for name, service in broker.services.items():
                if service.builtin:
                    self._builtin.add(name)
                else:
                    self._providers[name] = rank
        before, self.total = self.total, {}
        for broker in self._brokers.values():
            for key, told in broker.methods.items():
                if not self._of_users(key):
                    continue
                method = self.total.get(key)
                if method is None:
                    method = self.total[key] = Method(*key)
                    if key in before:
                        method.recent = before[key].recent
                method.add(told)
        return self._figures(any(broker.rated for broker in self._brokers.values()))

    def _figures(self, rated: bool) -> Figures:
        calls = [method for (kind, _), method in self.total.items() if kind == CALL]
        every = Method("", "")
        for method in calls:
            every.add(method)
        every.recent, self._all = self._all.recent, every
        if not rated:
            told = any(broker.at is not None for broker in self._brokers.values())
            return {"open": every.open} if told else {}
        for method in (every, *self.total.values()):
            method.recent.put(self._step, method.calls)
        figures: Figures = {"calls": every.calls, "errors": every.errors, "open": every.open}
        figures |= self._quantiles("", every)
        self._named &= {method.name for method in calls}
        for method in sorted(calls, key=lambda method: -method.calls):
            name = method.name
            if name not in self._named and (not method.calls or len(self._named) >= METHODS_MAX):
                continue
            self._named.add(name)
            figures[f"calls:{name}"] = method.calls
            figures[f"errors:{name}"] = method.errors
            figures |= {key: ms for key, ms in self._quantiles(f":{name}", method).items() if key[1] == "9"}
        return figures

    def _quantiles(self, of: str, method: Method) -> Figures:
        """``p50`` and ``p99`` in ms; nothing where nothing was answered."""
        found = {
            f"p{part}{of}": quantile_ms(method.buckets, self._bounds_ns, part / 100) for part in (50, 99)
        }
        return {name: ms for name, ms in found.items() if ms is not None}

    def answer(self, rank: int | None, trusted: bool) -> Mapping[str, Any]:
        """What ``gateway.calls`` tells of one broker or of all; made once from one adding up to the next.

        Args:
            rank: the broker; None: all.
            trusted: with the newest errors, and with what is no call: both are not everybody's business, nor is who
                of those that count that is silent.
        """
        found = self._answers.get((rank, trusted))
        if found is None:
            found = self._answer(rank, trusted)
            if rank is None or rank in self._brokers:
                self._answers[rank, trusted] = found
        return found

    def _answer(self, rank: int | None, trusted: bool) -> dict[str, Any]:
        brokers = {each: told for each, told in self._brokers.items() if rank in (None, each)}
        methods = self.total if rank is None else brokers[rank].methods if rank in brokers else {}
        shown = [each for key, each in methods.items() if self._of_users(key) and (trusted or key[0] == CALL)]
        shown.sort(key=lambda each: (-each.errors, -each.calls, each.kind, each.name))
        kinds: Counter[str] = Counter()
        rows = []
        for each in shown:
            kinds[each.kind] += 1
            if kinds[each.kind] <= ROWS_MAX:
                rows.append(self._row(each, trusted))
        failing = [each for each in self.total.values() if each.errors > 0 and (trusted or each.kind == CALL)]
        calls = [each for each in failing if each.kind == CALL]
        every = self._all
        return {
            "rows": rows,
            "more": len(shown) - len(rows),
            "silent": [
                {"rank": each, "part": part}
                for each, told in brokers.items()
                for part in told.silent
                if trusted
            ][:ROWS_MAX],
            "longest_ms": self._bounds_ns[-1] / 1e6 if self._bounds_ns else None,
            "total": {
                "calls": round(every.calls, 4),
                "errors": round(every.errors, 4),
                "open": every.open,
                "recent": self._recent(every),
                "failing": len(failing),
                "worst": max(calls, key=lambda each: each.errors).name if calls else "",
            },
        }

    def _row(self, method: Method, trusted: bool) -> dict[str, Any]:
        provider = self._providers.get(method.name.partition(".")[0])
        return {
            "kind": method.kind,
            "name": method.name,
            "rank": provider if method.kind == CALL else method.rank,
            "calls": round(method.calls, 4),
            "errors": round(method.errors, 4),
            "open": method.open,
            "p50_ms": quantile_ms(method.buckets, self._bounds_ns, 0.5),
            "p99_ms": quantile_ms(method.buckets, self._bounds_ns, 0.99),
            "errnos": method.errnos,
            "last_error": method.last if trusted else None,
            "recent": self._recent(method),
        }

    def _recent(self, method: Method) -> list[float | None]:
        values = method.recent.values(self._step - RECENT + 1, self._step)
        shown = [round(value, 2) if value == value else None for value in values]
        first = next((at for at, value in enumerate(shown) if value is not None), len(shown))
        return shown[first:]
