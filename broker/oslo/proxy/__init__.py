"""The proxy of one node: what stands between the network and the servers of that node (seed 003, "ZMQ Proxy").

::

    process         all of it in one thread: rooms, signals, the service manager
    folder          the folder of sockets: modes, one proxy for each room
    entry           a pipeline's sockets for clients, TCP and IPC
    desk            a pipeline's control socket, where local servers register
    drops           their listeners that are dropped, some in each turn
    openings        these servers, and what they say then (pure)
    roll            the registered servers of a pipeline, as the directory is told of them
    doorman         who comes in, and what they may do (pure)
    figures         what is counted
    local, ways     the local servers of a pipeline, and what is known of each address (pure)
    pending         calls that wait for their replies (pure)
    exits           where fan-outs and notifications are published to local servers
    subscriptions   who has subscribed to what there (pure)
    stalls          subscribers that read nothing: cut off before too much waits for them
    pools           who gets a notification, and what waits for whom (pure)
    seals           what a notification is known by when it is given back
    recording       what passes, for the journal: one tap for all rooms
    noting          a pipeline's records; ``summaries``: what they say of one message (pure)
    brake           an entry is not read while a queue behind it is nearly full and moves
    call, cast, fanout, notify      the four pipelines

Each pipeline has sockets, registrations and an announcement of its own and can run alone.
"""
