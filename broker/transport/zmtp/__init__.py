"""ZMTP 3.1 (ZeroMQ RFC 37) with NULL and CURVE (RFC 26) on the event loop, for the tree and for NFP.

::

    frames      greeting, frames, commands and metadata as bytes
    boxes       what CURVE seals and opens with (libsodium)
    mechanisms  the handshakes of NULL and CURVE, either side
    connection  one connection, sans I/O: greeting, handshake, messages
    codec       a connection as the codec of a ``stream.StreamLink``
    link        that link
    pipe        a connection and its socket, for who keeps what waits in an outbox of its own (NFP)
    sockets     listening and connected sockets of tcp and ipc
    listening   listeners, and the handshakes of those who come
    dialing     a dialer

It speaks to libzmq and to itself. What it does not: other mechanisms, ZMTP before 3.0, and the pings of a dialer of its
own, but where NFP asks whether a peer is still there; it answers those of others.
"""
