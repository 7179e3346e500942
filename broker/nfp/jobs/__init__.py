"""Who gets which job, and what everybody is told (NFP, "NFP/Client", "NFP/Broker", "NFP/Worker", "Reliability").

Pure: packets and the time come in, packets go to peers, records to the journal, events to who listens; nothing waits.
In the order of a job's life::

    machine          which states jobs, parts, attempts and workers may be in, and what leads where (see ``STATES.md``)
    dispatcher       the walk: which room handles what
    client_requests  a POST is checked and becomes a job with a part for each worker it is for; GET, DELETE and PUT
    schedule         every step of a job: its parts wait in ``queues``, are given to workers, come back, get their one
                     result, run out of time on the heap of ``timers``
    connections      writes to workers in their dialect
    worker_messages  what workers say about jobs
    responses        what clients are told, by kind of client; ``translation`` for clients of the other dialect
    relays           requests that are no jobs: the workers' management
    liveness         workers come, are heard, fall silent, come back
    closed_jobs      how long jobs are remembered; what is in the store only is read when somebody speaks of it
    restore          a restart

What they share: ``model`` jobs, their parts, attempts, workers, services and clients; ``registry`` who is there;
``schedule``, which has all tables; ``config``, ``counts`` and ``task_stats``. ``views`` is for people, ``search`` for
those that they look for.
"""

# compiled: mypyc

from broker.nfp.jobs.config import DispatchConfig
from broker.nfp.jobs.counts import Counts
from broker.nfp.jobs.dispatcher import Dispatcher
from broker.nfp.jobs.views import ClientView, JobView, PartView, ResultView, ServiceView, WorkerView

__all__ = [
    "ClientView",
    "Counts",
    "DispatchConfig",
    "Dispatcher",
    "JobView",
    "PartView",
    "ResultView",
    "ServiceView",
    "WorkerView",
]
