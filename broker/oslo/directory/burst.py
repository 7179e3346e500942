"""Changes of a node, gathered for other nodes where there is much to read.

Each state is told as a whole, and everybody in the cloud reads it. A thousand listeners that open on twenty nodes, one
after another on each, would be 3,000 states of ever more records at each of the twenty. So a change leaves at once
after a quiet time, and in a small cloud always; in a larger one those behind it are gathered, the longer the more there
is, and states of several pipelines travel together. Processes of this node do not wait: they are told each change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.records import Place, State

FREE_RECORDS: Final = 300
"""While all nodes together offer no more, nothing is gathered."""
RECORD_S: Final = 30e-6
"""Between two messages of a node, for each record beyond: when all announce at once, readers have about as much to do
as if one did."""
LAST_S: Final = 0.25
"""The longest that a change of a node is kept back here."""


class ChangesForOthers:
    """States on their way to other nodes.

    Args:
        reactor: whose thread and clock.
        tell: takes the newest state of each place that changed.

    Attributes:
        records: that all nodes offer; kept by whoever knows.
    """

    def __init__(self, reactor: Reactor, tell: Callable[[tuple[State, ...]], None]) -> None:
        self.records = 0
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
            gap_s = RECORD_S * (self.records - FREE_RECORDS)
            self._not_before = self._reactor.now() + min(max(gap_s, 0.0), LAST_S)
            self._tell(states)
