"""The boxes of CURVE: Curve25519, XSalsa20 and Poly1305 of libsodium, by PyNaCl, which brings its own.

The boxes of messages are made and opened by the functions that PyNaCl's own bindings call: its bindings have a new
buffer zeroed and copied twice for each box, which at 64 KiB takes as long as the box itself.
"""

# compiled: mypyc

from __future__ import annotations

import time
from typing import Final, NamedTuple

import nacl
from nacl import bindings
from nacl._sodium import ffi, lib
from nacl.exceptions import CryptoError

from broker.errors import DecodeError

MAC_BYTES: Final = 16
"""A box is longer than what is in it by so much."""
LIBRARY = f"of PyNaCl {nacl.__version__}"
"""Where the libsodium comes from, for `headgate doctor`."""
SLOW_US: Final = 300.0
"""``speed`` above this means a libsodium without its fast code: 27 us is usual, an old wheel took 1 169 us."""
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
    """The key that both sides seal and open with, from one key of either.

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
    """The data that was sealed.

    Raises:
        DecodeError: it was not sealed with this key and nonce, or was changed.
    """
    try:
        return bindings.crypto_box_open_easy_afternm(box, nonce, key)
    except (CryptoError, ValueError) as failed:
        raise DecodeError("a box that does not open") from failed


def seal_in_place(frame: bytearray, at: int, nonce: bytes, key: bytes) -> None:
    """Seal all of ``frame`` that stands behind ``at + MAC_BYTES``, where it is: the box begins at ``at``."""
    start = ffi.from_buffer(frame) + at
    lib.crypto_box_easy_afternm(start, start + MAC_BYTES, len(frame) - at - MAC_BYTES, nonce, key)


def open_behind(frame: bytes | memoryview, at: int, nonce: bytes, key: bytes) -> bytearray:
    """The data sealed into the box that ``frame`` has from ``at`` on, which is at least ``MAC_BYTES``.

    Raises:
        DecodeError: as of ``open_box``.
    """
    size = len(frame) - at
    plain = bytearray(size - MAC_BYTES)
    box = ffi.from_buffer(frame) + at
    if lib.crypto_box_open_easy_afternm(ffi.from_buffer(plain), box, size, nonce, key):
        raise DecodeError("a box that does not open")
    return plain


def speed() -> float:
    """Microseconds that this machine takes for one box of 64 KiB: the least of some."""
    key, nonce, frame = shared(new_pair().public, new_pair().secret), bytes(24), bytearray(_SAMPLE_BYTES)
    took = []
    for _ in range(_SAMPLES):
        begin = time.perf_counter()
        seal_in_place(frame, 0, nonce, key)
        took.append(time.perf_counter() - begin)
    return min(took) * 1e6
