"""What is under way between this broker and one neighbour of the tree; ``flow`` has the theory."""

# compiled: mypyc

from __future__ import annotations

from typing import Final

WINDOW_BYTES: Final = 1 << 20
"""What may be under way on one link: 250 small events, which a broker handles in 2 to 5 ms, or 1 MiB in large ones;
across 1 ms of network that is far more than a broker can handle. A neighbour that was behind is so until half of it is
handled."""
TOLD_BYTES: Final = WINDOW_BYTES // 8
"""How often a neighbour is told, by what was handled since: 20 bytes for each 32 small events."""
TOLD_MSGS: Final = 112
"""The same in messages, if there is something else to be sent: alone such a word wakes a process and its thread ..."""
LATE_MSGS: Final = 192
"""... and after so many in any case: fewer than ``in_flight.AGAIN_MSGS``, so that who waits for room hears of it."""
NEVER: Final = 1 << 62
"""Of what nobody counts or waits for."""


class Window:
    """What one neighbour of the tree was sent and has handled, and the same of us; in bytes as of ``cost``.

    Attributes:
        reports: it tells us, and wants to be told. base: ``Flow.down`` when it joined, for a child; 0 for the parent.
        handled: of what it was sent. shut, choked: it said SHUT; its outbox is above high water. behind: see ``flow``.
        received: from it. due: when ``received`` is at this, it is told. messages, messages_due: the same in messages.
    """

    __slots__ = (
        "base",
        "behind",
        "choked",
        "due",
        "handled",
        "messages",
        "messages_due",
        "received",
        "reports",
        "shut",
    )

    def __init__(self, reports: bool, base: int) -> None:
        self.reports: bool = reports
        self.base: int = base
        self.handled: int = 0
        self.shut: bool = False
        self.choked: bool = False
        self.behind: bool = False
        self.received: int = 0
        self.due: int = TOLD_BYTES if reports else NEVER
        self.messages: int = 0
        self.messages_due: int = TOLD_MSGS if reports else NEVER
