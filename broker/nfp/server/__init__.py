"""The broker of NFP as a running thing: sockets, peers, and everything put together.

::

    broker      NfpBroker: the composition; start, stop, what management may ask of it
    process     one NfpBroker as a process: signals, systemd, restart
    config      settings -> rules of access and limits of dispatching
    keys        key files in the base directory
    overview    the broker as its management sees it
    turns       one turn of the loop: what it put is committed once, what it queued is flushed once
    router      one ROUTER socket: messages in, connections known by what CURVE proved
    gate        who may connect, and who waits until an earlier connection of its key is put away
    census      connections by key, and those that libzmq keeps silent behind an earlier one of the same identity
    peers       RouterPeer: one connection and its outbox
    outbox      a bounded queue whose messages may wait for a commit
    door        what a router asks of the broker
    reception   who may come under which name
    pins        a name belongs to the first key that used it
    penalty     invalid messages, counted and forgiven
    failures    handshakes that failed, told without flooding the log
    listening   the endpoints of the settings -> routers
    recording   what passes, for the journal; ``summaries``: what it says of each packet and job (pure)
    corridor    one message: decode, refuse or hand on to clients or workers
    clients     what clients send
    workers     what workers send
    greeting    the answer to OPEN
    nudges      DISCONNECT to the workers of an earlier run
    recollection  closed jobs of an earlier run are read while the broker works
    files_worker  the file service, workers in this process
    local       LocalPeer and LocalChannel: clients and workers in this process
    seams       the dispatcher, as far as clients and workers know it
"""
