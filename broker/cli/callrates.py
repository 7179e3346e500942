"""``headgate stats --services``: how the calls of everybody fare, by method, over all brokers that answer; and beside
them events by topic, NFP's jobs by service and task, oslo's messages by pipeline and topic.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import structs

from broker.call_report import CALL, CallReport, MethodReport, Providers, Totals, latency
from broker.cli.exits import error_name
from broker.cli.screen import Screen
from broker.cli.session import at_each
from broker.cli.tree import SILENT_S
from broker.client import Handle
from broker.errors import ProtocolError, RpcError
from broker.identity import USERID_UNKNOWN
from broker.safe_text import one_line


class Kind(StrEnum):
    """What is counted."""

    CALL = CALL
    EVENT = "event"
    NFP = "nfp"
    OSLO = "oslo"


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
NARROW_HEADS: Final = ("kind", "method", "calls", "errors", "open", "p50", "p99", "which errors")
Bound = tuple[int, bool]
"""A latency in ns, or only a bound above which it is: True."""


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


def _error_name(errnum: str) -> str:
    """EIO for "5"; 0 stands for those that are not told apart."""
    return error_name(int(errnum)) if errnum != "0" else "others"


class CallRates:
    """The calls, events and jobs that all brokers reported at one time.

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
        self.providers = Providers()
        self.bounds_ns: list[int] = []
        self._answers = answers
        methods: dict[tuple[Kind, str], Totals] = {}
        for rank, answer in answers.items():
            if isinstance(answer, str):
                self.silent.setdefault(answer, []).append(rank)
                continue
            self.bounds_ns = answer.bounds_ns
            self.providers.take(rank, answer.services)
            for wing in answer.silent:
                self.silent.setdefault(f"no answer from {one_line(wing)}", []).append(rank)
            for each, by_name in kinds_of(answer).items():
                known = before._told_by(rank, each, by_name) if before is not None else {}
                for name, told in by_name.items():
                    key = each, name
                    methods.setdefault(key, Totals(*key)).take(rank, told, known.get(name))
        self.methods = [
            each
            for each in methods.values()
            if kind in (None, each.kind) and (builtin or not self.providers.is_own(each.kind, each.name))
        ]
        self.methods.sort(key=lambda each: (-each.failed, -each.calls, each.kind, each.name))

    def _told_by(self, rank: int, kind: Kind, now: Mapping[str, MethodReport]) -> Mapping[str, MethodReport]:
        """What a broker reported of one kind at the look before; ``now`` itself where it reported nothing then, so
        that the increase is 0.
        """
        then = self._answers[rank]
        return now if isinstance(then, str) else kinds_of(then).get(kind, now)

    def show(self, screen: Screen) -> None:
        """Print a line per method, those that fail first."""
        if screen.as_json:
            screen.value(self.as_json())
            return
        screen.table(HEADS, [self._row(each) for each in self.methods], narrow=NARROW_HEADS)
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
                    "rank": self.providers.rank_of(each),
                    "calls": each.calls,
                    "errors": {_error_name(errnum): count for errnum, count in each.errors.items()},
                    "open": each.open,
                    **self._bound(each, 50),
                    **self._bound(each, 99),
                    "last_error": each.last and {**structs.asdict(each.last), "rank": each.last_rank},
                }
                for each in self.methods
            ],
        }

    def _latency(self, method: Totals, percent: int) -> Bound | None:
        return latency(method.buckets, self.bounds_ns, percent)

    def _bound(self, method: Totals, percent: int) -> dict[str, Any]:
        bound = self._latency(method, percent)
        return {f"p{percent}_ns": bound and bound[0], f"p{percent}_above": bound is not None and bound[1]}

    def _row(self, method: Totals) -> tuple[str, ...]:
        last = method.last
        said = ""
        if last is not None:
            text = one_line(last.text) or _error_name(str(last.errnum))
            when = time.strftime("%H:%M:%S", time.localtime(last.time))
            whose = f" user {last.userid}" if last.userid != USERID_UNKNOWN else ""
            said = f"{when}{whose} at rank {method.last_rank}: {text}"
        rank = self.providers.rank_of(method)
        return (
            method.kind,
            method.name,
            "" if rank is None else str(rank),
            self._count(method.calls),
            self._count(method.failed),
            f"{method.open:,}",
            span(self._latency(method, 50)),
            span(self._latency(method, 99)),
            " ".join(f"{_error_name(errnum)} {count:,}" for errnum, count in method.errors.most_common(3)),
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
    unknown: list[RpcError] = []

    async def one(rank: int) -> CallReport | str:
        try:
            async with asyncio.timeout(SILENT_S):
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

    answers = dict(zip(ranks, await at_each(ranks, one), strict=True))
    if unknown and len(unknown) == len(ranks):
        raise unknown[0]
    return answers
