"""Back-pressure: the entry of a pipeline is not read while a queue behind it is nearly full and moves.

What comes meanwhile waits at its senders: their sockets take no more, their links become full, and whoever sends waits
as its ``retry`` says. So a burst is slowed to what the slowest of its servers takes, and nothing of it is lost.

All servers of the node share the entry. A pause therefore ends, for each queue that asks for it, when

* it has room again, or
* it has not moved for ``STILL_S``: whoever it is for is frozen, or
* it has not come to have room within ``PAUSE_MAX_S``: it is too slow for others to be kept waiting. It may not ask for
  another pause before it has had room.

What is for such a one and finds its queue full is lost, as far as no other server can have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.oslo.proxy.counters import Counters
from broker.oslo.proxy.credited_queue import CreditedQueue
from broker.oslo.reactor import Reactor, Timer

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


class BackPressure:
    """Pauses and resumes the entry of one pipeline.

    Args:
        reactor: whose clock and timers.
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
        self._asking: dict[CreditedQueue[Any], float] = {}
        self._slow: set[CreditedQueue[Any]] = set()
        self._timer: Timer | None = None
        self._looked_s = 0.0

    def press(self, queue: CreditedQueue[Any]) -> bool:
        """``queue`` is nearly full: read nothing until it has room. False: it does not move, nobody waits for it."""
        if queue in self._asking:
            return True
        now_s = self._reactor.now()
        if queue in self._slow or now_s - queue.moved_s > STILL_S:
            return False
        self._asking[queue] = now_s
        if not self.on:
            self.on = True
            self._counters.count("pauses")
            self._frontend.pause(WHY, on=True)
        if self._timer is None:
            self._looked_s = now_s
            self._timer = self._reactor.call_later(LOOK_S, self._look)
        return True

    def ease(self, queue: CreditedQueue[Any]) -> None:
        """Something of it was taken."""
        if (self._asking or self._slow) and queue.filled < ROOM:
            self.forget(queue)

    def forget(self, queue: CreditedQueue[Any]) -> None:
        """It has room, or has ended. Harmless when it never asked for anything."""
        self._slow.discard(queue)
        if self._asking.pop(queue, None) is not None and not self._asking:
            self._reactor.call_soon(self._release)

    def _look(self) -> None:
        now_s = self._reactor.now()
        late = (
            now_s - self._looked_s > 3 * LOOK_S
        )  # we stood still ourselves: what came meanwhile is read first
        self._looked_s = now_s
        for queue, since_s in list(self._asking.items()):
            if queue.filled < ROOM:
                self.forget(queue)
            elif late:
                continue
            elif now_s - queue.moved_s > STILL_S:
                self._counters.count("pauses_still")
                self.forget(queue)
            elif now_s - since_s > PAUSE_MAX_S:
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
