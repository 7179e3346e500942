"""The last events that a rank 0 recorded, the newest first, for the one that comes after it: a process of its own,
for a broker reads no journal.

Standard input is JSON (``Wanted``). Standard output is, for each event, when it was recorded (ns since 1970, 8 bytes,
little-endian) and its frame. It ends with the first number that is not there: whoever reads it has an unbroken stretch.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO, Final

import msgspec

from broker import interpreter
from broker.errors import HeadgateError, print_error
from broker.journal.layout import ENTRY, FLUX, HEADER_BYTES, IN
from broker.journal.reading.blocks import Block, SegmentFile
from broker.journal.reading.segments import listing
from broker.wire.event_history import AHEAD, distance
from broker.wire.message import EVENT, MAGIC_DEPLOYED

WHEN: Final = Struct("<q")
_HEADER: Final = Struct(">4sI")
_FIRST_WORD: Final = slice(12, 16)
"""Of PROTO: the number of an event."""


class Wanted(msgspec.Struct):
    """What is asked for."""

    directory: str
    writer: str
    runs: list[tuple[str, int]]
    """The runs of the journal in which this numbering went on, and behind which number each began; the newest last."""
    last: int
    """The newest event."""
    max_bytes: int
    since_ns: int
    """Older ones are not wanted."""


def last_events(wanted: Wanted) -> Iterator[tuple[int, bytes]]:
    """When each was recorded, and its frame; ``last`` first, then the one in front of it.

    Raises:
        ConfigError: the directory cannot be read.
    """
    expected, size = wanted.last, 0
    begins = dict(wanted.runs)
    for path, _writer, _first in reversed(listing(wanted.directory, wanted.writer)):
        for run, when, number, frame in reversed(_events(path, wanted)):
            if run not in begins or 0 < distance(expected, number) <= AHEAD:
                continue  # of whoever records by now, or recorded and never sent: its number was given again
            if number != expected or number <= begins[run] or when < wanted.since_ns:
                return
            size += len(frame)
            if size > wanted.max_bytes:
                return
            yield when, frame
            expected = number - 1


def _events(path: str, wanted: Wanted) -> deque[tuple[str, int, int, bytes]]:
    """Run, time, number and frame of the newest events of a segment, as many as may be wanted."""
    found: deque[tuple[str, int, int, bytes]] = deque()
    size = 0
    try:
        file = SegmentFile(path)
    except FileNotFoundError:
        return found  # deleted since the listing
    with file:
        for block in file.salvage(HEADER_BYTES, file.size()):
            if not isinstance(block, Block) or block.last_ts < wanted.since_ns:
                continue  # what is damaged is a number that is missing
            try:
                bodies = block.bodies()
            except HeadgateError:
                continue
            for fields in ENTRY.iter_unpack(block.entries):
                proto = fields[15]
                # STRIPPED in the direction: its payload was left out, and it is no event that could be sent
                if fields[9] != FLUX or fields[11] != IN or proto[2] != EVENT:
                    continue
                body = bytes(bodies[fields[1] : fields[1] + fields[2]])
                frame = _HEADER.pack(MAGIC_DEPLOYED, len(body)) + body
                number = int.from_bytes(proto[_FIRST_WORD], "big")
                found.append((file.segment.run, fields[0], number, frame))
                size += len(frame)
                while size > wanted.max_bytes:
                    size -= len(found.popleft()[3])
    return found


def main(out: BinaryIO) -> int:
    """Write them; 0, or 1 and a line on stderr."""
    try:
        wanted = msgspec.json.decode(interpreter.ordered(), type=Wanted)
        for when, frame in last_events(wanted):
            out.write(WHEN.pack(when) + frame)
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # nobody wants them any more
    except (HeadgateError, OSError) as error:
        print_error(f"headgate: the last events of the journal: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdout.buffer))
