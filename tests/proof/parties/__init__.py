"""The load: each party is a process of its own that says and hears numbered things, and writes down both.

::

    python -m tests.proof.parties '{"folder": ..., "party": {...}, "place": {...}}'

They use the libraries of the product as people would, survive every lost connection by connecting again, and judge
nothing. SIGUSR1: make no new load and say ``drained`` on stdout when nothing is open any more; SIGTERM: leave.

    party       what all have: the log, the two signals, connecting again
    flux        Flux messages by the client library: UNIX socket, CURVE, WebSocket
    page        JSON over a WebSocket, as a page does it, with resume
    http        calls and server-sent events over HTTP
    nfp         workers and clients of NFP
    oslo        servers and clients of oslo.messaging's topics
    dashboards  not one of these: dashboards of a scene and their publisher, in the process of `tests.proof.returns`
"""
