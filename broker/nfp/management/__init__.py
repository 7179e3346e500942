"""What the broker answers itself: management, its jobs, events by subscription.

::

    mmi               the text's management interface and deployed NorFab's: counters, workers, log; restart, reload
    jobs              jobs, searched, filtered and shown
    events            subscriptions, over ``event_bus``, which holds the latest events and delivers
    internal_service  what these services share: tasks, roles, arguments

They see the broker itself (``server.broker.NfpBroker``). ``../MANAGEMENT.md`` has all their tasks.
"""

from broker.nfp.management.event_bus import EventBus
from broker.nfp.management.events import EventService
from broker.nfp.management.jobs import JobService
from broker.nfp.management.mmi import MmiService

__all__ = ["EventBus", "EventService", "JobService", "MmiService"]
