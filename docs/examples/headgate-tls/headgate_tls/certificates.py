"""Files of certificates and keys, and what the certificate of a peer proves.

A peer is known by one of its names: the fingerprint of its certificate (``sha256:`` and 64 hex digits), a URI or DNS
name of its subjectAltName, or its common name. Whichever stands in ``Options.keys`` is its key.
"""

from __future__ import annotations

import errno
import hashlib
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from broker.errors import ConfigError, LinkRefused
from broker.identity import ClientKey, Key, PeerInfo
from broker.obstacles import obstacle
from broker.schemes import FilePath

FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


class TlsOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``options`` table of this transport."""

    cert: FilePath
    """Our certificate with its chain, PEM."""
    key: FilePath | None = None
    """Its private key, PEM. Default: in the same file."""
    ca: FilePath
    """The authorities whose certificates are believed, PEM: of the peers, on either side."""
    server_name: Annotated[str, Meta(min_length=1)] | None = None
    """The name that the certificate of the listener has to have. Default: the host that is dialled."""
    minimum: Literal["1.2", "1.3"] = "1.3"
    """The oldest version of TLS that is spoken. Default 1.3."""


class Certificate(NamedTuple):
    """What a peer has shown, and ``ssl`` has verified."""

    der: bytes
    fields: Mapping[str, Any]
    """As of ``SSLSocket.getpeercert()``."""

    def names(self) -> Iterator[str]:
        """All that it is known by, the most exact first. A name in the form of a fingerprint is none."""
        yield f"sha256:{hashlib.sha256(self.der).hexdigest()}"
        yield from (name for name in self._written() if not name.startswith("sha256:"))

    def _written(self) -> Iterator[str]:
        alternatives = self.fields.get("subjectAltName", ())
        for kind in ("URI", "DNS"):
            yield from (name for its, name in alternatives if its == kind)
        yield from (
            value for part in self.fields.get("subject", ()) for its, value in part if its == "commonName"
        )


def check_key(text: str) -> str:
    """What is expected of a key that cannot be one (``Capabilities.check_key``)."""
    if text.startswith("sha256:"):
        return "" if FINGERPRINT.fullmatch(text) else "sha256: and 64 hex digits in lower case"
    return "" if text and text == text.strip() else "a name of a certificate"


def peer_of(certificate: Certificate, address: str, keys: Mapping[str, Key]) -> PeerInfo:
    """Who shows ``certificate``.

    Raises:
        LinkRefused: none of its names is among ``keys``.
    """
    names = list(certificate.names())
    for name in names:
        known = keys.get(name)
        if isinstance(known, ClientKey):
            return PeerInfo(address, key=name, user=known.user)
        if known is not None:
            return PeerInfo(address, key=name, rank=known.rank)
    raise LinkRefused(f"{address}: unknown certificate, its names are {', '.join(names)}", errno.EPERM)


def server_context(options: TlsOptions | None) -> ssl.SSLContext:
    """What a listener speaks TLS with.

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
    """What a dialer speaks TLS with: the listener's name is checked.

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
        context.load_cert_chain(
            options.cert, options.key, password=lambda: ""
        )  # else it asks at the terminal
    except (OSError, ssl.SSLError) as error:
        raise obstacle(f"{file}: {error.strerror or error}", error, absent=True) from error
    return context
