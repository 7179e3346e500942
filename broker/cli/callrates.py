"""``headgate stats --services``: how the calls of everybody fare, by method, over all brokers that answer."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.cli.screen import Screen
from broker.cli.tree import SILENT_S
from broker.client import Handle
from broker.errors import RpcError

HEADS: Final = ("method", "rank", "calls", "errors", "open", "p50", "p99", "which errors", "the last one")
Answer = Mapping[str, Any]


class MethodRates:
    """One method over some brokers.

    Attributes:
        name: its topic. calls, errors (by errno), total_ns, buckets: so many. open: not answered yet.
        last: its newest error as ``broker.calls`` tells it, and ``rank``: the broker where the call entered.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = self.open = self.total_ns = 0
        self.errors: Counter[str] = Counter()
        self.buckets: list[int] = []
        self.last: dict[str, Any] | None = None

    def add(self, rank: int, told: Answer) -> None:
        """What one broker told of it."""
        self.calls += told["calls"]
        self.open += told["open"]
        self.total_ns += told["total_ns"]
        self.errors.update(told["errors"])
        self.buckets = [
            one + other for one, other in zip(self.buckets or [0] * 99, told["buckets"], strict=False)
        ]
        last = told.get("last_error")
        if last is not None and (self.last is None or last["time"] > self.last["time"]):
            self.last = {**last, "rank": rank}

    def since(self, before: MethodRates) -> MethodRates:
        """What came since an earlier look; everything, where the figures were cleared in between."""
        if self.calls < before.calls or sum(self.buckets) < sum(before.buckets):
            return self
        new = MethodRates(self.name)
        new.calls, new.open, new.last = self.calls - before.calls, self.open, self.last
        new.total_ns = self.total_ns - before.total_ns
        new.errors = self.errors - before.errors
        new.buckets = [now - then for now, then in zip(self.buckets, before.buckets, strict=True)]
        return new

    @property
    def failed(self) -> int:
        """Calls that ended with an error."""
        return self.errors.total()


def quantile_ns(buckets: Sequence[int], bounds_ns: Sequence[int], part: float) -> float | None:
    """The bound under which ``part`` of all are; None when there are none, infinite above the last bound.

    >>> quantile_ns([0, 9, 1], [10, 20], 0.5), quantile_ns([0, 9, 1], [10, 20], 0.99), quantile_ns([0], [], 0.5)
    (20, inf, None)
    """
    left = sum(buckets) * part
    if not left:
        return None
    for count, bound in zip(buckets, bounds_ns, strict=False):
        left -= count
        if left <= 0:
            return bound
    return float("inf")


def span(ns: float | None) -> str:
    """A time for people.

    >>> span(23_170), span(5_931_641), span(1.1e9), span(float("inf")), span(None)
    ('23 us', '5.9 ms', '1.1 s', 'long', '')
    """
    if ns is None:
        return ""
    for unit, size in (("us", 1e3), ("ms", 1e6), ("s", 1e9)):
        if ns < 1000 * size:
            return f"{ns / size:.2g} {unit}" if ns < 10 * size else f"{ns / size:.0f} {unit}"
    return "long"


def error_name(errnum: str) -> str:
    """EIO for "5"; 0 stands for those that are not told apart."""
    return errno.errorcode.get(int(errnum), f"errno {errnum}") if errnum != "0" else "others"


class CallRates:
    """One look at all brokers.

    Args:
        answers: rank -> what ``broker.calls`` said; None: nothing in time.
        before: the look before: rates are since then. None: since the brokers started.
        builtin: with the methods of the broker's own services.
    """

    def __init__(self, answers: Mapping[int, Answer | None], before: CallRates | None, builtin: bool) -> None:
        self.at = time.monotonic()
        self.silent = [rank for rank, answer in answers.items() if answer is None]
        self.providers: dict[str, int] = {}
        self.bounds_ns: list[int] = []
        self._methods: dict[str, MethodRates] = {}
        own: set[str] = set()
        for rank, answer in answers.items():
            if answer is None:
                continue
            self.bounds_ns = answer["bounds_ns"]
            for name, service in answer["services"].items():
                if service["builtin"]:
                    own.add(name)
                else:
                    self.providers[name] = rank
            for name, told in answer["methods"].items():
                self._methods.setdefault(name, MethodRates(name)).add(rank, told)
        self.seconds = self.at - before.at if before is not None else 0.0
        shown = [each for name, each in self._methods.items() if builtin or name.partition(".")[0] not in own]
        then = before._methods if before is not None else {}
        self.methods = [
            each.since(then.get(each.name, MethodRates(each.name))) if then else each for each in shown
        ]
        self.methods.sort(key=lambda each: (-each.failed, -each.calls, each.name))

    def show(self, screen: Screen) -> None:
        """Print a line per method, those that fail first."""
        if screen.as_json:
            screen.value(self.as_json())
            return
        screen.table(HEADS, [self._row(each) for each in self.methods])
        if not self.methods:
            screen.line("nobody has called a service" if not self.seconds else "no calls", "dim")
        if self.silent:
            screen.line(f"no answer within {SILENT_S:g} s: {_ranks(self.silent)}", "bold red")

    def as_json(self) -> dict[str, Any]:
        """The look as ``--json`` prints it; times in ns."""
        return {
            "seconds": self.seconds,
            "silent": self.silent,
            "methods": [
                {
                    "method": each.name,
                    "rank": self.providers.get(each.name.partition(".")[0]),
                    "calls": each.calls,
                    "errors": {error_name(errnum): count for errnum, count in each.errors.items()},
                    "open": each.open,
                    "p50_ns": self._quantile(each, 0.5),
                    "p99_ns": self._quantile(each, 0.99),
                    "last_error": each.last,
                }
                for each in self.methods
            ],
        }

    def _quantile(self, method: MethodRates, part: float) -> float | None:
        return quantile_ns(method.buckets, self.bounds_ns, part)

    def _row(self, method: MethodRates) -> tuple[str, ...]:
        last = method.last
        said = ""
        if last is not None:
            text = last["text"] or error_name(str(last["errnum"]))
            when = time.strftime("%H:%M:%S", time.localtime(last["time"]))
            said = f"{when} user {last['userid']} at rank {last['rank']}: {text}"
        return (
            method.name,
            str(self.providers.get(method.name.partition(".")[0], "")),
            self._count(method.calls),
            self._count(method.failed),
            f"{method.open:,}",
            span(self._quantile(method, 0.5)),
            span(self._quantile(method, 0.99)),
            " ".join(f"{error_name(errnum)} {count:,}" for errnum, count in method.errors.most_common(3)),
            said[:100],
        )

    def _count(self, count: int) -> str:
        return f"{count / self.seconds:,.1f}/s" if self.seconds else f"{count:,}"


def _ranks(ranks: Sequence[int]) -> str:
    more = " ..." if len(ranks) > 16 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}{more}"


async def ask(handle: Handle, ranks: Sequence[int]) -> dict[int, Answer | None]:
    """What ``broker.calls`` says at each rank; None where nothing came within ``SILENT_S``.

    Raises:
        RpcError: a broker refuses, or knows no such thing.
    """

    async def one(rank: int) -> Answer | None:
        try:
            async with asyncio.timeout(SILENT_S):
                answer: Answer = (await handle.rpc("broker.calls", nodeid=rank)).json()
                return answer
        except TimeoutError:
            return None
        except RpcError as error:
            if error.errno == errno.EHOSTUNREACH:
                return None
            raise

    return dict(zip(ranks, await asyncio.gather(*map(one, ranks)), strict=True))
