"""Public keys that JWTs are checked with: from PEM files and from JWKS documents (RFC 7517).

Each key is bound to the one algorithm its type has here (RSA: RS256, P-256: ES256, Ed25519: EdDSA, which RFC 9864 calls
Ed25519); a token cannot choose another, so no public key is ever used as a secret and no signature is left out.

Documents are read again every ``refresh_s``, and at once when a token names an unknown ``kid``, but then at most every
``UNKNOWN_KID_S``: somebody who invents key names must not make us ask the provider all day. A source that cannot be
read keeps the keys it had.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from broker.errors import ConfigError
from broker.secret import masked, masked_in
from gateway.identity.fetching import ANSWER_BYTES, FAULTS, fetch, object_of, reason_of
from gateway.settings.addresses import KEYS, is_keys_address
from gateway.settings.schema import JwtSection

DOCUMENT_KEYS: Final = 64
"""Keys of one document that are used; providers publish two to ten."""
UNKNOWN_KID_S: Final = 10.0
"""Shortest pause between two readings that an unknown ``kid`` causes."""
NAMES: Final = {"RS256": ("RS256",), "ES256": ("ES256",), "EdDSA": ("EdDSA", "Ed25519")}
"""What tokens and documents call the algorithm of a key."""
LEFT_OUT: Final = 256
"""As many keys that are left out are told of, each once."""
RSA_BITS: Final = 2048
"""Shortest RSA key (RFC 7518, section 3.3)."""

_PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)
log = logging.getLogger("headgate")

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class Key(NamedTuple):
    """A public key and what it may be used for."""

    kid: str | None
    """Its name in the document; None for PEM files: it is tried for any name."""
    algorithm: str
    public: PublicKey


class JwtKeys:
    """All keys of the settings.

    Args:
        settings: ``[jwt]``.
        clock: seconds, never going back.

    Raises:
        ConfigError: an address is neither a file nor https (http: on this machine only).
    """

    def __init__(self, settings: JwtSection, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses = [key.reveal() for key in settings.keys]
        for address in self._addresses:
            if not is_keys_address(address):
                raise ConfigError(f"jwt.keys: {masked(address)}: expected {KEYS}: who forges keys is anybody")
        self._clock = clock
        self._keys: dict[str, list[Key]] = {address: [] for address in self._addresses}
        self._asked: float | None = None
        self._left_out: set[str] = set()  # what was logged
        self._reading = asyncio.Lock()
        self._caused: asyncio.Task[list[Problem]] | None = None  # the last reading that a token caused

    def find(self, algorithm: str, kid: str | None) -> list[Key]:
        """The keys that may have signed a token with this header: of that name, and those without a name."""
        return [
            key
            for keys in self._keys.values()
            for key in keys
            if algorithm in NAMES[key.algorithm] and (kid is None or key.kid is None or key.kid == kid)
        ]

    def knows(self, kid: str) -> bool:
        """Whether a document has a key of this name."""
        return any(key.kid == kid for keys in self._keys.values() for key in keys)

    async def start(self) -> None:
        """Read all sources for the first time.

        Raises:
            ConfigError: a file is bad. A provider that does not answer yet is logged: it may come later.
        """
        for problem in await self.refresh():
            if not _is_remote(problem.address):
                raise ConfigError(f"jwt.keys: {problem.text}")

    async def refresh(self) -> list[Problem]:
        """Read all sources again; returns and logs those that failed, which keep the keys they had."""
        async with self._reading:
            return await self._read_all()

    async def refresh_for(self, kid: str) -> None:
        """Read the documents again since a token named an unknown key, unless that was done a moment ago.

        A client that leaves meanwhile does not end the reading: else one that always leaves would keep a fresh key
        from all others.
        """
        async with self._reading:  # whoever waited here finds the answer of the one before
            if self._caused is not None:
                await asyncio.shield(self._caused)
            if self.knows(kid) or (self._asked is not None and self._clock() - self._asked < UNKNOWN_KID_S):
                return
            loop = asyncio.get_running_loop()
            self._caused = loop.create_task(self._read_all(), name="keys of JWTs: unknown kid")
            await asyncio.shield(self._caused)

    def close(self) -> None:
        """Wait for no document any more."""
        if self._caused is not None:
            self._caused.cancel()

    async def _read_all(self) -> list[Problem]:
        self._asked = self._clock()
        problems = []
        for address in self._addresses:
            try:
                self._keys[address] = await self._read(address)
            except FAULTS as error:
                problems.append(Problem(address, f"{masked(address)}: {masked_in(reason_of(error))}"))
                log.warning("keys of JWTs: %s; the keys read before stay", problems[-1].text)
        return problems

    async def _read(self, address: str) -> list[Key]:
        if _is_remote(address):
            accept = {"Accept": "application/jwk-set+json, application/json"}
            return parse_document((await fetch(address, headers=accept)).ok().body, self._tell)
        return await asyncio.to_thread(read_file, address, self._tell)

    def _tell(self, reason: str) -> None:
        """A key of a document is left out: the log has the reason once, however often the document is read."""
        if reason not in self._left_out and len(self._left_out) < LEFT_OUT:
            self._left_out.add(reason)
            log.warning("keys of JWTs: %s is left out", reason)


class Problem(NamedTuple):
    """A source that could not be read."""

    address: str
    text: str


def _ignore(_reason: str) -> None:
    """Nobody wants to know."""


def read_file(address: str, left_out: Callable[[str], None] = _ignore) -> list[Key]:
    """The keys of a PEM file or of a JWKS document (``file://`` or a path): what it is, its first byte tells;
    ``left_out`` as for `parse_document`.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no key that could be used.
    """
    path = Path(unquote(urlsplit(address).path)) if address.startswith("file://") else Path(address)
    with open(path, "rb") as file:
        text = file.read(ANSWER_BYTES + 1)
    if len(text) > ANSWER_BYTES:
        raise ValueError(f"more than {ANSWER_BYTES} bytes, expected keys")
    return parse_document(text, left_out) if text.lstrip().startswith(b"{") else parse_pem(text)


def parse_pem(text: bytes) -> list[Key]:
    """The public keys and certificates of a PEM file.

    Raises:
        ValueError: none is in it, or one that cannot be used, such as a private key.
    """
    keys = [_pem_key(block.group(1), block.group()) for block in _PEM.finditer(text)]
    if not keys:
        raise ValueError("expected PEM public keys or certificates, or a JWKS document")
    return keys


def _pem_key(label: bytes, block: bytes) -> Key:
    if label not in (b"CERTIFICATE", b"PUBLIC KEY", b"RSA PUBLIC KEY"):
        raise ValueError(f"saw {label.decode()}, expected PUBLIC KEY: the private key stays with who signs")
    try:
        if label == b"CERTIFICATE":
            return _bound(x509.load_pem_x509_certificate(block).public_key(), None)
        return _bound(load_pem_public_key(block), None)
    except (UnsupportedAlgorithm, x509.InvalidVersion) as error:  # which are no ValueErrors
        raise ValueError(f"a {label.decode()} that cannot be used: {error}") from error


def parse_document(text: bytes, left_out: Callable[[str], None] = _ignore) -> list[Key]:
    """The keys of a JWKS document that can check signatures here; others are left out, as RFC 7517 (5) wants it, and
    ``left_out`` is told which, and why.

    Raises:
        ValueError: it is no JWKS document, or none of its keys can be used.
    """
    try:
        entries = object_of(text).get("keys")
    except ValueError as error:
        raise ValueError(f"not a JWKS document: {error}") from error
    if not isinstance(entries, list):
        raise ValueError('not a JWKS document: expected {"keys": [...]}')
    keys = []
    for number, entry in enumerate(entries[:DOCUMENT_KEYS]):
        try:
            keys.append(_usable(entry))
        except (ValueError, TypeError, KeyError, jwt.PyJWTError) as error:
            kid = entry.get("kid") if isinstance(entry, dict) else None
            left_out(f"key {kid[:64] if isinstance(kid, str) else number!r}: {_shown(error)}")
    if len(entries) > DOCUMENT_KEYS:
        left_out(f"every key behind the first {DOCUMENT_KEYS}")
    if not keys:
        raise ValueError("the JWKS document holds no key for RS256, ES256 or Ed25519 (EdDSA)")
    return keys


def _usable(entry: Any) -> Key:
    """The key of an entry.

    Raises:
        ValueError, TypeError, KeyError, jwt.PyJWTError: none that can be used here; the text says why.
    """
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    # RFC 7517, section 4.2: a key for encryption may be weaker, or others may hold it
    if (use := entry.get("use", "sig")) != "sig":
        raise ValueError(f"use {str(use)[:16]!r}, expected sig")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise ValueError("key_ops without verify")
    # section 9.2: a provider that publishes this has lost the key: nothing that it signs proves anything
    if "d" in entry:
        raise ValueError("a private key, which stays with who signs")
    kid = entry.get("kid")
    key = _bound(_jwk_key(entry), kid if isinstance(kid, str) else None)
    if (said := entry.get("alg", key.algorithm)) not in NAMES[key.algorithm]:
        raise ValueError(f"alg {str(said)[:16]!r}, expected {' or '.join(NAMES[key.algorithm])} for its type")
    return key


def _shown(error: Exception) -> str:
    """Why a key is none, without anything of the key."""
    missing = isinstance(error, KeyError)
    return f"{str(error)[:32]} is missing" if missing else str(error)[:128] or type(error).__name__


def _jwk_key(entry: dict[str, Any]) -> Any:
    kind = entry.get("kty")
    if kind == "RSA":
        return jwt.algorithms.RSAAlgorithm.from_jwk(entry)
    if kind == "EC":
        return jwt.algorithms.ECAlgorithm.from_jwk(entry)
    if kind == "OKP":
        return jwt.algorithms.OKPAlgorithm.from_jwk(entry)
    raise ValueError(f"key type {str(kind)[:16]!r}")


def _bound(public: Any, kid: str | None) -> Key:
    """A key with the one algorithm of its type.

    Raises:
        ValueError: the type or size of the key has none here.
    """
    if isinstance(public, RSAPublicKey):
        # RFC 7518, section 3.3
        if public.key_size < RSA_BITS:
            raise ValueError(f"an RSA key of {public.key_size} bits, expected at least {RSA_BITS}")
        return Key(kid, "RS256", public)
    if isinstance(public, EllipticCurvePublicKey) and isinstance(public.curve, SECP256R1):
        return Key(kid, "ES256", public)
    if isinstance(public, Ed25519PublicKey):
        return Key(kid, "EdDSA", public)
    raise ValueError(f"a key of type {type(public).__name__}, expected RSA, P-256 or Ed25519")


def _is_remote(address: str) -> bool:
    return address.startswith(("https://", "http://"))
