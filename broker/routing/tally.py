"""Counts of what passed, and of what did not and why.

The ways a message usually takes count it once, where it comes in; only the rare ones (refused, dropped, made here)
count what they did with it. What was sent is the difference, so that sending costs the corridor nothing.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

REASONS_MAX: Final = 256
"""Distinct reasons kept: some carry an errno, none carries peer data."""


class Tally:
    """Message counts of one broker since it started.

    What comes from a link and what this broker's own services and calls say are routed alike, and counted alike.

    Attributes:
        requests, responses, events, controls: came in.
        refused_requests: of those, answered here or dropped; the others were passed on.
        stray_responses: of those, dropped; the others were passed on.
        answered: responses made here: a service that is not there, a lost neighbour, a refused request.
        notices: requests made here: ``SERVICE.disconnect`` for streams that came through a lost neighbour.
        delivered_events: handed to subscribers, to children, or up to the parent; one event may count many times.
        sent_controls: to neighbours of the tree.
        connects: clients that were attached.
        drops: reason -> messages that went nowhere.
    """

    __slots__ = (
        "answered",
        "connects",
        "controls",
        "delivered_events",
        "drops",
        "events",
        "notices",
        "refused_requests",
        "requests",
        "responses",
        "sent_controls",
        "stray_responses",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start all counts at zero, and again (``broker.stats-clear``)."""
        self.requests: int = 0
        self.responses: int = 0
        self.events: int = 0
        self.controls: int = 0
        self.refused_requests: int = 0
        self.stray_responses: int = 0
        self.answered: int = 0
        self.notices: int = 0
        self.delivered_events: int = 0
        self.sent_controls: int = 0
        self.connects: int = 0
        self.drops: dict[str, int] = {}

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that went nowhere."""
        if reason not in self.drops and len(self.drops) >= REASONS_MAX:
            reason = "other"
        self.drops[reason] = self.drops.get(reason, 0) + count

    def received(self) -> dict[str, int]:
        """Message type -> how many came in."""
        return {
            "request": self.requests,
            "response": self.responses,
            "event": self.events,
            "control": self.controls,
        }

    def sent(self) -> dict[str, int]:
        """Message type -> how many were passed on or made here, an event once per receiver."""
        return {
            "request": self.requests - self.refused_requests + self.notices,
            "response": self.responses - self.stray_responses + self.answered,
            "event": self.delivered_events,
            "control": self.sent_controls,
        }
