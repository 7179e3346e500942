"""A certificate authority for tests: one root, and certificates with the names that are asked for."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


class Authority:
    """Writes ``ca.pem`` into ``folder``, and ``NAME.pem`` (certificate and key) for whoever asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test authority")])
        self._root = self._sign(
            self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0)
        )
        (folder / "ca.pem").write_bytes(self._root.public_bytes(serialization.Encoding.PEM))

    def options(self, name: str) -> dict[str, str]:
        """The ``options`` table of ``name``, which gets a certificate for itself, localhost and 127.0.0.1."""
        file = self.folder / f"{name}.pem"
        if not file.exists():
            self._issue(name, file)
        return {"cert": str(file), "ca": str(self.folder / "ca.pem")}

    def fingerprint(self, name: str) -> str:
        """What ``name`` is known by, whatever its certificate says."""
        certificate = x509.load_pem_x509_certificate((self.folder / f"{name}.pem").read_bytes())
        return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"

    def _issue(self, name: str, file: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name), *names])
        signed = self._sign(
            subject, key.public_key(), x509.BasicConstraints(ca=False, path_length=None), alternatives
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + secret)
        file.chmod(0o600)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        basic: x509.BasicConstraints,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(basic, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if basic.ca:
            usage = dict.fromkeys(
                (
                    "digital_signature",
                    "content_commitment",
                    "key_encipherment",
                    "data_encipherment",
                    "key_agreement",
                    "encipher_only",
                    "decipher_only",
                ),
                False,
            )
            made = made.add_extension(
                x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True
            )
        if alternatives is not None:
            made = made.add_extension(alternatives, critical=False)
        return made.sign(self._key, hashes.SHA256())
