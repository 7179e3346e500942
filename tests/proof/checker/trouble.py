"""When a fault, or its aftermath, touched a way. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.proof.checker.places import Link, Places, Way

NETWORK: Final = frozenset({"partition", "oneway", "netem"})
"""Faults of a host's network: what stays on one host does not notice them."""

STALL_SETTLE_S: Final = 3.0
"""How long after the machine stood still nothing is demanded: links that were given up meanwhile come back."""

FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Window:
    """One fault with its aftermath, in seconds of the run's clock.

    Attributes:
        broken: links that do not carry messages: those named, those of a broker, and what a lost parent causes below.
        everything: nobody can demand anything (the machine stood still).
    """

    kind: str
    begin: float
    end: float
    members: frozenset[str]
    ranks: frozenset[int]
    broken: frozenset[Link]
    everything: bool = False

    def touches(self, way: Way) -> bool:
        """Whether it concerns a process or a link of the way."""
        return (
            self.everything
            or not self.members.isdisjoint(way.members)
            or not self.ranks.isdisjoint(way.ranks)
            or not self.broken.isdisjoint(way.links)
        )


Harmless = Callable[[Window], bool]
"""Whether a fault must not matter for what is judged."""


def proxy_restarted(window: Window) -> bool:
    """Proxies of oslo.messaging were told to end, and started again."""
    return window.kind in ("restart", "rolling") and all(name.startswith("oslo-") for name in window.members)


class Trouble:
    """All faults of a run.

    Args:
        places: of the run. lines: the driver's, in order.
    """

    def __init__(self, places: Places, lines: Iterable[Mapping[str, Any]]) -> None:
        self._places = places
        self.windows: list[Window] = []
        self.kinds: dict[str, int] = {}
        self.unended: list[str] = []
        self._known: dict[tuple[Way, Harmless | None], tuple[list[float], list[float]]] = {}
        pending: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for line in lines:
            if line["ev"] == "stall":
                self.windows.append(_stall(line))
            elif line["ev"] == "fault" and line["begin"]:
                self.kinds[line["kind"]] = self.kinds.get(line["kind"], 0) + 1
                pending.setdefault(_same(line), []).append(line)
            elif line["ev"] == "fault":
                begun = pending.get(_same(line))
                self.windows.append(self._window(begun.pop(0) if begun else line, line))
        for begun in pending.values():
            for line in begun:
                self.windows.append(self._window(line, None))
                self.unended.append(line["kind"])

    def _window(self, begin: Mapping[str, Any], end: Mapping[str, Any] | None) -> Window:
        """A fault between its two lines; it lasts to the end of the run when the second is missing."""
        until = (
            FOREVER if end is None else end["t"] + max(begin.get("settle_s", 0.0), end.get("settle_s", 0.0))
        )
        members, ranks, links = set[str](), set[int](), set[Link]()
        for line in (begin,) if end is None else (begin, end):
            members.update(line.get("members", ()))
            ranks.update(line.get("ranks", ()))
            links.update(frozenset(pair) for pair in line.get("links", ()))
        ranks.update(int(name.removeprefix("broker-")) for name in members if name.startswith("broker-"))
        network = begin["kind"] in NETWORK
        broken = self._consequences(ranks, links, network)
        return Window(
            begin["kind"],
            begin["t"],
            until,
            frozenset(members),
            frozenset() if network else frozenset(ranks),
            broken,
        )

    def _consequences(self, ranks: Iterable[int], links: set[Link], network: bool) -> frozenset[Link]:
        """The links that a fault breaks, and the ones that brokers below give up because their parent is gone."""
        places = self._places
        broken = set(links)
        for rank in ranks:
            broken |= places.below(rank)
            up = places.link_up(rank)
            if up is not None:
                broken.add(up)
            if network:
                broken.update(
                    frozenset((rank, other)) for other in range(len(places.parents)) if other != rank
                )
        for rank in range(len(places.parents)):
            if places.link_up(rank) in broken:
                broken |= places.below(rank)
        return frozenset(broken)

    def touched(self, way: Way, begin: float, end: float, *, besides: Harmless | None = None) -> bool:
        """Whether a fault or its aftermath overlaps the time from begin to end and concerns the way.

        ``besides``: faults that must not matter.
        """
        begins, ends = self._spans(way, besides)
        index = bisect_right(begins, end)
        return index > 0 and ends[index - 1] >= begin

    def _spans(self, way: Way, besides: Harmless | None) -> tuple[list[float], list[float]]:
        """The times in which a way is touched: disjoint, in order."""
        known = self._known.get((way, besides))
        if known is None:
            begins: list[float] = []
            ends: list[float] = []
            windows = (w for w in self.windows if w.touches(way) and (besides is None or not besides(w)))
            for window in sorted(windows, key=lambda w: w.begin):
                if ends and window.begin <= ends[-1]:
                    ends[-1] = max(ends[-1], window.end)
                else:
                    begins.append(window.begin)
                    ends.append(window.end)
            known = self._known[way, besides] = (begins, ends)
        return known


def _same(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """What begin and end of one fault have in common."""
    if "number" in line:
        return (line["kind"], line["number"])
    return (line["kind"], *sorted(line.get("members", ())), *sorted(line.get("ranks", ())))


def _stall(line: Mapping[str, Any]) -> Window:
    begin = line["t"] - line["seconds"] - 1.0
    nothing = frozenset[Any]()
    return Window("stall", begin, line["t"] + STALL_SETTLE_S, nothing, nothing, nothing, everything=True)
