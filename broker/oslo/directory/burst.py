"""Changes of a node that has many listeners, gathered for other nodes.

Each state is told as a whole, and everybody in the cloud reads it. A thousand listeners that open on twenty nodes, one
after another on each, would be 3,000 states of ever more records at each of the twenty. So a change leaves at once
after a quiet time, and from a node with few listeners always. What comes behind a large state is gathered, the longer
the larger that was, and states of several pipelines travel together. How much there is elsewhere does not count: when
all nodes begin at the same time, none knows it yet. Processes of this node do not wait: they are told each change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.records import Place, State

FREE_RECORDS: Final = 8
"""Behind a message with no more than these nothing is gathered."""
RECORD_S: Final = 0.02
"""Gathering behind a message, for each record beyond."""
LAST_S: Final = 1.0
"""The longest that a change of a node is kept back here: behind a message with 58 records."""


class ChangesForOthers:
    """States on their way to other nodes.

    Args:
        reactor: whose thread and clock.
        tell: takes the newest state of each place that changed.
    """

    def __init__(self, reactor: Reactor, tell: Callable[[tuple[State, ...]], None]) -> None:
        self._reactor = reactor
        self._tell = tell
        self._due: dict[Place, State] = {}
        self._not_before = 0.0
        self._timer: Timer | None = None

    def put(self, state: State) -> None:
        """It is in force now, instead of the one before."""
        self._due[state.place] = state
        wait_s = self._not_before - self._reactor.now()
        if wait_s <= 0:
            self.flush()
        elif self._timer is None:
            self._timer = self._reactor.call_later(wait_s, self.flush)

    def drop(self, place: Place) -> None:
        """Nothing is in force there any more."""
        self._due.pop(place, None)

    def flush(self) -> None:
        """Tell what is due now. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            states = tuple(self._due.values())
            self._due.clear()
            many = sum(len(state.records) for state in states) - FREE_RECORDS
            self._not_before = self._reactor.now() + min(max(many, 0) * RECORD_S, LAST_S)
            self._tell(states)
