"""Questions of web users -> answers as JSON: read in a thread of its own, remembered while the files stay as they are.

One question is read at a time: a history is looked at by few, and what it costs must not grow with how many do. Those
that wait are bounded. An answer is kept under its question and the state (path, time of change, size) of every file it
may have come from.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.errors import HeadgateError
from gateway.history import findings, latency, traffic
from gateway.history.files import Absent, Budget, Reading, arrow, seconds
from gateway.history.scope import DAY_S, LEAST_S, Scope, fitted
from gateway.history.tables import WIDEST_S, Warehouse

WAITING_MAX: Final = 16
"""Questions that may wait for the one that is being read; a page asks eleven at once."""
KEPT: Final = 64
"""Answers that are remembered."""
KEPT_BYTES: Final = 16 * 2**20
"""Of them together."""
LIMIT: Final = 50
"""Rows of a table unless said."""
RUNS: Final = 20
"""Runs of jobs that are told."""
_RUN: Final = ("job", "batch_id", "feed", "rows_in", "rows_out", "bad_blocks", "lost_records", "duration_s")
LISTED_DAYS: Final = 400
"""Partitions of a table whose files are counted, the newest."""


# ---------------------------------------------------------------- what there is to ask about


def summary(warehouse: Warehouse, scope: Scope, reading: Reading) -> dict[str, Any]:
    """Tables, runs, sums over the scope.

    ``first`` is the first second of the data, ``last`` the first one behind it, ``fit`` what a chart of all of it
    shows (since, until); None and an empty list where there is none. ``ended`` is when the newest run did, if any has.
    """
    tables = {name: _about(warehouse, name) for name in warehouse.tables()}
    extent = warehouse.extent()
    runs = [_run(row) for row in warehouse.runs(reading, RUNS)]
    ends = [run["finished_at"] for run in runs if run["finished_at"] is not None]
    return {
        "first": extent[0] if extent else None,
        "last": extent[1] if extent else None,
        "fit": list(fitted(*extent)) if extent else [],
        "ended": max(ends, default=None),
        "tables": tables,
        "runs": runs,
        **traffic.totals(warehouse, scope, reading),
    }


def _about(warehouse: Warehouse, name: str) -> dict[str, Any]:
    """Size and days of a table, from its directory."""
    days = warehouse.days(name)
    files = warehouse.files(name, days[:LISTED_DAYS])
    return {
        "days": len(days),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "first_day": days[-1] if days else None,
        "last_day": days[0] if days else None,
    }


def _run(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ``_runs`` with its times as seconds; what an older schema lacks is None."""
    times = {name: seconds(row.get(name)) for name in ("started_at", "finished_at")}
    return {**{name: row.get(name) for name in _RUN}, **times}


# ---------------------------------------------------------------- questions

_Query = Callable[..., dict[str, Any]]
QUESTIONS: Final[dict[str, tuple[_Query, tuple[str, ...]]]] = {
    "summary": (summary, ("traffic", "errors")),
    "traffic": (traffic.over_time, ("traffic",)),
    "latency": (latency.over_time, ("rpc_latency",)),
    "tree": (latency.tree, ("tree_latency",)),
    "talkers": (traffic.talkers, ("traffic", "errors", "user_usage")),
    "errors": (findings.errors, ("errors",)),
    "denied": (findings.denied, ("denied",)),
    "order": (findings.order, ("order_check", "event_gaps")),
    "slow": (findings.slow, ("slow",)),
    "jobs": (findings.jobs, ("job_outcomes",)),
    "notifications": (findings.notifications, ("notifications",)),
}
"""Question -> who answers it, and from which tables."""


class Busy(HeadgateError):
    """Too many questions wait."""

    errno = errno.EAGAIN
    fault = "caller"


