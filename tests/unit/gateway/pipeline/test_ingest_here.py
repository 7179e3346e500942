"""Segments into bronze by the threads of this process: at once, told of, and none of it where one is damaged."""

import threading
from pathlib import Path

import pytest

from broker.journal.reading.damage import Damaged
from gateway.pipeline import ingest, schema, verify
from gateway.pipeline.spans import Span
from gateway.pipeline.warehouse import Warehouse
from tests.live import segments
from tests.spark.talk import PEERS, said

SEGMENTS = 6


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest.os, "cpu_count", lambda: 2)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    segments.write_many(tmp_path / "journal", "rank0", said(SEGMENTS * 100), 100, per_block=20, peers=PEERS)
    return tmp_path / "journal"


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "warehouse")


def test_two_segments_are_read_at_once(
    journal: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=5)
    convert = ingest.convert

    def waits(span: Span, how: ingest.IngestOptions) -> ingest.Ingested:
        both.wait()
        return convert(span, how)

    monkeypatch.setattr(ingest, "convert", waits)
    told: list[tuple[int, int]] = []
    run = ingest.ingest(
        None, journal, warehouse, payload=True, tell=lambda done, total: told.append((done, total))
    )
    assert (run.rows_out, run.by) == (SEGMENTS * 100, "pyarrow")
    assert told == [(number, SEGMENTS) for number in range(1, SEGMENTS + 1)]
    assert verify.verify(journal, warehouse).ok
    names = (*schema.MESSAGES.names, "payload")
    rows = warehouse.scan("messages", names).sort_by("seq").to_pylist()
    assert [row["seq"] for row in rows] == list(range(SEGMENTS * 100))
    assert {(row["peer"], row["payload"]) for row in rows} == {("unix:1", b"{}")}


def test_a_damaged_segment_is_named_and_nothing_of_the_others_stays(
    journal: Path, warehouse: Warehouse
) -> None:
    path = sorted(journal.iterdir())[SEGMENTS - 1]
    data = bytearray(path.read_bytes())
    at = data.index(b"FJBK", 3000)
    data[at + 70] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(Damaged, match=f"{path.name}: .*bytes at {at}: CRC of the block"):
        ingest.ingest(None, journal, warehouse)
    assert list((warehouse.root / "messages").glob("dt=*/*")) == []
    assert warehouse.feed()["bronze"] == -1
    run = ingest.ingest(None, journal, warehouse, skip=True)
    assert (run.rows_out, len(run.losses), run.lost_records) == (SEGMENTS * 100 - 20, 1, 20)
