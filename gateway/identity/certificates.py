"""Client certificates (mutual TLS): which names one proves, and whether its authority has revoked it.

Revocation lists (CRL, RFC 5280, section 5): the files are read again when they or those of the authorities change,
which `RevocationLists.refresh` looks for. Of several lists of one issuer, in whichever files, all count, and the first
that is overdue makes the issuer's overdue. Once there is a list, it is strict: a certificate whose issuer has none is
refused, and so is every certificate of an issuer whose list is overdue; what came in before goes on then, until it is
on a list. A list has to be signed by an authority of ``client_ca``, where intermediate authorities belong, too, and be
for all reasons. One that is the part of a distribution point (IssuingDistributionPoint) counts for the certificates
that name this point, and one of users' certificates for those: who is on none of their lists, but on no list of theirs
is looked for, is refused.
"""

from __future__ import annotations

import functools
import ssl
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtensionOID, NameOID

from broker.errors import ConfigError
from broker.obstacles import obstacle
from gateway.identity.tokens import WatchedFiles
from gateway.principal import refused, unavailable

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
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names = {f"SHA256:{fingerprint}", *_alternative_names(certificate)}
    names.update(x509.Name([attribute]).rfc4514_string() for attribute in common)
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


FILE_BYTES: Final = 16 * 2**20
"""Largest file of lists that is read: some 400 000 certificates."""
SHOWN: Final = 65536
"""Certificates of live links that are remembered by their fingerprint; of more the first are forgotten."""
_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_END: Final = b"-----END X509 CRL-----"


class _List(NamedTuple):
    """One list."""

    serials: frozenset[int]
    overdue: float | None
    """Wall clock seconds from which on it counts no more."""
    points: frozenset[x509.GeneralName]
    """It has those certificates that name one of these; empty: all."""
    users_only: bool
    """It has no certificates that may sign others."""

    def has(self, shown: VerifiedCertificate) -> bool:
        """Whether a certificate would be on it, were it revoked."""
        return not ((self.users_only and shown.authority) or (self.points and not self.points & shown.points))


class RevocationLists(WatchedFiles[dict[bytes, list[_List]]]):
    """The lists of ``access.client_crls``.

    Args:
        files: PEM files, each with one list or several.
        authorities: PEM files of who may sign them.

    Attributes:
        files: as given.
        content: the lists, by issuer. A file that cannot be read leaves all lists as they were.
    """

    def __init__(self, files: Sequence[str], authorities: Iterable[str]) -> None:
        self.files = files
        self._authorities = tuple(dict.fromkeys(authorities))
        super().__init__([*files, *self._authorities] if files else [], {})
        self._shown: OrderedDict[str, tuple[bytes, int]] = OrderedDict()

    def _load(self) -> dict[bytes, list[_List]]:
        authorities = [each for path in self._authorities for each in _authorities(path)]
        found: dict[bytes, list[_List]] = {}
        for path in self.files:
            _add_lists(path, authorities, found)
        return found

    def check(self, shown: VerifiedCertificate, now: float) -> None:
        """Refuse a certificate that is on a list, or of which no list says that it is not; ``now`` is the wall clock.

        Raises:
            Denied: it was revoked, or nothing is known of its issuer's (401); the list is overdue (503).
        """
        if not self.files:
            return
        self._shown[shown.fingerprint] = shown.issuer, shown.serial
        self._shown.move_to_end(shown.fingerprint)
        if len(self._shown) > SHOWN:
            self._shown.popitem(last=False)
        lists = [each for each in self.content.get(shown.issuer, ()) if each.has(shown)]
        revoked = self.revoked(shown.fingerprint)
        if revoked or not lists:
            lacks = "has no revocation list of its issuer, or its part"
            why = "was revoked by its authority" if revoked else lacks
            raise refused(f"certificate {shown.subject[:128]!r} {why}")
        if any(each.overdue is not None and each.overdue <= now for each in lists):
            raise unavailable(
                f"certificate {shown.subject[:128]!r}: the revocation list of its issuer is overdue",
                "client certificates cannot be checked now",
            )

    def revoked(self, fingerprint: str) -> bool:
        """Whether a certificate that was let in before is on a list now."""
        issuer, serial = self._shown.get(fingerprint, (b"", 0))
        return any(serial in each.serials for each in self.content.get(issuer, ()))


def _add_lists(path: str, authorities: list[x509.Certificate], found: dict[bytes, list[_List]]) -> None:
    """Add the lists of a file to those that were ``found``, by issuer: of several of one issuer all count.

    Raises:
        ConfigError: it cannot be read, holds no list, or one that cannot be used.
    """
    pieces = _text(path).split(_BEGIN)[1:]
    for piece in pieces:
        try:
            crl = x509.load_pem_x509_crl(_BEGIN + piece.partition(_END)[0] + _END + b"\n")
            found.setdefault(crl.issuer.public_bytes(), []).append(_list_of(crl, authorities))
        except (ValueError, *UNREADABLE) as error:
            raise ConfigError(f"{path}: a revocation list that cannot be used: {error}") from error
    if not pieces:
        raise ConfigError(f"{path}: expected revocation lists, X509 CRL in PEM")


def _list_of(crl: x509.CertificateRevocationList, authorities: list[x509.Certificate]) -> _List:
    # RFC 5280, section 6.3.3: by who issued the certificates; a list of anybody else could free a revoked one
    signers: list[Any] = [each.public_key() for each in authorities if each.subject == crl.issuer]
    if not any(crl.is_signature_valid(key) for key in signers):
        raise ValueError(f"that of {crl.issuer.rfc4514_string()!r} is signed by no authority of client_ca")
    points, users_only, part = frozenset[x509.GeneralName](), False, False
    for extension in crl.extensions:
        # section 5.2.4: it has only what is new since a list that may not be here
        part |= isinstance(extension.value, x509.DeltaCRLIndicator)
        # section 5.2: whoever does not know a critical extension must not use the list
        part |= extension.critical and isinstance(extension.value, x509.UnrecognizedExtension)
        if isinstance(place := extension.value, x509.IssuingDistributionPoint):
            points, users_only = frozenset(place.full_name or ()), place.only_contains_user_certs
            part |= place.only_contains_ca_certs or place.only_contains_attribute_certs or place.indirect_crl
            part |= bool(place.only_some_reasons or place.relative_name)
    if part:
        raise ValueError(f"that of {crl.issuer.rfc4514_string()!r} is a part, expected the whole list")
    overdue = None if crl.next_update_utc is None else crl.next_update_utc.timestamp()
    return _List(frozenset(each.serial_number for each in crl), overdue, points, users_only)


def _authorities(path: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_text(path))
    except ValueError as error:
        raise ConfigError(f"{path}: expected PEM certificates: {error}") from error


def _text(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise obstacle(f"{path}: {error.strerror}", error, absent=True) from error
    if len(text) > FILE_BYTES:
        raise ConfigError(f"{path}: more than {FILE_BYTES} bytes, expected revocation lists")
    return text
