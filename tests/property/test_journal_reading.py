"""numpy columns == plain Python records == what went in, on random records of all kinds, with every overflow."""

from __future__ import annotations

import string
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.journal.layout import DENIED, IN, NFP, OSLO, OUT, STATE
from broker.journal.reading.blocks import walk
from broker.journal.reading.columns import COLUMNS, batches, decode
from broker.journal.reading.peers import Peers
from broker.journal.reading.records import records
from broker.journal.reading.segments import Segment
from broker.wire.message import EVENT, PRIVATE, REQUEST, RESPONSE, ROUTE, STREAMING
from gateway.pipeline.arrow import first_words
from tests.live.segments import T0, Rec, flux, note, peer, write

U32 = st.integers(0, 2**32 - 1)
WORDS = st.text(string.ascii_letters + "-é", min_size=1, max_size=12)
TOPICS = st.one_of(
    st.lists(WORDS, min_size=1, max_size=4).map(".".join),
    st.sampled_from(
        [
            "",
            ".",
            ".a",
            "a.",
            "eightlen.x",
            "sevenle.x",
            "sixteen-bytes-ok.y",
            "s" * 33 + ".m",
            "q" * 70_000 + ".z",
        ]
    ),
    st.integers(0, 40).map(lambda size: "s" * size + ".m"),
    st.integers(250, 260).map(lambda size: "t" * size),
    st.sampled_from([65_534, 65_535, 65_536]).map(lambda size: "w" * size),
)
ROUTES = st.one_of(
    st.lists(st.binary(min_size=1, max_size=40), max_size=4),
    st.sampled_from([253, 254, 255, 256]).map(lambda size: [b"hop", b"r" * size]),
    st.sampled_from([254, 255, 256]).map(lambda count: [b"h"] * count),
    st.sampled_from([65_520, 65_529, 65_530, 65_531, 65_540]).map(lambda size: [b"x" * size, b"origin"]),
)
PAYLOADS = st.one_of(st.none(), st.binary(max_size=40), st.integers(250, 260).map(lambda size: b"p" * size))
TIMES = st.one_of(
    st.integers(T0, T0 + 10**15), st.sampled_from([0, -1, 1, 86_400 * 10**9, -(2**63), 2**63 - 1])
)
AROUND = st.fixed_dictionaries(
    {
        "ts": TIMES,
        "transport": st.integers(0, 5),
        "direction": st.sampled_from([IN, OUT, DENIED]),
        "reason": st.integers(0, 300),
        "peer": st.one_of(st.integers(0, 5), U32),
        "via": st.one_of(st.integers(0, 5), U32),
        "claimed": U32,
        "stripped": st.booleans(),
    }
)


@st.composite
def flux_records(draw: Any) -> Rec:
    kind = draw(st.sampled_from([REQUEST, RESPONSE, EVENT]))
    flags = draw(st.sampled_from([0, PRIVATE, STREAMING]))
    parts: list[bytes] = []
    if draw(st.booleans()):
        flags |= ROUTE
        parts = [route.replace(b"\0", b"n") for route in draw(ROUTES)] + [b""]
    if draw(st.integers(0, 9)):
        flags |= 1
        parts.append(draw(TOPICS).encode())
    payload = draw(PAYLOADS)
    if payload is not None:
        flags |= 2
        parts.append(payload)
    proto = bytes([0x8E, 1, kind, flags]) + b"".join(draw(U32).to_bytes(4, "big") for _ in range(4))
    around = draw(AROUND)
    return flux(around.pop("ts"), [*parts, proto], **around)


@st.composite
def notes(draw: Any) -> Rec:
    facts: dict[str, Any] = draw(st.dictionaries(WORDS, st.one_of(st.integers(), WORDS), max_size=3))
    uid = draw(st.sampled_from([None, 0, 1000, 2**32 - 1, 2**62, -1, "me", 1.5, True]))
    if uid is not None:
        facts["uid"] = uid
    wire = draw(st.lists(st.binary(max_size=30), max_size=3))
    around = draw(AROUND)
    return note(
        around.pop("ts"), draw(TOPICS), facts, wire, kind=draw(st.sampled_from([NFP, OSLO, STATE])), **around
    )


DICTIONARIES = st.builds(
    lambda number, text: peer(number, f"päir {number}", role=f"röle {number}", uuid=text),
    st.integers(1, 5),
    st.text(max_size=8),
)
RECORDS = st.lists(st.one_of(flux_records(), flux_records(), notes(), DICTIONARIES), max_size=24)


def value(column: Any, row: int) -> Any:
    return column[row].item() if isinstance(column, np.ndarray) else column.value(row)


