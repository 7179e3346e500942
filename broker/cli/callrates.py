"""``headgate stats --services``: how the calls of everybody fare, by method, over all brokers that answer."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.cli.screen import Screen, printable
from broker.cli.tree import ASKED_AT_ONCE, SILENT_S
from broker.client import Handle
from broker.errors import RpcError

HEADS: Final = ("method", "rank", "calls", "errors", "open", "p50", "p99", "which errors", "the last one")
Answer = Mapping[str, Any]
"""What ``broker.calls`` said."""


class MethodRates:
    """One method over some brokers.

    Attributes:
        name: its topic. calls, errors (by errno), buckets: so many. open: not answered yet.
        last: its newest error as ``broker.calls`` tells it, and ``rank``: the broker where the call entered.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = self.open = 0
        self.errors: Counter[str] = Counter()
        self.buckets: Counter[int] = Counter()
        self.last: dict[str, Any] | None = None

    def add(self, rank: int, told: Answer, before: Answer | None) -> None:
        """What one broker told of it, without what it had told before; all, where it was cleared in between."""
        if before is None or told["calls"] < before["calls"]:
            before = {"calls": 0, "errors": {}, "buckets": ()}
        self.calls += told["calls"] - before["calls"]
        self.open += told["open"]
        self.errors += Counter(told["errors"]) - Counter(before["errors"])
        self.buckets += _counted(told["buckets"]) - _counted(before["buckets"])
        last = told.get("last_error")
        if last is not None and (self.last is None or last["time"] > self.last["time"]):
            self.last = {**last, "rank": rank}

    @property
    def failed(self) -> int:
        """Calls that ended with an error."""
        return self.errors.total()


def _counted(buckets: Sequence[int]) -> Counter[int]:
    return Counter(dict(enumerate(buckets)))


def quantile_ns(buckets: Mapping[int, int], bounds_ns: Sequence[int], part: float) -> float | None:
    """The bound under which ``part`` of all are; None when there are none, infinite above the last bound.

    >>> quantile_ns({1: 9, 2: 1}, [10, 20], 0.5), quantile_ns({1: 9, 2: 1}, [10, 20], 0.99), quantile_ns({}, [], 0.5)
    (20, inf, None)
    """
    left = sum(buckets.values()) * part
    if not left:
        return None
    for at, bound in enumerate(bounds_ns):
        left -= buckets.get(at, 0)
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
        answers: rank -> what ``broker.calls`` said, or why nothing is known of it.
        before: the look before: rates are since then, of brokers that answered both times. None: since they started.
        builtin: with the methods of the broker's own services.
    """

    def __init__(self, answers: Mapping[int, Answer | str], before: CallRates | None, builtin: bool) -> None:
        self.at = time.monotonic()
        self.seconds = self.at - before.at if before is not None else 0.0
        self.silent: dict[str, list[int]] = {}
        self.providers: dict[str, int] = {}
        self.bounds_ns: list[int] = []
        self._answers = answers
        methods: dict[str, MethodRates] = {}
        own: set[str] = set()
        for rank, answer in answers.items():
            if isinstance(answer, str):
                self.silent.setdefault(answer, []).append(rank)
                continue
            self.bounds_ns = answer["bounds_ns"]
            for name, service in answer["services"].items():
                if service["builtin"]:
                    own.add(name)
                else:
                    self.providers[name] = rank
            known = before._told_by(rank, answer) if before is not None else {}
            for name, told in answer["methods"].items():
                methods.setdefault(name, MethodRates(name)).add(rank, told, known.get(name))
        self.methods = [
            each for name, each in methods.items() if builtin or name.partition(".")[0] not in own
        ]
        self.methods.sort(key=lambda each: (-each.failed, -each.calls, each.name))

    def _told_by(self, rank: int, now: Answer) -> Mapping[str, Answer]:
        """What a broker told of its methods; what it tells ``now``, where it told nothing."""
        then = self._answers[rank]
        methods: Mapping[str, Answer] = (now if isinstance(then, str) else then)["methods"]
        return methods

    def show(self, screen: Screen) -> None:
        """Print a line per method, those that fail first."""
        if screen.as_json:
            screen.value(self.as_json())
            return
        screen.table(HEADS, [self._row(each) for each in self.methods])
        if not self.methods:
            screen.line("nobody has called a service" if not self.seconds else "no calls", "dim")
        for why, ranks in self.silent.items():
            screen.line(f"{why}: {_ranks(ranks)}", "bold red")

    def as_json(self) -> dict[str, Any]:
        """The look as ``--json`` prints it; times in ns."""
        return {
            "seconds": self.seconds,
            "silent": sorted(rank for ranks in self.silent.values() for rank in ranks),
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
            text = printable(last["text"]) or error_name(str(last["errnum"]))
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


async def ask(handle: Handle, ranks: Sequence[int]) -> dict[int, Answer | str]:
    """What ``broker.calls`` says at each rank; why nothing is known where it is lost, silent or does not count calls.

    Raises:
        RpcError: a broker refuses, or none of them counts calls.
    """
    few = asyncio.Semaphore(ASKED_AT_ONCE)
    unknown: list[RpcError] = []

    async def one(rank: int) -> Answer | str:
        try:
            async with few, asyncio.timeout(SILENT_S):
                answer: Answer = (await handle.rpc("broker.calls", nodeid=rank)).json()
                return answer
        except TimeoutError:
            return f"no answer within {SILENT_S:g} s"
        except RpcError as error:
            if error.errno == errno.ENOSYS:
                unknown.append(error)
                return "counts no calls"
            if error.errno == errno.EHOSTUNREACH:
                return "cannot be reached"
            raise

    answers = dict(zip(ranks, await asyncio.gather(*map(one, ranks)), strict=True))
    if len(unknown) == len(ranks):
        raise unknown[0]
    return answers
