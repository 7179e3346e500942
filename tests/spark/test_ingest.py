"""Segments into bronze: once, again, grown, damaged, compacted; schemas that grew."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from broker.errors import ConfigError
from gateway import pipeline
from gateway.cli.pipeline.describe import described
from gateway.pipeline import compact, schema, verify
from gateway.pipeline.bronze import bring, ingest, write
from gateway.pipeline.errors import Busy, PipelineError
from gateway.pipeline.schema import Column, Table
from gateway.pipeline.warehouse import Run, Warehouse, dates_of
from tests.live import segments, traffic
from tests.live.segments import T0
from tests.spark.talk import PEERS, said, seqs

DAY_NS = 86_400 * 10**9


def files(warehouse: Warehouse) -> set[str]:
    return {file.path for file in warehouse.at("messages").files()}


def test_all_segments_become_one_commit_and_doing_it_again_makes_none(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    segments.write_many(journal, "rank0", said(250), 100, peers=PEERS, per_block=16)
    segments.write(journal, "nfp", said(40), peers=PEERS)
    run = ingest(spark, journal, warehouse)
    assert run.rows_out == 290
    assert {path.partition("/")[0] for path in files(warehouse)} == {"dt=2026-01-01"}
    before = files(warehouse)
    assert ingest(spark, journal, warehouse).rows_out == 0
    assert files(warehouse) == before
    assert verify.verify(journal, warehouse).ok
    bronze = warehouse.at("messages")
    assert warehouse.feed() == {"feed": "ingest", "bronze": 0, "gold": -1}
    assert dates_of(bronze.notes(-1, "bronze", 0)) == {"2026-01-01"}
    found = warehouse.read(spark, "messages")
    assert found.count() == 290
    assert found.columns == list(schema.MESSAGES.names)
    assert {row.peer for row in found.select("peer").distinct().collect()} == {"unix:1"}


def test_of_a_segment_that_grew_what_is_new_is_read(journal: Path, warehouse: Warehouse) -> None:
    segments.write(journal, "rank0", said(100), peers=PEERS)
    path = segments.write(journal, "rank0", said(80, 100), 100, per_block=10, peers=PEERS)
    whole = path.read_bytes()
    starts = [at for at in range(64, len(whole), 8) if whole[at : at + 4] == b"FJBK"]
    path.write_bytes(whole[: starts[6] + 70])  # peers, five blocks, and a torn one
    assert bring(write, journal, warehouse).rows_out == 150
    first = files(warehouse)
    path.write_bytes(whole)
    assert bring(write, journal, warehouse).rows_out == 30
    assert seqs(warehouse) == list(range(180))
    assert files(warehouse) > first
    rows = warehouse.scan("messages", ["peer", "via"])
    assert set(rows["peer"].to_pylist()) == {"unix:1"}, "who is who stands in front of what was read before"


def test_rows_stand_under_their_date_and_a_wild_clock_is_no_error(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    late = [record.with_(ts=T0 + DAY_NS - 5000 + index * 1000) for index, record in enumerate(said(10))]
    wild = [
        record.with_(ts=-(1 << 63) if index % 2 else (1 << 63) - 1) for index, record in enumerate(said(4))
    ]
    segments.write(journal, "rank0", late + wild, peers=PEERS)
    bring(write, journal, warehouse)
    assert warehouse.dates("messages") == ["1677-09-21", "2026-01-01", "2026-01-02", "2262-04-11"]
    counted = {
        str(row.dt): row["count"] for row in warehouse.read(spark, "messages").groupBy("dt").count().collect()
    }
    assert counted == {"2026-01-01": 5, "2026-01-02": 5, "1677-09-21": 2, "2262-04-11": 2}


def test_damage_ends_the_job_or_is_counted_and_named(spark, journal: Path, warehouse: Warehouse) -> None:
    path = segments.write(journal, "rank0", said(100), per_block=10, peers=PEERS)
    data = bytearray(path.read_bytes())
    at = data.index(b"FJBK", 5000)
    data[at + 70] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=f"{path.name}: .* bytes at {at}"):
        ingest(spark, journal, warehouse)
    assert files(warehouse) == set()
    run = ingest(spark, journal, warehouse, skip=True)
    assert run.rows_out == 90
    last = warehouse.last_run()
    assert (last["job"], last["bad_blocks"], last["lost_records"]) == ("ingest", 1, 10)
    (loss,) = json.loads(last["offsets"])["losses"]
    assert (loss["segment"], loss["offset"]) == (path.name, at)
    report = verify.verify(journal, warehouse)
    assert report.ok
    assert len(report.segments[0].damages) == 1


def test_a_worker_that_does_not_see_the_journal_is_named_whatever_is_skipped(
    spark, journal: Path, warehouse: Warehouse, monkeypatch
) -> None:
    """The path of the journal is one that means something else in every process: its own directory."""
    segments.write(journal, "rank0", said(60), peers=PEERS)
    monkeypatch.chdir(journal.parent)
    there = "/proc/self/cwd/journal"
    with pytest.raises(
        PipelineError, match=rf"this worker does not see the journal: {there}/rank0-0+.fj, \S+: No such"
    ):
        ingest(spark, there, warehouse, skip=True)
    assert (files(warehouse), warehouse.feed()["bronze"]) == (set(), -1)
    assert bring(write, there, warehouse).rows_out == 60


def test_an_ingest_that_was_killed_left_nothing(journal: Path, warehouse: Warehouse) -> None:
    """Files without a commit are no rows; ``compact`` deletes them once they are older than any job."""
    segments.write_many(journal, "rank0", said(60), 30, peers=PEERS)
    warehouse.ready()
    rows = warehouse.write_rows("messages", segments_as_rows())
    assert warehouse.scan("messages").num_rows == 0
    assert bring(write, journal, warehouse).rows_out == 60
    assert seqs(warehouse) == list(range(60))
    orphan = warehouse.root / "messages" / rows[0].path
    compact.compact(warehouse, keep_hours=1)
    assert orphan.exists(), "somebody may be about to commit it"
    os.utime(orphan, (T0 / 1e9, T0 / 1e9))
    compact.compact(warehouse)
    assert not orphan.exists()
    assert seqs(warehouse) == list(range(60))


def segments_as_rows() -> pa.Table:
    return traffic.arrow(traffic.Player(traffic.Writer()).play([("event", 1, 1, 0)]))


def test_rows_stay_when_their_segment_is_deleted(journal: Path, warehouse: Warehouse) -> None:
    first, _second = segments.write_many(journal, "rank0", said(60), 30, peers=PEERS)
    bring(write, journal, warehouse)
    first.unlink()
    bring(write, journal, warehouse)
    assert seqs(warehouse) == list(range(60))
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.beyond, report.rows) == (True, 30, 60)


def test_verify_finds_what_is_missing_and_what_is_there_twice(journal: Path, warehouse: Warehouse) -> None:
    segments.write_many(journal, "rank0", said(90), 30, peers=PEERS)
    bring(write, journal, warehouse)
    bronze = warehouse.at("messages")
    (whole,) = bronze.files()
    rows = bronze.scan().sort_by("seq")
    some = pa.concat_tables([rows.slice(0, 30), rows.slice(0, 7), rows.slice(60)])
    bronze.commit(warehouse.write_rows("messages", some), removed=[whole])
    report = verify.verify(journal, warehouse)
    assert not report.ok
    assert [(each.records, each.rows, each.twice) for each in report.segments] == [
        (30, 30, 7),
        (30, 0, 0),
        (30, 30, 0),
    ]


def test_a_stream_and_an_ingest_do_not_feed_the_same_warehouse(journal: Path, warehouse: Warehouse) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    warehouse.ready()
    warehouse.claim("stream")
    with pytest.raises(Busy, match="fed by a stream, which an ingest would overtake"):
        bring(write, journal, warehouse)


def test_compaction_keeps_every_row_and_what_comes_later_comes_in(
    journal: Path, warehouse: Warehouse
) -> None:
    for first, count in ((0, 100), (100, 150)):
        segments.write(journal, "rank0", said(count, first), first, per_block=16, peers=PEERS)
        bring(write, journal, warehouse, payload=True)
    names = [*schema.MESSAGES.names, schema.PAYLOAD.name]
    before = warehouse.at("messages")
    rows = before.scan(names).sort_by("seq")
    (done,) = compact.compact(warehouse, ["messages"])
    assert (done.files_before, done.files_after, done.rows) == (2, 1, 250)
    assert warehouse.at("messages").scan(names).sort_by("seq").equals(rows)
    assert before.scan(names).sort_by("seq").equals(rows), "who began before goes on"
    assert bring(write, journal, warehouse, payload=True).rows_out == 0
    assert compact.compact(warehouse, ["messages"]) == []
    segments.write(journal, "rank0", said(10, 250), 250, peers=PEERS)
    bring(write, journal, warehouse)
    assert seqs(warehouse) == list(range(260))
    (again,) = compact.compact(warehouse, ["messages"])
    assert (again.files_before, again.files_after, again.rows) == (2, 1, 260)
    assert verify.verify(journal, warehouse).ok
    kept = warehouse.scan("messages", ["payload"])["payload"]
    assert len(kept) - kept.null_count == rows.num_rows - rows["payload"].null_count


def test_a_column_that_is_new_is_null_in_older_files(
    spark, journal: Path, warehouse: Warehouse, monkeypatch
) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    bring(write, journal, warehouse)
    grown = Table(
        "messages",
        schema.MESSAGES.doc,
        (*schema.MESSAGES.columns, Column("colour", "string", "of the message", 4)),
        schema.MESSAGES.oldest,
    )
    monkeypatch.setitem(schema.TABLES, "messages", grown)
    assert grown.version == 4
    assert warehouse.scan("messages", ["seq", "colour"])["colour"].null_count == 5
    assert [row.colour for row in warehouse.read(spark, "messages").select("colour").collect()] == [None] * 5
    assert warehouse.at("messages").settings["headgate.v"] == "3"
    warehouse.ready()
    bronze = warehouse.at("messages")
    assert bronze.settings["headgate.v"] == "4"
    assert bronze.delta.to_pyarrow_table(columns=["colour"])["colour"].null_count == 5


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (9, "version 9 of table messages; this program knows up to 3"),
        (
            1,
            "version 1 of table messages; this program reads from 3 on: make the warehouse anew from its journal",
        ),
    ],
)
def test_another_version_is_refused_in_words(
    spark, journal: Path, warehouse: Warehouse, version: int, text: str
) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    bring(write, journal, warehouse)
    delta = warehouse.at("messages").delta
    delta.alter.set_table_properties({"headgate.v": str(version)}, raise_if_not_exists=False)
    with pytest.raises(PipelineError, match=text):
        warehouse.scan("messages")
    with pytest.raises(PipelineError, match=text):
        warehouse.ready()
    with pytest.raises(PipelineError, match=text):
        pipeline.views(spark, warehouse.root)


def test_other_readers_read_it_and_tables_without_rows_too(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    import duckdb  # of the main environment; others only collect this file
    from deltalake import DeltaTable

    segments.write(journal, "rank0", said(5), peers=PEERS)
    bring(write, journal, warehouse)
    with duckdb.connect() as base:
        for table in schema.TABLES.values():
            rows = {"messages": 5, "_runs": 1}.get(table.name, 0)
            table_read = DeltaTable(warehouse.table(table.name)).to_pyarrow_dataset()
            found = base.execute("FROM table_read")
            assert {each[0] for each in found.description} == set(table.names)
            assert len(found.fetchall()) == rows
            assert warehouse.read(spark, table.name).count() == rows
            assert len(table_read.to_table().to_pandas()) == rows
            assert bool(warehouse.dates(table.name)) == bool(rows)


def test_one_can_look_back(journal: Path, warehouse: Warehouse) -> None:
    """As the pipeline's page says: a table as it was at a version or a time."""
    from deltalake import DeltaTable

    segments.write(journal, "rank0", said(5), peers=PEERS)
    bring(write, journal, warehouse)
    before = DeltaTable(warehouse.table("messages")).version()
    segments.write(journal, "nfp", said(7), peers=PEERS)
    bring(write, journal, warehouse)
    compact.compact(warehouse)
    assert DeltaTable(warehouse.table("messages")).to_pyarrow_table().num_rows == 12
    assert DeltaTable(warehouse.table("messages"), version=before).to_pyarrow_table().num_rows == 5


