"""The directory service: who listens where, in the whole cloud (zmq-patterns-usage, "Dedicated Socket Pipelines").

What travels is a **state**: all of what one pipeline of one node offers, with a version. How a listener becomes known
on another node, in order:

1. A server opens a listener at the pipelines of its node. Each pipeline hands the record to its ``announcer``.
2. ``Announcer`` makes a state of all its records, with the next version, and sends it to the directory of the node
   (ANNOUNCE). A BEAT each second renews the lease of that version.
3. ``DirectoryServer`` asks ``admission`` whether the peer may announce, and ``StateRegistry`` whether the state may
   replace the one before. It passes the state on as it is: to the processes of its node at once; as
   ``ChangesForOthers`` says to all that listen at its TCP port (``subscribers``), to the other directories
   (``Uplinks``) and to Redis (``redis_share``).
4. The directory of another node hears it from one of those, and puts it into its ``Replica``. When it is the newest of
   its place, the directory passes it on to the processes of that node.
5. Each of them has a ``Reader``, which puts it into a ``Replica`` of its own. ``TopicIndex`` works out the topics
   whose records came or went. From now on the process finds the listener, and asks nobody on the way of a message.

Whoever missed something notices it: a directory answers a BEAT of a version that it does not have with GREET, and is
announced everything; a reader that was too slow is sent a new snapshot; a reader of Redis compares all leases.

::

    wire         the messages (pure)
    registry     what was announced first hand: leases, who may replace what (pure)
    replica      what several directories told, merged; lookups (pure)
    admission    who may enter and announce over TCP
    subscribers  those who listen at one socket: snapshots, news, who is behind
    server       DirectoryServer: the directory of a node, its links to others, changes gathered for them
    link         DirectoryLink: announcing, leases, feeding a replica, silence; Reader: an application's links
    announcer    Announcer: a pipeline tells what it offers
    redis_share  states shared by Redis: what is stored there, a thread for each host
"""
