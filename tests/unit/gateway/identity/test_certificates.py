"""The names that a client certificate proves."""

import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from gateway.identity import certificates
from tests.unit.gateway.identity.authority import Authority, common, name


@pytest.fixture(scope="module")
def authority():
    return Authority()


def read(authority, subject, sans=()):
    _text, certificate = authority.leaf(subject, sans)
    return certificates.read(certificate.public_bytes(Encoding.DER)), certificate


def test_names(authority):
    subject = name(
        (NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Hall 3"), (NameOID.COMMON_NAME, "alice")
    )
    sans = [
        x509.DNSName("Node1.example.org"),
        x509.RFC822Name("Alice@example.org"),
        x509.UniformResourceIdentifier("spiffe://example.org/alice"),
        x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
    ]
    shown, certificate = read(authority, subject, sans)
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    assert shown.names == {
        "CN=alice",
        "CN=alice,O=Hall 3,C=DE",
        "DNS:node1.example.org",
        "email:alice@example.org",
        "URI:spiffe://example.org/alice",
        f"SHA256:{fingerprint}",
    }
    assert shown.fingerprint == fingerprint
    assert shown.expires == certificate.not_valid_after_utc.timestamp()


def test_a_value_cannot_pass_for_two(authority):
    shown, _ = read(authority, common("mallory,CN=alice"))
    assert "CN=alice" not in shown.names
    assert "CN=mallory\\,CN=alice" in shown.names
    shown, _ = read(authority, common("x+CN=alice"))
    assert not {"CN=alice", "x+CN=alice"} & shown.names


def test_a_certificate_without_a_subject(authority):
    shown, _ = read(authority, x509.Name([]), [x509.DNSName("a.example")])
    assert {entry for entry in shown.names if not entry.startswith("SHA256:")} == {"DNS:a.example"}


def test_without_tls_there_is_none():
    assert certificates.shown(None) is None
