"""What a notification is known by when its listener gives it back: the stamp it bore, and a digest of the rest."""

from __future__ import annotations

import hashlib
from typing import Final

from broker.oslo.proxy.pools import Key, Notification

STAMP: Final = slice(16, 24)
"""Where an envelope says who sent it."""
STAMP_BYTES: Final = STAMP.stop - STAMP.start


def message_of(key: Key, number: bytes, head: bytes, body: bytes, digest: bytes) -> Notification:
    """A notification as the pools keep it; ``digest`` as of ``digest_of``."""
    return Notification(key, number, head[STAMP] + digest, (head, body), len(head) + len(body))


def digest_of(head: bytes, body: bytes) -> bytes:
    """What nobody can find another message for: a digest of all of it but for its stamp."""
    digest = hashlib.sha256(head[: STAMP.start] + head[STAMP.stop :])
    digest.update(body)
    return digest.digest()
