"""C7, C8, C13: numbers of events, their order, that nothing is lost in silence, and that who comes back misses nothing.

An event is *known* once somebody has seen its number: its publisher, by the acknowledgement, or a subscriber. Rank 0
has it then, and owes it to every subscriber.
"""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from typing import Final

from tests.proof.checker.calls import documented, hung
from tests.proof.checker.entries import Conn, Event, Line
from tests.proof.checker.places import Way
from tests.proof.checker.stamps import asked, may_see
from tests.proof.checker.story import Story
from tests.proof.checker.trouble import FOREVER
from tests.proof.checker.verdict import Verdict

ARRIVES_S: Final = 10.0
"""How long an event may take on an untouched way."""
SURE_S: Final = 30.0
"""So long after rank 0 was replaced a gateway may still speak of the numbers before."""
LOST: Final = -1
"""Its connection ended before the publisher was told."""


def judge(story: Story, verdict: Verdict) -> None:
    """Hold all events, and what each subscriber heard, against C7 and C8."""
    epochs = _Epochs(story)
    for event in story.events.values():
        verdict.messages[f"events {event.conn.kind}"] += 1
        _published(story, event, verdict)
    _numbers(story, epochs, verdict)
    known = sorted((e for e in story.events.values() if e.seq), key=lambda event: event.t)
    verdict.judged["events with a number"] += len(known)
    for conn in story.conns.values():
        if conn.subscriptions:
            heard = _increase(story, epochs, conn, verdict)
            if conn.resumed is not None:
                _went_on(story, epochs, conn, conn.resumed, known, verdict)
            _Listener(story, epochs, conn, heard, verdict).judge(known)


class _Epochs:
    """Which numbering an event belongs to: rank 0 begins anew when it is restarted."""

    def __init__(self, story: Story) -> None:
        self._resets = story.resets

    def of(self, event: Event) -> int | None:
        """How many numberings came before; None when it was under way while rank 0 was replaced."""
        before = sum(1 for _, back in self._resets if back <= event.t)
        unsure = any(gone <= event.known and event.t <= back for gone, back in self._resets)
        return None if unsure else before


def _published(story: Story, event: Event, verdict: Verdict) -> None:
    """C1, C5 and C6 for publishing: acknowledged or refused, once; a killed publisher cannot say."""
    conn = event.conn
    if event.ends > 1 or (not event.ends and not (conn.end < FOREVER and not conn.said)):
        verdict.add("C1", f"publishing {event.id} has {event.ends} ends", event.t, event.id)
    if event.refused == LOST and hung(conn, event.t):
        verdict.add("C1", f"publishing {event.id} hung until {conn.name} left", event.t, event.id)
    if event.refused is None:
        return
    if event.expect is not None:
        if event.refused != getattr(errno, event.expect) and event.refused not in documented(conn) | {LOST}:
            verdict.add(
                "C6", f"publishing {event.id} got {event.refused}, not {event.expect}", event.t, event.id
            )
        return
    if event.refused not in documented(conn) | {LOST}:
        verdict.add("C6", f"publishing {event.id} got errnum {event.refused}", event.t, event.id)
    way = conn.way | story.places.between(0, story.places.rank_of(conn.at))
    steady = conn.covers(event.t, event.ended)
    if steady and not story.trouble.touched(way, event.t, event.ended):
        verdict.add(
            "C5", f"publishing {event.id} got errnum {event.refused} on a live way", event.t, event.id
        )


def _numbers(story: Story, epochs: _Epochs, verdict: Verdict) -> None:
    """C7: one number, one event. That one event has one number, reading has seen to."""
    first: dict[tuple[int, int], Event] = {}
    for event in story.events.values():
        epoch = epochs.of(event) if event.seq else None
        if epoch is None:
            continue
        other = first.setdefault((epoch, event.seq), event)
        if other is not event:
            verdict.add(
                "C7", f"{other.id} and {event.id} both have the number {event.seq}", event.t, event.id
            )


def _increase(story: Story, epochs: _Epochs, conn: Conn, verdict: Verdict) -> dict[str, int]:
    """C7: numbers increase on a connection. Returns where in `heard` each event came first."""
    places: dict[str, int] = {}
    last, last_epoch = 0, 0
    for index, line in enumerate(conn.heard):
        if line["ev"] != "event":
            verdict.messages["gaps told"] += 1
            continue
        event = story.events[line["id"]]
        epoch = epochs.of(event)
        verdict.messages["events delivered"] += 1
        if event.id in places:
            verdict.add("C7", f"{conn.name} got {event.id} twice", line["t"], event.id)
        elif epoch is not None:
            if epoch < last_epoch or (epoch == last_epoch and line["seq"] <= last):
                what = f"{conn.name} got {event.id} with number {line['seq']} after {last}"
                verdict.add("C7", what, line["t"], event.id)
            last, last_epoch = line["seq"], epoch
        places.setdefault(event.id, index)
    return places


