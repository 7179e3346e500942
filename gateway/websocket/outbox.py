"""What waits for one web client whose connection takes no more: the outbox with the client's policy for events.

Beyond ``event_bytes`` of events the client is disconnected (policy ``disconnect``), or they are dropped and counted
(policy ``drop``); all else is never dropped (see ``broker.transport.outbox``). After the first drop all events are
dropped until those that wait are at low water, a quarter: so a gap has one beginning, one end and one notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from broker.transport.budget import Budget
from broker.transport.outbox import Outbox, OutboxLimits, Owner
from broker.wire.message import EVENT
from gateway.closes import SLOW

if TYPE_CHECKING:
    from broker.transport.link import Options

LOW_WATER: Final = 4
"""Events are taken again when those that wait fill no more than this fraction of what they may."""


class Closable(Owner, Protocol):
    """The link of a web client."""

    def close_with(self, code: int, reason: str = "") -> None:
        """End with a close code."""


class Gap(NamedTuple):
    """Events that were dropped in a row."""

    lost: int
    first: int
    """Number of the first one."""
    last: int


def with_policy(options: Options, policy: str | None) -> Options:
    """``options`` with what a client wants for events that do not fit; None: as the settings say."""
    if policy is None:
        return options
    return replace(options, limits=replace(options.limits, event_policy=policy))


class WebOutbox(Outbox[Any]):
    """The outbox of a web client.

    Attributes:
        gap: what was dropped since the last notice; None when nothing was.
    """

    _owner: Closable | None

    __slots__ = ("_event_limit", "_room_bytes", "_told", "gap")

    def __init__(self, owner: Closable, limits: OutboxLimits, budget: Budget) -> None:
        super().__init__(owner, limits, budget)
        self._event_limit = limits.event_bytes
        self._room_bytes = 0
        self._told: Callable[[], None] | None = None
        self.gap: Gap | None = None

    def when_room(self, room_bytes: int, told: Callable[[], None]) -> None:
        """Call ``told`` once, when no more than ``room_bytes`` wait any more; one such wish at a time."""
        self._room_bytes, self._told = room_bytes, told

    def drained(self) -> None:
        """After a drain, as ``Outbox.drained``; and tell who waits for room."""
        super().drained()
        told = self._told
        if told is not None and self.queued_bytes <= self._room_bytes:
            self._told = None
            told()

    def enqueue_events(self, form: bytes, count: int, first: int, last: int) -> None:
        """Let ``count`` events wait, or drop them, or end the link."""
        size = len(form)
        if self.gap is None and self.has_room_for_event(size):
            self.enqueue(form, size, EVENT)
        elif self._limits.event_policy == "drop":
            lost, begin, _ = self.gap or (0, first, last)
            self.gap = Gap(lost + count, begin, last)
            self.dropped_events += count
        else:
            self.overflow(f"events beyond {self._event_limit} bytes waited for a client that does not read")

    def take_gap(self) -> Gap | None:
        """The gap, once events that follow it are taken again: its notice has to go before them."""
        if self.gap is None or self.event_bytes > self._event_limit // LOW_WATER:
            return None
        gap, self.gap = self.gap, None
        return gap

    def overflow(self, reason: str) -> None:
        """The client reads too slowly: end its link with a code that says so."""
        if self._owner is not None:
            self._owner.close_with(SLOW, reason)
        self.discard()
