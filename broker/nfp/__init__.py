"""A wing: the NORFAB protocol (NFP), its broker, its workers and its clients.

One job's journey, room by room::

    server/      frames from a ROUTER -> packet; who sent it, is the name theirs, who answers it
    dispatch/    what to do: jobs, their parts and attempts, queues, credits, liveness, answers by dialect (pure)
    store/       what must outlive the process: SQLite, one thread, group commits
    server/      the queue of every peer that was touched, flushed once what it says is stored

What the broker answers itself::

    management/  counters, workers, jobs, events with replay
    inventory/   data of workers: YAML with patterns, rendered, redacted
    files/       files of one folder, in chunks
    service/     a service of the Flux broker: topics ``nfp.SERVICE.TASK``, events ``nfp.job.UUID.KIND``

The other end::

    peer/        what workers and clients share: connection, reconnection, an ordered list of brokers, keys
    worker/      functions as tasks
    client/      jobs as futures
    norfab/      scripts written for deployed NorFab, over the client

Leaves, all pure: ``names`` the words of the protocol, ``packet`` one message, ``frames`` frames <-> packet in both
dialects, ``targets`` which workers, ``bodies`` the JSON inside, ``opening`` what OPEN carries, ``outcome`` what a job
has got so far, ``urls`` names of shared files, ``principal`` who somebody is, ``access`` what they may do, ``records``
what is stored, ``contract`` what the rooms call each other with. Not pure are ``process_stats``, what a process uses,
``logs``, its latest records, ``rendering``, templates in a sandbox, and ``threads``, where functions that take long are
called.

``dispatch/dispatcher.py`` is the walk of a request; ``server/ingress.py`` leads to it. The text is the NFP
specification ("NFP" in the docstrings); what deployed NorFab does differently stands where it matters. ``PROTOCOL.md``
is for programs that speak the text's form.
"""
