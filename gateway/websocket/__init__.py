"""The server's side of RFC 6455: frames in and out, one link a connection, the handshake and who may come in.

``frames``    frames as a server sends them (pure)
``reader``    a client's bytes to messages and control frames, strictly (pure)
``deflate``   messages that are compressed (pure)
``codec``     both of these, and a subprotocol, as the codec of a stream link
``link``      one connection as a link like every other; how much all of them read in a turn
``outbox``   what waits for a client that does not read, and its policy
``handshake`` the opening handshake, and the connection taken over from aiohttp
``endpoint``  ``GET /v1/ws``, and where a client without a credential waits
``keepalive`` who is gone without a word
"""
