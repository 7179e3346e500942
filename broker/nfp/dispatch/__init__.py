"""Who gets which job, and what everybody is told (NFP, "NFP/Client", "NFP/Broker", "NFP/Worker", "Reliability").

Pure: packets and the time come in, packets go to peers, records to the journal, events to who listens; nothing waits.
In the order of a job's life::

    dispatcher    the walk: which part handles what
    requests      a POST is checked and becomes an order with a part for each worker it is for; GET, DELETE and PUT
    scheduler     parts get workers, or wait in ``queues``; ``connections`` writes to workers in their dialect;
                  ``rebalancing`` takes back what a worker has not begun, ``foreign_jobs`` what it has from elsewhere
    progress      what workers say about jobs
    results       the one recorded result of each part; ``translation`` for clients of the other dialect
    responses     what clients are told, by kind of client
    relays        requests that are no jobs: the workers' management
    expiry        time limits, on the heap of ``timers``
    liveness      workers come, are heard, fall silent, come back
    restore       a restart
    stored_jobs   closed jobs that are in the store only: who speaks of one waits until it was read

What they share: ``model`` orders (a client's jobs), their parts, runs, workers, services and clients; ``registry`` who
is there; ``state`` all tables; ``config``, ``counts`` and ``task_stats``. ``views`` is for people, ``search`` for those
that they look for.
"""

# compiled: mypyc

from broker.nfp.dispatch.config import DispatchConfig
from broker.nfp.dispatch.counts import Counts
from broker.nfp.dispatch.dispatcher import Dispatcher
from broker.nfp.dispatch.views import ClientView, JobView, ResultView, ServiceView, SlotView, WorkerView

__all__ = [
    "ClientView",
    "Counts",
    "DispatchConfig",
    "Dispatcher",
    "JobView",
    "ResultView",
    "ServiceView",
    "SlotView",
    "WorkerView",
]
