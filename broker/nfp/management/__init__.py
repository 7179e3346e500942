"""What the broker answers itself: management, its jobs, events by subscription, accounting.

``mmi`` and ``workers``, ``logs``: the text's management interface and deployed NorFab's. ``jobs``: the
job list. ``events`` over ``event_bus`` over ``event_buffer``: subscriptions with replay. ``accounting``: who used how
much. ``internal_service``: what these services share; ``managed``: what they need of the broker.
``../MANAGEMENT.md`` has all their tasks.
"""

from __future__ import annotations

from broker.nfp.access import Access
from broker.nfp.contract import Internal, JobEvent, Watch
from broker.nfp.logs import LogBuffer
from broker.nfp.management.accounting import Accounting
from broker.nfp.management.event_bus import EventBus
from broker.nfp.management.events import EventService
from broker.nfp.management.jobs import JobService
from broker.nfp.management.managed import ManagedBroker, Messaging
from broker.nfp.management.mmi import MmiService

__all__ = [
    "Accounting",
    "EventBus",
    "LogBuffer",
    "ManagedBroker",
    "Messaging",
    "Watches",
    "internal_services",
]


class Watches:
    """Several watches as one (``contract.Watch``), told in the order given."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches

    def happened(self, event: JobEvent) -> None:
        """Tell all of them."""
        for watch in self._watches:
            watch.happened(event)


def internal_services(broker: ManagedBroker, access: Access | None = None) -> list[Internal]:
    """The services of management, by the rules of ``access``; the inventory's is its own room's."""
    return [MmiService(broker), JobService(broker, access), EventService(broker.event_bus)]
