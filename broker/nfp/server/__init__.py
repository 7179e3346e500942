"""The broker of NFP as a running thing: sockets, peers, and everything put together.

::

    broker       NfpBroker: the composition; start, stop, who is there
    process      one NfpBroker as a process: signals, systemd, restart

The walk of a message::

    router       one address: handshakes, which prove a key; a connection before and after it has its name; messages in
    ingress      who speaks, whether it is valid; OPEN and the broker's own services are answered, everything else is
                 the dispatcher's
    turn         what waits to be sent to a peer, some of it for a commit; at the end of a turn of the loop what it
                 wrote down is committed once, every touched peer flushed once

ZeroMQ is spoken on the loop (``transport.zeromq``); a connection is one object from its handshake on.

Beside it::

    names        a name belongs to the first key that used it; key files in the base directory, the rules of access
    local        clients and workers in this process
    recording    what passes, for the journal
    files_worker the file service in this process
"""
