"""The directory service: who listens where, in the whole cloud (zmq-patterns-usage, "Dedicated Socket Pipelines").

It is one replicated map: place (a pipeline of a node) -> **state**, all of what that pipeline offers, with incarnation,
version and lease. The greatest is in force, and everybody has a ``Replica`` of the map. How a listener becomes known on
another node, in order:

1. A server opens a listener at the pipelines of its node. Each pipeline hands the record to its ``Announcer``.
2. ``Announcer`` makes a state of all its records, with the next version, and sends it to the directory of the node
   (ANNOUNCE). A BEAT each second renews the lease of that version.
3. ``DirectoryServer`` asks ``FolderAccess`` or ``PortAccess`` whether the peer may announce, and puts the state into
   its ``Replica``, which says whether it may replace the one before. The server passes it on as it is: to the processes
   of its node at once (``Subscribers``); gathered where there is much, to all that listen at its TCP port, to the other
   directories (``Peer``) and to Redis (``RedisHost``).
4. The directory of another node hears it from one of those, and puts it into its ``Replica``. When it is the newest of
   its place, the directory passes it on to the processes of that node.
5. Each of them has a ``Reader``, whose ``Peer`` puts it into a ``Replica`` of its own. ``TopicIndex`` works out the
   topics whose records came or went. From now on the process finds the listener, and asks nobody on the way of a
   message.

Whoever missed something notices it: a directory answers a BEAT of a version that it does not have with GREET, and is
announced everything; a reader that was too slow is sent a new snapshot; a reader of Redis compares all leases.

::

    wire         the messages (pure)
    state        Replica: what is announced here and what others told, leases, the newest of each place, lookups (pure)
    peer         Peer: announces to a directory, feeds a replica from it; Reader: an application's peers; Announcer
    server       DirectoryServer: the directory of a node: who may, who listens, what others are told and when
    redis        RedisHost: a peer that is a Redis server: what is stored there, a thread for each
"""