def rows_of(path: Path, rows: int) -> tuple[list[dict[str, Any]], Peers]:
    """Every row of numpy, as the oracle would write it."""
    found, peers = [], Peers()
    peers.learn_before(path, path.stat().st_size)
    for some in batches(walk(path), rows):
        columns = decode(some, peers, payload=True)
        assert tuple(columns) == (*COLUMNS, "payload")
        for row in range(len(columns["seq"])):
            found.append({name: value(columns[name], row) for name in COLUMNS})
            found[-1]["payload"] = columns["payload"].raw(row)
    return found, peers


WRITTEN = (
    RECORDS,
    st.sampled_from([1, 3, 4096]),
    st.sampled_from(["none", "zstd", "lz4"]),
    st.sampled_from([0, 24]),
)


@settings(max_examples=20, deadline=None)
@given(*WRITTEN)
def test_columns_records_and_what_went_in_agree(
    some: list[Rec], per_block: int, codec: str, between: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(
            Path(folder), "rank0", some, 100, per_block=per_block, codec=codec, between=between, rank=3
        )
        wanted = [(100 + at, each) for at, each in enumerate(some) if each.kind != 255]
        plain = list(records(path))
        for rows in (1, 8, 4096):
            columns, peers = rows_of(path, rows)
            assert len(columns) == len(plain) == len(wanted)
            for row, record, (seq, each) in zip(columns, plain, wanted, strict=True):
                expected = each.expected(seq, rank=3)
                columns_of = expected.keys() - {"service"}  # follows from the topic
                assert {name: row[name] for name in columns_of} == {
                    name: expected[name] for name in columns_of
                }
                assert {n: getattr(record, n) for n in expected if n != "ts"} == {
                    n: expected[n] for n in expected if n != "ts"
                }
                assert row["payload"] == record.payload
                assert row["dt"] == each.ts // (86_400 * 10**9)
                segment = Segment(path)
                assert row["peer"] == peers.name(segment, each.peer)
                via = 0 if expected["delivered"] is not None else each.via
                assert row["via"] == peers.name(segment, via)
                assert row["role"] == peers.role(segment, each.peer)
                assert row["via_role"] == peers.role(segment, via)
                assert tuple(record.parts()) == each.kept()


@pytest.mark.patient
@settings(max_examples=150, deadline=None)
@given(*WRITTEN)
def test_columns_records_and_what_went_in_agree_in_many(
    some: list[Rec], per_block: int, codec: str, between: int
) -> None:
    test_columns_records_and_what_went_in_agree.hypothesis.inner_test(some, per_block, codec, between)


@given(st.lists(flux_records(), min_size=1, max_size=5))
def test_a_record_is_a_message_again(some: list[Rec]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "rank0", [each.with_(stripped=False) for each in some])
        for record, each in zip(records(path), some, strict=True):
            assert record.message().parts() == [bytes(part) for part in each.parts]


def test_only_what_is_wanted_is_made(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", [note(T0, "a.b", {})])
    (block,) = walk(path)
    assert list(decode([block], Peers(), wanted={"topic", "seq"})) == ["seq", "topic"]
    with pytest.raises(ValueError, match="column 'payload'"):
        decode([block], Peers(), wanted={"payload"})


def test_roles_are_told_of_both_ends_and_the_capture_of_the_segment(tmp_path: Path) -> None:
    who = [peer(1, "unix:1", role="client"), peer(2, "rank 3", role="child")]
    path = write(
        tmp_path,
        "rank0",
        [note(T0, "a.b", {}, peer=1, via=2), note(T0, "a.b", {}, peer=9)],
        peers=who,
        flags=2,
    )
    peers = Peers()
    peers.learn_before(path, path.stat().st_size)
    columns = decode([list(walk(path))[-1]], peers)
    told = [[value(columns[name], row) for name in ("role", "via_role", "capture")] for row in range(2)]
    assert told == [[each.role, each.via_role, each.capture] for each in records(path)]
    assert told == [["client", "child", "both"], ["", "", "both"]]


def test_a_batch_is_of_one_segment(tmp_path: Path) -> None:
    two = [next(walk(write(tmp_path, "rank0", [note(T0, "a", {})], first))) for first in (0, 1)]
    with pytest.raises(ValueError, match="several segments"):
        decode(two, Peers())
    assert [len(some) for some in batches(two)] == [1, 1]


def test_nothing_is_a_batch_of_no_rows() -> None:
    columns = decode([], Peers(), payload=True)
    assert all(
        len(column if isinstance(column, np.ndarray) else column[0]) == 0 for column in columns.values()
    )


@given(st.lists(st.text("ab.\\\xfe", max_size=12)))
def test_a_service_is_the_topic_up_to_its_first_period(topics: list[str]) -> None:
    assert first_words(pa.array(topics, pa.string())).to_pylist() == [
        each.partition(".")[0] for each in topics
    ]
