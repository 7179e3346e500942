"""``tls://HOST:PORT``: a transport of Headgate over TCP with mutual TLS, for trees and clients.

::

    certificates  the options, contexts of ``ssl`` made from them, and what a peer's certificate proves
    link          framed messages on a TLS connection
    listener      accepts, judges, greets with one byte: 0, or the errno of a refusal
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

from broker.errors import LinkBroken, LinkError, LinkRefused
from broker.schemes import Capabilities, beyond_loopback, check_port, host_of
from broker.transport.link import Accept, Link, Listener, Options
from headgate_tls.certificates import TlsOptions, check_key, client_context, peer_of
from headgate_tls.link import SHUTDOWN_S, TlsLink
from headgate_tls.listener import TlsListener

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
        link = TlsLink(uri, options, greeted=asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(options.connect_timeout_s or None):
                await asyncio.get_running_loop().create_connection(
                    lambda: link,
                    host,
                    port,
                    ssl=context,
                    server_hostname=(settings and settings.server_name) or host,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                )
                await link.admitted()
                if options.tree or options.keys:  # a client takes whom its authority vouches for
                    link.peer = peer_of(link.certificate(), uri, options.keys)
        except BaseException as error:
            link.abort(LinkBroken(f"{uri}: not connected"))
            raise _failure(uri, error, options) from error
        return link


def _failure(uri: str, error: BaseException, options: Options) -> BaseException:
    """What a dial that failed is told as."""
    if isinstance(error, TimeoutError):
        return LinkBroken(f"{uri}: no answer within {options.connect_timeout_s:g} s", errno.ETIMEDOUT)
    if isinstance(error, ssl.SSLError):
        return LinkRefused(f"{uri}: {error.reason or error}", errno.EPERM)
    if isinstance(error, socket.gaierror):
        return LinkBroken(f"{uri}: {error.strerror}", errno.EHOSTUNREACH)
    if isinstance(error, OSError) and not isinstance(error, LinkError):
        return LinkBroken(f"cannot connect to {uri}: {error.strerror or error}", error.errno)
    return error


transport = TlsTransport()

__all__ = ["TlsLink", "TlsListener", "TlsOptions", "TlsTransport", "transport"]
