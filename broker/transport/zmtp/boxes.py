"""What CURVE seals and opens with: Curve25519, XSalsa20 and Poly1305 of libsodium, by PyNaCl, which brings its own."""

# compiled: mypyc

from __future__ import annotations

import time
from typing import NamedTuple

import nacl
from nacl import bindings
from nacl.exceptions import CryptoError

from broker.errors import DecodeError

LIBRARY = f"of PyNaCl {nacl.__version__}"
"""Whose libsodium it is, for `headgate doctor`."""
_SAMPLE_BYTES = 64 << 10
_SAMPLES = 20


class KeyPair(NamedTuple):
    """32 bytes each."""

    public: bytes
    secret: bytes


def new_pair() -> KeyPair:
    """A key pair for one connection."""
    return KeyPair(*bindings.crypto_box_keypair())


def shared(their_public: bytes, our_secret: bytes) -> bytes:
    """What both sides seal and open with, from one key of either.

    Raises:
        DecodeError: ``their_public`` is no key: what came of it would be known to everybody.
    """
    try:
        return bindings.crypto_box_beforenm(their_public, our_secret)
    except (CryptoError, ValueError, RuntimeError, TypeError) as failed:
        raise DecodeError("a public key that is none") from failed


def seal(data: bytes, nonce: bytes, key: bytes) -> bytes:
    """The box of ``data``; ``nonce`` of 24 bytes is used once with ``key`` of ``shared``."""
    return bindings.crypto_box_easy_afternm(data, nonce, key)


def open_box(box: bytes, nonce: bytes, key: bytes) -> bytes:
    """What was sealed.

    Raises:
        DecodeError: it was not sealed with this key and nonce, or was changed.
    """
    try:
        return bindings.crypto_box_open_easy_afternm(box, nonce, key)
    except (CryptoError, ValueError) as failed:
        raise DecodeError("a box that does not open") from failed


def speed() -> float:
    """Microseconds that this machine takes for one box of 64 KiB: the least of some."""
    key, nonce, data = shared(new_pair().public, new_pair().secret), bytes(24), bytes(_SAMPLE_BYTES)
    took = []
    for _ in range(_SAMPLES):
        begin = time.perf_counter()
        seal(data, nonce, key)
        took.append(time.perf_counter() - begin)
    return min(took) * 1e6
