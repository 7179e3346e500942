"""What the broker answers itself: management, its jobs, its inventory, events by subscription.

::

    questions  what is asked: one table of services, tasks, who may ask and which function answers
    mmi        the text's management interface and deployed NorFab's: counters, workers, log; restart, reload
    jobs       jobs, searched, filtered and shown
    inventory  data of workers
    events     subscriptions and pages, over ``event_bus``, which holds the latest events and delivers

Functions see the broker itself (``server.broker.NfpBroker``). ``../MANAGEMENT.md`` has all their tasks.
"""

from collections.abc import Mapping
from typing import Final

from broker.nfp.management import events, inventory, jobs, mmi
from broker.nfp.management.event_bus import EventBus
from broker.nfp.management.questions import Questions, Table
from broker.nfp.names import EVENTS, JOBS, MMI_BROKER, SID

SERVICES: Final[Mapping[str, Table]] = {
    MMI_BROKER: mmi.TASKS,
    JOBS: jobs.TASKS,
    EVENTS: events.TASKS,
    SID: inventory.TASKS,
}
"""All that there are, each with all of its tasks."""

__all__ = ["SERVICES", "EventBus", "Questions"]
