"""What waits to be sent to one peer: in order, counted in messages and bytes (pure)."""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

Frames = Sequence[bytes]

MESSAGE_COST: Final = 256
"""Bytes that a waiting message costs beside its frames, about: small ones are not to be had for nothing."""


class Tally:
    """What several outboxes hold together, in bytes, ``MESSAGE_COST`` counted in."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Outbox:
    """A queue of messages that knows its size.

    Args:
        tally: shared with other outboxes; None none.

    Attributes:
        bytes: of all frames.
        entries: messages with their bytes, oldest first.
    """

    __slots__ = ("_tally", "bytes", "entries")

    def __init__(self, tally: Tally | None = None) -> None:
        self.bytes = 0
        self.entries: deque[tuple[Frames, int]] = deque()
        self._tally = Tally() if tally is None else tally

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def head(self) -> Frames:
        """The oldest message; there has to be one."""
        return self.entries[0][0]

    @property
    def cost(self) -> int:
        """Bytes that it holds, ``MESSAGE_COST`` counted in."""
        return self.bytes + MESSAGE_COST * len(self.entries)

    def has_room(self, msgs_max: int, bytes_max: int) -> bool:
        """True when one more message may wait here: the one that makes it full may be of any size."""
        return not self.entries or (len(self.entries) < msgs_max and self.bytes < bytes_max)

    def put(self, frames: Frames, size: int) -> None:
        """Add a message whose frames have ``size`` bytes."""
        self.entries.append((frames, size))
        self._count(size, 1)

    def pop(self) -> Frames:
        """Take the oldest one out."""
        frames, size = self.entries.popleft()
        self._count(-size, -1)
        return frames

    def sift(self, take: Callable[[Frames], bool]) -> list[Frames]:
        """Take out what ``take`` says, oldest first; the rest keeps its order."""
        taken: list[Frames] = []
        for _ in range(len(self.entries)):
            frames, size = self.entries.popleft()
            if take(frames):
                taken.append(frames)
                self._count(-size, -1)
            else:
                self.entries.append((frames, size))
        return taken

    def empty(self) -> list[Frames]:
        """Take everything out, oldest first."""
        return self.sift(lambda _frames: True)

    def _count(self, size: int, messages: int) -> None:
        self.bytes += size
        self._tally.bytes += size + messages * MESSAGE_COST
