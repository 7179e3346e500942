"""Jobs that wait at a worker for a slot are taken back for another worker that has one.

A worker of ours is given one more job than it has slots, so that none of them is empty until the next job is there. Is
the job in front of it a long one, the other must not wait behind it while somebody else is idle: the worker is asked to
give it back, unless it has begun (``DELETE {"unless": "begun"}``).
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from broker.nfp import bodies
from broker.nfp.dispatch.model import DISPATCHED, Run, Service
from broker.nfp.dispatch.timers import Timers
from broker.nfp.names import Command

TAKE_BACK_S: Final = 0.25
"""A worker that runs a job says so long before: what it is silent about waits there for a slot."""


class Rebalancer:
    """Takes jobs back from workers.

    Args:
        may_have_begun: whether the task of a run must not be run twice, and may have been entered.
    """

    def __init__(self, timers: Timers, may_have_begun: Callable[[Run], bool]) -> None:
        self._timers = timers
        self._may_have_begun = may_have_begun

    def idle(self, service: Service, now: float) -> None:
        """Somebody of ``service`` has nothing to do: what others have not begun in a while is taken back for it."""
        if service.idle and service.ahead and service.sharing is None:
            service.sharing = self._timers.at(now + TAKE_BACK_S, self._rebalance, service)

    def _rebalance(self, service: Service, now: float) -> None:
        service.sharing = None
        places, later = len(service.idle), False
        for worker in islice(list(service.ahead), places):
            waiting = [run for run in worker.runs.values() if self._could_wait(run) and not run.asked]
            long = [run for run in waiting if now - run.heard >= TAKE_BACK_S]
            for run in long[-1:]:  # the newest: the others are begun before it
                self.take_back(run, now)
            later = later or len(waiting) > len(long)
        if later:
            self.idle(service, now)

    def _could_wait(self, run: Run) -> bool:
        """Whether a current ``run``, for any worker, may wait for a slot of its worker, and could be taken back."""
        part, connection = run.part, run.worker.connection
        return (
            part.run is run
            and not part.name
            and part.state == DISPATCHED
            and connection is not None
            and connection.lists
            and not self._may_have_begun(run)
        )

    def may_take_back(self, run: Run, now: float) -> bool:
        """Whether the worker of a current ``run``, for any, has not begun for a while and another has nothing to do."""
        return (
            self._could_wait(run)
            and now - run.heard >= TAKE_BACK_S
            and any(each is not run.worker for each in run.worker.service.idle)
        )

    def take_back(self, run: Run, now: float) -> None:
        """Have the worker give the job back, unless it has begun: 404 says that it has it no more, 201 that it runs."""
        if run.request(Command.DELETE, bodies.UNBEGUN):
            run.asked = now
