"""The rules of a directory for what is announced to it: leases, who may replace what, limits (pure).

An **owner** is who announces: ``LOCAL_OWNER`` for the node's own pipelines, the CURVE key of a TCP peer, or the one
name of all TCP peers where there is no CURVE. While the lease of a state lives, only its owner may replace, renew or
end it; a state gives way only to a greater incarnation, or a greater version of its own. What somebody else said of a
pipeline of our own node counts for nothing once that pipeline speaks itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.oslo.directory.wire import (
    RECORDS_TOTAL_MAX,
    RESTART_S,
    DirectoryKind,
    DirectoryMessage,
    Gone,
    GoneReason,
    States,
)
from broker.oslo.records import STATES_MAX, Age, Beat, Place, State

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
    unknown: bool = False
    """The announcer renews something that is not known: it has to say HELLO and announce everything."""
    refused: str = ""
    """For the announcer: why not."""
    away: Place | None = None
    """Other directories shall keep it longer, too."""


@dataclass(slots=True)
class _Entry:
    state: State
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
            ("announced", "renewed", "unknown", "left", "away", "expired", "foreign", "stale", "full"), 0
        )
        self.records = 0
        self._lease_s = lease_s
        self._states_max = states_max
        self._records_max = records_max
        self._entries: dict[Place, _Entry] = {}
        self._no_room: dict[Place, Age] = {}
        self._ticked: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def state(self, place: Place) -> State | None:
        """What is announced for ``place``."""
        entry = self._entries.get(place)
        return None if entry is None else entry.state

    def states(self) -> tuple[State, ...]:
        """All of them."""
        return tuple(entry.state for entry in self._entries.values())

    def owner(self, place: Place) -> str:
        """Who announced it; "" nobody."""
        entry = self._entries.get(place)
        return "" if entry is None else entry.owner

    # ------------------------------------------------------------ announcements

    def announce(self, owner: str, state: State, now: float) -> RegistryAnswer:
        """A pipeline says all of what it offers."""
        place, old = state.place, self._living(owner, state.place, now)
        if old is not None:
            if old.owner != owner:
                return self._refuse("foreign", FOREIGN)
            if state.age < old.state.age:
                return self._refuse("stale", STALE)
            if state == old.state:
                self._renew(old, now)
                return RegistryAnswer()
        before = self.state(place)
        more = len(state.records) - (0 if before is None else len(before.records))
        if (before is None and len(self) >= self._states_max) or self.records + more > self._records_max:
            if len(self._no_room) < self._states_max:
                self._no_room[place] = state.age
            return self._refuse("full", FULL)
        self._entries[place] = _Entry(state, owner, now + self._lease_s)
        self.records += more
        if more < 0:
            self._no_room.clear()
        self.counts["announced"] += 1
        return RegistryAnswer(news=(DirectoryMessage(DirectoryKind.STATES, States((state,))),))

    def beat(self, owner: str, beats: Iterable[Beat], now: float) -> RegistryAnswer:
        """Leases are renewed. Who renews a version that we do not have is asked for it, unless it found no room."""
        unknown, refused = False, ""
        for beat in beats:
            entry = self._living(owner, beat.place, now)
            if entry is not None and entry.owner != owner:
                self.counts["foreign"] += 1
                refused = FOREIGN
                continue
            if entry is not None and beat.age < entry.state.age:
                self.counts["stale"] += 1
                continue
            if entry is not None:
                self._renew(entry, now)
            known = None if entry is None else entry.state.age
            unknown |= beat.age not in (known, self._no_room.get(beat.place))
        self.counts["unknown"] += unknown
        return RegistryAnswer(unknown=unknown, refused=refused)

    def away(self, owner: str, beat: Beat, now: float) -> RegistryAnswer:
        """A pipeline is started again: it is kept for ``RESTART_S``, or until another process announces it."""
        entry = self._living(owner, beat.place, now)
        if entry is None or entry.state.incarnation > beat.incarnation:
            return RegistryAnswer()
        if entry.owner != owner:
            return self._refuse("foreign", FOREIGN)
        self.counts["away"] += 1
        entry.until = now + max(RESTART_S, self._lease_s)
        return RegistryAnswer(away=beat.place)

    def leave(self, owner: str, beat: Beat, now: float) -> RegistryAnswer:
        """A pipeline ends."""
        entry = self._living(owner, beat.place, now)
        if entry is None or entry.state.incarnation > beat.incarnation:
            return RegistryAnswer()
        if entry.owner != owner:
            return self._refuse("foreign", FOREIGN)
        self.counts["left"] += 1
        return RegistryAnswer(news=(self._remove([beat.place], GoneReason.LEFT),))

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
        return (self._remove(over, GoneReason.LEASE),)

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

    def _renew(self, entry: _Entry, now: float) -> None:
        entry.until = max(entry.until, now + self._lease_s)  # it may be away for longer
        self.counts["renewed"] += 1

    def _remove(self, places: list[Place], why: str) -> DirectoryMessage:
        self._no_room.clear()
        gone = []
        for place in places:
            state = self._entries.pop(place).state
            self.records -= len(state.records)
            gone.append(Gone(state.node, state.pipeline, state.incarnation, why))
        return DirectoryMessage(DirectoryKind.GONE, tuple(gone))

    def _refuse(self, count: str, reason: str) -> RegistryAnswer:
        self.counts[count] += 1
        return RegistryAnswer(refused=reason)
