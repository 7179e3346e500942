"""UNIX stream sockets: handshake byte, SO_PEERCRED, framing (RFC 3, "Message Framing and Security").

The server speaks first: one byte, 0 for "come in" or the errno of the refusal. After that both sides send frames.
The listening socket is open to everyone (mode 0777) as deployed clients expect; the 0700 directory around it and
``Options.admit`` decide who gets in.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from broker.endpoints import parse
from broker.errors import ConfigError, LinkEnded, LinkRefused
from broker.identity import PeerInfo
from broker.listening import listen
from broker.schemes import BUILT_IN
from broker.sockets import peer_credentials
from broker.transport.codec import FluxCodec
from broker.transport.dialing import attempt, connect
from broker.transport.handshaking import StreamListener
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.stream import StreamLink
from broker.wire.dialects import dialect
from broker.wire.message import Message


def _link(sock: socket.socket, peer: PeerInfo, options: Options) -> StreamLink:
    return StreamLink(sock, peer, options, FluxCodec(options.max_bytes(peer), _strict_frame(options)))


def _strict_frame(options: Options) -> Callable[[Message], bytes] | None:
    """The text's framing when ``strict_rfc3`` asks for it; None for the deployed one."""
    if options.dialect != "flux1":
        raise ConfigError(
            f"dialect {options.dialect!r} is carried by ZeroMQ only (RFC 3, CMB1), not by UNIX sockets"
        )
    return dialect("flux1", strict=True).frame if options.strict_rfc3 else None


class UnixListener(StreamListener):
    """Accepts connections on one socket file, and greets each with a byte."""

    turned_away = bytes((errno.EMFILE,))

    def __init__(self, sock: socket.socket, path: str, accept: Accept, options: Options) -> None:
        super().__init__(sock, f"local://{path}", options, path)
        self._accept = accept

    def greet(self, sock: socket.socket) -> None:
        """See ``StreamListener``."""
        pid, uid, gid = peer_credentials(sock)
        peer = PeerInfo(f"{self.address}#{sock.fileno()}", uid=uid, gid=gid, pid=pid, local=True)
        denied = self._options.admit(peer) or self._kept_from(peer, sock.fileno())
        try:
            sock.send(bytes((denied & 0xFF,)))
        except OSError:
            denied = errno.EPIPE
        if denied:
            sock.close()
            return
        self._accept(_link(sock, peer, self._options))


class UnixTransport:
    """``local:///absolute/path``."""

    capabilities = BUILT_IN["local"].capabilities

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Bind and listen; a socket file nobody listens at any more is replaced.

        Raises:
            ConfigError: in use, no permission, missing directory, path too long.
        """
        place = parse(uri, "local")
        _strict_frame(options)
        sock, _place = listen(place, mode=0o777)  # the directory and admit() decide who gets in
        return UnixListener(sock, place.path, accept, options)

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect and wait for the handshake byte.

        Raises:
            LinkRefused: the server sent a nonzero errno, or is nobody whom we trust (EACCES).
            LinkBroken: nobody listens there, or no byte in time.
        """
        place = parse(uri, "local")
        async with attempt(uri, options.connect_timeout_s, "handshake") as opened:
            sock = opened.enter_context(await connect(place))
            greeting = await asyncio.get_running_loop().sock_recv(sock, 1)
            if not greeting:
                raise LinkEnded(f"{uri} closed the connection before the handshake byte")
            if errnum := greeting[0]:
                raise LinkRefused(f"{uri} refused the connection: {os.strerror(errnum)}", errnum)
        return _link(sock, PeerInfo(uri, local=True), options)


transport = UnixTransport()
