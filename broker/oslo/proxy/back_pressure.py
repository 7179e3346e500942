"""Back-pressure: the entry of a pipeline is not read while a queue behind it is nearly full and moves.

What comes meanwhile waits at its senders: their sockets take no more, their links become full, and whoever sends waits
as its ``retry`` says. So a burst is slowed to what the slowest of its servers takes, and nothing of it is lost.

All servers of the node share the entry. A pause therefore ends, for each queue that asks for it, when

* it has room again, or
* it has not moved for ``STILL_S``: whoever it is for is frozen, and it may not ask again before it has moved, or
* it has not come to have room within ``PAUSE_MAX_S``: it is too slow for others to be kept waiting. It may not ask for
  another pause before it has had room.

What is for such a one and finds its queue full is lost, as far as no other server can have it. Looks are counted, not
seconds: a proxy that was stopped, with its servers or alone, has looked but once meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.oslo.proxy.credited_queue import CreditedQueue
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.counters import Counters

if TYPE_CHECKING:
    from broker.oslo.proxy.frontend import Frontend

FULL: Final = 0.9
"""The part of a queue from which on it asks for a pause: the rest is for what was under way."""
ROOM: Final = 0.85
"""The part below which it has room again. Close to the other one, so that pauses are short: a sender that can hand
nothing over for a second takes the node for one that is down, and one that is not even heard for the time of keep-alive
ends the connection."""
STILL_S: Final = 0.5
PAUSE_MAX_S: Final = 5.0
LOOK_S: Final = 0.1
WHY: Final = "a queue is nearly full"


@dataclass(slots=True)
class _Pause:
    """What a queue asked for.

    Attributes:
        moves: of the queue, when it was looked at last.
        looks: so often since it asked.
        still: so often in a row it had not moved.
    """

    moves: int
    looks: int = 0
    still: int = 0


class BackPressure:
    """Pauses and resumes the entry of one pipeline.

    Args:
        reactor: whose timers.
        frontend: what is paused.
        counters: ``pauses``; ``pauses_still`` and ``pauses_slow``: requests for a pause that ended without room.

    Attributes:
        on: the entry is paused.
    """

    def __init__(
        self,
        reactor: Reactor,
        frontend: Frontend,
        counters: Counters,
    ) -> None:
        self.on = False
        self._reactor = reactor
        self._frontend = frontend
        self._counters = counters
        self._asking: dict[CreditedQueue[Any], _Pause] = {}
        self._slow: set[CreditedQueue[Any]] = set()
        self._still: dict[CreditedQueue[Any], int] = {}
        self._timer: Timer | None = None

    def press(self, queue: CreditedQueue[Any]) -> bool:
        """``queue`` is nearly full: read nothing until it has room. False: it does not move, nobody waits for it."""
        if queue in self._asking:
            return True
        if queue in self._slow or self._still.get(queue) == queue.moves:
            return False
        self._asking[queue] = _Pause(queue.moves)
        if not self.on:
            self.on = True
            self._counters.count("pauses")
            self._frontend.pause(WHY, on=True)
        if self._timer is None:
            self._timer = self._reactor.call_later(LOOK_S, self._look)
        return True

    def ease(self, queue: CreditedQueue[Any]) -> None:
        """Something of it was taken."""
        if (self._asking or self._slow or self._still) and queue.filled < ROOM:
            self.forget(queue)

    def forget(self, queue: CreditedQueue[Any]) -> None:
        """It has room, or has ended. Harmless when it never asked for anything."""
        self._slow.discard(queue)
        self._still.pop(queue, None)
        if self._asking.pop(queue, None) is not None and not self._asking:
            self._reactor.call_soon(self._release)

    def _look(self) -> None:
        for queue, pause in list(self._asking.items()):
            pause.looks += 1
            pause.still = pause.still + 1 if pause.moves == queue.moves else 0
            pause.moves = queue.moves
            if queue.filled < ROOM:
                self.forget(queue)
            elif pause.still * LOOK_S > STILL_S:
                self._counters.count("pauses_still")
                self.forget(queue)
                self._still[queue] = queue.moves
            elif pause.looks * LOOK_S > PAUSE_MAX_S:
                self._counters.count("pauses_slow")
                self.forget(queue)
                self._slow.add(queue)
        self._timer = self._reactor.call_later(LOOK_S, self._look) if self._asking else None

    def _release(self) -> None:
        if self.on and not self._asking:
            self.on = False
            self._frontend.pause(WHY, on=False)

    def status(self) -> dict[str, Any]:
        """Whether the entry is paused, for how many queues."""
        return {"paused": self.on, "for": len(self._asking)}

    def close(self) -> None:
        """No more timers. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.on = False
        self._asking.clear()
        self._slow.clear()
        self._still.clear()
