"""The rules of a directory for what is announced to it: leases, who may replace what, limits (pure).

An **owner** is who announces: ``LOCAL_OWNER`` for the node's own pipelines, the CURVE key of a TCP peer, or the one
name of all TCP peers where there is no CURVE. While the lease of a state lives, only its owner may change, renew or end
it; a state gives way only to a greater incarnation, or a greater version of its own. What somebody else said of a
pipeline of our own node counts for nothing once that pipeline speaks itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.oslo.directory.wire import (
    RECORDS_TOTAL_MAX,
    DirectoryKind,
    DirectoryMessage,
    Gone,
    States,
    Why,
)
from broker.oslo.records import STATES_MAX, Beat, Change, Offer, Place, State, fits_state

LOCAL_OWNER: Final = "ipc"
FOREIGN: Final = "another key announced it, and its lease lives"
STALE: Final = "a newer one is known"
FULL: Final = "the directory is full"

CATCH_UP: Final = 0.5
"""Of a lease: when ``tick`` is later than that the process itself was stopped, and nobody's silence counts."""


class RegistryAnswer(NamedTuple):
    """What an announcement led to."""

    news: tuple[DirectoryMessage, ...] = ()
    """For subscribers."""
    resend: tuple[Place, ...] = ()
    """For the announcer: all of these again."""
    refused: str = ""
    """For the announcer: why not."""


@dataclass(slots=True)
class _Entry:
    offer: Offer
    owner: str
    until: float


