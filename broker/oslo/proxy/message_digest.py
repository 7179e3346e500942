"""What a notification is known by when its listener gives it back: the stamp it bore, and a digest of the rest."""

from __future__ import annotations

import hashlib
from typing import Final

from broker.oslo.proxy.pool_member import Key, Notification
from broker.oslo.proxy.route_cache import STAMP_AT, STAMP_END

STAMP_BYTES: Final = STAMP_END - STAMP_AT
"""Of an envelope: who sent it."""


def message_of(key: Key, number: bytes, head: bytes, body: bytes, digest: bytes) -> Notification:
    """A notification as the pools keep it; ``digest`` as of ``digest_of``."""
    return Notification(key, number, head[STAMP_AT:STAMP_END] + digest, (head, body), len(head) + len(body))


def digest_of(head: bytes, body: bytes) -> bytes:
    """What nobody can find another message for: a digest of all of it but for its stamp."""
    digest = hashlib.sha256(head[:STAMP_AT] + head[STAMP_END:])
    digest.update(body)
    return digest.digest()