def test_views_are_the_tables(spark, journal: Path, warehouse: Warehouse) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    bring(write, journal, warehouse)
    assert pipeline.views(spark, warehouse.root) == list(schema.TABLES)
    assert spark.sql("SELECT count(*) FROM messages JOIN slow USING (rank)").first()[0] == 0
    assert spark.sql("SELECT sum(rows_out) FROM _runs").first()[0] == 5


def test_a_batch_done_again_has_one_row(warehouse: Warehouse) -> None:
    warehouse.ready()
    for number in (1, 2, 2, 3):
        warehouse.record(Run("stream", "stream", number, rows_in=number), {"stream": number})
    assert sorted(warehouse.scan("_runs")["batch_id"].to_pylist()) == [1, 2, 3]
    compact.compact(warehouse)
    assert len(warehouse.at("_runs").files()) == 1
    assert warehouse.last_run()["batch_id"] == 3


def test_describe_says_what_there_is(journal: Path, warehouse: Warehouse) -> None:
    with pytest.raises(ConfigError, match="no such warehouse"):
        pipeline.views(None, warehouse.root)
    segments.write(journal, "rank0", said(5), peers=PEERS)
    bring(write, journal, warehouse)
    told = described(warehouse)
    (messages,) = [each for each in told["tables"] if each["table"] == "messages"]
    assert (messages["rows"], messages["files"], messages["version"]) == (5, 1, 3)
    assert told["last_run"]["job"] == "ingest"
    assert 0 <= told["last_run"]["age_s"] < 60
