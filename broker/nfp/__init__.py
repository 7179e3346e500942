"""A wing: the NORFAB protocol (NFP), its broker, its workers and its clients.

One job's journey, room by room::

    server/      frames from a ROUTER -> packet; who sent it, is the name theirs, who answers it
    jobs/        what to do: jobs, their parts and attempts, queues, credits, liveness, answers by dialect (pure)
    store/       what must outlive the process: SQLite, one thread, group commits
    server/      the queue of every peer that was touched, flushed once what it says is stored

What the broker answers itself::

    management/  counters, workers, jobs, inventory, events
    inventory/   where the data of workers comes from: YAML with patterns, rendered, redacted
    files/       files of one folder, in chunks
    service/     a service of the Flux broker: topics ``nfp.SERVICE.TASK``, events ``nfp.job.UUID.KIND``

The other end::

    peer/        what workers and clients share: connection, reconnection, an ordered list of brokers, keys
    worker/      functions as tasks
    client/      jobs as futures
    norfab/      scripts written for deployed NorFab, over the client

One job of a NorFab script, from ``run_job`` to its result, in the order of what is called::

    norfab.client.NFPClient.run_job                     NorFab's words become ours, in the script's thread
    client.client.NfpClient.submit                      it gets a uuid and a deadline; a named client keeps it on disk;
                                                        POST, sent again under that uuid until somebody answers
    peer.dealer.BrokerSession.send                      frames, written at the end of the turn
    server.ingress.Ingress.handle                       the broker reads them: who sent it, and is that allowed
    jobs.client_requests.post                           which workers are meant: a job and its parts
    jobs.schedule.Jobs.place                            a worker with a free slot gets a part, or it waits in a queue
    worker.session.Session.on_packet                    the worker takes it; what it holds already is not run twice
    worker.session.Session._run                         its task is entered; what must be run once is on disk before
    jobs.worker_messages.response                       its result is back, of the latest attempt or of one before
    jobs.schedule.Jobs.record                           the part is final, stored, and then told
    client.client.NfpClient.on_packet                   what comes for a job goes to it
    client.job.Job.take                                 with the last worker's result the wait in ``run_job`` ends

Leaves, all pure: ``names`` the words of the protocol, ``packet`` one message, ``frames`` frames <-> packet in both
dialects, ``targets`` which workers, ``bodies`` the JSON inside, ``opening`` what OPEN carries, ``outcome`` what a job
has got so far, ``states`` tables of states, ``urls`` names of shared files, ``principal`` who somebody is, ``access``
what they may do, ``records`` what is stored, ``contract`` what the rooms call each other with. Not pure are
``self_report``, what a process uses and its latest log records, ``rendering``, templates in a sandbox, and ``threads``,
where functions that take long are called.

``jobs/dispatcher.py`` is the walk of a request; ``server/ingress.py`` leads to it. The text is the NFP
specification ("NFP" in the docstrings); what deployed NorFab does differently stands where it matters. ``PROTOCOL.md``
is for programs that speak the text's form.
"""
