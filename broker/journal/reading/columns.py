"""Blocks as numpy columns, whole blocks at a time.

::

    for some in batches(walk(path)):
        columns = decode(some, peers)      # {"seq": ndarray, "topic": Text, "kind": Coded, "flags": Nullable, ...}

Theory of operation. Entries are transposed once, eight words of 8 bytes a record, so that every field is a slice of
contiguous memory; text is never copied: a ``Text`` points into the bodies. Fields of an entry that could not hold their
value send their rows, and no others, through the walk of ``bodies``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from broker.journal.reading.batch import Batch
from broker.journal.reading.blocks import Block
from broker.journal.reading.peers import Peers
from broker.journal.reading.shapes import Array, Coded, Column, Nullable, Text

__all__ = ["COLUMNS", "Array", "Coded", "Column", "Nullable", "Text", "batches", "decode", "rows_of"]

BATCH_ROWS: Final = 16_384
"""Blocks are put together up to so many records: with fewer Python takes longer between arrays, with more the columns
no longer fit the cache.
"""


_KEPT_BYTES: Final = 16 << 20


def _keep_memory() -> None:
    """Let the C library keep what arrays give back, twice ``_KEPT_BYTES`` at most.

    glibc takes the largest piece it was ever given back as the measure of what is worth keeping; until then each batch
    gives its memory to the kernel and has it cleared again: a sixth of the time. Nothing is touched here.
    """
    np.empty(_KEPT_BYTES, np.uint8)


_keep_memory()


COLUMNS: Final = (
    "seq", "ts", "ts_ns", "rank", "writer", "run", "capture", "peer", "peer_id", "role", "via", "via_id",
    "via_role", "transport", "direction", "reason", "kind", "type", "flags", "userid", "claimed", "rolemask", "nodeid",
    "errnum", "event_seq", "matchtag", "topic", "origin", "routes", "payload_len", "wire_len", "delivered",
    "detail", "dt",
)  # fmt: skip
"""Names in order; ``payload`` follows where it is asked for.

Numbers are int64 (reason, flags, routes: int32); ``ts`` is microseconds and ``dt`` days (int32) since 1970, UTC."""


def batches(blocks: Iterable[Block], rows: int = BATCH_ROWS) -> Iterator[list[Block]]:
    """Blocks of one segment put together to lists of about ``rows`` records, in order."""
    waiting: list[Block] = []
    count = 0
    for block in blocks:
        if waiting and (count + block.count > rows or block.segment is not waiting[0].segment):
            yield waiting
            waiting, count = [], 0
        waiting.append(block)
        count += block.count
    if waiting:
        yield waiting


def decode(
    blocks: Sequence[Block], peers: Peers, *, payload: bool = False, wanted: Collection[str] | None = None
) -> dict[str, Column]:
    """The records of ``blocks`` as columns; DICTIONARY records are learned and are no rows.

    Args:
        blocks: of one segment, in order.
        peers: who is known; grows. Names that stand in front of these blocks only must be known already.
        payload: add the column ``payload`` (bytes): of a Flux message the payload, of another record the encoded parts
            of the wire; null where there is none or it was left out.
        wanted: names of columns, others are not made; None: all.

    Raises:
        Damaged: a block's CRC is right and an entry is wrong nevertheless, or bodies do not unpack; no row is given.
        ConfigError: the library for a codec is not installed.
        ValueError: blocks of several segments, or an unknown column.
    """
    names = [*COLUMNS, "payload"] if payload else list(COLUMNS)
    if wanted is not None:
        if unknown := set(wanted) - set(names):
            raise ValueError(f"column {min(unknown)!r}, expected some of {', '.join(names)}")
        names = [name for name in names if name in wanted]
    batch = Batch(blocks, peers)
    return {name: getattr(batch, name) for name in names}


def rows_of(columns: dict[str, Column]) -> int:
    """How many rows."""
    for column in columns.values():
        return len(column if isinstance(column, np.ndarray) else column[0])
    return 0