class TooWide(HeadgateError):
    """The time that was asked for is none, or longer than allowed."""

    errno = errno.EINVAL
    fault = "caller"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        name: a key of ``QUESTIONS``.
        since: seconds since 1970; None: a day before ``until``, or all there is when that is less.
        until: seconds since 1970; None: behind the end of the data.
        service: of the topics that count; None all.
        rank: of the broker that counts; None all.
        more: further arguments, like ``limit`` and ``by``.
    """

    name: str
    since: float | None = None
    until: float | None = None
    service: str | None = None
    rank: int | None = None
    more: tuple[tuple[str, Any], ...] = ()


def answer(
    warehouse: Warehouse, question: Question, *, max_days: float = 366, budget: Budget | None = None
) -> dict[str, Any]:
    """Read one answer now, in this thread.

    Raises:
        Absent: no pyarrow or no warehouse. TooWide: bounds that make no sense, or more than ``max_days``.
    """
    warehouse.check()
    scope = scope_of(warehouse, question, max_days)
    query, _ = QUESTIONS[question.name]
    reading = Reading(budget or Budget())
    rows = query(warehouse, scope, reading, **dict(question.more))
    if (
        reading.vanished
    ):  # a partition was put in the place of another meanwhile: once more, with its new files
        reading = Reading(budget or Budget())
        rows = query(warehouse, scope, reading, **dict(question.more))
    values = {**scope.as_json(), **reading.as_json(), **rows}
    return _aged(values) if question.name == "summary" else values


def scope_of(warehouse: Warehouse, question: Question, max_days: float) -> Scope:
    """The bounds of a question.

    Raises:
        TooWide: they make no sense, or hold more than ``max_days``.
    """
    extent = warehouse.extent() if question.until is None else None
    if extent is None:
        now = int(time.time()) + 1
        extent = now - LEAST_S, now
    try:
        scope = Scope.of(
            question.since,
            question.until,
            extent,
            seconds=min(1, max_days) * DAY_S,
            service=question.service,
            rank=question.rank,
        )
    except ValueError as error:
        raise TooWide(str(error)) from None
    if scope.span > max_days * DAY_S + 1:
        raise TooWide(f"saw {scope.span} s, expected at most history.max_days, {max_days:g} days")
    return scope


def _aged(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary with ``fresh_s``: how long ago the newest run ended."""
    ended = summary["ended"]
    return {**summary, "fresh_s": None if ended is None else max(0.0, time.time() - ended)}


class History:
    """The history of one gateway.

    Args:
        directory: of the warehouse; None: there is none.
        max_days: the longest time one question may be about.
    """

    def __init__(self, directory: str | None, max_days: float = 31) -> None:
        self._warehouse = Warehouse(directory) if directory is not None else None
        self._max_days = max_days
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._waiting = 0
        self._kept: OrderedDict[object, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._closed = False

    async def missing(self) -> str:
        """Why there is nothing to ask, with what to do about it; "" when there is."""
        try:
            await self._run(self._check)
        except Absent as error:
            return str(error)
        return ""

    async def ask(self, question: Question) -> bytes:
        """The answer as JSON.

        Raises:
            Absent, TooWide: as of ``answer``. Busy: too many wait.
        """
        body: bytes = await self._run(self._answer, question)
        return body

    def close(self) -> None:
        """Forget who waits; the thread ends with what it is reading, within seconds."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    # -- in the thread -------------------------------------------------------------------------

    def _check(self) -> Warehouse:
        if self._warehouse is None:
            raise Absent(
                "this gateway was started without a history: --history DIR, or history.warehouse, "
                "names the warehouse that headgate pipeline writes"
            )
        self._warehouse.check()
        return self._warehouse

    def _answer(self, question: Question) -> bytes:
        warehouse = self._check()
        key = (question, self._state(warehouse, question))
        if (known := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            if question.name == "summary":  # from memory it is older than it says
                return msgspec.json.encode(_aged(msgspec.json.decode(known)))
            return known
        budget = Budget(stopped=lambda: self._closed)
        body = msgspec.json.encode(answer(warehouse, question, max_days=self._max_days, budget=budget))
        self._keep(key, body)
        arrow().default_memory_pool().release_unused()
        return body

    def _state(self, warehouse: Warehouse, question: Question) -> object:
        scope = scope_of(warehouse, question, self._max_days)
        days = scope.reaching(WIDEST_S).days
        if question.name != "summary":
            return scope, warehouse.state(QUESTIONS[question.name][1], days)
        tables = warehouse.tables()
        listed = [(name, *warehouse.days(name)) for name in tables]
        runs = warehouse.run_files()
        return scope, *listed, warehouse.extent(), warehouse.state(tables, days), *runs

    def _keep(self, key: object, body: bytes) -> None:
        self._kept[key] = body
        self._kept_bytes += len(body)
        while len(self._kept) > KEPT or self._kept_bytes > KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest)

    # -- beside it -----------------------------------------------------------------------------

    async def _run(self, work: Callable[..., Any], *given: Any) -> Any:
        if self._closed:
            raise Absent("the gateway is shutting down", errno.ESHUTDOWN)
        if self._waiting >= WAITING_MAX:
            raise Busy(f"{self._waiting} questions wait for the history already")
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(1, "history")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
        finally:
            self._waiting -= 1
