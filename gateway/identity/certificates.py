"""Which names a client certificate proves (mutual TLS)."""

from __future__ import annotations

import functools
import ssl
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtensionOID, NameOID

CACHED: Final = 256
"""Certificates whose names are remembered: one connection shows the same one with every request."""
UNREADABLE: Final = (
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for certificates it does not read, beside ValueError."""


class VerifiedCertificate(NamedTuple):
    """A client certificate that the TLS handshake has verified against the listener's ``client_ca``."""

    names: frozenset[str]
    """As settings write them: ``CN=...``, the whole RFC 4514 subject, ``DNS:``, ``email:``, ``URI:``, ``SHA256:``."""
    fingerprint: str
    """SHA-256 of the certificate, hexadecimal."""
    expires: float
    """Wall clock seconds of its end."""
    subject: str
    """RFC 4514, for log lines."""
    issuer: bytes
    """Name of who signed it (DER)."""
    serial: int
    """Its number, unique below its issuer."""
    authority: bool
    """It may sign others."""
    points: frozenset[x509.GeneralName]
    """Where its issuer says the revocation list is that it would be on, for whatever reason."""


def shown(connection: ssl.SSLObject | ssl.SSLSocket | None) -> VerifiedCertificate | None:
    """The verified certificate of the peer; None off TLS, without one, and without verification.

    Raises:
        ValueError: its names cannot be read.
    """
    if connection is None or connection.context.verify_mode == ssl.CERT_NONE:
        return None
    # the binary form is there for unverified certificates, too: what is verified, OpenSSL says in the other one
    if not connection.getpeercert():
        return None
    encoded = connection.getpeercert(binary_form=True)
    return None if encoded is None else read(encoded)


@functools.lru_cache(maxsize=CACHED)
def read(encoded: bytes) -> VerifiedCertificate:
    """What a certificate (DER) says about its holder.

    A value in the subject cannot pass for two: RFC 4514 escapes commas and the like, in ``CN=...``, too.

    Raises:
        ValueError: the bytes are no certificate, or one whose names cannot be read.
    """
    try:
        return _read(x509.load_der_x509_certificate(encoded))
    except UNREADABLE as error:
        raise ValueError(f"a certificate that cannot be read: {error}") from error


def _read(certificate: x509.Certificate) -> VerifiedCertificate:
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    subject = certificate.subject.rfc4514_string()
    names = {f"SHA256:{fingerprint}", *_common_names(certificate), *_alternative_names(certificate)}
    if subject:
        names.add(subject)
    return VerifiedCertificate(
        frozenset(names),
        fingerprint,
        certificate.not_valid_after_utc.timestamp(),
        subject,
        certificate.issuer.public_bytes(),
        certificate.serial_number,
        _is_authority(certificate),
        frozenset(_distribution_points(certificate)),
    )


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _distribution_points(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        points = certificate.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    except x509.ExtensionNotFound:
        return []
    whole = [each for each in points if each.reasons is None and each.crl_issuer is None]
    return [name for each in whole for name in each.full_name or ()]


def _common_names(certificate: x509.Certificate) -> list[str]:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return [x509.Name([attribute]).rfc4514_string() for attribute in found]


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME)
    except x509.ExtensionNotFound:
        return []
    names = extension.value
    assert isinstance(names, x509.SubjectAlternativeName)
    return [
        *(f"DNS:{name.lower()}" for name in names.get_values_for_type(x509.DNSName)),
        *(f"email:{name.lower()}" for name in names.get_values_for_type(x509.RFC822Name)),
        *(f"URI:{name}" for name in names.get_values_for_type(x509.UniformResourceIdentifier)),
    ]
