"""What the broker answers itself: management, its jobs, events by subscription, accounting.

``mmi`` and ``workers``, ``logs``: the text's management interface and deployed NorFab's. ``jobs``: the
job list. ``events`` over ``hub`` over ``ring``: subscriptions with replay. ``accounting``: who used how much.
``desk``: what these services share; ``managed``: what they need of the broker.
``../MANAGEMENT.md`` has all their tasks.
"""

from __future__ import annotations

from broker.nfp.contract import Internal, JobEvent, Watch
from broker.nfp.logs import LogRing
from broker.nfp.management.accounting import Accounting
from broker.nfp.management.events import Events
from broker.nfp.management.hub import EventHub
from broker.nfp.management.jobs import Jobs
from broker.nfp.management.managed import ManagedBroker, Messaging
from broker.nfp.management.mmi import Mmi

__all__ = [
    "Accounting",
    "EventHub",
    "LogRing",
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


def internal_services(broker: ManagedBroker) -> list[Internal]:
    """The services of management; the inventory's is its own room's."""
    return [Mmi(broker), Jobs(broker), Events(broker.hub)]
