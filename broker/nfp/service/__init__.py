"""An NFP broker as a service of the Flux broker: its services, jobs and events by topic, for every transport and rank.

::

    flux_service  FluxService: the service ``nfp`` on the Flux broker, one handler for each kind of request, and job
                  events, private to owners and to whose job it is
    payloads      what a request asks for, and what it is answered: at the end, or with STREAMING in order
    callers       who asks: a peer of the NFP broker for each, with the jobs that its requests follow (client.job)

Topics, payloads JSON objects; who calls is what the broker stamped (``principal.of_flux``)::

    nfp.SERVICE.TASK      have TASK of SERVICE run; SERVICE may have dots, TASK is the last word
                          {"args": [], "kwargs": {}, "target": "all", "timeout": seconds, "uuid": "...",
                           "cancel_with_caller": false}
    nfp.run               the same with {"service", "task"} in the payload: for tasks called cancel or disconnect, and
                          for the services jobs, services and workers
    nfp.jobs.list         {"state", "service", "task", "worker", "client", "text", "since", "until", "mine",
                          "limit": 100}: the latest jobs that the caller may see; ``total`` says how many there are
    nfp.jobs.show         {"uuid"}: with result, error and traceback of each worker
    nfp.jobs.count        as list: how many of each state
    nfp.jobs.result       {"uuid"}: the results so far
    nfp.jobs.attach       {"uuid"}: events from now on and all results, as if it were submitted here
    nfp.jobs.cancel       {"uuid"}
    nfp.jobs.answer       {"uuid", "worker", "input_id", "value", "cancel"}: the answer to an input_request
    nfp.calls             {}, for owner and admin: ``{"figures": {SERVICE.TASK: {"calls", "open", "errors", "total_ns",
                          "buckets", "last_error"}}}`` since the start, as ``broker.calls`` has them
    nfp.services.list     {}
    nfp.workers.list      {"service"}

With flag STREAMING a job is answered by objects with a ``type``: ``accepted`` (uuid, workers), ``event`` (worker, kind,
message, event), ``stream`` (base64), ``gap`` (lost: how many events the reader was too slow for), ``result`` (worker,
result) and ``failed`` (worker, status, error), and ends with ENODATA. Without it one response {"uuid", "results",
"failures"} comes at the end. A job without any result ends with an error: ETIMEDOUT expired, ECANCELED cancelled,
EPERM denied, EAGAIN the queue is full, EEXIST the uuid is another job's, ENOENT unknown, EINVAL refused, EIO failed.

A caller that leaves or cancels (RFC 6) does not end its job, unless it said ``cancel_with_caller``.
"""

from broker.nfp.service.flux_service import FluxService

__all__ = ["FluxService"]
