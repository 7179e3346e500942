"""Values by name in two rings each: a second apart for a quarter of an hour, ten seconds apart for a day.

A name is a figure and what it is of: ``calls``, ``calls:calc.add``, ``ms:3``. Times are whole seconds since 1970; where
nothing is known a value is NaN. Of ten seconds the mean is kept, of latencies and levels the most.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

FINE_S: Final = 1
FINE: Final = 900
COARSE_S: Final = 10
COARSE: Final = 8640
NAMES_MAX: Final = 512
"""Names that are kept, 40 KB each at most; values of others are counted."""
MARKS_MAX: Final = 1000
POINTS_MAX: Final = 360
"""Of one answer: a chart is not much wider."""
BACK_S: Final = 60
"""A clock that was set back by more than this begins anew; a smaller step is waited for."""
PEAKS: Final = frozenset(("p50", "p99", "ms", "open", "sessions"))
"""Figures whose most counts, not their mean."""
HOLD_S: Final = 11
"""From one value to the next while nobody looks, and a little more."""
VERSION: Final = 1
"""Of what ``Rings.kept`` gives."""
KEPT_BYTES: Final = NAMES_MAX * (COARSE * 5 + 1024)
"""So large it is at most."""
_NAN: Final = math.nan


class Mark(NamedTuple):
    """Something that happened, drawn into all charts: when (seconds since 1970), and what, in words."""

    time: float
    text: str


class Ring:
    """The newest values of one figure, ``step`` seconds apart.

    Args:
        step: seconds. capacity: values.
    """

    __slots__ = ("_capacity", "_first", "_values", "step")

    def __init__(self, step: int, capacity: int) -> None:
        self.step = step
        self._capacity = capacity
        self._first = 0  # number of the step whose value is the oldest
        self._values: array[float] = array("f")

    @property
    def last(self) -> int:
        """The number of the newest step; -1 while there is none."""
        return self._first + len(self._values) - 1 if self._values else -1

    def put(self, number: int, value: float) -> None:
        """The value of a step, and of those left out before it: a rate is that of the whole time. Of a time longer than
        ``HOLD_S`` nothing is known. A step before the newest is ignored, but for ``BACK_S``.
        """
        if not self._values or not -BACK_S <= (number - self.last) * self.step <= self._capacity * self.step:
            self._values = array("f", (value,))
            self._first = number
            return
        if number <= self.last:
            if number == self.last:
                self._values[-1] = value
            return
        left_out = number - self.last - 1
        self._values.extend([value if left_out * self.step < HOLD_S + self.step else _NAN] * left_out)
        self._values.append(value)
        if len(self._values) > self._capacity + self._capacity // 8:  # now and then, not at each value
            beyond = len(self._values) - self._capacity
            del self._values[:beyond]
            self._first += beyond

    def values(self, first: int, last: int) -> list[float]:
        """The values of these steps, both included."""
        oldest = max(self._first, self.last - self._capacity + 1)
        begin, end = max(first, oldest), min(last, self.last) + 1
        if begin >= end:
            return [_NAN] * (last + 1 - first)
        known = self._values[begin - self._first : end - self._first]
        return [*[_NAN] * (begin - first), *known, *[_NAN] * (last + 1 - end)]

    def kept(self) -> tuple[int, bytes]:
        """The number of the oldest step, and the values as little-endian floats of 4 bytes."""
        return self._first, _little(self._values).tobytes()

    def restore(self, first: int, data: bytes) -> None:
        """Take up what ``kept`` gave."""
        values: array[float] = array("f")
        values.frombytes(data[: len(data) // 4 * 4])
        self._values = _little(values)[-self._capacity :]
        self._first = first + len(values) - len(self._values)


def _little(values: array[float]) -> array[float]:
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped


class Track:
    """One figure over time, in both rings; ``peak``: of ten seconds the most counts."""

    __slots__ = ("_gathered", "_of", "coarse", "fine", "peak")

    def __init__(self, peak: bool) -> None:
        self.peak = peak
        self.fine = Ring(FINE_S, FINE)
        self.coarse = Ring(COARSE_S, COARSE)
        self._gathered: list[float] = []
        self._of = -1

    def put(self, second: int, value: float) -> None:
        """The value of one second."""
        self.fine.put(second, value)
        number = second // COARSE_S
        if number != self._of:
            self._of, self._gathered = number, []
        if value == value:
            self._gathered.append(value)
        self.coarse.put(number, _gather(self._gathered, self.peak))


def _gather(values: Sequence[float], peak: bool) -> float:
    total = sum(values)
    if total != total:  # looked for only then: a day of all figures is millions of values
        values = [value for value in values if value == value]
        total = sum(values)
    if not values:
        return _NAN
    return max(values) if peak else total / len(values)


class _Kept(msgspec.Struct):
    """What outlives a restart: the rings of ten seconds. ``tracks``: by name the first step, and the values."""

    version: int
    marks: list[Mark]
    tracks: dict[str, tuple[int, bytes]]


class Rings:
    """All figures of one gateway.

    Attributes:
        marks: what happened, the oldest first.
        left_out: values for which there was no place.
    """

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = {}
        self.marks: deque[Mark] = deque(maxlen=MARKS_MAX)
        self.left_out = 0

    def put(self, second: int, values: Mapping[str, float]) -> None:
        """The values of one second, by name."""
        for name, value in values.items():
            track = self.tracks.get(name) or self._place(name, second)
            if track is None:
                self.left_out += 1
            else:
                track.put(second, value)

    def _place(self, name: str, second: int) -> Track | None:
        if len(self.tracks) >= NAMES_MAX:
            oldest = second // COARSE_S - COARSE
            for other in [other for other, track in self.tracks.items() if track.coarse.last < oldest]:
                del self.tracks[other]
            if len(self.tracks) >= NAMES_MAX:
                return None
        return self._begin(name)

    def _begin(self, name: str) -> Track:
        track = self.tracks[name] = Track(name.partition(":")[0] in PEAKS)
        return track

    def kept(self) -> bytes:
        """The rings of ten seconds and the marks, as MessagePack."""
        tracks = {name: track.coarse.kept() for name, track in self.tracks.items()}
        return msgspec.msgpack.encode(_Kept(VERSION, list(self.marks), tracks))

    def restore(self, data: bytes) -> None:
        """Take up what ``kept`` gave; nothing of another version.

        Raises:
            DecodeError: it is something else.
        """
        kept = msgspec.msgpack.decode(data, type=_Kept)
        if kept.version == VERSION:
            self.marks.extend(kept.marks)
            for name, (first, values) in list(kept.tracks.items())[:NAMES_MAX]:
                self._begin(name).coarse.restore(first, values)

    def mark(self, time: float, text: str) -> None:
        """Something happened."""
        self.marks.append(Mark(time, text))

    def read(self, until: int, range_s: int, names: Sequence[str] = ()) -> dict[str, Any]:
        """What is known of some time.

        Args:
            until: the end, seconds since 1970.
            range_s: so many seconds before it.
            names: figures, without what they are of; none: all.

        Returns:
            ``{"begin", "step", "count", "series": {name: [value, or None]}, "marks": [[time, text]]}``; the value
            number n is of the ``step`` seconds from ``begin`` + n * step on.
        """
        fine = range_s <= FINE * FINE_S
        base = FINE_S if fine else COARSE_S
        merged = max(1, math.ceil(range_s / base / POINTS_MAX))
        step = base * merged
        count = max(1, range_s // step)
        last = until // step * merged + merged - 1
        first = last - count * merged + 1
        series = {}
        for name, track in self.tracks.items():
            if names and name.partition(":")[0] not in names:
                continue
            ring = track.fine if fine else track.coarse
            if ring.last < first:
                continue
            series[name] = _shown(ring.values(first, last), merged, track.peak)
        begin = first * base
        marks = [[mark.time, mark.text] for mark in self.marks if mark.time >= begin]
        return {"begin": begin, "step": step, "count": count, "series": series, "marks": marks}


def _shown(values: list[float], merged: int, peak: bool) -> list[float | None]:
    if merged > 1:
        values = [_gather(values[at : at + merged], peak) for at in range(0, len(values), merged)]
    return [round(value, 4) if value == value else None for value in values]
