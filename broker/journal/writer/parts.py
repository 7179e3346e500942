"""Parts of many frames at once: size byte, or 255 and a big-endian u32, then data.

RFC 3, "Message Framing and Security". One numpy call handles a step of all frames, so that a record costs nanoseconds;
the few frames with very many parts are walked in Python, so that one of them does not cost a numpy call a part.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

ROUNDS: Final = 16
"""So many steps are made for all frames at once; guests have no more hops."""
LONG: Final = 255


class Step(NamedTuple):
    """One part of each frame."""

    data: Ints
    """Where its data begins."""
    size: Ints
    behind: Ints
    """Where the next part begins; never behind the frame."""
    bad: Flags
    """There is no such part, or it runs past the end of the frame."""


class Bytes:
    """Bytes that many frames lie in, with views for numpy.

    Args:
        data: at least eight bytes longer than the last frame's end.
    """

    __slots__ = ("data", "octets", "words")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.octets = np.frombuffer(data, np.uint8)
        self.words = np.ndarray((max(0, len(data) - 3),), ">u4", data, strides=(1,))

    def items(self, size: int, at: Ints) -> np.ndarray[Any, Any]:
        """``size`` bytes at each place, one below the other: a copy."""
        every = np.ndarray((max(0, len(self.data) - size + 1),), f"V{size}", self.data, strides=(1,))
        return every[at]

    def step(self, at: Ints, ends: Ints) -> Step:
        """The part that begins at ``at`` in frames that end at ``ends``; ``at`` is not behind ``ends``."""
        size = self.octets[at].astype(np.int64)
        data = at + 1
        large = size == LONG
        if large.any():
            rows = np.flatnonzero(large)
            size[rows] = self.words[data[rows]]
            data[rows] += 4
        behind = data + size
        bad = behind > ends
        if bad.any():
            behind = np.minimum(behind, ends)
        return Step(data, size, behind, bad)

    def walk(self, at: int, end: int) -> list[tuple[int, int, int]] | None:
        """(data, size, behind) of each part up to ``end`` in one frame; None when one runs past it."""
        found = []
        octets = self.data
        while at < end:
            size, data = octets[at], at + 1
            if size == LONG:
                size, data = int.from_bytes(octets[data : data + 4], "big"), data + 4
            at = data + size
            if at > end:
                return None
            found.append((data, size, at))
        return found


class RouteStacks(NamedTuple):
    """The route parts of each frame."""

    origin: Ints
    """Where the data of the hop next to the delimiter begins; 0 where there is none."""
    length: Ints
    routes: Ints
    behind: Ints
    """Behind the delimiter."""
    bad: Flags


def stacks(source: Bytes, at: Ints, ends: Ints, routed: Flags) -> RouteStacks:
    """Walk hops and delimiter of the frames that have them."""
    count = len(at)
    origin, length, routes = (np.zeros(count, np.int64) for _ in range(3))
    behind, bad = at.copy(), np.zeros(count, np.bool_)
    rows = np.flatnonzero(routed)
    here, stop = at[rows], ends[rows]
    for _ in range(ROUNDS):
        if not rows.size:
            break
        step = source.step(here, stop)
        behind[rows] = step.behind
        bad[rows] = step.bad
        hop = (step.size != 0) & ~step.bad
        rows, here, stop = rows[hop], step.behind[hop], stop[hop]
        origin[rows], length[rows] = step.data[hop], step.size[hop]
        routes[rows] += 1
    for row, start in zip(rows.tolist(), here.tolist(), strict=True):  # deeper than any guest may make them
        hops = _hops(source, start, int(ends[row]))
        bad[row] = hops is None
        if hops is not None:
            more, last, behind[row] = hops
            routes[row] += more
            if last is not None:
                origin[row], length[row] = last
    return RouteStacks(origin, length, routes, behind, bad)


def _hops(source: Bytes, at: int, end: int) -> tuple[int, tuple[int, int] | None, int] | None:
    """How many more hops, the last one, what is behind the delimiter; None without a delimiter."""
    more, last = 0, None
    octets = source.data
    while at < end:
        size, data = octets[at], at + 1
        if size == LONG:
            size, data = int.from_bytes(octets[data : data + 4], "big"), data + 4
        at = data + size
        if at > end:
            return None
        if not size:
            return more, last, at
        more, last = more + 1, (data, size)
    return None


def totals(source: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Flags]:
    """Bytes of data in all parts from ``at`` to the end of each frame, and which frames are bad."""
    total, bad = np.zeros(len(at), np.int64), np.zeros(len(at), np.bool_)
    rows = np.flatnonzero(at < ends)
    here, stop = at[rows], ends[rows]
    for _ in range(ROUNDS):
        if not rows.size:
            break
        step = source.step(here, stop)
        total[rows] += step.size
        bad[rows] = step.bad
        more = step.behind < stop
        rows, here, stop = rows[more], step.behind[more], stop[more]
    for row, start in zip(rows.tolist(), here.tolist(), strict=True):
        parts = source.walk(start, int(ends[row]))
        bad[row] = parts is None
        total[row] += sum(size for _, size, _ in parts or ())
    return total, bad
