"""A tree whose links are as slow as a test says: each has a queue of its own, from which it is handed on by hand."""

from collections import deque

from broker.wire.decoding import decode
from broker.wire.message import CONTROL, EVENT
from broker.wire.shares import cost
from tests.unit.routing.sim import Tree


class Lanes(Tree):
    """Links that tell how much they have handled; ``lanes[source, target]`` is what is under way between two ranks."""

    def __init__(self, size, fanout=2):
        self.lanes: dict[tuple[int, int], deque] = {}
        self.controls = 0
        self.most = 0
        super().__init__(size, fanout, windowed=True)

    def _cross(self, source, target, message, port_there):
        data = message.encode()
        lane = self.lanes.setdefault((source, target), deque())
        lane.append((port_there, decode(data, 0, len(data))))
        self.controls += message.type == CONTROL
        self.most = max(self.most, self.under_way(source, target))

    def step(self, source, target):
        """Hand on the oldest message between two ranks."""
        port_there, message = self.lanes[source, target].popleft()
        self._arrive((target, port_there), message)

    def flow(self, *but):
        """Hand on all there is, round robin, but for what is under way between the pairs ``but``."""
        while busy := [pair for pair, lane in self.lanes.items() if lane and pair not in but]:
            for pair in busy:
                self.step(*pair)

    def under_way(self, source, target):
        """What the events between two ranks count for."""
        return sum(
            cost(message) for _, message in self.lanes.get((source, target), ()) if message.type == EVENT
        )

    @property
    def blocked(self):
        """The ranks where publishers wait."""
        return [rank.rank for rank in self.ranks if rank.router.events.flow.blocked]
