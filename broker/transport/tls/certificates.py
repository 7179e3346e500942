"""Files of certificates and keys, and what the certificate of a peer proves.

A peer is known by one of its names: the fingerprint of its certificate (``sha256:`` and 64 hex digits), a URI or DNS
name of its subjectAltName, or its common name. Whichever stands in ``Options.keys`` is its key.
"""

from __future__ import annotations

import errno
import hashlib
import ssl
from collections.abc import Mapping
from typing import Any

from broker.errors import ConfigError, LinkRefused
from broker.identity import PeerInfo
from broker.obstacles import obstacle
from broker.schemes import TlsOptions
from broker.transport.link import Options


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
    """Who has shown its certificate.

    Raises:
        LinkRefused: none of its names is among ``options.keys``.
    """
    names = names_of(tls.getpeercert(binary_form=True) or b"", tls.getpeercert() or {})
    for name in names:
        if peer := options.bearer(address, name):
            return peer
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
