"""A journal of any length, fast: a few blocks of calls and events, dated and numbered anew as they are repeated."""

import struct
from pathlib import Path
from random import Random

import numpy as np

from broker.journal.crc import crc32
from broker.wire.message import EVENT, event, request, response
from tests.bench.journal_read import CLIENTS, DISTINCT_BLOCKS, ROWS_PER_BLOCK, TOPICS
from tests.live.segments import T0, Rec, block, flux, header, name_of, peer

EVENTS = 0.1
"""Events of a call."""
SEGMENT_BLOCKS = 100
"""67 MB."""
DAY_NS = 86_400 * 10**9


def talk(dice: Random) -> list[Rec]:
    """The records of one block: calls that are answered at once, now and then an event."""
    out: list[Rec] = []
    while len(out) < ROWS_PER_BLOCK:
        who = min(CLIENTS, int(dice.paretovariate(0.6)))
        asked = request(
            dice.choice(TOPICS), b'{"key":"value"}\0', matchtag=len(out) % 1024 + 1, userid=1000 + who
        )
        asked.push_route(b"%036d" % who)
        out.append(flux(T0, asked, peer=who))
        out.append(flux(T0, response(asked, b'{"ok":true}\0'), peer=1))
        if dice.random() < EVENTS:
            out.append(flux(T0, event("job.state", b"{}\0", sequence=1), peer=1))
    return out[:ROWS_PER_BLOCK]


class Spoken:
    """What one broker recorded, block by block.

    Attributes:
        written: records so far.
    """

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        dice = Random(7 + rank)
        self._blocks = [bytearray(block(talk(dice), rank=rank)) for _ in range(DISTINCT_BLOCKS)]
        who = [peer(n, f"client-{n}") for n in range(1, CLIENTS + 1)]
        self._who = block(who, unnumbered=True, rank=rank)
        self._events = 0
        self.written = 0

    def begin(self) -> bytes:
        """What a segment that begins here begins with."""
        return header(self.written, rank=self._rank, run=bytes([self._rank + 1]) * 16) + self._who

    def block(self, end_ns: int, step_ns: int) -> bytearray:
        """The next one, whose last record passed then; valid until it is its turn again."""
        data = self._blocks[self.written // ROWS_PER_BLOCK % DISTINCT_BLOCKS]
        times = end_ns - (ROWS_PER_BLOCK - 1 - np.arange(ROWS_PER_BLOCK, dtype=np.int64)) * step_ns
        entries = np.frombuffer(data, np.uint8)[64 : 64 + 64 * ROWS_PER_BLOCK].reshape(-1, 64)
        entries[:, :8] = times.astype("<i8").view(np.uint8).reshape(-1, 8)
        events = np.flatnonzero(entries[:, 42] == EVENT)
        numbers = self._events + 1 + np.arange(len(events))
        entries[events, 52:56] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
        self._events += len(events)
        struct.pack_into("<Qqq", data, 24, self.written, int(times[0]), end_ns)
        struct.pack_into("<I", data, 8, crc32(memoryview(data)[12:]))
        self.written += ROWS_PER_BLOCK
        return data


def day(folder: Path, rows: int, ranks: int) -> int:
    """A day's journal of that many brokers in an empty folder; returns its rows: whole blocks, about ``rows``."""
    folder.mkdir(parents=True)
    blocks = max(1, rows // ranks // ROWS_PER_BLOCK)
    step_ns = DAY_NS // (blocks * ROWS_PER_BLOCK)
    for rank in range(ranks):
        spoken = Spoken(rank)
        for first in range(0, blocks, SEGMENT_BLOCKS):
            with (folder / name_of(f"rank{rank}", spoken.written)).open("wb") as file:
                file.write(spoken.begin())
                for number in range(first, min(blocks, first + SEGMENT_BLOCKS)):
                    file.write(spoken.block(T0 + (number + 1) * ROWS_PER_BLOCK * step_ns - step_ns, step_ns))
    return ranks * blocks * ROWS_PER_BLOCK
