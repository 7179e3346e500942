"""The entries of all records of a block at once, and which bytes hold payloads."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from broker.journal.layout import DICTIONARY, FLUX, NFP, OSLO, OVERFLOW8, OVERFLOW16, STATE, STRIPPED
from broker.journal.writer.frames import FRAME_AT
from broker.journal.writer.parts import Bytes, Flags, Ints, stacks, totals
from broker.wire.message import MAGIC_DEPLOYED, PAYLOAD, ROUTE, TOPIC

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
