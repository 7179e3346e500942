"""A listener of notifications: a queue with credit (``credited_queue``), and what it may give back (pure).

A notification is known by the stamp it bore and a digest of the rest when its listener gives it back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from broker.oslo.frames import STAMP_AT, STAMP_END
from broker.oslo.proxy.credited_queue import CreditedQueue

STAMP_BYTES: Final = STAMP_END - STAMP_AT
"""Of an envelope: who sent it."""
HANDED_SPARE: Final = 1_024
"""Stamps remembered beyond a listener's window: those of messages it is working on, which it may give back."""

Key = tuple[str, str]
"""Exchange and topic, the latter with its priority at the end."""
Frames = Sequence[bytes]


class Notification(NamedTuple):
    """One notification as it waits here."""

    key: Key
    id: bytes
    stamp: bytes
    """What is remembered under ``id`` of who sent it and what it was; opaque here."""
    frames: Frames
    """Envelope and body."""
    size: int
    """Bytes of ``frames``."""


class Handout(NamedTuple):
    """To be sent now."""

    member: Member
    message: Notification
    kept: Any
    """What the backlog gave it as; None: it did not come from there."""


class Member(CreditedQueue[Notification]):
    """A listener.

    Attributes:
        pool, keys: whose messages it shares, at what.
        handed: id to stamp of the latest messages that were handed out, oldest first.
    """

    __slots__ = ("handed", "handed_max", "keys", "pool")

    def __init__(
        self,
        listener: str,
        pool: str | None,
        keys: Iterable[Key],
        credit: int,
        owner: Any,
        limits: tuple[int, int],
        credit_bytes: int,
    ) -> None:
        super().__init__(listener, credit, owner, limits, credit_bytes)
        self.pool = pool
        self.keys = tuple(dict.fromkeys(keys))
        self.handed: dict[bytes, bytes] = {}
        self.handed_max = self.credit + HANDED_SPARE

    def hand_out(self, message: Notification, kept: Any) -> Handout:
        """``message`` is on its way: to be confirmed, and remembered for a while."""
        self.fly(message.size)
        self.handed[message.id] = message.stamp
        if len(self.handed) > self.handed_max:
            del self.handed[next(iter(self.handed))]
        return Handout(self, message, kept)

    def take_back(self, message: Notification) -> None:
        """The latest that was handed out could not be sent."""
        self.land()
        self.handed.pop(message.id, None)


def message_of(key: Key, number: bytes, head: bytes, body: bytes, digest: bytes) -> Notification:
    """A notification as the pools keep it; ``digest`` as of ``digest_of``."""
    return Notification(key, number, head[STAMP_AT:STAMP_END] + digest, (head, body), len(head) + len(body))


def digest_of(head: bytes, body: bytes) -> bytes:
    """What nobody can find another message for: a digest of all of it but for its stamp."""
    digest = hashlib.sha256(head[:STAMP_AT] + head[STAMP_END:])
    digest.update(body)
    return digest.digest()
