"""``tls://HOST:PORT``: links between brokers, and of clients, over TCP with mutual TLS.

::

    layer   TLS sans I/O: a session, and a codec that seals any other

Each side shows a certificate; then the listener says one byte: 0, or the errno of a refusal. Frames that are flushed
together are sealed together.

A peer is known by one of its names: the fingerprint of its certificate (``sha256:`` and 64 hex digits), a URI or DNS
name of its subjectAltName, or its common name. The name that stands in ``Options.keys`` is its key.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from broker.endpoints import parse
from broker.errors import ConfigError, LinkEnded, LinkRefused
from broker.identity import PeerInfo
from broker.obstacles import obstacle
from broker.schemes import BUILT_IN, TlsOptions
from broker.transport.codec import FluxCodec
from broker.transport.dialing import attempt, converse, open_first, resolve
from broker.transport.handshaking import HandshakeListener, Stranger, listen_tcp
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.stream import StreamLink
from broker.transport.tls.layer import Session, TlsCodec

log = logging.getLogger("headgate")


def names_of(der: bytes, fields: Mapping[str, Any]) -> list[str]:
    """All that a certificate is known by, the most exact first. A name in the form of a fingerprint is none.

    ``fields`` are those of ``SSLSocket.getpeercert()``.
    """
    alternatives = fields.get("subjectAltName", ())
    names = [name for kind in ("URI", "DNS") for its, name in alternatives if its == kind]
    names += [value for part in fields.get("subject", ()) for its, value in part if its == "commonName"]
    fingerprint = f"sha256:{hashlib.sha256(der).hexdigest()}"
    return [fingerprint, *(name for name in names if not name.startswith("sha256:"))]


def peer_of(tls: ssl.SSLObject, address: str, options: Options) -> PeerInfo:
    """The peer that has shown its certificate.

    Raises:
        LinkRefused: none of its names is among ``options.keys``.
    """
    names = names_of(tls.getpeercert(binary_form=True) or b"", tls.getpeercert() or {})
    for name in names:
        if peer := options.bearer(address, name):
            return peer
    raise LinkRefused(f"{address}: unknown certificate, its names are {', '.join(names)}", errno.EPERM)


def server_context(options: TlsOptions | None) -> ssl.SSLContext:
    """The TLS context of a listener.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # a session that is resumed does not look at the certificate again, which may have ended
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return _loaded(context, options)


def client_context(options: TlsOptions | None) -> ssl.SSLContext:
    """The TLS context of a dialer: the listener's name is checked.

    Raises:
        ConfigError: a file cannot be used.
    """
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), options)


def _loaded(context: ssl.SSLContext, options: TlsOptions | None) -> ssl.SSLContext:
    if options is None:
        raise ConfigError("tls:// needs the options cert and ca")
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if options.minimum == "1.3" else ssl.TLSVersion.TLSv1_2
    try:
        file: str = options.ca
        context.load_verify_locations(file)
        file = options.cert if options.key is None else f"{options.cert}, {options.key}"
        # an empty password: without one OpenSSL would ask for it at the terminal
        context.load_cert_chain(options.cert, options.key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise obstacle(f"{file}: {error.strerror or error}", error, absent=True) from error
    return context


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
            if options.tree or options.keys:  # a client takes every listener that its authority vouches for
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
    """Prove our identity, and check the listener's.

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
