"""The directory service: who listens where, in the whole cloud (seed 003, "Dedicated Socket Pipelines").

::

    wire         the messages (pure)
    registry     what was announced: leases, who may replace what (pure)
    replica      what several directories told, merged; lookups (pure)
    topic_index  its indexes by topic (pure)
    admission    who may enter and announce over TCP
    subscribers  those who listen at one socket: snapshots, changes, who is behind
    server       DirectoryServer: the directory of a node
    connection   one connection to a directory: greeting, silence, restarts
    link         DirectoryLink, Reader: who asks; Announcer: who announces
    uplinks      a node's links to other directories
    redis_share  states shared by Redis
    redis_host   one Redis host and its threads
    redis_keys   what is stored there (pure)

A pipeline announces its state with ``Announcer`` to the directory of its node, which tells the processes of the node,
other directories (``uplinks``) and Redis. A process reads with ``Reader`` into its ``Replica`` and never asks on the
way of a message.
"""
