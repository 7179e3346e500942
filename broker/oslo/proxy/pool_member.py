"""A listener of notifications: what waits for it, and its window (pure).

What waits is bounded in messages and bytes. It is handed out within the **window**: as many messages as the listener
gave credit for, and no more unconfirmed bytes than its queue may hold (one message always fits).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

CREDIT_MAX: Final = 10_000
"""Messages a listener can have room for at once: the default size of an application's inbox."""
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


class Member:
    """A listener.

    Attributes:
        attached: it can be reached; else everything waits.
        credit: messages it has room for.
        flying, flying_bytes: handed out, not confirmed by credit yet.
        handed: id to stamp of the latest messages that were handed out, oldest first.
        moved_s: kept by whoever has a clock, see ``back_pressure.Queue``.
    """

    __slots__ = (
        "attached", "credit", "flying", "flying_bytes", "handed", "handed_max", "id", "keys", "limits", "moved_s",
        "owner", "pool", "queue", "queue_bytes",
    )  # fmt: skip

    def __init__(
        self,
        listener: str,
        pool: str | None,
        keys: Iterable[Key],
        credit: int,
        owner: Any,
        limits: tuple[int, int],
    ) -> None:
        self.id = listener
        self.limits = limits
        self.moved_s = 0.0
        self.pool = pool
        self.keys = tuple(dict.fromkeys(keys))
        self.credit = min(credit, CREDIT_MAX)
        self.owner = owner
        self.attached = False
        self.queue: deque[Notification] = deque()
        self.queue_bytes = 0
        self.flying: deque[int] = deque()
        self.flying_bytes = 0
        self.handed: dict[bytes, bytes] = {}
        self.handed_max = self.credit + HANDED_SPARE

    @property
    def filled(self) -> float:
        """The part of its queue that is in use, of messages or bytes, whichever is more."""
        msgs_max, bytes_max = self.limits
        return max(len(self.queue) / max(msgs_max, 1), self.queue_bytes / max(bytes_max, 1))

    @property
    def has_room(self) -> bool:
        """Whether one more may wait: the one that makes the queue full still fits."""
        msgs_max, bytes_max = self.limits
        return not self.queue or (len(self.queue) < msgs_max and self.queue_bytes < bytes_max)

    def is_open(self, size: int) -> bool:
        """Whether a message of so many bytes fits into the window."""
        return (
            self.attached
            and self.credit > 0
            and (not self.flying or self.flying_bytes + size <= self.limits[1])
        )

    def wait(self, message: Notification) -> None:
        """``message`` waits behind the others."""
        self.queue.append(message)
        self.queue_bytes += message.size

    def wait_first(self, message: Notification) -> None:
        """``message`` waits before the others."""
        self.queue.appendleft(message)
        self.queue_bytes += message.size

    def next_waiting(self) -> Notification:
        """Take the first that waits."""
        message = self.queue.popleft()
        self.queue_bytes -= message.size
        return message

    def hand_out(self, message: Notification, kept: Any) -> Handout:
        """``message`` is on its way: to be confirmed, and remembered for a while."""
        self.credit -= 1
        self.flying.append(message.size)
        self.flying_bytes += message.size
        self.handed[message.id] = message.stamp
        if len(self.handed) > self.handed_max:
            del self.handed[next(iter(self.handed))]
        return Handout(self, message, kept)

    def take_back(self, message: Notification) -> None:
        """The latest that was handed out could not be sent: it can have nothing more, all else waits."""
        self.attached = False
        self.credit += 1
        self.flying_bytes -= self.flying.pop()
        self.handed.pop(message.id, None)

    def confirm(self, messages: int) -> None:
        """Give it credit for so many more; as many of the oldest that it was given are confirmed."""
        self.credit = min(self.credit + messages, CREDIT_MAX)
        for _ in range(min(messages, len(self.flying))):
            self.flying_bytes -= self.flying.popleft()
