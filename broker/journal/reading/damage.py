"""What is torn or damaged in a segment, and exactly where."""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

from broker.errors import HeadgateError
from broker.journal.reading.files import base_name


class Damage(NamedTuple):
    """``length`` bytes from ``offset`` on that are no complete block."""

    path: str
    offset: int
    length: int
    why: str
    torn: bool = False
    """The segment ends within this block: what a writer leaves that was killed, or has not finished yet."""

    def __str__(self) -> str:
        name = base_name(self.path)
        return f"{name}: {self.length} bytes at {self.offset}: {self.why}"


class Damaged(HeadgateError):
    """A segment cannot be read on; ``damage`` says where and why.

    Attributes:
        damage: the extent, from the first byte that is wrong to where a reader would look next.
    """

    errno = errno.EBADMSG

    def __init__(self, path: str, offset: int, length: int, why: str, torn: bool = False) -> None:
        self.damage = Damage(path, offset, length, why, torn)
        super().__init__(str(self.damage))

    def __reduce__(self) -> tuple[Any, ...]:
        return Damaged, tuple(self.damage)  # it crosses processes
