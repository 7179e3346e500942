"""Certificates and keys made for one test: an authority, and leaves that it signs."""

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)


def key_usage(*uses):
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{use: use in uses for use in every})


SIGNS = key_usage("digital_signature")
SIGNS_OTHERS = key_usage("key_cert_sign", "crl_sign")


def name(*pairs):
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in pairs])


def common(text):
    return name((NameOID.COMMON_NAME, text))


def pem(key):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key):
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def point(*names):
    """A distribution point of lists with these names, for the reasons that are among them."""
    reasons = {each for each in names if isinstance(each, x509.ReasonFlags)}
    return x509.DistributionPoint(
        [each for each in names if each not in reasons], None, frozenset(reasons) or None, None
    )


class Authority:
    """One certificate authority."""

    def __init__(self, title="Test Authority"):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = common(title)
        self.certificate = self._sign(self.subject, self.key.public_key(), DAY * 30, (), ca=True)

    def leaf(self, subject, sans=(), *, days=10, usage=ExtendedKeyUsageOID.CLIENT_AUTH, **more):
        """A certificate for `subject`: (PEM of certificate and key, the certificate)."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._sign(subject, key.public_key(), DAY * days, sans, usage=usage, **more)
        return made.public_bytes(serialization.Encoding.PEM) + pem(key), made

    def server(self, path: Path, title="localhost"):
        """Write a server certificate for localhost to `path`; returns its serial number."""
        sans = [x509.DNSName("localhost"), x509.DNSName(title)]
        text, made = self.leaf(common(title), sans, usage=ExtendedKeyUsageOID.SERVER_AUTH)
        path.write_bytes(text)
        return made.serial_number

    def save(self, path: Path):
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def _sign(self, subject, public, lasting, sans, *, ca=False, usage=None, points=()):
        now = dt.datetime.now(dt.UTC)
        begin = now - DAY * 20 if lasting < DAY * 0 else now - DAY
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(now + lasting)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            # Python 3.13 verifies strictly (RFC 5280, 4.2.1): who has signed, with which key, and what for
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .add_extension(SIGNS_OTHERS if ca else SIGNS, critical=True)
        )
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if points:
            builder = builder.add_extension(
                x509.CRLDistributionPoints([point(*each) for each in points]), False
            )
        if sans:
            builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
        return builder.sign(self.key, hashes.SHA256())
