"""What waits to be sent on a link: bounded in bytes and messages, with one budget for the whole broker.

Theory of operation. While the transport takes what it is given, messages are ``fresh`` for the rest of one batch
only. Once it reports that it is full, the rest is *parked*: kept in encoded form (shared between subscribers)
and counted. Parked bytes drive three rules:

* above ``high_bytes``/``high_msgs`` the outbox is *choked*: callers of this link are paused or answered EAGAIN;
* an event beyond ``event_bytes`` ends the link or is dropped and counted, as ``event_policy`` says;
* anything beyond ``cap_bytes``, or beyond the broker's ``Budget``, ends the link: responses are never dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from broker.errors import LinkBroken, LinkError
from broker.wire.message import EVENT

Form = TypeVar("Form")


class Owner(Protocol):
    """The link an outbox belongs to."""

    def choked(self, choked: bool) -> None:
        """A water mark was crossed."""

    def abort(self, error: LinkError) -> None:
        """End the link now."""


@dataclass(slots=True)
class OutboxLimits:
    """Limits of one outbox; every one is in bytes or messages and none can be switched off."""

    high_bytes: int = 1 << 20
    high_msgs: int = 4096
    event_bytes: int = 16 << 20
    cap_bytes: int = 64 << 20
    event_policy: str = "disconnect"
    """``disconnect`` a subscriber that falls behind, or ``drop`` events and count the gap."""


class Budget:
    """Parked bytes of all links together; over ``limit_bytes`` the longest outbox's link is ended."""

    __slots__ = ("limit_bytes", "parked", "used_bytes")

    def __init__(self, limit_bytes: int = 512 << 20) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.parked: set[Outbox[Any]] = set()

    def enforce(self) -> None:
        """End links, longest outbox first, until the budget holds."""
        while self.used_bytes > self.limit_bytes and self.parked:
            worst = max(self.parked, key=lambda outbox: outbox.parked_bytes)
            worst.overflow(
                f"all outboxes together hold {self.used_bytes} bytes, the budget is {self.limit_bytes}"
            )


class Outbox(Generic[Form]):
    """The queue of one link.

    Attributes:
        fresh: forms queued since the last flush while nothing is parked.
        parked: (form, size) that the transport did not take yet.
        progress: count of flushes in which the transport took at least one byte; stall detection compares it.
        dropped_events: events dropped by policy ``drop`` since the link began.
        discarded: messages that were queued when the link ended.
    """

    __slots__ = (
        "_budget",
        "_limits",
        "_owner",
        "choked",
        "discarded",
        "dropped_events",
        "fresh",
        "parked",
        "parked_bytes",
        "progress",
        "sent",
    )

    def __init__(self, owner: Owner, limits: OutboxLimits, budget: Budget) -> None:
        self._owner = owner
        self._limits = limits
        self._budget = budget
        self.fresh: list[Form] = []
        self.parked: deque[tuple[Form, int]] | None = None
        self.parked_bytes = 0
        self.choked = False
        self.progress = 0
        self.sent = 0
        self.dropped_events = 0
        self.discarded = 0

    def park(self, form: Form, size: int, kind: int = 0) -> None:
        """Keep ``form`` (``size`` bytes, message type ``kind``) until the transport takes more."""
        limits = self._limits
        if kind == EVENT and self.parked_bytes + size > limits.event_bytes:
            if limits.event_policy == "drop":
                self.dropped_events += 1
            else:
                self.overflow(
                    f"events beyond {limits.event_bytes} bytes wait for a reader that does not read"
                )
            return
        parked = self.parked
        if parked is None:
            parked = self.parked = deque()
            self._budget.parked.add(self)
        parked.append((form, size))
        self._count(size)
        self._weigh(len(parked))

    def park_first(self, form: Form, size: int) -> None:
        """Put back the unsent rest of a form at the head of the queue; like ``park``, this may end the link."""
        parked = self.parked
        if parked is None:
            parked = self.parked = deque()
            self._budget.parked.add(self)
        parked.appendleft((form, size))
        self._count(size)
        self._weigh(len(parked))

    def _weigh(self, msgs: int) -> None:
        """Hold what is parked against cap, budget and high water."""
        limits = self._limits
        if self.parked_bytes > limits.cap_bytes:
            self.overflow(
                f"{self.parked_bytes} bytes wait for a reader that does not read, the cap is {limits.cap_bytes}"
            )
            return
        if self._budget.used_bytes > self._budget.limit_bytes:
            self._budget.enforce()  # which may end this link, or another one
        held = self.parked is not None and (self.parked_bytes > limits.high_bytes or msgs > limits.high_msgs)
        if held and not self.choked:
            self.choked = True
            self._owner.choked(True)

    def unpark(self) -> Form:
        """Take the oldest parked form; the caller parks back what the transport does not take."""
        parked = self.parked
        assert parked
        form, size = parked.popleft()
        self._count(-size)
        return form

    def settle(self) -> None:
        """After a drain: release what is empty and report falling below low water (a quarter of high)."""
        if self.parked is not None and not self.parked:
            self.parked = None
            self._budget.parked.discard(self)
        limits = self._limits
        low = self.parked_bytes <= limits.high_bytes // 4 and len(self.parked or ()) <= limits.high_msgs // 4
        if self.choked and low:
            self.choked = False
            self._owner.choked(False)

    def overflow(self, reason: str) -> None:
        """The peer reads too slowly: end its link."""
        self.discard()
        self._owner.abort(LinkBroken(reason))

    def discard(self) -> None:
        """Forget everything queued, counting it."""
        self.discarded += len(self.fresh) + len(self.parked or ())
        self.fresh = []
        self._budget.parked.discard(self)
        self._budget.used_bytes -= self.parked_bytes
        self.parked = None
        self.parked_bytes = 0

    def _count(self, size: int) -> None:
        self.parked_bytes += size
        self._budget.used_bytes += size
