"""Headgate's message broker for the Flux message protocol (RFC 3).

One message's journey, room by room::

    transport/   bytes from a UNIX stream, ZeroMQ or an in-process peer -> Message
    wire/        what a Message is: parts, framing, dialects                  (pure)
    ingress/     who sent it: userid and rolemask, stamped into each message  (pure)
    routing/     where it goes: services, route stacks, pending calls, events (pure)
    services/    built-in services that answer requests
    transport/   the outbox of every link that was touched, flushed once

    node/        puts the rooms together: the corridor, the tree, the lifecycle
    client/      the other end of a link: rpc, streams, subscriptions, services
    serving/     what its sender may do, and from a request to its handler: for services of brokers and of clients
    local/       a tree of brokers on this machine, from its first process to its last
    cli/         one file a verb of the ``headgate`` command
    settings/    the configuration file, typed
    testing/     for authors of transports: the checks that every transport passes
    endpoints    addresses taken apart, and what stays on this machine
    listening    sockets that listen, of TCP and of files: bound alike by all rooms
    schemes      which transport an address has, and what that transport can do
    children/    child processes: started, heard, started again when they end, ended together
    supervision  what a process says to its service manager
    endings      which error means which exit code, and what a service waits for instead of ending
    obstacles    what stands in the way of a start: it may pass by itself, or a person has to change something
    loglines     the form of its log: how many lines of a kind, and how long they may be
    call_report  the answer of broker.calls, for those that add brokers up
    name_stats   rate, errors and duration of what has a name: methods, topics, tasks; bounded
    exposition   counts as Prometheus reads them, and the small HTTP listener for that
    awake        time in which this process ran: its own stalls are not the silence of others
    rates        how often something may happen: token buckets of clients, rations of records, throttled log lines
    backoff      pauses between attempts: they double until something has lasted
    holdings     how much each of many holds, for limits on each and on all
    bounded_queue  what waits in order, bounded in messages and bytes
    inbox        such a queue between what never waits and the one that waits for it
    secret       URLs that may hold a secret: a type whose text is masked; secrets in files
    home         where a user's state is kept, and that there is such a place
    trust        the owner of a local socket: of its folder, of its process
    atomic       files that are written whole or not at all
    signals      blocked signals, taken one by one within a time
    memory       what a burst of messages took goes back to the system
    outlet       stderr that nobody waits for: a full pipe costs lines, not traffic
    interpreter  this Python again, for a room in a process of its own
    extras       libraries that the base does not bring, and what to type for them
    nesting      how deep JSON from outside may be nested: its readers
    safe_text    what somebody else's code has left, as text that can be written
    sockets      what the kernel is told of sockets, and tells: who is at the other end, who listens on a port
    z85          keys of CURVE as text
    rfc6455      what both ends of a WebSocket know of its end: close codes, reasons
    rereading    settings read again while a process runs
    times        how long, and when, as people write it
    tasks        tasks that somebody looks after
    loopthread   the thread with an event loop behind every blocking facade

    nfp/         a wing: jobs for workers over the NORFAB protocol, its broker, workers and clients
    oslo/        a wing: oslo.messaging's ZeroMQ driver, the proxy of each node, the directory between them
    journal/     what passed, on disk: written beside the corridor by a process of its own, read without Spark

``node/broker.py`` is the corridor itself, and its first lines name every function on a message's way; start there.
The pure rooms do no input or output and read no clock. ``errors``, ``extras``, ``identity``, ``schemes``,
``endpoints``, ``nesting``, ``safe_text`` and ``secret`` are what every room may use.
"""

__version__ = "0.1.0"
__distribution__ = "headgate"  # other distributions have a package of this name, too (headgate.py)
