"""``headgate stats --services``: how the calls of everybody fare, by method, over all brokers that answer; and beside
them events by topic, NFP's jobs by service and task, oslo's messages by pipeline and topic.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import structs

from broker.call_report import CallReport, LastError, MethodReport, quantile
from broker.cli.screen import Screen
from broker.cli.tree import ASKED_AT_ONCE, SILENT_S
from broker.client import Handle
from broker.errors import ProtocolError, RpcError
from broker.identity import USERID_UNKNOWN
from broker.safe_text import one_line


class Kind(StrEnum):
    """What is counted."""

    CALL = "call"
    EVENT = "event"
    NFP = "nfp"
    OSLO = "oslo"


OWN_KINDS: Final = (Kind.CALL, Kind.EVENT)
"""Kinds whose names begin with that of a service."""
HEADS: Final = (
    "kind",
    "method",
    "rank",
    "calls",
    "errors",
    "open",
    "p50",
    "p99",
    "which errors",
    "the last one",
)
Bound = tuple[int, bool]
"""A latency in ns, or only a bound above which it is: True."""


class MethodRates:
    """One method, or what else is counted so, over some brokers.

    Attributes:
        kind: what it is. name: of a call its topic.
        calls, errors (by errno), buckets: so many. open: not answered yet. rank: one of the brokers that told of it.
        last: its newest error. last_rank: the broker where that call entered.
    """

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind = kind
        self.name = name
        self.rank = 0
        self.calls = self.open = 0
        self.errors: Counter[str] = Counter()
        self.buckets: Counter[int] = Counter()
        self.last: LastError | None = None
        self.last_rank = 0

    def add(self, rank: int, told: MethodReport, before: MethodReport | None) -> None:
        """What one broker told of it, without what it had told before; all, where it was cleared in between."""
        if before is None or told.calls < before.calls:
            before = MethodReport(0, 0, {})
        self.rank = rank
        self.calls += told.calls - before.calls
        self.open += told.open
        self.errors += Counter(told.errors) - Counter(before.errors)
        self.buckets += _counted(told.buckets) - _counted(before.buckets)
        last = told.last_error
        if last is not None and (self.last is None or last.time > self.last.time):
            self.last, self.last_rank = last, rank

    @property
    def failed(self) -> int:
        """Calls that ended with an error."""
        return self.errors.total()


def _counted(buckets: Sequence[int]) -> Counter[int]:
    return Counter(dict(enumerate(buckets)))


def span(bound: Bound | None) -> str:
    """A time for people.

    >>> span((23_170, False)), span((5_931_641, False)), span((1_100_000_000, False)), span((69 * 10**9, True))
    ('23 us', '5.9 ms', '1.1 s', '> 69 s')
    """
    if bound is None:
        return ""
    ns, above = bound
    unit, size = ("us", 1e3) if ns < 1e6 else ("ms", 1e6) if ns < 1e9 else ("s", 1e9)
    many = ns / size
    return f"{'> ' * above}{many:{'.2g' if many < 10 else '.0f'}} {unit}"


def error_name(errnum: str) -> str:
    """EIO for "5"; 0 stands for those that are not told apart."""
    return errno.errorcode.get(int(errnum), f"errno {errnum}") if errnum != "0" else "others"


class CallRates:
    """One look at all brokers.

    Args:
        answers: rank -> what ``broker.calls`` said, or why nothing is known of it.
        before: the look before: rates are since then, of brokers that answered both times. None: since they started.
        builtin: with the methods of the broker's own services, and their events.
        kind: the only one to be shown; None: all.

    Attributes:
        methods: what fails most first. silent: what is said of brokers, and of wings, that are not told of -> ranks.
    """

    def __init__(
        self,
        answers: Mapping[int, CallReport | str],
        before: CallRates | None,
        builtin: bool,
        kind: Kind | None = None,
    ) -> None:
        self.at = time.monotonic()
        self.seconds = self.at - before.at if before is not None else 0.0
        self.silent: dict[str, list[int]] = {}
        self.providers: dict[str, int] = {}
        self.bounds_ns: list[int] = []
        self._answers = answers
        methods: dict[tuple[Kind, str], MethodRates] = {}
        own: set[str] = set()
        for rank, answer in answers.items():
            if isinstance(answer, str):
                self.silent.setdefault(answer, []).append(rank)
                continue
            self.bounds_ns = answer.bounds_ns
            for name, service in answer.services.items():
                if service.builtin:
                    own.add(name)
                else:
                    self.providers[name] = rank
            for wing in answer.silent:
                self.silent.setdefault(f"no answer from {one_line(wing)}", []).append(rank)
            for each, by_name in kinds_of(answer).items():
                known = before._told_by(rank, each, by_name) if before is not None else {}
                for name, told in by_name.items():
                    key = each, name
                    methods.setdefault(key, MethodRates(*key)).add(rank, told, known.get(name))
        self.methods = [
            each
            for each in methods.values()
            if kind in (None, each.kind)
            and (builtin or each.kind not in OWN_KINDS or each.name.partition(".")[0] not in own)
        ]
        self.methods.sort(key=lambda each: (-each.failed, -each.calls, each.kind, each.name))

    def _told_by(self, rank: int, kind: Kind, now: Mapping[str, MethodReport]) -> Mapping[str, MethodReport]:
        """What a broker told of one kind; what it tells ``now``, where it told nothing."""
        then = self._answers[rank]
        return now if isinstance(then, str) else kinds_of(then).get(kind, now)

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
        """The look as ``--json`` prints it; times in ns, those that are ``above`` the last bound with that bound."""
        return {
            "seconds": self.seconds,
            "silent": sorted(rank for rank, answer in self._answers.items() if isinstance(answer, str)),
            "silent_wings": {
                str(rank): answer.silent
                for rank, answer in self._answers.items()
                if not isinstance(answer, str) and answer.silent
            },
            "methods": [
                {
                    "kind": each.kind,
                    "method": each.name,
                    "rank": self._rank(each),
                    "calls": each.calls,
                    "errors": {error_name(errnum): count for errnum, count in each.errors.items()},
                    "open": each.open,
                    **self._bound(each, "p50", 0.5),
                    **self._bound(each, "p99", 0.99),
                    "last_error": each.last and {**structs.asdict(each.last), "rank": each.last_rank},
                }
                for each in self.methods
            ],
        }

    def _rank(self, method: MethodRates) -> int | None:
        """Of a call who answers it; of what else is counted who told of it."""
        return self.providers.get(method.name.partition(".")[0]) if method.kind is Kind.CALL else method.rank

    def _quantile(self, method: MethodRates, part: float) -> Bound | None:
        return quantile(method.buckets, self.bounds_ns, part)

    def _bound(self, method: MethodRates, name: str, part: float) -> dict[str, Any]:
        bound = self._quantile(method, part)
        return {f"{name}_ns": bound and bound[0], f"{name}_above": bound is not None and bound[1]}

    def _row(self, method: MethodRates) -> tuple[str, ...]:
        last = method.last
        said = ""
        if last is not None:
            text = one_line(last.text) or error_name(str(last.errnum))
            when = time.strftime("%H:%M:%S", time.localtime(last.time))
            whose = f" user {last.userid}" if last.userid != USERID_UNKNOWN else ""
            said = f"{when}{whose} at rank {method.last_rank}: {text}"
        rank = self._rank(method)
        return (
            method.kind,
            method.name,
            "" if rank is None else str(rank),
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


def kinds_of(answer: CallReport) -> dict[Kind, Mapping[str, MethodReport]]:
    """The figures of an answer by kind; an older broker counts calls alone."""
    others = answer.others
    return {Kind.CALL: answer.methods, **{kind: others[kind] for kind in Kind if kind in others}}


def _ranks(ranks: Sequence[int]) -> str:
    more = " ..." if len(ranks) > 16 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}{more}"


async def ask(handle: Handle, ranks: Sequence[int]) -> dict[int, CallReport | str]:
    """What ``broker.calls`` says at each rank; why nothing is known where it is lost, silent, odd or does not count.

    Raises:
        RpcError: a broker refuses, or none of them counts calls.
    """
    few = asyncio.Semaphore(ASKED_AT_ONCE)
    unknown: list[RpcError] = []

    async def one(rank: int) -> CallReport | str:
        try:
            async with few, asyncio.timeout(SILENT_S):
                return (await handle.rpc("broker.calls", nodeid=rank)).json(CallReport)
        except TimeoutError:
            return f"no answer within {SILENT_S:g} s"
        except ProtocolError as error:
            return f"odd answer ({one_line(str(error))})"
        except RpcError as error:
            if error.errno == errno.ENOSYS:
                unknown.append(error)
                return "counts no calls"
            if error.errno == errno.EHOSTUNREACH:
                return "cannot be reached"
            raise

    answers = dict(zip(ranks, await asyncio.gather(*map(one, ranks)), strict=True))
    if unknown and len(unknown) == len(ranks):
        raise unknown[0]
    return answers
