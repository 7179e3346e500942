"""``token://HOST:PORT``: clients that have a token and no certificate, over TLS: a transport of Headgate from outside.

The listener shows a certificate. The dialer says its token in one line and hears one byte: 0, or the errno of a
refusal; then both send framed messages. A token is known by its fingerprint, ``sha256:`` and 64 hex digits.
"""

import errno
import hashlib
import ssl

from msgspec import Struct

from broker.errors import ConfigError, DecodeError
from broker.identity import PeerInfo
from broker.schemes import Capabilities, FilePath, beyond_loopback, check_port
from broker.secret import read_file
from broker.transport.codec import FluxCodec
from broker.transport.handshaking import HandshakeListener, listen_tcp
from broker.transport.stream import StreamLink
from broker.transport.tls import open_session
from broker.transport.tls.layer import Session, TlsCodec

LINE_BYTES = 256


class TokenOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``options`` table."""

    cert: FilePath | None = None
    """A listener's certificate with its chain and its key, PEM."""
    ca: FilePath | None = None
    """A dialer's: the authorities whose certificates are believed, PEM. Default: the system's."""
    token_file: FilePath | None = None
    """A dialer's token."""


def fingerprint(token):
    """What ``token`` is known by."""
    return f"sha256:{hashlib.sha256(token).hexdigest()}"


class Greeting:
    """The listener's side of a handshake, sans I/O: that of TLS, then a line with the token."""

    def __init__(self, context):
        self.session = Session(context)
        self.take_owed = self.session.take_owed
        self.token = b""
        self.asks = False

    @property
    def failure(self):
        return DecodeError("no token") if len(self.token) > LINE_BYTES else self.session.failure

    def feed(self, data):
        self.session.feed(data)
        # byte by byte: what follows the line stays where it is
        while self.session.is_open and not self.failure and (byte := self.session.read(1)):
            if byte == b"\n":
                self.asks = True
                break
            self.token += byte


class TokenListener(HandshakeListener):
    def __init__(self, uri, accept, options):
        self._context = _context(options)
        super().__init__(*listen_tcp(uri), options)
        self._accept = accept

    def renew(self, extra):
        self._context = _context(self._options)
        return self

    def begin(self):
        return Greeting(self._context)

    def judge(self, stranger):
        options, greeting = self._options, stranger.handshake
        peer = options.bearer(stranger.address, fingerprint(greeting.token))
        if peer is None:
            denied = errno.EPERM
            self.refuse(PeerInfo(stranger.address), denied, "unknown token")
        else:
            denied = options.admit(peer) or self._kept_from(peer, stranger.sock.fileno())
        greeting.session.tls.write(bytes((denied & 0xFF,)))
        return None if denied else lambda: self._accept(_link(stranger.sock, greeting.session, peer, options))


def _context(options):
    if options.settings is None or options.settings.cert is None:
        raise ConfigError("token:// needs the option cert to listen")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.settings.cert)
    except OSError as error:
        raise ConfigError(f"{options.settings.cert}: {error.strerror or error}") from error
    return context


def _link(sock, session, peer, options):
    return StreamLink(sock, peer, options, TlsCodec(session, FluxCodec(options.max_bytes(peer))))


class TokenTransport:
    capabilities = Capabilities(
        proves=("key",),
        protection="own",
        is_exposed=beyond_loopback,
        check_address=check_port,
        options=TokenOptions,
    )

    async def listen(self, uri, accept, options):
        return TokenListener(uri, accept, options)

    async def dial(self, uri, options):
        settings = options.settings
        if settings is None or settings.token_file is None:
            raise ConfigError("token:// needs the option token_file to dial")
        token = read_file(settings.token_file).encode()
        try:
            context = ssl.create_default_context(cafile=settings.ca)
        except OSError as error:
            raise ConfigError(f"{settings.ca}: {error.strerror or error}") from error
        sock, session = await open_session(uri, options, context, first=token + b"\n")
        return _link(sock, session, PeerInfo(uri), options)


transport = TokenTransport()
