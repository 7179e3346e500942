"""Where the records of a chunk begin, and when they were: the one walk that costs something for each record."""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from broker.journal.marks import MARK_BYTES, TIME, TIME_MARK

FRAME_AT: Final = MARK_BYTES + 8
"""From a mark to the parts behind it: the mark, the frame's magic, its size."""
_STEP: Final = Struct(">B19xI").unpack_from
"""Kind of a mark and size of the frame behind it."""
_TIME: Final = TIME_MARK.unpack_from


class Walk:
    """The records of one chunk.

    Args:
        data: marks and frames. now_ns: dates records that no TIME mark follows.

    Attributes:
        starts: where each mark begins. times: (records dated, ns), in order; all records together.
        end: where the last whole record or TIME mark ends.
    """

    __slots__ = ("end", "starts", "times")

    def __init__(self, data: bytes | bytearray, now_ns: int) -> None:
        self.starts: list[int] = []
        self.times: list[tuple[int, int]] = []
        self.end = self._walk(data, len(data), 0)
        if (undated := len(self.starts) - sum(records for records, _ in self.times)) > 0:
            self.times.append((undated, now_ns))

    def _walk(self, data: bytes | bytearray, stop: int, at: int) -> int:
        starts, step = self.starts, _STEP
        append = starts.append
        dated = 0
        try:
            while at < stop:
                kind, size = step(data, at)
                if kind != TIME:
                    append(at)
                    at += FRAME_AT + size
                    continue
                self.times.append((len(starts) - dated, _TIME(data, at)[0]))
                dated = len(starts)
                at += MARK_BYTES
        except error:  # fewer than 24 bytes are left: a TIME mark at the end, or the begin of a record
            if data[at] == TIME and stop - at >= MARK_BYTES:
                self.times.append((len(starts) - dated, _TIME(data, at)[0]))
                at += MARK_BYTES
        if at > stop:
            at = starts.pop()
        return at
