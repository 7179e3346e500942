"""Jobs that people look for: filters and a text, the newest job first, a slice at a time.

A broker keeps tens of thousands of jobs and has others to serve meanwhile: each of ``JobSearch.steps`` looks at
``SLICE`` of them, and whoever searches lets the loop do something else in between. Closed jobs that are in the store
only are read where a worker or a text is looked for, and where they are to be told of.
"""

# compiled: mypyc

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from broker.nfp.dispatch.model import Order, Part
from broker.nfp.dispatch.state import State
from broker.nfp.dispatch.stored_jobs import READ_AT_ONCE, READ_MAX_BYTES, filled
from broker.nfp.dispatch.views import JobView, ResultView, job_view, part_worker, result_views
from broker.nfp.outcome import DONE
from broker.nfp.records import JobRow

Tell = Callable[[JobView, list[ResultView]], Any]

SLICE: int = 500
"""Jobs looked at in one go: about a millisecond, five when a text is looked for."""


class JobFilter(NamedTuple):
    """Which jobs are meant; what is empty, or None, excludes none."""

    service: str = ""
    """"all" excludes none, too."""
    task: str = ""
    states: frozenset[str] = frozenset()
    worker: str = ""
    """Who has a part of it, had it last, or is the one it is for."""
    client: str = ""
    holder: str = ""
    text: str = ""
    """What its id, its arguments or one of its errors contains, whatever the case of ASCII letters."""
    since_s: float | None = None
    """Submitted then or later: seconds ago."""
    until_s: float | None = None
    """Submitted earlier than that: seconds ago."""


class JobSearch:
    """One search.

    Args:
        state: the dispatcher's. which: what is looked for. may_see: whether the searcher may see jobs of a holder.
        limit: how many are returned. now: as of the dispatcher. tell: what is returned of each.

    Attributes:
        found: what is told of the first ``limit``, the newest first.
        total: how many there are.
        states, services: how many of each.
    """

    def __init__(
        self,
        state: State,
        which: JobFilter,
        may_see: Callable[[str], bool],
        limit: int,
        now: float,
        tell: Tell,
    ) -> None:
        self.found: list[Any] = []
        self.total = 0
        self.states: Counter[str] = Counter()
        self.services: Counter[str] = Counter()
        self._state = state
        self._uuids = list(state.orders)
        self._which = which
        self._may_see = may_see
        self._limit = limit
        self._now = now
        self._tell = tell
        self._needles = _needles(which.text)
        self._from = now - which.since_s if which.since_s is not None else None
        self._to = now - which.until_s if which.until_s is not None else None

    def steps(self) -> Generator[list[str], list[JobRow], None]:
        """Look at all jobs that are there now. Yields those to be read next, and is sent what the store has of them.

        [] lets others have their turn.
        """
        while self._uuids:
            orders, unread = self._next()
            rows = (yield unread) if unread or self._uuids else []
            read = filled(self._state, rows)
            try:
                for at, order in enumerate(orders):
                    if (
                        order.stored and order.uuid not in unread and self._needs_all()
                    ):  # it has just left memory
                        self._uuids += [each.uuid for each in reversed(orders[at:])]
                        break
                    if self._is_meant(order):
                        self._count(order)
            finally:
                for order in read:
                    order.leave_to_store()

    def _next(self) -> tuple[list[Order], list[str]]:
        """Some that may be meant, and which of them are to be read."""
        orders: list[Order] = []
        unread: list[str] = []
        weight = 0
        for _ in range(min(SLICE, len(self._uuids))):
            order = self._state.orders.get(self._uuids.pop())  # None: it was forgotten meanwhile
            if order is None or not self._may_be_meant(order):
                continue
            orders.append(order)
            if order.stored and self._needs_all(len(orders)):
                unread.append(order.uuid)
                weight += order.size + order.dropped
                if weight > READ_MAX_BYTES or len(unread) >= READ_AT_ONCE:
                    break
        return orders, unread

    def _needs_all(self, ahead: int = 1) -> bool:
        """Whether all of an order is needed, to know whether it is meant or to tell of it; so many may be told of."""
        return bool(self._which.worker or self._needles) or len(self.found) + ahead <= self._limit

    def _count(self, order: Order) -> None:
        self.total += 1
        self.states[order.state] += 1
        self.services[order.service] += 1
        if len(self.found) < self._limit and not order.stored:
            view = job_view(order, self._state.config.result_ttl_s, self._now)
            self.found.append(self._tell(view, result_views(order)))

    def _may_be_meant(self, order: Order) -> bool:
        which = self._which
        return (
            which.service in ("", "all", order.service)
            and which.task in ("", order.task)
            and (not which.states or order.state in which.states)
            and which.client in ("", order.client.name)
            and which.holder in ("", order.holder)
            and (self._from is None or order.added_at >= self._from)
            and (self._to is None or order.added_at < self._to)
            and self._may_see(order.holder)
        )

    def _is_meant(self, order: Order) -> bool:
        """Whether one that may be meant is."""
        worker = self._which.worker
        return (not worker or worker in map(_whose, order.parts.values())) and (
            not self._needles or self._says(order)
        )

    def _says(self, order: Order) -> bool:
        places = [order.uuid.encode(), order.body]
        places += (part.body for part in order.parts.values() if part.ended not in ("", DONE))
        return any(needle in place.lower() for place in places for needle in self._needles)


def _whose(part: Part) -> str:
    return part_worker(part) or part.name


def _needles(text: str) -> list[bytes]:
    """``text`` as JSON may have written it: with and without escapes for what is not ASCII."""
    written = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return [each.encode().lower() for each in sorted(written)] if text else []
