"""An application's process: its one real thread that owns the sockets, and the face that callers see (seed 003).

::

    process         the core of this process: thread, reactor, stations; what a fork does to it
    waiting         how a thread, or a greenlet, waits for the thread of the sockets
    port            StationPort: ``contract.Port`` for callers; ``open_port``
    handover        a caller waits until there is room for its message
    handing         what callers have handed over and the thread of the sockets has not looked at yet, bounded
    station         what belongs to one ``Settings``, in the thread of the sockets
    routes          who listens where, as last heard
    sender          calls: choose, send, choose again, answer
    casting         casts on their way out
    calls           PURE  pending calls and their deadlines
    chooser         PURE  strict round robin over servers
    parking         calls that have no place now
    link            NodeLink: one socket to one node and pipeline, its outbox, whether it moves
    links           those of one pipeline, which of them take something
    folder          the folder of the node's sockets, and whether it may be used
    publishing      fan-outs and notifications: publish once the node has subscribed
    telling         the words of a timeout
    registrations   local servers: what they listen to, how that is confirmed and ended
    delivery        what comes for them, and where it finds no room
    control         the DEALER at one ``.ctl`` file: opened, closed, opened again when the proxy restarts
    casts           the PULL of a process
    subscriptions   the SUB at one ``.pub`` file, and since when its subscriptions are in force
    intake          what one listener has received and the application has not taken yet
    figures         counts, and log lines that are not repeated too often

Callers touch ``process``, ``port``, ``waiting``, ``handing`` and ``intake``; all else belongs to the thread of the
sockets.
"""

from broker.oslo.station.port import open_port

__all__ = ["open_port"]
