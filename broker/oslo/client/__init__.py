"""An application's process: the real thread that owns the sockets of its settings, and what callers see of it.

::

    waiting         how a thread, or a greenlet, waits for the thread of the sockets
    session         ClientSession: the way into the pipelines; ``open_session``; the clients of a process, and forks
    client          Client: what belongs to one ``Settings``: the thread of the sockets; what callers hand over to it
    routing         who listens where, as last heard, and whose turn it is
    calls           calls: pending ones, choose, send, choose again, answer; those that have no place now; casts
    links           a pipeline's sender and its links, one to each node: the outbox, whether it moves, what goes again
    resend          PURE  what is sent again when a connection ends, and which of it a listener has had: none runs twice
    publishing      fan-outs and notifications: published to a node once it has subscribed, until then they wait
    listeners       local servers: registered, confirmed, ended; what comes for them; answers kept for who asks again
    proxy_links     the links to the own proxy: listeners opened, closed, opened again when it restarts; fan-outs
    inbox           what one listener has received and the application has not taken yet, and its credit

Callers touch ``session``, ``waiting``, ``inbox`` and what ``Client`` names; all else belongs to the thread
of the sockets.
"""

from broker.oslo.client.session import open_session

__all__ = ["open_session"]
