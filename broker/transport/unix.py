"""UNIX stream sockets: handshake byte, SO_PEERCRED, framing (RFC 3, "Message Framing and Security").

The server speaks first: one byte, 0 for "come in" or the errno of the refusal. After that both sides send frames.
The listening socket is open to everyone (mode 0777) as deployed clients expect; the 0700 directory around it and
``Options.admit`` decide who gets in.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from broker import trust
from broker.errors import ConfigError, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.obstacles import obstacle
from broker.schemes import BUILT_IN, too_long
from broker.secret import masked
from broker.sockets import connect_unix, remove_stale
from broker.transport.accepting import BACKLOG, UnixListener
from broker.transport.codec import FluxCodec
from broker.transport.dialing import attempt
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.stream import StreamLink
from broker.wire.message import Message


def path_of(uri: str) -> str:
    """The socket path of ``local://PATH``.

    Raises:
        ConfigError: another scheme, a relative path, or longer than the 107 bytes a UNIX address holds.
    """
    scheme, _, path = uri.partition("://")
    if scheme != "local" or not path.startswith("/"):
        raise ConfigError(f"{masked(uri)!r}: expected local:///absolute/path")
    if shorter := too_long(path):
        raise ConfigError(f"{masked(uri)!r}: expected {shorter}")
    return path


def _link(sock: socket.socket, peer: PeerInfo, options: Options) -> StreamLink:
    return StreamLink(sock, peer, options, FluxCodec(options.max_bytes(peer), _strict_frame(options)))


def _strict_frame(options: Options) -> Callable[[Message], bytes] | None:
    """The text's framing when ``strict_rfc3`` asks for it; None for the deployed one."""
    if options.dialect != "flux1":
        raise ConfigError(
            f"dialect {options.dialect!r} is carried by ZeroMQ only (RFC 3, CMB1), not by UNIX sockets"
        )
    if not options.strict_rfc3:
        return None
    from broker.wire.dialects import dialect

    return dialect("flux1", strict=True).frame


class UnixTransport:
    """``local:///absolute/path``."""

    capabilities = BUILT_IN["local"].capabilities

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Bind and listen; a socket file nobody listens at any more is replaced.

        Raises:
            ConfigError: in use, no permission, missing directory, path too long.
        """
        path = path_of(uri)
        _strict_frame(options)
        remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(path)
            os.chmod(path, 0o777)  # noqa: S103 - the directory and admit() decide who gets in
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise obstacle(
                f"cannot listen at {uri}: {error.strerror}", error, absent=True, path=path
            ) from error
        return UnixListener(sock, path, accept, options, _link)

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect and wait for the handshake byte.

        Raises:
            LinkRefused: the server sent a nonzero errno, or is nobody whom we trust (EACCES).
            LinkBroken: nobody listens there, or no byte in time.
        """
        path = path_of(uri)
        async with attempt(uri, options.connect_timeout_s, "handshake") as opened:
            sock = opened.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            )
            await _connect(sock, path, uri)
            greeting = await asyncio.get_running_loop().sock_recv(sock, 1)
            if greeting != b"\0":
                raise _refusal(uri, greeting)
        return _link(sock, PeerInfo(uri, local=True), options)


async def _connect(sock: socket.socket, path: str, uri: str) -> None:
    """Connect to whom we may trust."""
    try:
        await connect_unix(lambda: trust.connect(sock, path))
    except trust.Untrusted as error:
        raise LinkRefused(f"{uri} is not spoken to: {error.strerror}", error.errno) from None


def _refusal(uri: str, greeting: bytes) -> LinkError:
    if not greeting:
        return LinkEnded(f"{uri} closed the connection before the handshake byte")
    return LinkRefused(f"{uri} refused the connection: {os.strerror(greeting[0])}", greeting[0])


transport = UnixTransport()
