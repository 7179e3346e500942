"""Self-signed certificates: TLS for a test, or for a handful of clients that are given the certificate."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker import atomic
from broker.errors import ConfigError
from broker.obstacles import obstacle

ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
"""Names that every certificate has besides those that were asked for."""
DAYS: Final = 365
"""How long a certificate lasts: clients refuse those of more than 825 days."""
CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"

_HOST: Final = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
)
_BACKDATE: Final = dt.timedelta(minutes=5)  # clocks of clients differ


class Made(NamedTuple):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes
    fingerprint: str
    """SHA-256, hexadecimal."""
    expires: float
    """Wall clock seconds since 1970."""


def make(hosts: Iterable[str], *, days: int = DAYS, now: float) -> Made:
    """A certificate (EC P-256) for these host names and addresses, besides ``localhost`` and the loopback addresses.

    Args:
        hosts: names, or IPv4 and IPv6 addresses.
        days: how long it lasts.
        now: the wall clock.

    Raises:
        ConfigError: a host is neither name nor address.
    """
    names = _names([*hosts, *ALWAYS])
    key = ec.generate_private_key(ec.SECP256R1())
    begin = dt.datetime.fromtimestamp(now, dt.UTC).replace(microsecond=0)
    end = begin + dt.timedelta(days=days)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(names[0].value)[:64])])
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _BACKDATE)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_USAGE, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Made(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        certificate.fingerprint(hashes.SHA256()).hex(),
        end.timestamp(),
    )


def save(made: Made, directory: str | os.PathLike[str], *, replace: bool = False) -> tuple[Path, Path]:
    """Write ``cert.pem`` (0644) and ``key.pem`` (0600) into a directory, made (0755) when it is missing; returns their
    paths. Existing files are kept unless ``replace``.

    Raises:
        ConfigError: a file exists or cannot be written.
    """
    folder = Path(directory)
    certificate, key = folder / CERTIFICATE, folder / KEY
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not replace and (found := next((path for path in (certificate, key) if path.exists()), None)):
            raise ConfigError(f"{found}: exists; --force replaces it, and its key is lost", 17)
        atomic.write(key, made.key)
        atomic.write(certificate, made.certificate, 0o644)
    except OSError as error:
        raise obstacle(f"{error.filename or folder}: {error.strerror}", error) from error
    return certificate, key


def _names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    return [_name(host) for host in dict.fromkeys(host.strip().strip("[]").lower() for host in hosts)]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass  # a name, then
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ConfigError(f"saw {host[:64]!r}, expected a host name or an IP address")
    return x509.DNSName(host)


_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
