"""The smallest part of a schedule that still fails: delta debugging of its faults, then of their lengths. Pure.

A fault under load does not always show: a run that fails once may pass the next time. So ``fails`` should itself try
more than once, and what comes out is a schedule that failed, not the smallest one there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeVar

from tests.proof.schedule import QUIET_S, Fault, Schedule

T = TypeVar("T")

LEAST_S: Final = 0.25
"""A fault is not made shorter than this."""


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Return a part of a failing schedule that fails, too, and of which no single fault can be left out.

    First faults are left out (Zeller and Hildebrandt's ddmin), then what is left is made shorter, then the time around
    them is cut. Each schedule is tried once; the numbers of the faults that remain stay.

    Args:
        schedule: it failed. fails: plays a schedule; True when it fails, too. May be called some dozens of times.

    Raises:
        ValueError: the schedule does not fail any more, so that there is nothing to go by.
    """
    tried: dict[str, bool] = {}

    def once(candidate: Schedule) -> bool:
        text = candidate.to_json()
        if text not in tried:
            tried[text] = fails(candidate)
        return tried[text]

    if not once(schedule):
        raise ValueError("the schedule does not fail (any more)")
    kept = ddmin(schedule.faults, lambda faults: once(replace(schedule, faults=tuple(faults))))
    smaller = replace(schedule, faults=tuple(kept))
    smaller = _shorter_faults(smaller, once)
    return _shorter_load(smaller, once)


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a smallest failing part of ``items``, which fail as a whole: without any one item it does not fail.

    Args:
        items: in order; parts keep it. fails: asked of parts; the empty one is asked first, since then nothing matters.
    """
    if not items or fails([]):
        return []
    kept = list(items)
    pieces = 2
    while len(kept) >= 2:
        for part in _parts(kept, pieces):
            if len(part) < len(kept) and fails(part):
                kept, pieces = part, max(2, min(pieces - 1, len(part)) if len(part) > 1 else 2)
                break
        else:
            if pieces >= len(kept):
                return kept
            pieces = min(len(kept), pieces * 2)
    return kept


def _parts(items: list[T], pieces: int) -> Iterator[list[T]]:
    """Each piece alone, then everything but each piece."""
    bounds = [len(items) * index // pieces for index in range(pieces + 1)]
    spans = [(begin, end) for begin, end in pairwise(bounds) if begin < end]
    for begin, end in spans:
        yield items[begin:end]
    if pieces > 2:  # with two pieces one is what the other leaves
        for begin, end in spans:
            yield items[:begin] + items[end:]


def _shorter_faults(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Halve the length of each fault as long as it fails."""
    for index in range(len(schedule.faults)):
        while (fault := schedule.faults[index]).lasts_s / 2 >= LEAST_S:
            shorter = replace(fault, lasts_s=round(fault.lasts_s / 2, 2))
            candidate = _with(schedule, index, shorter)
            if not fails(candidate):
                break
            schedule = candidate
    return schedule


def _with(schedule: Schedule, index: int, fault: Fault) -> Schedule:
    faults = schedule.faults
    return replace(schedule, faults=(*faults[:index], fault, *faults[index + 1 :]))


def _shorter_load(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Begin with the first fault sooner, and end the load soon after the last one, if it still fails."""
    faults = schedule.faults
    if not faults:
        return schedule
    begin = max(0.0, min(fault.at_s for fault in faults) - 2.0)
    earlier = tuple(replace(fault, at_s=round(fault.at_s - begin, 2)) for fault in faults)
    seconds = round(max(fault.end_s for fault in earlier) + QUIET_S, 2)
    if seconds >= schedule.seconds:
        return schedule
    candidate = replace(schedule, seconds=seconds, faults=earlier)
    return candidate if fails(candidate) else schedule
