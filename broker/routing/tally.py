"""Counts of what passed, and of what did not and why."""

from __future__ import annotations


class Tally:
    """Message counts of one broker since it started.

    ``requests``, ``responses``, ``events`` and ``controls`` are received; ``answered`` were answered on behalf of a
    service that is not there; ``drops`` maps a reason to its count.
    """

    __slots__ = ("answered", "controls", "delivered_events", "drops", "events", "requests", "responses")

    REASONS_MAX = 256
    """Distinct reasons kept: some carry an errno, none carries peer data."""

    def __init__(self) -> None:
        self.requests: int = 0
        self.responses: int = 0
        self.events: int = 0
        self.controls: int = 0
        self.answered: int = 0
        self.delivered_events: int = 0
        self.drops: dict[str, int] = {}

    def drop(self, reason: str) -> None:
        """Count one message that went nowhere."""
        if reason not in self.drops and len(self.drops) >= self.REASONS_MAX:
            reason = "other"
        self.drops[reason] = self.drops.get(reason, 0) + 1

    @property
    def dropped(self) -> int:
        """All drops together."""
        return sum(self.drops.values())

    def clear(self) -> None:
        """Start all counts again (``broker.stats-clear``)."""
        self.requests = self.responses = self.events = self.controls = self.answered = (
            self.delivered_events
        ) = 0
        self.drops = {}
