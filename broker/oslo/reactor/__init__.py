"""The one thread that owns the sockets, in a proxy as in an application.

::

    natives     the interpreter's own threads, locks and epoll, also where eventlet has replaced them
    loop        Reactor: descriptors, timers, work from other threads
    outbox      what waits to be sent to one peer, counted (pure)
    bundle      the frames of a message in one, for DEALERs (pure)
    reading     one message from a socket, with how many frames at most
    pipe        Pipe: one ZeroMQ socket on a reactor, its bounded outbox, its counts
    router      RouterPipe: a ROUTER with an outbox for each peer
    binding     sockets that listen: modes of files, who may enter, ports in use
    reused_port one TCP port, several sockets after each other: new keys for a listener
    zap         how libzmq asks who may connect (ZeroMQ RFC 27/ZAP)
    naming      sockets that connect: names of hosts are looked up beside the loop, in real threads
    socket_events  what happens to the connections of one socket
    handshake   sockets that connect and whose key nobody knows: said once
    turned_away  who was not let in: told once a minute, counted
    counters    what is counted, and log lines about it, not one for each
    tuning      the options of the wing's sockets, with reasons
"""

from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.pipe import Pipe

__all__ = ["Pipe", "Reactor", "Timer"]
