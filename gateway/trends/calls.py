"""Rate, errors and duration of calls by method, at each broker and at all of them, as ``broker.calls`` counts (pure).

A method is known by its kind and name: ``call`` and the topic of a call, and what else brokers count: ``event`` by its
topic, jobs of ``nfp``, messages of ``oslo``. What the brokers' own services do is left out, and what a dashboard asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from broker.call_report import CALL, CallReport, MethodReport, Providers, ServiceReport, Totals, latency
from broker.name_stats import readable
from gateway.trends.answers import Answer, Figures, read
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
PAGES: Final = frozenset((CALL, f"nfp.{what}.list") for what in ("services", "workers", "jobs"))
"""What an open dashboard asks by itself, again and again."""
GATEWAY: Final = "gateway"
"""The service that gateways answer, and the topic of what they publish: theirs, as the brokers' own are theirs."""
Key = tuple[str, str]
"""Kind and name."""


class Method:
    """One method, at one broker or at all of them.

    Attributes:
        totals: since the look before; nothing, where none was. calls, errors: of them, a second.
        errnos: errors since the start of the brokers. recent: calls a second of the last minutes.
        told: what one broker told last; None: nothing yet.
    """

    __slots__ = ("calls", "errnos", "errors", "recent", "told", "totals")

    def __init__(self, kind: str, name: str) -> None:
        self.totals = Totals(kind, name)
        self.calls = self.errors = 0.0
        self.errnos: Counter[str] = Counter()
        self.recent = Ring(RECENT_STEP_S, RECENT)
        self.told: MethodReport | None = None

    def quiet(self) -> None:
        """Forget its rates and what is open: its broker does not answer."""
        self.totals.rest()
        self.calls = self.errors = 0.0

    def take(self, rank: int, told: MethodReport, seconds: float) -> None:
        """Take what a broker told of it, so many seconds after it told the last time; 0: this is the first time."""
        rated = seconds > 0
        totals = self.totals = Totals(self.totals.kind, self.totals.name)
        totals.take(rank, told, self.told if rated else told)
        self.calls = totals.calls / seconds if rated else 0.0
        self.errors = totals.failed / seconds if rated else 0.0
        self.errnos = Counter(told.errors)
        self.told = told

    def add(self, other: Method) -> None:
        """Add the same method at another broker."""
        self.totals.add(other.totals)
        self.calls += other.calls
        self.errors += other.errors
        if other.errnos:
            self.errnos.update(other.errnos)


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
        self._providers = Providers(GATEWAY)
        self._kept = 0
        self._named: set[str] = set()
        self._all = Method("", "")
        self._answers: dict[tuple[int | None, bool], dict[str, Any]] = {}
        self._step = 0

    # -- what was told -----------------------------------------------------------------------------

    def take(self, rank: int, told: Answer, at: float, second: int) -> None:
        """Take an answer of a broker; the time by the clock, and in seconds since 1970.

        Raises:
            ValueError: it is odd; nothing of it counts.
        """
        answer = read(told, CallReport)
        broker = self._brokers.setdefault(rank, _Broker())
        seconds = at - broker.at if broker.at is not None else 0.0
        before, broker.rated = broker.methods, seconds > 0
        broker.at, broker.services, self._bounds_ns = at, answer.services, answer.bounds_ns
        broker.silent = answer.silent[:SILENT_MAX]
        self._providers.take(rank, broker.services)
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
        return key not in PAGES and not self._providers.is_own(*key)

    def forget(self, rank: int) -> None:
        """Forget the rates of a broker: it does not answer, and what it counted meanwhile is no rate of a second."""
        broker = self._brokers.get(rank)
        if broker is not None:
            broker.at, broker.rated = None, False
            for method in broker.methods.values():
                method.quiet()

    def clear(self) -> None:
        """Forget all brokers: the gateway has lost its own."""
        self._brokers.clear()
        self._providers = Providers(GATEWAY)
        self.total = {}
        self._all = Method("", "")
        self._kept = 0
        self._answers.clear()

    # -- what is told ------------------------------------------------------------------------------

    def count(self, second: int) -> Figures:
        """Add up; the figures of the charts as of now, no rates while no broker was heard twice."""
        self._answers.clear()
        self._step = second // RECENT_STEP_S
        self._providers = Providers(GATEWAY)
        for rank, broker in self._brokers.items():
            self._providers.take(rank, broker.services)
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
            return {"open": every.totals.open} if told else {}
        for method in (every, *self.total.values()):
            method.recent.put(self._step, method.calls)
        figures: Figures = {"calls": every.calls, "errors": every.errors, "open": every.totals.open}
        figures |= self._quantiles("", every)
        self._named &= {method.totals.name for method in calls}
        for method in sorted(calls, key=lambda method: -method.calls):
            name = method.totals.name
            if name not in self._named and (not method.calls or len(self._named) >= METHODS_MAX):
                continue
            self._named.add(name)
            figures[f"calls:{name}"] = method.calls
            figures[f"errors:{name}"] = method.errors
            figures |= {key: ms for key, ms in self._quantiles(f":{name}", method).items() if key[1] == "9"}
        return figures

    def _quantiles(self, of: str, method: Method) -> Figures:
        """``p50`` and ``p99`` in ms; nothing where nothing was answered."""
        found = {f"p{part}{of}": self._latency_ms(method, part) for part in (50, 99)}
        return {name: ms for name, ms in found.items() if ms is not None}

    def _latency_ms(self, method: Method, percent: int) -> float | None:
        """The bound within which so many of its calls were answered; twice the last one above it, None without any."""
        found = latency(method.totals.buckets, self._bounds_ns, percent)
        return found and found[0] * (1 + found[1]) / 1e6

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
        shown.sort(key=lambda each: (-each.errors, -each.calls, each.totals.kind, each.totals.name))
        kinds: Counter[str] = Counter()
        rows = []
        for each in shown:
            kinds[each.totals.kind] += 1
            if kinds[each.totals.kind] <= ROWS_MAX:
                rows.append(self._row(each, trusted))
        failing = [
            each for key, each in self.total.items() if each.errors > 0 and (trusted or key[0] == CALL)
        ]
        calls = [each for each in failing if each.totals.kind == CALL]
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
                "open": every.totals.open,
                "recent": self._recent(every),
                "failing": len(failing),
                "worst": max(calls, key=lambda each: each.errors).totals.name if calls else "",
            },
        }

    def _row(self, method: Method, trusted: bool) -> dict[str, Any]:
        totals, last = method.totals, method.totals.last
        return {
            "kind": totals.kind,
            "name": totals.name,
            "rank": self._providers.rank_of(totals),
            "calls": round(method.calls, 4),
            "errors": round(method.errors, 4),
            "open": totals.open,
            "p50_ms": self._latency_ms(method, 50),
            "p99_ms": self._latency_ms(method, 99),
            "errnos": method.errnos,
            "last_error": {**structs.asdict(last), "rank": totals.last_rank} if last and trusted else None,
            "recent": self._recent(method),
        }

    def _recent(self, method: Method) -> list[float | None]:
        values = method.recent.values(self._step - RECENT + 1, self._step)
        shown = [round(value, 2) if value == value else None for value in values]
        first = next((at for at, value in enumerate(shown) if value is not None), len(shown))
        return shown[first:]
