"""Decoded columns as Arrow: text wherever it lies, names that are no text, nulls; against the plain reader."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from broker.journal.reading.blocks import walk
from broker.journal.reading.columns import Coded, Nullable, Text
from gateway.pipeline import schema
from gateway.pipeline.arrow import Decoder, as_arrow
from gateway.pipeline.spans import Span
from tests.live import segments
from tests.live.segments import T0, note, peer


def text(pieces: list[bytes | None], order: list[int]) -> Text:
    """Pieces laid down in some order with rubbish between."""
    data = bytearray()
    at: dict[int, int] = {}
    for index in order:
        data += b"\xa5"
        at[index] = len(data)
        data += pieces[index] or b""
    starts = np.array([at[index] for index in range(len(pieces))], np.int64)
    lengths = np.array([len(piece or b"") for piece in pieces], np.int64)
    return Text(
        starts, lengths, memoryview(bytes(data)), np.array([piece is not None for piece in pieces], bool)
    )


@given(st.data(), st.lists(st.one_of(st.none(), st.binary(max_size=6)), max_size=8))
def test_text_in_any_order(data: st.DataObject, pieces: list[bytes | None]) -> None:
    order = data.draw(st.permutations(range(len(pieces))))
    assert as_arrow(text(pieces, order), pa.binary()).to_pylist() == pieces
    shown = as_arrow(text(pieces, order), pa.string())
    shown.validate(full=True)
    assert shown.to_pylist() == [
        None if each is None else each.decode("utf-8", "backslashreplace") for each in pieces
    ]


def test_codes_numbers_and_nulls() -> None:
    assert as_arrow(Coded(np.array([1, 0, 2]), ["a", "\udcffb", None]), pa.string()).to_pylist() == [
        "\\xffb",
        "a",
        None,
    ]
    maybe = Nullable(np.array([1, 2], np.int64), np.array([True, False]))
    assert as_arrow(maybe, pa.int64()).to_pylist() == [1, None]
    assert as_arrow(Nullable(np.array([1]), np.array([False])), pa.int32()).equals(pa.nulls(1, pa.int32()))
    assert as_arrow(np.array([5], np.int64), pa.timestamp("us", "UTC")).type == pa.timestamp("us", "UTC")


def test_a_range_within_a_segment_knows_the_names(tmp_path: Path) -> None:
    peers = [peer(1, "unix:1")]
    records = [note(T0 + index, "a.b", {"uid": 7}, peer=1) for index in range(30)]
    path = segments.write(tmp_path, "rank0", records, per_block=10, peers=peers)
    blocks = list(walk(path))
    decoder = Decoder(schema.MESSAGES.names)
    decoder.begin(Span(str(path), blocks[2].offset, blocks[2].end))
    batch = decoder.batch([blocks[2]])
    assert batch.schema.equals(schema.MESSAGES.arrow(partition=True))
    row = batch.slice(3, 1).to_pylist()[0]
    expected = records[13].expected(13)
    assert {name: row[name] for name in expected if name != "ts"} == {
        k: v for k, v in expected.items() if k != "ts"
    }
    assert row["peer"] == "unix:1"
