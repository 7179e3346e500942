"""The parts of many frames at once, the entries of all records of a block, and which bytes hold payloads (numpy).

A part is a size byte, or 255 and a big-endian u32, then data: RFC 3, "Message Framing and Security". One numpy call
handles a step of all frames, so that a record costs nanoseconds; the few frames with very many parts are walked in
Python, so that one of them does not cost a numpy call a part.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple

import numpy as np

from broker.errors import DecodeError
from broker.journal.layout import DICTIONARY, FLUX, NFP, OSLO, OVERFLOW8, OVERFLOW16, STATE, STRIPPED
from broker.journal.reading.bodies import part_at
from broker.journal.writer.intake import FRAME_AT
from broker.wire.message import MAGIC_DEPLOYED, PAYLOAD, ROUTE, TOPIC

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
        frame = memoryview(self.data)[:end]
        try:
            while at < end:
                data, size = part_at(frame, at)
                at = data + size
                found.append((data, size, at))
        except DecodeError:
            return None
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
    frame = memoryview(source.data)[:end]
    with contextlib.suppress(DecodeError):
        while at < end:
            data, size = part_at(frame, at)
            at = data + size
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


ENTRY_DTYPE: Final = np.dtype(
    [
        ("ts", "<i8"),
        ("body", "<u4"),
        ("length", "<u4"),
        ("peer", "<u4"),
        ("topic", "<u2"),
        ("topic_length", "<u2"),
        ("origin", "<u2"),
        ("origin_length", "u1"),
        ("routes", "u1"),
        ("kind", "u1"),
        ("transport", "u1"),
        ("direction", "u1"),
        ("reason", "u1"),
        ("payload", "<u4"),
        ("claimed", "<u4"),
        ("proto", "V20"),
        ("via", "<u4"),
    ]
)
"""``layout.ENTRY`` for numpy."""
_HEAD: Final = np.dtype(
    [
        ("kind", "u1"),
        ("transport", "u1"),
        ("direction", "u1"),
        ("reason", "u1"),
        ("peer", "<u4"),
        ("via", "<u4"),
        ("claimed", "<u4"),
        ("magic", "<u4"),
        ("size", ">u4"),
    ]
)
"""A mark and the begin of the frame behind it."""
_MAGIC: Final = int.from_bytes(MAGIC_DEPLOYED, "little")
_TAIL_BYTES: Final = 21
"""PROTO with its size byte."""

PROTO_MAGIC: Final = 0x8E

Rows = slice | Ints
Table = np.ndarray[Any, Any]


class Fields(NamedTuple):
    """What the records of a block are; columns of equal length."""

    entries: Table
    """Of ``ENTRY_DTYPE``; bodies begin where the frames' parts do."""
    cut_from: Ints
    """Where the payload part (or the parts of the wire) of each record begins,"""
    cut_to: Ints
    """and what is behind it; both alike where there is none."""
    bad: Flags
    """Records whose frame is no frame, or whose parts do not fit their frame."""


