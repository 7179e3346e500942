"""The listening side: who connects shows a certificate, is judged, and is told by one byte."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Mapping
from typing import Any, Final

from broker.errors import LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.obstacles import obstacle
from broker.schemes import host_of, listening_host
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.stream import StreamLink
from headgate_tls.certificates import peer_of, server_context
from headgate_tls.session import Session, TlsCodec

log = logging.getLogger("headgate")

HANDSHAKES_MAX: Final = 256
"""Handshakes at the same time; when one more begins, the oldest is cut off, so that silent ones keep nobody out."""
HANDSHAKE_S: Final = 10.0
"""A handshake that takes longer is ended."""
REST_S: Final = 0.25
"""Pause when no descriptor is left."""


def place_of(uri: str) -> tuple[str, int]:
    """Host to bind ("" for all) and port (0 for a free one) of ``uri``."""
    host, port = listening_host(host_of(uri)), uri.rpartition(":")[2]
    return "" if host == "*" else host, 0 if port == "*" else int(port)


class TlsListener(Listener):
    """Accepts connections at one address.

    Raises:
        ConfigError: the address or a file of the options cannot be used.
    """

    def __init__(self, uri: str, accept: Accept, options: Options) -> None:
        self._context = server_context(options.settings)
        self._accept = accept
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._sock = _bound(uri)
        self._handshakes: dict[asyncio.Task[None], None] = {}
        asked, port = host_of(uri), self._sock.getsockname()[1]
        self.address = f"tls://{_bracketed(place_of(uri)[0] or '*')}:{port}"
        self.contact_address = f"tls://{_bracketed(socket.gethostname() if asked == '*' else asked)}:{port}"
        self._task = self._loop.create_task(self._listen(), name=f"listen {self.address}")

    def renew(self, extra: Mapping[str, Any]) -> Listener:
        """Read certificate, key and authorities again; connections stay.

        Raises:
            ConfigError: a file cannot be used; everything is as before.
        """
        self._context = server_context(self._options.settings)
        return self

    async def stop(self) -> None:
        """Accept no more; who is still shaking hands is cut off, links stay."""
        tasks = [self._task, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sock.close()

    async def _listen(self) -> None:
        while True:
            try:
                sock, address = await self._loop.sock_accept(self._sock)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    log.error("%s: %s", self.address, error.strerror)
                    await asyncio.sleep(REST_S)
                continue
            task = self._loop.create_task(self._receive(sock, address))
            self._handshakes[task] = None
            task.add_done_callback(self._handshakes.pop)
            reserve = self._options.reserve
            most = reserve.strangers if reserve.has(sock.fileno()) else HANDSHAKES_MAX
            for oldest in list(self._handshakes)[: max(0, len(self._handshakes) - most)]:
                oldest.cancel()
            await asyncio.sleep(0)  # while many wait, sock_accept lets nobody else run

    async def _receive(self, sock: socket.socket, address: Any) -> None:
        """Shake hands with one who connects, and let it in or not."""
        name = f"tls://{_bracketed(address[0].removeprefix('::ffff:'))}:{address[1]}"
        link: Link | None = None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_S):
                session = Session(sock, self._context)
                await session.shake_hands()
                peer, denied = self._judge(session, name)
                await session.say(denied)
            if not denied:
                link = StreamLink(sock, peer, self._options, TlsCodec(session, self._options.max_bytes(peer)))
        except (OSError, LinkError) as error:  # among them TimeoutError and SSLError
            log.warning("%s: no handshake with %s: %s", self.address, name, str(error) or "it took too long")
        finally:
            if link is None:
                sock.close()
        if link is not None:
            self._accept(link)

    def _judge(self, session: Session, name: str) -> tuple[PeerInfo, int]:
        """Who it is, and 0, or why it may not come in."""
        options = self._options
        try:
            peer = peer_of(session.certificate(), name, options.keys)
        except LinkRefused as refusal:
            log.warning("%s: %s", self.address, refusal)
            options.refused(PeerInfo(name), errno.EPERM, str(refusal))
            return PeerInfo(name), errno.EPERM
        denied = options.admit(peer)
        if not denied and options.refuses_reserve(peer, session.sock.fileno()):
            denied = errno.EMFILE
        return peer, denied


def _bound(uri: str) -> socket.socket:
    host, port = place_of(uri)
    try:
        if host:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            sock = socket.create_server((host, port), family=family, backlog=128)
        else:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            sock = socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise obstacle(f"cannot listen at {uri}: {error.strerror}", error) from error
    sock.setblocking(False)
    return sock


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
