"""What waits for one web client whose connection takes no more: the outbox with the client's policy for events.

Responses and control objects wait up to ``cap_bytes``, then the client is disconnected: none is ever dropped. Events
wait up to ``event_bytes`` of their own, whatever responses wait beside them; beyond that the client is disconnected
(policy ``disconnect``), or they are dropped and counted (policy ``drop``). After the first drop all events are dropped
until those that wait are at low water, a quarter: so a gap has one beginning, one end and one notice.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from broker.transport.outbox import Budget, Outbox, OutboxLimits, Owner
from gateway.closes import SLOW

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


class _Parked(NamedTuple):
    """A form that waits; ``event_bytes`` is its size when it holds events, otherwise 0."""

    form: bytes
    event_bytes: int


class Waiting(Outbox[Any]):
    """The outbox of a web client.

    Attributes:
        gap: what was dropped since the last notice; None when nothing was.
    """

    __slots__ = ("_close_with", "_event_bytes", "_event_limit", "gap")

    def __init__(self, owner: Closable, limits: OutboxLimits, budget: Budget) -> None:
        super().__init__(owner, limits, budget)
        self._close_with = owner.close_with
        self._event_limit = limits.event_bytes
        self._event_bytes = 0
        self.gap: Gap | None = None

    def park_form(self, form: bytes) -> None:
        """Let a response or control object wait; this may end the link."""
        self.park(_Parked(form, 0), len(form))

    def park_events(self, form: bytes, count: int, first: int, last: int) -> None:
        """Let ``count`` events wait, or drop them, or end the link."""
        size = len(form)
        if self.gap is None and self._event_bytes + size <= self._event_limit:
            self._event_bytes += size
            self.park(_Parked(form, size), size)
        elif self._limits.event_policy == "drop":
            lost, begin, _ = self.gap or (0, first, last)
            self.gap = Gap(lost + count, begin, last)
            self.dropped_events += count
        else:
            self.overflow(f"events beyond {self._event_limit} bytes waited for a client that does not read")

    def take(self, limit: int) -> list[bytes]:
        """The oldest forms, as many as fit into ``limit`` bytes, but at least one; empty when nothing waits."""
        parked = self.parked
        forms: list[bytes] = []
        size = 0
        while parked and (not forms or size + parked[0][1] <= limit):
            form, event_bytes = self.unpark()
            self._event_bytes -= event_bytes
            size += len(form)
            forms.append(form)
        return forms

    def take_gap(self) -> Gap | None:
        """The gap, once events that follow it are taken again: its notice has to go before them."""
        if self.gap is None or self._event_bytes > self._event_limit // LOW_WATER:
            return None
        gap, self.gap = self.gap, None
        return gap

    def overflow(self, reason: str) -> None:
        """The client reads too slowly: end its link with a code that says so."""
        self.discard()
        self._close_with(SLOW, reason)
