"""Links: ordered channels of messages to one peer, over anything (I/O).

``link``      the contract: Link, Receiver, Listener, Options, the descriptors kept for the owner
``outbox``    what waits to be sent on a link, bounded, and what was sent and is not handled yet; ``budget``: what waits
              on all links, by user
``registry``  scheme -> transport, open to other packages by entry point
``inproc``    in the same process: the reference implementation
``byte_stream`` a stream socket on the loop: reading, the rest that the kernel did not take, the end, what follows a
              link that was closed; ``stream``: the link of one; ``codec``: what its bytes mean;
              ``handshaking``: listeners of such sockets, and of those that shake hands first
``dialing``   connections of TCP and of UNIX sockets; names, their addresses, attempts
``batching``  many framed messages in one of ZeroMQ
``unix``      UNIX stream sockets: SO_PEERCRED, framing, a byte as handshake
``curve``     certificates in the ZPL format
``zeromq``    tcp and ipc: ZMTP 3.1 with CURVE, as libzmq speaks it
``tls``       mutual TLS over TCP, and TLS for any codec
``websocket`` to a gateway; dials only
"""
