"""``tls://HOST:PORT``: links between brokers, and of clients, over TCP with mutual TLS.

::

    layer         TLS sans I/O: a session, and a codec that seals any other
    certificates  contexts of ``ssl`` made of the options, and what a peer's certificate proves

Each side shows a certificate; then the listener says one byte: 0, or the errno of a refusal. Frames that are flushed
together are sealed together.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from broker.endpoints import parse
from broker.errors import LinkEnded, LinkRefused
from broker.identity import PeerInfo
from broker.schemes import BUILT_IN, TlsOptions
from broker.transport.codec import FluxCodec
from broker.transport.dialing import attempt, converse, open_first, resolve
from broker.transport.handshaking import HandshakeListener, Stranger, listen_tcp
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.stream import StreamLink
from broker.transport.tls.certificates import client_context, peer_of, server_context
from broker.transport.tls.layer import Session, TlsCodec

log = logging.getLogger("headgate")


class TlsTransport:
    """``tls://HOST:PORT``; ``*`` as host listens on all interfaces, and as port on a free one."""

    capabilities = BUILT_IN["tls"].capabilities

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
        settings: TlsOptions | None = options.settings
        context = client_context(settings)
        name = settings.server_name if settings is not None else None
        sock, session = await open_session(uri, options, context, name)
        try:
            peer = PeerInfo(uri)
            if options.tree or options.keys:  # a client takes whom its authority vouches for
                peer = peer_of(session.tls, uri, options)
        except LinkRefused:
            sock.close()
            raise
        return sealed_link(sock, session, peer, options)


class TlsListener(HandshakeListener[Session]):
    """One listening socket.

    Raises:
        ConfigError: the address or a file of the options cannot be used.
    """

    def __init__(self, uri: str, accept: Accept, options: Options) -> None:
        self._context = server_context(options.settings)
        super().__init__(*listen_tcp(uri), options)
        self._accept = accept

    def renew(self, extra: Mapping[str, Any]) -> Listener:
        """Read certificate, key and authorities again; connections stay.

        Raises:
            ConfigError: a file cannot be used; everything is as before.
        """
        self._context = server_context(self._options.settings)
        return self

    def begin(self) -> Session:
        """See ``HandshakeListener``."""
        return Session(self._context)

    def judge(self, stranger: Stranger[Session]) -> Callable[[], object] | None:
        """See ``HandshakeListener``."""
        options, session = self._options, stranger.handshake
        try:
            peer = peer_of(session.tls, stranger.address, options)
        except LinkRefused as refusal:
            peer, denied = PeerInfo(stranger.address), errno.EPERM
            self.refuse(peer, denied, str(refusal))
        else:
            denied = options.admit(peer) or self._kept_from(peer, stranger.sock.fileno())
        session.tls.write(bytes((denied & 0xFF,)))
        return None if denied else lambda: self._accept(sealed_link(stranger.sock, session, peer, options))


def sealed_link(sock: socket.socket, session: Session, peer: PeerInfo, options: Options) -> StreamLink:
    """A link with framed messages on a session whose handshake is over."""
    return StreamLink(sock, peer, options, TlsCodec(session, FluxCodec(options.max_bytes(peer))))


async def open_session(
    uri: str, options: Options, context: ssl.SSLContext, server_name: str | None = None, first: bytes = b""
) -> tuple[socket.socket, Session]:
    """Connect to ``SCHEME://HOST:PORT``, shake hands, say ``first``, and hear the byte that lets us in.

    The listener's certificate has to be for ``server_name``, by default HOST.

    Raises:
        LinkRefused: the listener said no, or shows a certificate that we do not believe.
        LinkBroken, LinkEnded: nobody there, or no answer within ``connect_timeout_s`` (0: no limit).
        ConfigError: another form of address.
    """
    target = parse(uri)

    async def shake(sock: socket.socket) -> tuple[socket.socket, Session]:
        session = Session(context, server_name or target.host)
        try:
            await shake_hands(sock, session)
            if first:
                session.tls.write(first)
            denied = await _hear_byte(sock, session)
        except ssl.SSLError as error:
            raise LinkRefused(f"{uri}: {error.reason or error}", errno.EPERM) from error
        if denied:
            raise LinkRefused(f"{uri} refused the connection: {os.strerror(denied)}", denied)
        return sock, session

    async with attempt(uri, options.connect_timeout_s, "answer"):
        return await open_first(await resolve(target), shake)


async def shake_hands(sock: socket.socket, session: Session) -> None:
    """Prove who we are, and see who the listener is.

    Raises:
        SSLError: one does not believe the other. OSError: it hung up, or the connection broke.
    """
    over = await converse(sock, session.take_owed, session.feed, lambda: session.failure or session.is_open)
    if over is not True:
        raise over


async def _hear_byte(sock: socket.socket, session: Session) -> int:
    def heard() -> object:
        return session.read(1) or session.failure or session.is_ended

    said = await converse(sock, session.take_owed, session.feed, heard)
    if said is True:
        raise LinkEnded("the listener said goodbye instead of a byte")
    if session.failure is not None:
        raise session.failure
    return int(said[0])


transport = TlsTransport()
