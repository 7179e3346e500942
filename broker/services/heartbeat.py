"""The beat of the instance: rank 0 publishes ``heartbeat.pulse`` each period, every broker hears it.

Deployed brokers and libflux take it as their clock for keepalives and housekeeping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from broker.services.context import Context
from broker.services.service import Service, Services, method
from broker.serving.request import Request
from broker.wire.message import Message, event

TOPIC: Final = "heartbeat.pulse"


class Heartbeat(Service):
    """Publishes the pulse at rank 0 and counts it everywhere.

    Attributes:
        period: seconds between two pulses (``broker.heartbeat_period_s``).
    """

    name = "heartbeat"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self.period: float = context.config["headgate"]["broker"]["heartbeat_period_s"]
        self._count = 0
        self._due = 0.0

    def start(self) -> None:
        """Listen, and at rank 0 begin to beat."""
        self.context.on_event(TOPIC, self._heard)
        if self.context.rank == 0:
            self._due = asyncio.get_running_loop().time()
            self._schedule()

    def _schedule(self) -> None:
        """The next beat, on a fixed grid; beats that a busy broker missed are not made up for."""
        loop = asyncio.get_running_loop()
        self._due += self.period
        # a busy broker missed its beat: the grid begins anew, or it would send all that it missed at once
        if self._due <= loop.time():
            self._due = loop.time() + self.period
        loop.call_at(self._due, self._beat)

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
