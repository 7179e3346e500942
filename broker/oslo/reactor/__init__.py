"""The one thread that owns the sockets, in a proxy as in an application.

::

    natives     the interpreter's own threads, locks and epoll, also where eventlet has replaced them
    loop        Reactor: descriptors, timers, work from other threads
    bundle      the frames of a message in one, for DEALERs (pure)
    socket      Socket: one ZeroMQ socket on a reactor, its counts; Outbox: what waits to be sent to one peer;
                SocketEvents: what happens to the connections of a socket
    router      RouterSocket: a ROUTER with an outbox for each peer
    link        Link: a socket that connects, by name or file, with CURVE or without; up and down
    binding     sockets that listen: modes of files, ports in use, new keys at the same port; who may connect (ZAP)
    naming      names of hosts are looked up beside the loop, in real threads
    counters    what is counted, and log lines about it, not one for each
    tuning      the options of the wing's sockets, with reasons
"""

from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.socket import Socket

__all__ = ["Reactor", "Socket", "Timer"]
