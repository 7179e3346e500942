"""Certificate revocation lists: client certificates that their authority has revoked (CRL, RFC 5280, section 5).

The files are read again when they or those of the authorities change, which `refresh` looks for. Of several lists of
one issuer, in whichever files, all count, and the first that is overdue makes the issuer's overdue. Once there is a
list, it is strict: a certificate whose issuer has none is refused, and so is every certificate of an issuer whose list
is overdue; what came in before goes on then, until it is on a list. A list has to be signed by an authority of
``client_ca``, where intermediate authorities belong, too, and be for all reasons. One that is the part of a
distribution point (IssuingDistributionPoint) counts for the certificates that name this point, and one of users'
certificates for those: who is on none of their lists, but on no list of theirs is looked for, is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509

from broker.errors import ConfigError
from broker.obstacles import obstacle
from gateway.closes import BAD_CREDENTIAL, BUSY
from gateway.identity.certificates import UNREADABLE, VerifiedCertificate
from gateway.identity.tokens import Stamp, stamp_of
from gateway.principal import Denied

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


class RevocationLists:
    """The lists of ``access.client_crls``.

    Args:
        files: PEM files, each with one list or several.
        authorities: PEM files of who may sign them.

    Attributes:
        files: as given.
        generation: grows each time lists were replaced.
        problem: why a file that is there now was not taken; "" when all were. What was read before counts on.
    """

    def __init__(self, files: Sequence[str], authorities: Iterable[str]) -> None:
        self.generation = 0
        self.problem = ""
        self.files = files
        self._authorities = tuple(dict.fromkeys(authorities))
        self._stamps: list[Stamp | None] = []
        self._lists: dict[bytes, list[_List]] = {}
        self._shown: OrderedDict[str, tuple[bytes, int]] = OrderedDict()

    def refresh(self) -> None:
        """Read the files if one of them, or of the authorities', is another than before; a bad one sets ``problem``,
        and all lists stay as they were.
        """
        stamps = [stamp_of(path) for path in (*self.files, *self._authorities)] if self.files else []
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            authorities = [each for path in self._authorities for each in _authorities(path)]
            found: dict[bytes, list[_List]] = {}
            for path in self.files:
                _read(path, authorities, found)
        except ConfigError as error:
            self.problem = str(error)
            return
        self._lists, self.problem = found, ""
        self.generation += 1

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
        lists = [each for each in self._lists.get(shown.issuer, ()) if each.has(shown)]
        revoked = self.revoked(shown.fingerprint)
        if revoked or not lists:
            why = (
                "was revoked by its authority"
                if revoked
                else "has no revocation list of its issuer, or its part"
            )
            raise Denied(
                f"certificate {shown.subject[:128]!r} {why}",
                public="credential refused",
                status=401,
                close=BAD_CREDENTIAL,
            )
        if any(each.overdue is not None and each.overdue <= now for each in lists):
            raise Denied(
                f"certificate {shown.subject[:128]!r}: the revocation list of its issuer is overdue",
                public="client certificates cannot be checked now",
                status=503,
                close=BUSY,
                errno=11,
            )

    def revoked(self, fingerprint: str) -> bool:
        """Whether a certificate that was let in before is on a list now."""
        issuer, serial = self._shown.get(fingerprint, (b"", 0))
        return any(serial in each.serials for each in self._lists.get(issuer, ()))


def _read(path: str, authorities: list[x509.Certificate], found: dict[bytes, list[_List]]) -> None:
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
    signers: list[Any] = [each.public_key() for each in authorities if each.subject == crl.issuer]
    if not any(crl.is_signature_valid(key) for key in signers):
        raise ValueError(f"that of {crl.issuer.rfc4514_string()!r} is signed by no authority of client_ca")
    points, users_only, part = frozenset[x509.GeneralName](), False, False
    for extension in crl.extensions:
        part |= isinstance(extension.value, x509.DeltaCRLIndicator)
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