class _Parsing:
    """One pass over the records of a block."""

    def __init__(self, source: Bytes, starts: Ints) -> None:
        self.source = source
        heads = source.items(_HEAD.itemsize, starts).view(_HEAD)
        self.kinds = heads["kind"]
        self.body = starts + FRAME_AT
        self.ends = self.body + heads["size"]
        self.cut_from = np.zeros(len(starts), np.int64)
        self.cut_to = np.zeros(len(starts), np.int64)
        self.bad: Flags = heads["magic"] != _MAGIC
        self.entries = entries = np.zeros(len(starts), ENTRY_DTYPE)
        entries["body"] = self.body
        entries["length"] = heads["size"]
        for name in ("peer", "kind", "transport", "direction", "reason", "claimed", "via"):
            entries[name] = heads[name]

    def flux(self, rows: Rows) -> None:
        """Routes, topic, payload, PROTO (RFC 3, "General Message Format"), each as PROTO's flags say."""
        source, ends, entries = self.source, self.ends[rows], self.entries
        body = self.body[rows]
        tails = source.items(_TAIL_BYTES, ends - _TAIL_BYTES).view(np.uint8).reshape(-1, _TAIL_BYTES)
        flags = tails[:, 4]
        stack = stacks(source, body, ends, (flags & ROUTE) != 0)
        bad = stack.bad
        at, topic, topic_length, off = self._optional(stack.behind, ends, (flags & TOPIC) != 0)
        bad |= off
        paid = (flags & PAYLOAD) != 0
        behind, _data, payload, off = self._optional(at, ends, paid)
        bad |= off
        bad |= ~self._ends_with_proto(behind, ends, tails)
        self.cut_from[rows], self.cut_to[rows] = at, behind
        self.bad[rows] |= bad
        entries["payload"][rows] = payload
        entries["routes"][rows] = np.minimum(stack.routes, OVERFLOW8)
        entries["proto"][rows] = np.ascontiguousarray(tails[:, 1:]).view("V20").reshape(-1)
        self._put("topic", OVERFLOW16, rows, topic - body, topic_length, topic != 0)
        self._put("origin", OVERFLOW8, rows, stack.origin - body, stack.length, stack.origin != 0)

    def _ends_with_proto(self, at: Ints, ends: Ints, tails: Table) -> Flags:
        """Behind topic and payload there is PROTO, nothing else."""
        fits: Flags = (at == ends - _TAIL_BYTES) & (tails[:, 0] == _TAIL_BYTES - 1)
        odd = np.flatnonzero(~fits)
        if odd.size:  # its size in the long form, if anything
            step = self.source.step(at[odd], ends[odd])
            fits[odd] = ~step.bad & (step.size == _TAIL_BYTES - 1) & (step.behind == ends[odd])
        fits &= tails[:, 1] == PROTO_MAGIC
        return fits

    def others(self, rows: Rows) -> None:
        """Topic, JSON, the parts of the wire."""
        source, ends = self.source, self.ends[rows]
        body = self.body[rows]
        topic = source.step(body, ends)
        facts = source.step(topic.behind, ends)
        payload, off = totals(source, facts.behind, ends)
        self.cut_from[rows], self.cut_to[rows] = facts.behind, ends
        self.bad[rows] |= topic.bad | facts.bad | off
        self.entries["payload"][rows] = payload
        self._put("topic", OVERFLOW16, rows, topic.data - body, topic.size, np.ones(len(body), np.bool_))

    def dictionary(self, rows: Rows) -> None:
        """A JSON object alone."""
        ends = self.ends[rows]
        facts = self.source.step(self.body[rows], ends)
        self.bad[rows] |= facts.bad | (facts.behind != ends)

    def _optional(self, at: Ints, ends: Ints, there: Flags) -> tuple[Ints, Ints, Ints, Flags]:
        """(behind, data, size, bad) of a part that some frames have; zeros where it is missing."""
        if there.all():
            step = self.source.step(at, ends)
            return step.behind, step.data, step.size, step.bad
        rows = np.flatnonzero(there)
        step = self.source.step(at[rows], ends[rows])
        behind, data, size = at.copy(), np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        bad = np.zeros(len(at), np.bool_)
        behind[rows], data[rows], size[rows], bad[rows] = step.behind, step.data, step.size, step.bad
        return behind, data, size, bad

    def _put(self, name: str, length_max: int, rows: Rows, offset: Ints, length: Ints, there: Flags) -> None:
        """Offset and length of a part; both say overflow where one does not fit."""
        over = (offset >= OVERFLOW16) | (length >= length_max)
        if not there.all():
            offset = np.where(there, offset, 0)
            over &= there
        if over.any():
            offset, length = np.where(over, OVERFLOW16, offset), np.where(over, length_max, length)
        self.entries[name][rows] = offset
        self.entries[f"{name}_length"][rows] = length


def fields(source: Bytes, starts: Ints, ts: Ints) -> Fields:
    """The records whose marks begin at ``starts``, in order; ``ts``: when each was, ns."""
    parsing = _Parsing(source, starts)
    kinds = parsing.kinds
    if (kinds == FLUX).all():
        parsing.flux(slice(None))
    else:
        flux = np.flatnonzero(kinds == FLUX)
        others = np.flatnonzero((kinds == NFP) | (kinds == OSLO) | (kinds == STATE))
        dictionary = np.flatnonzero(kinds == DICTIONARY)
        for rows, parse in ((flux, parsing.flux), (others, parsing.others), (dictionary, parsing.dictionary)):
            if rows.size:
                parse(rows)
        parsing.bad |= ~np.isin(kinds, (FLUX, NFP, OSLO, STATE, DICTIONARY))
    parsing.entries["ts"] = ts
    return Fields(parsing.entries, parsing.cut_from, parsing.cut_to, parsing.bad)


def strip(table: Fields, size: int) -> list[tuple[int, int]]:
    """Leave payloads out: mark the records, shift the bodies.

    Args:
        table: its entries are changed.
        size: of the bytes that the records lie in.

    Returns:
        what is kept of those bytes: (from, to), in order.
    """
    lengths = table.cut_to - table.cut_from
    rows = np.flatnonzero(lengths)
    entries = table.entries
    entries["direction"][rows] |= STRIPPED
    entries["body"] -= (np.cumsum(lengths) - lengths).astype(np.uint32)
    entries["length"] -= lengths.astype(np.uint32)
    froms = [0, *table.cut_to[rows].tolist()]
    return list(zip(froms, [*table.cut_from[rows].tolist(), size], strict=True))
