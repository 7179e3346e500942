"""Accepts connections of which those of trusted proxies begin with a PROXY header, with TLS behind it or without.

The header comes before the TLS handshake, so it has to be read from the plain socket, and not a byte further: what
follows belongs to TLS. `proxyheader.Header` says how many bytes surely are header; so many are read, and the socket
then goes to asyncio like any accepted one. For everything above, the connection's ``peername`` is the client's
(`ProxiedAddress`, which has the proxy's, too): aiohttp, its log and WebSocket links need not know.

Connections of others carry no header: if one sends it, it is bad HTTP or bad TLS, and refused as that.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from broker.errors import ProtocolError
from gateway.identity.proxies import Networks, ProxiedAddress, address_of
from gateway.identity.proxyheader import Header

HEADER_S: Final = 5.0
"""Longest time for the header: a proxy sends it at once."""
PENDING: Final = 1024
"""Connections that may be between accept and the end of the TLS handshake; more wait in the kernel's backlog."""
PAUSE_S: Final = 1.0
"""How long accept rests when the process is out of file descriptors."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
log = logging.getLogger("headgate")

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class ProxiedSocket(socket.socket):
    """A connected socket whose peer is, for those who ask, the client and not the proxy."""

    client: ProxiedAddress

    def getpeername(self) -> ProxiedAddress:
        """Address and port of the client."""
        return self.client


class Acceptor:
    """Accepts on one listening socket until closed.

    Args:
        sock: bound; it is closed with the acceptor.
        factory: makes the protocol of each connection, as for ``loop.create_server``.
        networks: the proxies that send a header (``trusted_proxies``).
        tls: context of an https listener.
        handshake_s: longest time for the TLS handshake.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: ProtocolFactory,
        networks: Networks,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_s: float = 10.0,
        backlog: int = 512,
    ) -> None:
        self._sock = sock
        self._factory = factory
        self._networks = networks
        self._tls = tls
        self._handshake_s = handshake_s
        self._pending: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(PENDING)
        sock.setblocking(False)
        sock.listen(backlog)
        loop = asyncio.get_running_loop()
        self._accepting = loop.create_task(self._accept(), name=f"accept {sock.getsockname()}")
        self._accepting.add_done_callback(self._stopped)

    def close(self) -> None:
        """Accept no more; connections that are not served yet are dropped, those that are stay."""
        self._accepting.cancel()
        for task in self._pending:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of what `close` cancelled."""
        await asyncio.gather(self._accepting, *self._pending, return_exceptions=True)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Free the address at once: who connects from now on is refused instead of waiting in vain."""
        self._sock.close()
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended: %s", task.get_name(), task.exception())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                sock, name = await loop.sock_accept(self._sock)
            except OSError as error:
                self._room.release()
                await self._rest(error)
                continue
            except BaseException:
                self._room.release()
                raise
            task = loop.create_task(self._serve(sock, name), name=f"proxy header {name}")
            self._pending.add(task)
            task.add_done_callback(self._served)

    async def _rest(self, error: OSError) -> None:
        """A connection that ended before it was accepted costs nothing; being out of descriptors does."""
        if error.errno in _EXHAUSTED:
            log.error("accept: %s; resting %g s", error.strerror, PAUSE_S)
            await asyncio.sleep(PAUSE_S)
        elif error.errno in (errno.EBADF, errno.EINVAL):
            raise error
        else:
            await asyncio.sleep(0)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        self._room.release()

    async def _serve(self, sock: socket.socket, name: Any) -> None:
        try:
            if address_of(name) in self._networks:
                sock = await self._behind_proxy(sock, name)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            deadline = self._handshake_s if self._tls is not None else None
            await loop.connect_accepted_socket(
                self._factory, sock, ssl=self._tls, ssl_handshake_timeout=deadline
            )
        except (OSError, TimeoutError, ProtocolError) as error:  # ssl.SSLError is an OSError
            log.debug("connection of %s: %r", name, error)
            sock.close()
        except BaseException:
            sock.close()
            raise

    async def _behind_proxy(self, sock: socket.socket, name: Any) -> socket.socket:
        """Read the header; returns the socket that knows its client."""
        async with asyncio.timeout(HEADER_S):
            source = await _read_header(sock)
        if source is None:
            return sock
        proxied = ProxiedSocket(fileno=sock.detach())
        proxied.client = ProxiedAddress(*source, str(name[0]))
        return proxied


async def _read_header(sock: socket.socket) -> tuple[str, int] | None:
    loop = asyncio.get_running_loop()
    header = Header()
    while not header.done:
        data = await loop.sock_recv(sock, header.need)
        if not data:
            raise ProtocolError("the connection ended within the PROXY header")
        header.feed(data)
    return header.source
