"""The broker of NFP as a running thing: sockets, peers, and everything put together.

::

    broker      NfpBroker: the composition; start, stop, who is there
    process     one NfpBroker as a process: signals, systemd, restart
    keys        key files in the base directory, and the rules of access over them
    listening   the endpoints of the settings -> routers

The walk of a message::

    router      one address: handshakes, which prove a key, and messages in; who may have which name
    ingress     who speaks, whether it is valid
    commands    OPEN and the broker's own services are answered; everything else is the dispatcher's
    peers       RouterPeer: one connection and its outbox; ``local``: LocalPeer and LocalChannel, in this process
    outbox      a bounded queue whose messages may wait for a commit
    flusher     at the end of a turn of the loop: what it wrote down is committed once, every touched peer flushed once

ZeroMQ is spoken on the loop (``transport.zeromq``); a connection is one object from its handshake on.

Connections and names::

    name_pins           a name belongs to the first key that used it
    invalid_messages    counted and forgiven
    handshake_failures  told without flooding the log

Beside it::

    recording     what passes, for the journal; ``summaries``: what it says of each packet and job (pure)
    disconnects   DISCONNECT to the workers of an earlier run
    searches      for jobs, step by step
    files_worker  the file service in this process
"""
