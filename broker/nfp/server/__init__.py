"""The broker of NFP as a running thing: sockets, peers, and everything put together.

::

    broker      NfpBroker: the composition; start, stop, what management may ask of it
    process     one NfpBroker as a process: signals, systemd, restart
    config      settings -> rules of access and limits of dispatching
    keys        key files in the base directory
    overview    the broker as its management sees it
    flusher     at the end of a turn of the loop: what it wrote down is committed once, every touched peer flushed once
    router      one ROUTER socket: messages in, connections known by what CURVE proved
    authenticator       who may connect (ZAP), and who waits until an earlier connection of its key has ended
    connections connections by key, and those that libzmq keeps silent behind an earlier one of the same identity
    peers       RouterPeer: one connection and its outbox
    outbox      a bounded queue whose messages may wait for a commit
    door        what a router asks of the broker
    reception   who may come under which name
    name_pins   a name belongs to the first key that used it
    invalid_messages    invalid messages, counted and forgiven
    handshake_failures  failed handshakes, told without flooding the log
    listening   the endpoints of the settings -> routers
    recording   what passes, for the journal; ``summaries``: what it says of each packet and job (pure)
    ingress     one message: decode, refuse or hand on to clients or workers
    commands    what clients send
    workers     what workers send
    greeting    the answer to OPEN
    disconnects DISCONNECT to the workers of an earlier run
    recollection  closed jobs of an earlier run are read while the broker works
    files_worker  the file service, workers in this process
    local       LocalPeer and LocalChannel: clients and workers in this process
    seams       the dispatcher, as far as clients and workers know it
"""
