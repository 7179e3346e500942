"""What worker and client share: a connection to one of several brokers that is made again as often as it takes.

::

    channel      the seam: Receiver, Channel; what is said over one connection, from OPEN to its loss
    dealer       DealerChannel: across the network, with reconnection, OPEN and failover
    liveness     a broker that says nothing when it should: asked for a sign of life, then given up
    brokers      which broker is tried next, and when; why one cannot be reached, said once
    keys         our own CURVE key pair, the broker's public key, where a peer keeps what is its own
"""
