"""Who gets which job, and what everybody is told (NFP, "NFP/Client", "NFP/Broker", "NFP/Worker", "Reliability").

Pure: packets and the time come in, packets go to peers, records to the journal, events to who listens; nothing waits.
In the order of a job's life::

    machine          which states jobs, parts, attempts and workers may be in, and what leads where (see ``STATES.md``)
    dispatcher       the walk: what handles which packet, and a restart
    client_requests  a POST is checked and becomes a job with a part for each worker it is for; GET, DELETE and PUT;
                     requests that are passed to workers and are no jobs
    schedule         ``Jobs``, all tables and every step of a job: its parts wait, are given to workers, come back, get
                     their one result, run out of time
    worker_messages  what workers say about jobs
    told             what clients are told, by kind of client, in words that they can read
    workers          workers come, are heard, fall silent, come back
    closed_jobs      how long jobs are remembered; what is in the store only is read when somebody speaks of it, and
                     becomes jobs again after a restart

What they share: ``model`` jobs, their parts, attempts, workers, services and clients, queues and timers; ``registry``
who is there; ``config`` what may be tuned, and what is counted. ``views`` is for people.
"""

# compiled: mypyc

from broker.nfp.jobs.config import Counts, DispatchConfig
from broker.nfp.jobs.dispatcher import Dispatcher
from broker.nfp.jobs.views import ClientView, JobView, PartView, ServiceView, WorkerView

__all__ = [
    "ClientView",
    "Counts",
    "DispatchConfig",
    "Dispatcher",
    "JobView",
    "PartView",
    "ServiceView",
    "WorkerView",
]
