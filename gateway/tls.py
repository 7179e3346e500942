"""TLS of the listeners: certificates that can be replaced while the gateway runs.

asyncio asks a listener's context once per connection for its TLS state (``wrap_bio``). `TlsContext` is a context that
passes this question on to the newest context that loaded. So every new connection gets the new certificate, key and
client authorities, with or without SNI, without rebinding; connections that exist keep what they have. A context that
was replaced decrypts no session ticket of the new one: a client whose authority was removed cannot resume its way in.
"""

from __future__ import annotations

import os
import ssl
from typing import Any, Final, Self

from cryptography import x509

from broker import secret
from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.transport.tls.layer import HeldContext
from gateway.settings.schema import ListenEntry

MINIMUM: Final = ssl.TLSVersion.TLSv1_2
PROTOCOLS: Final = ("http/1.1",)
"""What ALPN offers: WebSocket needs HTTP/1.1."""


class TlsContext(ssl.SSLContext):
    """The TLS of one listener; give it to ``create_server(ssl=...)`` or to aiohttp's ``ssl_context=``.

    Args:
        entry: a listener with ``https://``: ``cert``, ``key``, ``client_ca`` and ``client_cert`` count.

    Attributes:
        expires: when the certificate ends, wall clock seconds since 1970; for metrics and ``headgate doctor``.

    Raises:
        ConfigError: a file cannot be read, is no PEM, or key and certificate do not belong together.
    """

    expires: float
    _entry: ListenEntry
    _current: ssl.SSLContext

    def __new__(cls, entry: ListenEntry) -> Self:  # noqa: ARG004, D102 - SSLContext wants its protocol here
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, entry: ListenEntry) -> None:
        self._entry = entry
        self.reload()

    def reload(self) -> None:
        """Load certificate, key and client authorities again, all of them before the first is used.

        Raises:
            ConfigError: something does not load; new connections go on with what was loaded before.
        """
        current, expires = load(self._entry)
        self._current, self.expires = current, expires

    @property
    def current(self) -> ssl.SSLContext:
        """The context of the next connection."""
        return self._current

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """The TLS state of a new connection (asyncio calls it)."""
        return self._current.wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """The same for blocking sockets."""
        return self._current.wrap_socket(*args, **kwargs)


def load(entry: ListenEntry) -> tuple[ssl.SSLContext, float]:
    """A server context of a listener's files, and when its certificate ends (wall clock seconds).

    Raises:
        ConfigError: a file is missing or bad; the text names it.
    """
    if entry.cert is None:
        raise ConfigError(f"{entry.url}: cert is missing, expected a PEM file")
    context = HeldContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM
    context.set_alpn_protocols(list(PROTOCOLS))
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    key = entry.key or entry.cert
    try:
        # certbot and its like keep these; a renewal with another mode must not end the service
        secret.check_mode(key, os.stat(key), refuse=False)
        context.load_cert_chain(entry.cert, entry.key, password=_no_password)
    except (OSError, ValueError) as error:
        files = entry.cert if entry.key is None else f"{entry.cert}, {entry.key}"
        text = f"{files}: expected a PEM certificate and its key: {_reason(error)}"
        raise obstacle(text, error, absent=True) from error
    _ask_clients(context, entry)
    return context, certificate_end(entry.cert)


def certificate_end(file: str) -> float:
    """When the first certificate of a PEM file ends, wall clock seconds since 1970.

    Raises:
        ConfigError: the file cannot be read or holds no certificate.
    """
    try:
        with open(file, "rb") as opened:
            certificates = x509.load_pem_x509_certificates(opened.read())
    except (OSError, ValueError) as error:
        raise obstacle(f"{file}: expected a PEM certificate: {_reason(error)}", error, absent=True) from error
    return certificates[0].not_valid_after_utc.timestamp()


def _ask_clients(context: ssl.SSLContext, entry: ListenEntry) -> None:
    if entry.client_cert == "off":
        return
    if entry.client_ca is None:
        raise ConfigError(f"{entry.url}: client_ca is missing, expected a PEM file since client_cert is set")
    try:
        context.load_verify_locations(cafile=entry.client_ca)
    except (OSError, ValueError) as error:
        text = f"{entry.client_ca}: expected PEM certificates: {_reason(error)}"
        raise obstacle(text, error, absent=True) from error
    if not context.get_ca_certs():
        raise ConfigError(f"{entry.client_ca}: holds no certificate of an authority")
    context.verify_mode = ssl.CERT_REQUIRED if entry.client_cert == "required" else ssl.CERT_OPTIONAL


def _no_password() -> str:
    """OpenSSL would ask on the terminal for the password of an encrypted key, and the gateway would stand still."""
    raise ValueError("the key is encrypted, expected one without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM"
    return getattr(error, "strerror", None) or str(error)
