"""Invalid messages: who sends too many of them is cut (NFP: "treating that peer as invalid"; pure)."""

from __future__ import annotations

from collections import Counter
from typing import Final

FORGIVE_S: Final = 30.0
"""One invalid message is forgiven after so long: a peer with a rare flaw is served for ever, a flood is not."""


class InvalidCount:
    """Of one connection."""

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count = 0.0
        self._since = 0.0

    def add(self, now: float) -> float:
        """One more invalid message; returns how many count against the connection."""
        forgiven = (now - self._since) / FORGIVE_S
        self._count = max(0.0, self._count - forgiven) + 1
        self._since = now
        return self._count


class InvalidMessages:
    """Invalid messages of everybody.

    Args:
        most: how many a connection may have on its account.

    Attributes:
        by_kind: by class, as ``InvalidPacket.kind`` and the ingress name them. cut: connections that were cut for it.
        failures: valid messages that the broker failed at.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.by_kind: Counter[str] = Counter()
        self.cut = 0
        self.failures = 0

    def add(self, invalid: InvalidCount, kind: str, now: float) -> bool:
        """Count one; True when its sender is to be cut."""
        self.by_kind[kind] += 1
        if invalid.add(now) <= self.most:
            return False
        self.cut += 1
        return True

    @property
    def total(self) -> int:
        """All of them."""
        return self.by_kind.total()
