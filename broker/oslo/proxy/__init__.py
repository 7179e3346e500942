"""The proxy of one node: what stands between the network and the servers of that node ("ZMQ Proxy").

::

    process                 all of it in one thread: rooms, signals, the service manager
    folder                  the folder of sockets: modes, one proxy for each room
    frontend                a pipeline's sockets for clients, TCP and IPC
    registration            a pipeline's control socket, where local servers register: what they say, how their end is
                            noticed, listeners that are dropped; every pipeline is one
    restart_gate            after a restart nothing is read until local servers are registered again
    pipeline                what all pipelines have in common, what is counted of each topic (``reactor.counters``: all
                            else), and those three whose messages are for one listener; ``direct``: CALL and CAST, and
                            what is known of each sender and address
    listeners               who listens: in turns, with what waits for each, within its credit (pure)
    pools                   the listeners of notifications: who of each pool gets one (pure)
    backlog                 what is kept for listeners of notifications that are away, in memory or on disk
    pending                 calls that wait for their replies (pure)
    subscribers             who hears which fan-outs; those that read nothing: cut off before too much waits for them
    call, cast, fanout, notify      the four pipelines
    acl                     who comes in, and what they may do (pure)
    reload                  keys, rules and certificate read again while it runs
    journal                 what passes, for the journal: one feed for all rooms, the records of each pipeline and
                            what they say of one message

Each pipeline has sockets, registrations and an announcement of its own and can run alone.
"""
