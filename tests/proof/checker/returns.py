"""Dashboards that come back (`tests.proof.returns`): C7, C9, C13 and C14 over rows of events.

Everybody is subscribed all the time, so that every event up to the last one counts; an event may be missing only where
its dashboard was told of a loss, between the events right before and right behind that word.
"""

from __future__ import annotations

from typing import Any, Final

from tests.proof.checker.verdict import Verdict

PUBLISHER: Final = "publisher"
ENDLESS: Final = 1 << 62

Line = dict[str, Any]


def judge(files: list[list[Line]], verdict: Verdict) -> None:
    """Judge the logs of a scene, the driver's first."""
    driver, *others = files
    parties = {lines[0]["who"]: lines for lines in others if lines}
    said = {line["ev"]: line for line in driver}
    for line in driver:
        if line["ev"] == "fault" and line["begin"]:
            verdict.faults[line["kind"]] = verdict.faults.get(line["kind"], 0) + len(line["members"])
    if "until" not in said:
        verdict.add("C0", "the scene was not played to its end")
    until = said["until"]["ident"] if "until" in said else -1
    scene = _Scene(said["scene"], until, parties.pop(PUBLISHER), verdict)
    if len(parties) < said["scene"]["dashboards"]:
        verdict.add("C0", f"only {len(parties)} of {said['scene']['dashboards']} dashboards wrote anything")
    for lines in parties.values():
        _Dashboard(scene, lines).judge()
    scene.judge()


class _Scene:
    """What was published, and what all dashboards say of it.

    Attributes:
        until: the newest event that everybody must have. certain: events that have a number. numbers: (epoch, number)
            -> event, as dashboards saw it.
    """

    def __init__(self, said: Line, until: int, published: list[Line], verdict: Verdict) -> None:
        self.told, self.anew = bool(said["told"]), bool(said["anew"])
        self.until, self.verdict = until, verdict
        (self._topics,) = (line["topics"] for line in published if line["ev"] == "topics")
        self.tried = max((line["upto"] for line in published if line["ev"] == "publish"), default=-1)
        self.certain: list[int] = []
        self.acknowledged: dict[int, int] = {}
        for line in published:
            if line["ev"] == "published":
                self.certain += range(line["first"], min(line["upto"], until) + 1)
                self.acknowledged[line["upto"]] = line["sequence"]
        self.numbers: dict[tuple[str, int], int] = {}
        verdict.messages["events dashboards"] = len(self.certain)

    def topic_of(self, ident: int) -> str:
        """Of an event."""
        topic: str = self._topics[ident % len(self._topics)]
        return topic

    def judge(self) -> None:
        """What is about all of them."""
        again = len({epoch for epoch, _number in self.numbers}) > 1
        if again is not self.anew:
            self.verdict.add("C14", f"the numbering {'began anew' if again else 'did not begin anew'}")
        of_event: dict[int, int] = {}
        for (epoch, number), ident in self.numbers.items():
            other = of_event.setdefault(ident, number)
            given = self.acknowledged.get(ident, number)
            if not number == other == given:
                what = f"event {ident} has the numbers {number} ({epoch}), {other} and {given}"
                self.verdict.add("C7", what)


class _Dashboard:
    """One of them."""

    def __init__(self, scene: _Scene, lines: list[Line]) -> None:
        self._scene, self._verdict, self._lines = scene, scene.verdict, lines
        self._who = lines[0]["who"]
        self._sees: tuple[str, ...] = ()
        self._epoch = ""
        self._number = 0
        self._newest = -1
        self._seen: set[int] = set()
        self._words: list[tuple[int, int]] = []  # newest event before one, oldest behind it

    def judge(self) -> None:
        """All of it."""
        for line in self._lines:
            if line["ev"] == "sees":
                self._sees = tuple(line["prefixes"])
            elif line["ev"] == "events":
                self._events(line)
            elif line["ev"] == "back":
                self._back(line)
            elif line["ev"] == "renumbered":
                self._renumbered(line["epoch"])
            elif line["ev"] == "missed":
                self._word()
        if not self._seen:
            self._add("C0", "got nothing")
        if self._scene.told is not bool(self._words):
            self._add("C14", "was told of a loss" if self._words else "was not told of any loss")
        self._missing()

    def _add(self, rule: str, what: str, t: float = 0.0) -> None:
        self._verdict.add(rule, f"{self._who} {what}", t, self._who)

    def _events(self, line: Line) -> None:
        t, idents = line["t"], line["idents"]
        self._verdict.messages["events delivered"] += len(idents)
        for ident, topic in line.get("odd", ()):
            self._add("C0", f"got event {ident} as {topic}", t)
        for ident, number in zip(idents, line["sequences"], strict=True):
            if ident in self._seen:
                self._add("C7", f"got event {ident} twice", t)
            elif ident < self._newest or number <= self._number:
                self._add("C7", f"got event {ident}, number {number}, behind {self._number}", t)
            if not self._scene.topic_of(ident).startswith(self._sees):
                self._add("C9", f"got event {ident}, {self._scene.topic_of(ident)}", t)
            if ident > self._scene.tried:
                self._add("C0", f"got event {ident}, which was never published", t)
            other = self._scene.numbers.setdefault((self._epoch, number), ident)
            if other != ident:
                self._add("C7", f"got event {ident} with the number {number} of event {other}", t)
            self._seen.add(ident)
            self._newest, self._number = max(self._newest, ident), number
        self._words = [(low, idents[0] if high == ENDLESS else high) for low, high in self._words]

    def _back(self, line: Line) -> None:
        self._verdict.judged["returns"] += 1
        if not line["recovered"]:
            self._word()
        self._renumbered(line["epoch"])
        self._number = max(self._number, line["sequence"])

    def _renumbered(self, epoch: str) -> None:
        if epoch != self._epoch:
            self._epoch, self._number = epoch, 0

    def _word(self) -> None:
        self._verdict.messages["gaps told"] += 1
        self._words.append((self._newest, ENDLESS))

    def _missing(self) -> None:
        """C13: what it must have and has not, and nobody told why; nothing is published before it is there."""
        for ident in self._scene.certain:
            if not self._scene.topic_of(ident).startswith(self._sees):
                continue
            self._verdict.judged["events owed to dashboards"] += 1
            if ident not in self._seen and not any(low < ident < high for low, high in self._words):
                self._add("C13", f"never got event {ident}, {self._scene.topic_of(ident)}, without a word")
