r"""Decoded columns as Arrow: no Python object is made for a row.

Text of the journal lies scattered in a buffer. Arrow wants strings one behind the other, so the buffer is looked at
as an array of 2n - 1 strings, text and what lies between by turns, of which the even ones are taken. That needs texts
in ascending order and offsets of 32 bits; where either fails the bytes are gathered by index.

A topic is whatever bytes a client sent. What is not UTF-8 is written with backslashes (``\xff``), for Parquet and the
JVM hold text to be text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.journal.layout import HEADER_BYTES
from broker.journal.reading import columns
from broker.journal.reading.blocks import Block
from broker.journal.reading.columns import Coded, Nullable, Text
from broker.journal.reading.peers import Peers
from gateway.pipeline import schema, spans
from gateway.pipeline.spans import Loss, Span

_INT32_MAX: Final = (1 << 31) - 1
_NAMED: Final = frozenset(("peer", "via"))
_SERVICE: Final = "service"
EVER: Final = (-(1 << 63), (1 << 63) - 1)
"""All times there can be."""


def record_batches(
    span: Span, names: Sequence[str], *, skip: bool = False, times: tuple[int, int] = EVER
) -> Iterator[pa.RecordBatch | Loss]:
    """The rows of a span, and what of it could not be read.

    Args:
        span: which.
        names: columns wanted, in order.
        skip: damage is a Loss, no error.
        times: ns since 1970 from which on, and before which, rows are wanted.

    Raises:
        Damaged, Lost, Unseen: as of ``spans.blocks``.
    """
    since, until = times
    decoder = Decoder(names if times == EVER else [*names, *({"ts_ns"} - set(names))])
    decoder.begin(span)

    def wanted() -> Iterator[Block | Loss]:
        for block in spans.blocks(span, skip=skip):
            if isinstance(block, Loss) or (block.last_ts >= since and block.first_ts < until):
                yield block
            else:
                decoder.learn(block)

    for blocks in spans.gathered(wanted()):
        if isinstance(blocks, Loss):
            yield blocks
            continue
        batch = decoder.batch(blocks)
        if times != EVER:
            batch = batch.filter((pc.field("ts_ns") >= since) & (pc.field("ts_ns") < until)).select(names)
        yield batch


class Decoder:
    """Blocks of one span -> record batches with the columns ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._types = {
            column.name: column.arrow_type() for column in (*schema.MESSAGES.columns, schema.PAYLOAD)
        }
        self._decoded = {"topic" if name == _SERVICE else name for name in names}
        self._peers = Peers()
        self._by_name = bool(_NAMED & set(names))

    def begin(self, span: Span) -> None:
        """Learn who is who from what stands in front of a span that begins within its segment."""
        if self._by_name and span.loss is None and span.start > HEADER_BYTES:
            with contextlib.suppress(OSError):  # reading the span says so
                self._peers.learn_before(span.path, span.start)

    def learn(self, block: Block) -> None:
        """Learn who is who from a block that is not decoded."""
        if self._by_name:
            self._peers.learn(block)

    def batch(self, blocks: Sequence[Block]) -> pa.RecordBatch:
        """The rows of some blocks of one segment.

        Raises:
            Damaged: an entry of a block is wrong though its CRC is right.
        """
        found = columns.decode(blocks, self._peers, payload="payload" in self._decoded, wanted=self._decoded)
        arrays = {name: as_arrow(column, self._types[name]) for name, column in found.items()}
        if _SERVICE in self._names:
            arrays[_SERVICE] = first_words(arrays["topic"])
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._names], names=self._names)


def first_words(topics: pa.Array) -> pa.Array:
    """Topics up to their first period: looked for once in each that there is, for there are few."""
    known = topics.dictionary_encode()
    return pc.list_element(pc.split_pattern(known.dictionary, ".", max_splits=1), 0).take(known.indices)


def as_arrow(column: Any, kind: pa.DataType) -> pa.Array:
    """One decoded column as an Arrow array of that type."""
    if isinstance(column, Coded):
        return _names(column.values).take(pa.array(column.codes))
    if isinstance(column, Text):
        return _text(column, kind)
    if isinstance(column, Nullable):
        if not column.valid.any():
            return pa.nulls(len(column.values), kind)
        return pa.array(column.values, mask=~column.valid).cast(kind)
    numbers = pa.array(column)
    return numbers if numbers.type == kind else numbers.view(kind)


def _names(values: Sequence[str | None]) -> pa.Array:
    """Names, and what UTF-8 cannot hold of them with backslashes, as of topics."""
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        clean = (
            None if value is None else utf8(value.encode("utf-8", "surrogateescape")) for value in values
        )
        return pa.array(clean, pa.string())


def utf8(raw: bytes) -> str:
    r"""Bytes as text; those that are none as ``\\xff``."""
    return raw.decode("utf-8", "backslashreplace")


def _text(text: Text, kind: pa.DataType) -> pa.Array:
    if text.valid is not None and not text.valid.any():
        return pa.nulls(len(text.lengths), kind)
    raw = _binary(text)
    if text.valid is not None and not text.valid.all():
        raw = pc.if_else(pa.array(text.valid), raw, None)
    if kind == pa.binary():
        return raw
    try:
        return raw.cast(kind)  # looks at every byte: a wrong one would only show in the JVM
    except pa.ArrowInvalid:
        return pa.array([None if each is None else utf8(each) for each in raw.to_pylist()], kind)


def _binary(text: Text) -> pa.Array:
    """The bytes of each row, nulls as empty."""
    count = len(text.lengths)
    if count == 0:
        return pa.array([], pa.binary())
    there = text.lengths > 0
    starts = text.starts if there.all() else np.where(there, text.starts, 0)
    ends = np.maximum.accumulate(starts + text.lengths)
    if not there.all():
        starts = np.where(there, starts, ends)
    size = len(text.data)
    if size > _INT32_MAX or (count > 1 and bool((starts[1:] < ends[:-1]).any())):
        return _gathered(text)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text.data)]
    scattered = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return scattered.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))


def _gathered(text: Text) -> pa.Array:
    """The same in any order and of any size, a copy by index."""
    ends = np.cumsum(text.lengths)
    total = int(ends[-1])
    if total > _INT32_MAX:
        raise OverflowError(f"{total} bytes of text in one batch; Arrow's strings hold {_INT32_MAX}")
    index = np.arange(total, dtype=np.int64) + np.repeat(text.starts - (ends - text.lengths), text.lengths)
    gathered = np.frombuffer(text.data, np.uint8)[index]
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(gathered)]
    )
