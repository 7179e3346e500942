"""Time limits of jobs: nobody there to do it, or no result in time (NFP, "NFP/Client": "SHOULD expire").

A job has one timer. It goes off at the job's deadline, and while something of it waits no later than one queue ttl
after the last look: a service cannot have been absent for a whole ttl without our having looked meanwhile. What waits
for somebody who is not there ends a moment before the deadline: clients stop listening at it, and would not hear why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.nfp.dispatch.job import EXPIRED, FINAL, WAITING, Job, Slot

if TYPE_CHECKING:
    from broker.nfp.dispatch.assignment import Assignment
    from broker.nfp.dispatch.results import Results
    from broker.nfp.dispatch.state import State

_EARLY_S: Final = 2.0
"""How long before a deadline the absence of workers is told, at most; a deployed client looks once a second."""
_EARLY_PART: Final = 0.1
"""The same, as a part of the job's time."""


class Deadlines:
    """The jobs' timers.

    Attributes:
        due: called as ``due(job, now)`` when one goes off.
    """

    __slots__ = ("_state", "due")

    def __init__(self, state: State) -> None:
        self._state = state
        self.due: Callable[[Job, float], None] = _nothing

    def watch(self, job: Job, now: float) -> None:
        """A new job, or something of it waits that did not: look in time."""
        when = job.deadline
        if job.waiting:
            when = min(told_by(job), now + self._state.config.queue_ttl_s)
        self.arm(job, when)

    def arm(self, job: Job, when: float) -> None:
        """Have ``job`` looked at then, unless it is looked at sooner anyway."""
        timer = job.timer
        if timer is None or timer.when > when:
            self._state.timers.cancel(timer)
            job.timer = self._state.timers.at(when, self.due, job)


def told_by(job: Job) -> float:
    """When its client is to hear that nobody is there, if that is so until then."""
    return job.deadline - min(_EARLY_S, _EARLY_PART * job.ttl_s)


def _nothing(job: Job, now: float) -> None:
    """Nobody has said what to do yet."""


class Expiry:
    """Ends what takes too long: 408."""

    __slots__ = ("_assignment", "_deadlines", "_results", "_state")

    def __init__(self, state: State, results: Results, assignment: Assignment, deadlines: Deadlines) -> None:
        self._state = state
        self._results = results
        self._assignment = assignment
        self._deadlines = deadlines
        deadlines.due = self._look

    def _look(self, job: Job, now: float) -> None:
        job.timer = None
        if now >= job.deadline:
            self._expire(job, f"no result within {job.ttl_s:g} s", now)
            return
        if not job.slots and self._given_up_at("", job, job.added_at, now) <= now:
            self._expire(job, self._nobody("", job, job.added_at, now), now)
            return
        for slot in [slot for slot in job.slots.values() if slot.state == WAITING]:
            if self._given_up_at(slot.name, job, slot.since, now) <= now:
                self._expire_slot(slot, self._nobody(slot.name, job, slot.since, now), now)
        if job.open or not job.slots:
            self._deadlines.arm(job, self._next(job, now))

    def _next(self, job: Job, now: float) -> float:
        """When the first part that waits will have waited too long if nobody comes; at the latest the deadline."""
        if not job.slots:
            return min(job.deadline, self._given_up_at("", job, job.added_at, now))
        waiting = (slot for slot in job.slots.values() if slot.state == WAITING)
        times = (self._given_up_at(slot.name, job, slot.since, now) for slot in waiting)
        return min(job.deadline, min(times, default=job.deadline))

    def _given_up_at(self, name: str, job: Job, since: float, now: float) -> float:
        """When a slot that waits since ``since`` has waited too long if nobody comes; while somebody is there, when
        to look again.
        """
        absent = self._state.roster.absent_since(name, job.service)
        early, ttl_s = told_by(job), self._state.config.queue_ttl_s
        if absent is None:
            return min(now + ttl_s, early if early > now else job.deadline)
        return min(max(absent, since) + ttl_s, early)

    def _nobody(self, name: str, job: Job, since: float, now: float) -> str:
        absent = self._state.roster.absent_since(name, job.service)
        who = f"worker {name} was not there" if name else f"service {job.service} had no workers"
        return f"{who} for {now - max(absent or 0.0, since):.3g} s"

    def _expire(self, job: Job, error: str, now: float) -> None:
        """Every slot that is not final; a job that still gathers workers gets the one slot that says so."""
        if not job.slots:
            self._assignment.settle_nowhere(job, now)
        for slot in [slot for slot in job.slots.values() if slot.state != FINAL]:
            self._expire_slot(slot, error, now)

    def _expire_slot(self, slot: Slot, error: str, now: float) -> None:
        slot.job.fate = EXPIRED
        self._state.counts.expired += 1
        self._assignment.withdraw(slot)
        self._results.give_up(slot, 408, error, now)
