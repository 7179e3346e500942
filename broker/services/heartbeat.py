"""The beat of the instance: rank 0 publishes ``heartbeat.pulse`` each period, every broker hears it.

Deployed brokers and libflux take it as their clock for keepalives and housekeeping.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.services.context import Context
from broker.services.service import Service, method
from broker.serving.request import Request
from broker.wire.message import Message, event

TOPIC: Final = "heartbeat.pulse"


class Heartbeat(Service):
    """Publishes the pulse at rank 0 and counts it everywhere.

    Args:
        context: the broker.
        period: seconds between two pulses.
    """

    name = "heartbeat"

    def __init__(self, context: Context, period: float = 2.0) -> None:
        super().__init__(context)
        self.period: float = period
        self._count = 0
        self._due = 0.0

    def start(self) -> None:
        """Listen, and at rank 0 begin to beat."""
        self.context.on_event(TOPIC, self._heard)
        if self.context.rank == 0:
            self._due = self.context.now()
            self._schedule()

    def _schedule(self) -> None:
        """The next beat, on a fixed grid; beats that a busy broker missed are not made up for."""
        now = self.context.now()
        self._due += self.period
        if self._due <= now:
            self._due = now + self.period
        self.context.after(self._due - now, self._beat)

    def _beat(self) -> None:
        self._schedule()
        self.context.publish(event(TOPIC, **self.context.cred._asdict()))

    def _heard(self, message: Message) -> None:
        self._count += 1

    @method("stats-get")
    def figures(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"period", "timeout", "count", "warn_thresh"}``.

        Timeout and threshold are 0, off: the overlay watches silent peers itself.
        """
        return {"period": self.period, "timeout": 0.0, "count": self._count, "warn_thresh": 0}

    def clear_stats(self) -> None:
        """Count from zero."""
        self._count = 0
