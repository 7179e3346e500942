"""``tls://HOST:PORT``: a transport of Headgate over TCP with mutual TLS, for trees and clients.

::

    certificates  the options, contexts of ``ssl`` made from them, and what a peer's certificate proves
    session       the handshake, and framed messages behind it as the codec of a ``StreamLink``
    listener      accepts, judges, greets with one byte: 0, or the errno of a refusal
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl

from broker.errors import LinkBroken, LinkRefused
from broker.identity import PeerInfo
from broker.schemes import Capabilities, beyond_loopback, check_port, host_of
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.stream import StreamLink
from headgate_tls.certificates import TlsOptions, check_key, client_context, peer_of
from headgate_tls.listener import TlsListener
from headgate_tls.session import Session, TlsCodec

NEXT_ADDRESS_S = 0.25
"""Where a name has several addresses, the next one is tried beside one that has not answered for so long."""


class TlsTransport:
    """``tls://HOST:PORT``; ``*`` as host listens on all interfaces, and as port on a free one."""

    capabilities = Capabilities(
        tree=True,
        proves=("key",),
        protection="own",
        is_exposed=beyond_loopback,
        check_address=check_port,
        check_key=check_key,
        options=TlsOptions,
    )

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Listen at ``uri``.

        Raises:
            ConfigError: the address cannot be used, or a file of ``options.settings`` cannot.
        """
        return TlsListener(uri, accept, options)

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect to ``uri``; returns once the listener let us in.

        Raises:
            LinkRefused: the listener said no, or shows a certificate that we do not believe.
            LinkBroken: nobody there, or no answer within ``connect_timeout_s`` (0: no limit).
            ConfigError: a file of ``options.settings`` cannot be used.
        """
        host, port = host_of(uri), int(uri.rpartition(":")[2])
        settings: TlsOptions | None = options.settings
        context = client_context(settings)
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(options.connect_timeout_s or None):
                sock = await _connect(host, port)
                session = Session(sock, context, (settings and settings.server_name) or host)
                await session.shake_hands()
                denied = await session.hear()
                if denied:
                    raise LinkRefused(f"{uri} refused the connection: {os.strerror(denied)}", denied)
                peer = PeerInfo(uri)
                if options.tree or options.keys:  # a client takes whom its authority vouches for
                    peer = peer_of(session.certificate(), uri, options.keys)
        except BaseException as error:
            if sock is not None:
                sock.close()
            raise _failure(uri, error, options) from error
        return StreamLink(sock, peer, options, TlsCodec(session, options.max_bytes(peer)))


async def _connect(host: str, port: int) -> socket.socket:
    """The first address of a name that answers, as asyncio finds it, without asyncio's reading and writing."""
    loop = asyncio.get_running_loop()
    transport, _protocol = await loop.create_connection(
        asyncio.Protocol, host, port, happy_eyeballs_delay=NEXT_ADDRESS_S
    )
    found = transport.get_extra_info("socket")
    sock = socket.socket(fileno=os.dup(found.fileno()))
    transport.abort()  # its own descriptor of the connection
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _failure(uri: str, error: BaseException, options: Options) -> BaseException:
    """What a dial that failed is told as."""
    if isinstance(error, TimeoutError):
        return LinkBroken(f"{uri}: no answer within {options.connect_timeout_s:g} s", errno.ETIMEDOUT)
    if isinstance(error, ssl.SSLError):
        return LinkRefused(f"{uri}: {error.reason or error}", errno.EPERM)
    if isinstance(error, socket.gaierror):
        return LinkBroken(f"{uri}: {error.strerror}", errno.EHOSTUNREACH)
    if isinstance(error, OSError):
        return LinkBroken(f"cannot connect to {uri}: {error.strerror or error}", error.errno)
    return error


transport = TlsTransport()

__all__ = ["TlsCodec", "TlsListener", "TlsOptions", "TlsTransport", "transport"]
