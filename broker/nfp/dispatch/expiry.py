"""Time limits of jobs: nobody there to do it, or no result in time (NFP, "NFP/Client": "SHOULD expire").

A job has one timer. It goes off at the job's deadline, and while something of it waits no later than one queue ttl
after the last look: a service cannot have been absent for a whole ttl without our having looked meanwhile. What waits
for somebody who is not there ends a moment before the deadline: clients stop listening at it, and would not hear why.
"""

# compiled: mypyc

from __future__ import annotations

from math import inf
from typing import Final

from broker.nfp.dispatch.model import FINAL, WAITING, Order, Part
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.scheduler import Scheduler
from broker.nfp.dispatch.state import State, absence_told_at

MISSPELT: Final = "no worker is called {}, and no resource"
TOO_LATE: Final = "{} is a resource that nobody had announced when the job came: submit it again"


class Expiry:
    """Ends what takes too long: 408; and what is for a name that nobody has: 400."""

    def __init__(self, state: State, results: Results, scheduler: Scheduler) -> None:
        self._state = state
        self._results = results
        self._scheduler = scheduler

    def check(self, order: Order, now: float) -> None:
        """``order`` is due, see ``State.check_at``."""
        order.timer = None
        if now >= order.deadline:
            self._expire(order, f"no result within {order.ttl_s:g} s", now)
            return
        if not order.parts and self._given_up_at("", order, order.added_at, now) <= now:
            self._expire(order, self._nobody("", order, order.added_at, now), now)
            return
        for part in [part for part in order.parts.values() if part.state == WAITING]:
            if self._misspelt_at(part.name, order) <= now:
                self._scheduler.withdraw(part)
                late = bool(self._state.registry.named(part.name, order.service))
                self._results.fail(part, 400, (TOO_LATE if late else MISSPELT).format(part.name), now)
            elif self._given_up_at(part.name, order, part.since, now) <= now:
                self._expire_part(part, self._nobody(part.name, order, part.since, now), now)
        if order.open or not order.parts:
            self._state.check_at(order, self._next(order, now))

    def _next(self, order: Order, now: float) -> float:
        """When the first part that waits will have waited too long if nobody comes; at the latest the deadline."""
        if not order.parts:
            return min(order.deadline, self._given_up_at("", order, order.added_at, now))
        waiting = (part for part in order.parts.values() if part.state == WAITING)
        times = (self._given_up_at(part.name, order, part.since, now) for part in waiting)
        return min(order.deadline, min(times, default=order.deadline))

    def _given_up_at(self, name: str, order: Order, since: float, now: float) -> float:
        """When a part that waits since ``since`` has waited too long if nobody comes; while somebody is there, when
        to look again.
        """
        absent = self._state.registry.absent_since(name, order.service)
        early, ttl_s = absence_told_at(order), self._state.config.queue_ttl_s
        if absent is None:
            return min(now + ttl_s, early if early > now else order.deadline)
        return min(max(absent, since) + ttl_s, early, self._misspelt_at(name, order))

    def _misspelt_at(self, name: str, order: Order) -> float:
        if not name or self._state.registry.knows(name):
            return inf
        return self._state.misspelt_at(order.service)

    def _nobody(self, name: str, order: Order, since: float, now: float) -> str:
        absent = self._state.registry.absent_since(name, order.service)
        who = f"worker {name} was not there" if name else f"service {order.service} had no workers"
        return f"{who} for {now - max(absent or 0.0, since):.3g} s"

    def _expire(self, order: Order, error: str, now: float) -> None:
        """Every part that is not final; a job that still gathers workers gets the one part that says so."""
        if not order.parts:
            self._scheduler.settle_nowhere(order, now)
        for part in [part for part in order.parts.values() if part.state != FINAL]:
            self._expire_part(part, error, now)

    def _expire_part(self, part: Part, error: str, now: float) -> None:
        self._scheduler.withdraw(part)
        if part.lost:
            error += f"; while workers had it these were lost: {part.losses}"
        self._results.fail(part, 408, error, now)