class StateRegistry:
    """States that were announced first hand, and their leases.

    Args:
        lease_s: how long an announcement or a beat is good for.
        states_max, records_max: limits of all together; what exceeds them is refused.

    Attributes:
        counts: what happened how often.
        records: of all states together.
    """

    def __init__(
        self, lease_s: float, *, states_max: int = STATES_MAX, records_max: int = RECORDS_TOTAL_MAX
    ) -> None:
        self.counts = dict.fromkeys(
            ("announced", "changed", "renewed", "resent", "left", "expired", "foreign", "stale", "full"), 0
        )
        self.records = 0
        self._lease_s = lease_s
        self._states_max = states_max
        self._records_max = records_max
        self._entries: dict[Place, _Entry] = {}
        self._ticked: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def offer(self, place: Place) -> Offer | None:
        """What is announced for ``place``: not to be changed by others."""
        entry = self._entries.get(place)
        return None if entry is None else entry.offer

    def states(self) -> tuple[State, ...]:
        """All of them, as they are now."""
        return tuple(entry.offer.state() for entry in self._entries.values())

    def owner(self, place: Place) -> str:
        """Who announced it; "" nobody."""
        entry = self._entries.get(place)
        return "" if entry is None else entry.owner

    # ------------------------------------------------------------ announcements

    def announce(self, owner: str, state: State, now: float) -> RegistryAnswer:
        """All of what a pipeline offers."""
        old = self._living(owner, state.place, now)
        if old is not None:
            if old.owner != owner:
                return self._refuse("foreign", FOREIGN)
            if (state.incarnation, state.version) < old.offer.age:
                return self._refuse("stale", STALE)
            if old.offer.says(state):
                old.until = now + self._lease_s
                self.counts["renewed"] += 1
                return RegistryAnswer()
        offer = Offer(state)
        before = self._entries.get(state.place)
        full = before is None and len(self._entries) >= self._states_max
        if full or not self._has_room(before, len(offer.records), offer.chars):
            return self._refuse("full", FULL)
        self._entries[state.place] = _Entry(offer, owner, now + self._lease_s)
        self.records += len(offer.records) - (0 if before is None else len(before.offer.records))
        self.counts["announced"] += 1
        return RegistryAnswer(news=(DirectoryMessage(DirectoryKind.STATES, States((state,))),))

    def change(self, owner: str, change: Change, now: float) -> RegistryAnswer:
        """What changed of it."""
        old = self._living(owner, change.place, now)
        if old is None:
            return self._resend((change.place,))
        if old.owner != owner:
            return self._refuse("foreign", FOREIGN)
        offer = old.offer
        if (change.incarnation, change.version) <= offer.age:
            self.counts["stale"] += 1
            return RegistryAnswer()
        if not offer.continued_by(change):
            return self._resend((change.place,))
        if not self._has_room(old, *offer.after(change)):
            return self._refuse("full", FULL)
        self.counts["changed"] += 1
        self.records -= len(offer.records)
        offer.apply(change)
        self.records += len(offer.records)
        old.until = now + self._lease_s
        return RegistryAnswer(news=(DirectoryMessage(DirectoryKind.CHANGED, change),))

    def beat(self, owner: str, beats: Iterable[Beat], now: float) -> RegistryAnswer:
        """Leases are renewed; what is known in another version is asked for."""
        missing: list[Place] = []
        refused = ""
        for beat in beats:
            place = (beat.node, beat.pipeline)
            entry = self._living(owner, place, now)
            if entry is None:
                if place in self._entries or len(self._entries) < self._states_max:
                    missing.append(place)
            elif entry.owner != owner:
                self.counts["foreign"] += 1
                refused = FOREIGN
            elif (beat.incarnation, beat.version) < entry.offer.age:
                self.counts["stale"] += 1
            else:
                entry.until = now + self._lease_s
                self.counts["renewed"] += 1
                if (beat.incarnation, beat.version) != entry.offer.age:
                    missing.append(place)
        return self._resend(tuple(missing))._replace(refused=refused)

    def leave(self, owner: str, beat: Beat, now: float) -> RegistryAnswer:
        """A pipeline ends."""
        place = (beat.node, beat.pipeline)
        entry = self._living(owner, place, now)
        if entry is None or entry.offer.incarnation > beat.incarnation:
            return RegistryAnswer()
        if entry.owner != owner:
            return self._refuse("foreign", FOREIGN)
        self.counts["left"] += 1
        return RegistryAnswer(news=(self._remove([place], Why.LEFT),))

    def tick(self, now: float) -> tuple[DirectoryMessage, ...]:
        """Forget states whose lease has ended; at least every quarter of a lease."""
        if self._ticked is not None and self._late(now):
            for entry in self._entries.values():
                entry.until += now - self._ticked
        self._ticked = now
        over = [place for place, entry in self._entries.items() if entry.until <= now]
        if not over:
            return ()
        self.counts["expired"] += len(over)
        return (self._remove(over, Why.LEASE),)

    # ------------------------------------------------------------ entries

    def _living(self, owner: str, place: Place, now: float) -> _Entry | None:
        """The entry of ``place`` that ``owner`` has to mind. One whose lease has ended is as good as gone, though
        ``tick`` has to say so; and so is for our own pipelines what others said of them.
        """
        entry = self._entries.get(place)
        if entry is not None and owner == LOCAL_OWNER != entry.owner:
            return None
        return entry if entry is not None and (entry.until > now or self._late(now)) else None

    def _late(self, now: float) -> bool:
        return self._ticked is not None and now - self._ticked > CATCH_UP * self._lease_s

    def _has_room(self, before: _Entry | None, records: int, chars: int) -> bool:
        """Whether so much fits in place of ``before``."""
        others = self.records - (0 if before is None else len(before.offer.records))
        return others + records <= self._records_max and fits_state(records, chars)

    def _remove(self, places: list[Place], why: str) -> DirectoryMessage:
        gone = []
        for place in places:
            offer = self._entries.pop(place).offer
            self.records -= len(offer.records)
            gone.append(Gone(offer.node, offer.pipeline, offer.incarnation, why))
        return DirectoryMessage(DirectoryKind.GONE, tuple(gone))

    def _refuse(self, count: str, reason: str) -> RegistryAnswer:
        self.counts[count] += 1
        return RegistryAnswer(refused=reason)

    def _resend(self, places: tuple[Place, ...]) -> RegistryAnswer:
        self.counts["resent"] += len(places)
        return RegistryAnswer(resend=places)
