"""Numbers that are missing, and why: the ``gap`` records of a block."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from broker.errors import DecodeError
from broker.journal.layout import ENTRY, GAP, HEADER_BYTES, KIND_AT, STATE
from broker.journal.reading.blocks import Block
from broker.journal.reading.bodies import part_at

_GAP: Final = GAP.encode()
_STATE: Final = bytes([STATE])

Why = Literal["counted", "damaged", "missing segment", "unknown"]


class Gap(msgspec.Struct):
    """Numbers ``first`` to ``last`` of one writer, whose records are not there."""

    writer: str
    first: int
    last: int
    cause: str
    """In words."""
    why: Why
    """``counted``: the writer says so. ``damaged``: they stood in a damaged block. ``missing segment``: between two
    segments. ``unknown``: anything else.
    """


def gaps_of(block: Block) -> dict[int, Gap]:
    """The ``gap`` records of a block by their number.

    Raises:
        Damaged: the bodies do not unpack, or such a record is not what it should be.
    """
    entries, causes = block.entries, {}
    kinds = bytes(entries[KIND_AT::HEADER_BYTES])
    index = kinds.find(_STATE) if block.numbered else -1
    while index >= 0:
        fields = ENTRY.unpack_from(entries, index * HEADER_BYTES)
        body = block.bodies()[fields[1] : fields[1] + fields[2]]
        seq = block.first_seq + index
        try:
            gap = _gap(block.segment.writer, seq, body)
        except (DecodeError, UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise block.damaged(f"record {index} of the block: {error}") from None
        if gap is not None:
            causes[seq] = gap
        index = kinds.find(_STATE, index + 1)
    return causes


class _Told(msgspec.Struct):
    """The JSON of a ``gap`` record."""

    first: int
    last: int
    cause: str | int = "unknown"


def _gap(writer: str, seq: int, body: bytes | memoryview) -> Gap | None:
    at, size = part_at(body, 0)
    if body[at : at + size] != _GAP:
        return None
    at, size = part_at(body, at + size)
    facts = msgspec.json.decode(body[at : at + size], type=_Told)
    first = min(seq, max(0, seq - (facts.last - facts.first)))  # on disk: its own number is the last one lost
    return Gap(writer, first, seq, str(facts.cause), "counted")
