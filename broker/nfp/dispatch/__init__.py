"""Who gets which job, and what everybody is told (NFP, "NFP/Client", "NFP/Broker", "NFP/Worker", "Reliability").

Pure: packets and the time come in, packets go to peers, records to the journal, events to who listens; nothing waits.
In the order of a job's life::

    dispatcher  the walk: which part handles what
    intake      a POST is checked and becomes a job with a part for each worker it is for
    assignment  parts get workers, or wait in ``queues``; ``roster`` knows the workers, ``wires`` how each is written
                to, ``claims`` what they hold from other brokers; ``reclaims`` what waits there is taken back
    progress    what workers say about jobs
    results     the one recorded result of each part; ``rewriting`` for clients of the other dialect
    answers     what the strictest kind of client is told, ``pushes`` the kinds that are told unasked; ``clients`` who
                they are
    requests    GET, DELETE and PUT; ``relays`` requests that are no jobs
    expiry      time limits, on the heap of ``timers``
    liveness    workers come, are heard, fall silent, come back
    restore     a restart; ``recall`` reads closed jobs later

What they share: ``model`` orders (a client's jobs), their parts, runs, workers, services and clients; ``state`` the
tables of them; ``config`` and ``counts``; ``views`` for people, ``search`` for those that they look for.
"""

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