def _went_on(
    story: Story, epochs: _Epochs, conn: Conn, line: Line, known: list[Event], verdict: Verdict
) -> None:
    """C13. Nothing is judged where rank 0 was replaced not long before: nobody says which numbers are meant."""
    if any(gone - SURE_S <= line["t"] <= back + SURE_S for gone, back in story.resets):
        return
    here = sum(1 for _, back in story.resets if back <= line["t"])
    got = {each["id"]: each["seq"] for each in conn.heard if each["ev"] == "event"}
    if any(each["ev"] == "gap" and each["t"] <= line["t"] for each in conn.heard):
        return
    verdict.judged["returns"] += 1
    for event in known:
        if epochs.of(event) != here:
            continue
        if event.seq <= line["after"] and event.id in got:
            verdict.add("C13", f"{conn.name} got {event.id}, which it had before", line["t"], event.id)
        owed = line["after"] < event.seq <= line["upto"] and may_see(event, conn)
        if owed and line["recovered"] and any(asked(held, event) for held in conn.subscriptions):
            verdict.judged["events owed to who came back"] += 1
            if event.id not in got and conn.end - line["t"] > ARRIVES_S:
                what = f"{conn.name} came back, and never got {event.topic} ({event.id}, number {event.seq})"
                verdict.add("C13", what, line["t"], event.id)


class _Listener:
    """One subscriber, and what it should have heard."""

    def __init__(
        self, story: Story, epochs: _Epochs, conn: Conn, places: dict[str, int], verdict: Verdict
    ) -> None:
        self._story = story
        self._epochs = epochs
        self._conn = conn
        self._places = places
        self._verdict = verdict
        here = story.places.rank_of(conn.at)
        self._above = story.places.above(here)
        self._way: Way = conn.way | story.places.between(0, here)
        self._missing = Counter[int]()
        self._later: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for name, index in places.items():
            epoch = epochs.of(story.events[name])
            if epoch is not None:
                self._later[epoch].append((story.events[name].seq, index))
        for heard in self._later.values():
            heard.sort()

    def judge(self, known: list[Event]) -> None:
        """Look at every known event that this connection was subscribed to when it was published."""
        for event in known:
            if self._wanted(event):
                self._owed(event)

    def _wanted(self, event: Event) -> bool:
        if not self._conn.covers(event.t, event.known) or not may_see(event, self._conn):
            return False
        return any(
            asked(held, event) and held.covers(event.t, event.known) for held in self._conn.subscriptions
        )

    def _owed(self, event: Event) -> None:
        until = event.known + ARRIVES_S
        live = self._untouched(event.t, until)
        stays = self._conn.covers(event.t, until) and self._held(event, until)
        self._verdict.judged[f"deliveries {'live' if live and stays else 'near a fault'}"] += 1
        if event.id in self._places:
            return
        after = self._next(event)
        if live and stays:
            what = f"{self._conn.name} never got {event.topic} ({event.id}, number {event.seq})"
            self._verdict.add("C8", what, event.t, event.id)
        elif after is not None:
            self._passed_over(event, after)

    def _held(self, event: Event, until: float) -> bool:
        return any(asked(held, event) and held.covers(event.t, until) for held in self._conn.subscriptions)

    def _untouched(self, begin: float, end: float) -> bool:
        return not self._story.trouble.touched(self._way, begin, end)

    def _next(self, event: Event) -> int | None:
        """Where the first event of the same numbering stands that this connection got in spite of its higher number."""
        epoch = self._epochs.of(event)
        if epoch is None:
            return None
        return next((index for seq, index in self._later[epoch] if seq > event.seq), None)

    def _passed_over(self, event: Event, after: int) -> None:
        """C7: a later number has come, so this one never will. Somebody must have said so.

        Behind a broker that only begins, and has not joined yet, nothing is missing in front of the first number.
        """
        heard = self._conn.heard
        if self._untouched(event.t, heard[after]["t"]):
            said = False
        elif isinstance(self._conn.at, int):
            said = self._first(after) or self._told_here(event, after) or self._told_above(event)
        else:
            said = self._told_here(event, after)
        if not said:
            what = f"{self._conn.name} was passed over with {event.topic} ({event.id}, number {event.seq})"
            self._verdict.add("C7", what, heard[after]["t"], event.id)

    def _first(self, after: int) -> bool:
        """Nothing was heard before."""
        return not any(line["ev"] == "event" for line in self._conn.heard[:after])

    def _told_here(self, event: Event, after: int) -> bool:
        """Gaps told between the last event before it and the first one behind it, of as many as are missing."""
        self._missing[after] += 1
        told = 0.0
        lines: list[Line] = self._conn.heard
        for index in range(after - 1, -1, -1):
            line = lines[index]
            if line["ev"] == "gap":
                told = told + line["missed"] if line["missed"] >= 0 and told != FOREVER else FOREVER
            elif line["seq"] < event.seq and line["t"] < event.t:
                break
        return self._missing[after] <= told

    def _told_above(self, event: Event) -> bool:
        """A broker between rank 0 and here wrote that it missed that number; yes, where logs were not looked at."""
        if not self._story.world.get("tells"):
            return True
        return any(
            rank in self._above and first <= event.seq <= last for rank, first, last in self._story.told
        )
