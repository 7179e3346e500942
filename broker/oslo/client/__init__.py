"""An application's process: its one real thread that owns the sockets, and what callers see of it.

::

    process         the core of this process: thread, reactor, clients; what a fork does to it
    waiting         how a thread, or a greenlet, waits for the thread of the sockets
    session         ClientSession: the way into the pipelines; ``open_session``
    submit_queue    what callers have handed over and the thread of the sockets has not looked at yet, bounded
    client          Client: what belongs to one ``Settings``, in the thread of the sockets
    routing         who listens where, as last heard
    call_sender     calls: choose, send, choose again, answer
    cast_sender     casts on their way out
    pending_calls   PURE  pending calls and their deadlines
    chooser         PURE  strict round robin over servers
    retry_queue     calls that have no place now
    node_link       NodeLink: one socket to one node and pipeline, its outbox, whether it moves
    node_links      those of one pipeline, which of them take something
    repeats         PURE  what is sent again when a connection ends, and which of it a listener has had: none runs twice
    replies         calls that are worked on, and answers that are kept for who asks again
    folder          the folder of the node's sockets, and whether it may be used
    publishing      fan-outs and notifications: publish once the node has subscribed
    publishing_link a publishing socket to one node, and what waits for its subscription
    timeout_text    the words of a timeout
    registrations   local servers: what they listen to, how that is confirmed and ended
    delivery        what comes for them, and where it finds no room
    control_link    the DEALER at one ``.ctl`` file: opened, closed, opened again when the proxy restarts
    subscriptions   the SUB for fan-outs, and since when its subscriptions are in force
    inbox           what one listener has received and the application has not taken yet
    inbox_credit    how much one pipeline may send ahead to it (pure)

Callers touch ``process``, ``session``, ``waiting``, ``submit_queue``, ``inbox`` and ``Client.submit``; all else belongs
to the thread of the sockets.
"""

from broker.oslo.client.session import open_session

__all__ = ["open_session"]
