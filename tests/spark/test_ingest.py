"""Segments into bronze: once, again, grown, killed, damaged, compacted; schemas that grew."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from gateway import pipeline
from gateway.pipeline import compact, describe, runs, schema, verify
from gateway.pipeline.errors import Busy, PipelineError
from gateway.pipeline.ingest import ingest, manifests
from gateway.pipeline.warehouse import FEED, Warehouse
from tests.live import segments
from tests.live.segments import T0
from tests.spark.talk import PEERS, said

DAY_NS = 86_400 * 10**9


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.mkdir()
    return path


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "warehouse")


def seqs(warehouse: Warehouse) -> list[int]:
    return sorted(warehouse.scan("messages", ["seq"])["seq"].to_pylist())


def state(warehouse: Warehouse) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in warehouse.files("messages")}


def test_each_segment_becomes_a_file_and_doing_it_again_changes_none(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    segments.write_many(journal, "rank0", said(250), 100, peers=PEERS, per_block=16)
    segments.write(journal, "nfp", said(40), peers=PEERS)
    with warehouse.lock("ingest"):
        run = ingest(spark, journal, warehouse)
    assert run.rows_out == 290
    names = {path.name for path in warehouse.files("messages")}
    assert names == {
        "rank0-00000000000000000000.parquet",
        "rank0-00000000000000000100.parquet",
        "rank0-00000000000000000200.parquet",
        "nfp-00000000000000000000.parquet",
    }
    before = state(warehouse)
    with warehouse.lock("ingest"):
        assert ingest(spark, journal, warehouse).rows_out == 0
    assert state(warehouse) == before
    assert verify.verify(journal, warehouse).ok
    assert warehouse.feed()["dirty"] == ["2026-01-01"]
    found = warehouse.read(spark, "messages")
    assert found.count() == 290
    assert found.columns == list(schema.MESSAGES.names)
    assert {row.peer for row in found.select("peer").distinct().collect()} == {"unix:1"}


def test_a_segment_that_grew_is_read_again_and_one_that_did_not_is_not(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    segments.write(journal, "rank0", said(100), peers=PEERS)
    segments.write(journal, "rank0", said(50, 100), 100, peers=PEERS)
    ingest(spark, journal, warehouse)
    first = state(warehouse)
    segments.write(journal, "rank0", said(80, 100), 100, peers=PEERS)
    assert ingest(spark, journal, warehouse).rows_out == 80
    assert seqs(warehouse) == list(range(180))
    kept = [path for path in first if path.endswith("-00000000000000000000.parquet")]
    assert all(state(warehouse)[path] == first[path] for path in kept)


def test_rows_stand_under_their_date_and_a_wild_clock_is_no_error(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    late = [record.with_(ts=T0 + DAY_NS - 5000 + index * 1000) for index, record in enumerate(said(10))]
    wild = [
        record.with_(ts=-(1 << 63) if index % 2 else (1 << 63) - 1) for index, record in enumerate(said(4))
    ]
    segments.write(journal, "rank0", late + wild, peers=PEERS)
    ingest(spark, journal, warehouse)
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
    assert warehouse.files("messages") == []
    assert not list(warehouse.root.rglob("*.tmp"))
    run = ingest(spark, journal, warehouse, skip=True)
    assert run.rows_out == 90
    last = runs.last(warehouse)
    assert (last["job"], last["bad_blocks"], last["lost_records"]) == ("ingest", 1, 10)
    (loss,) = json.loads(last["offsets"])["losses"]
    assert (loss["segment"], loss["offset"]) == (path.name, at)
    report = verify.verify(journal, warehouse)
    assert report.ok
    assert len(report.segments[0].damages) == 1


def test_an_ingest_that_was_killed_is_done_again(spark, journal: Path, warehouse: Warehouse) -> None:
    """Files without a manifest, and a feed that says what had been begun: what a kill leaves."""
    segments.write_many(journal, "rank0", said(60), 30, peers=PEERS)
    ingest(spark, journal, warehouse)
    warehouse.update_feed(dirty=[], ingesting=["rank0-00000000000000000000"])
    (warehouse.root / "_ingested" / "rank0-00000000000000000000.json").unlink()
    (warehouse.partition("messages", "2026-01-01") / ".x.parquet.0.tmp").write_bytes(b"torn")
    assert warehouse.settle() == ["2026-01-01"]
    assert ingest(spark, journal, warehouse).rows_out == 30
    assert seqs(warehouse) == list(range(60))
    assert warehouse.read(spark, "messages").count() == 60


def test_rows_stay_when_their_segment_is_deleted(spark, journal: Path, warehouse: Warehouse) -> None:
    first, _second = segments.write_many(journal, "rank0", said(60), 30, peers=PEERS)
    ingest(spark, journal, warehouse)
    first.unlink()
    ingest(spark, journal, warehouse)
    assert seqs(warehouse) == list(range(60))
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.beyond, report.rows) == (True, 30, 60)


def test_verify_finds_what_is_missing_and_what_is_there_twice(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    segments.write_many(journal, "rank0", said(90), 30, peers=PEERS)
    ingest(spark, journal, warehouse)
    one, two, _three = warehouse.files("messages")
    rows = pq.read_table(one)
    two.unlink()
    pq.write_table(rows.slice(0, 7), one.with_name("again.parquet"))
    report = verify.verify(journal, warehouse)
    assert not report.ok
    assert [(each.records, each.rows, each.twice) for each in report.segments] == [
        (30, 30, 7),
        (30, 0, 0),
        (30, 30, 0),
    ]


def test_a_stream_and_an_ingest_do_not_feed_the_same_warehouse(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    warehouse.claim("stream", "0123")
    with pytest.raises(Busy, match="fed by stream; ingest would bring every record twice"):
        ingest(spark, journal, warehouse)
    with pytest.raises(Busy, match="fed by the stream whose checkpoint is 0123"):
        warehouse.claim("stream", "4567")
    assert json.loads((warehouse.root / FEED).read_text())["query"] == "0123"


def test_compaction_keeps_every_row_and_leaves_alone_what_grows(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    segments.write_many(journal, "rank0", said(250), 50, peers=PEERS, per_block=16)
    ingest(spark, journal, warehouse, payload=True)
    before = warehouse.read(spark, "messages", extra=[schema.PAYLOAD]).toArrow().sort_by("seq")
    (done,) = compact.compact(warehouse, ["messages"], spark=spark)
    assert (done.files_before, done.files_after, done.rows) == (5, 2, 200)
    assert len(warehouse.files("messages")) == 2
    after = warehouse.read(spark, "messages", extra=[schema.PAYLOAD]).toArrow().sort_by("seq")
    assert after.equals(before)
    assert ingest(spark, journal, warehouse, payload=True).rows_out == 0
    assert compact.compact(warehouse, ["messages"]) == []
    segments.write(journal, "rank0", said(10, 250), 250, peers=PEERS)
    ingest(spark, journal, warehouse, payload=True)
    assert seqs(warehouse) == list(range(260))
    (again,) = compact.compact(warehouse, ["messages"])
    assert again.rows == 250
    assert seqs(warehouse) == list(range(260))
    assert verify.verify(journal, warehouse).ok


def test_a_column_that_is_new_is_null_in_older_files(
    spark, journal: Path, warehouse: Warehouse, monkeypatch
) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    ingest(spark, journal, warehouse)
    grown = schema.Table(
        "messages",
        schema.MESSAGES.doc,
        (*schema.MESSAGES.columns, schema.Column("colour", "string", "of the message", 3)),
        schema.MESSAGES.oldest,
    )
    monkeypatch.setitem(schema.TABLES, "messages", grown)
    assert grown.version == 3
    assert warehouse.scan("messages", ["seq", "colour"])["colour"].null_count == 5
    assert [row.colour for row in warehouse.read(spark, "messages").select("colour").collect()] == [None] * 5
    older = schema.version_of(pq.read_metadata(warehouse.files("messages")[0]).metadata)
    assert older == 2


def test_a_file_of_a_newer_version_is_refused_in_words(spark, journal: Path, warehouse: Warehouse) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    ingest(spark, journal, warehouse)
    (path,) = warehouse.files("messages")
    rows = pq.read_table(path)
    pq.write_table(rows.replace_schema_metadata({"headgate.table": "messages", "headgate.v": "9"}), path)
    with pytest.raises(PipelineError, match="version 9 of table messages; this program knows up to 2"):
        warehouse.scan("messages")


def test_a_warehouse_of_an_older_version_is_refused_before_anything_is_written(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    ingest(spark, journal, warehouse)
    (path,) = warehouse.files("messages")
    rows = pq.read_table(path)
    pq.write_table(rows.replace_schema_metadata({"headgate.table": "messages", "headgate.v": "1"}), path)
    said_of_it = (
        "version 1 of table messages; this program reads from 2 on: make the warehouse anew from its journal"
    )
    with pytest.raises(PipelineError, match=said_of_it), warehouse.lock("ingest"):
        pass
    with pytest.raises(PipelineError, match=said_of_it):
        pipeline.views(spark, warehouse.root)


def test_tables_without_rows_are_read_by_whoever_knows_no_schema(
    spark, journal: Path, warehouse: Warehouse
) -> None:
    import duckdb  # of the main environment; others only collect this file

    segments.write(journal, "rank0", said(5), peers=PEERS)
    with warehouse.lock("ingest"):
        ingest(spark, journal, warehouse)
    with duckdb.connect() as base:
        for table in schema.TABLES.values():
            place = str(warehouse.table(table.name))
            found = base.execute(f"FROM read_parquet('{place}/**/*.parquet', hive_partitioning = true)")
            assert {each[0] for each in found.description} == set(table.names)
            assert len(found.fetchall()) == {"messages": 5, "_runs": 1}.get(table.name, 0)
            read = ds.dataset(place, format="parquet", partitioning="hive")
            assert set(read.schema.names) == set(table.names)
            assert set(spark.read.parquet(place).columns) == set(table.names)
            assert bool(warehouse.dates(table.name)) == (table.name in ("messages", "_runs"))


def test_views_are_the_tables(spark, journal: Path, warehouse: Warehouse) -> None:
    segments.write(journal, "rank0", said(5), peers=PEERS)
    ingest(spark, journal, warehouse)
    assert pipeline.views(spark, warehouse.root) == list(schema.TABLES)
    assert spark.sql("SELECT count(*) FROM messages JOIN slow USING (rank)").first()[0] == 0
    assert spark.sql("SELECT sum(rows_out) FROM _runs").first()[0] == 5


def test_gold_is_swapped_whole_dates_and_no_others(spark, warehouse: Warehouse) -> None:
    columns = (
        "timestamp'2026-01-01 00:00:00' AS ts, 'call' AS exchange, 't' AS topic, 'e' AS event_type, "
        "'INFO' AS priority, 'p' AS publisher_id, id AS payload_len, "
        "date_add(date'2026-01-01', int(id % 3)) AS dt"
    )
    whole = spark.sql(f"SELECT {columns} FROM range(9)")
    dates = ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert warehouse.overwrite(whole, "notifications", dates) == 9
    assert warehouse.dates("notifications") == dates
    assert (
        warehouse.overwrite(whole.where("payload_len = 1"), "notifications", ["2026-01-02", "2026-01-03"])
        == 1
    )
    assert warehouse.dates("notifications") == ["2026-01-01", "2026-01-02"]
    assert sorted(warehouse.scan("notifications")["payload_len"].to_pylist()) == [0, 1, 3, 6]
    assert warehouse.read(spark, "notifications").count() == 4
    with pytest.raises(PipelineError, match="notifications: rows of 2026-01-02; expected 2026-01-01 only"):
        warehouse.overwrite(whole, "notifications", ["2026-01-01"])
    assert describe.held(warehouse, "notifications").versions == (1,)
    assert not any((warehouse.root / ".staging").iterdir())


def test_runs_of_an_hour_share_a_file_and_a_batch_done_again_replaces_its_row(warehouse: Warehouse) -> None:
    for number in (1, 2, 2, 3):
        runs.add(warehouse, runs.Run("stream", "stream", number, rows_in=number).finish())
    found = warehouse.scan("_runs")
    assert sorted(found["batch_id"].to_pylist()) == [1, 2, 3]
    assert len(warehouse.files("_runs")) <= 2
    assert runs.last(warehouse)["batch_id"] == 3


def test_describe_says_what_there_is(spark, journal: Path, warehouse: Warehouse) -> None:
    with pytest.raises(PipelineError, match="no such directory"):
        describe.describe(warehouse)
    segments.write(journal, "rank0", said(5), peers=PEERS)
    ingest(spark, journal, warehouse)
    told = describe.describe(warehouse)
    (messages,) = [each for each in told["tables"] if each["table"] == "messages"]
    assert (messages["rows"], messages["files"], messages["versions"]) == (5, 1, (2,))
    assert told["last_run"]["job"] == "ingest"
    assert 0 <= told["last_run"]["age_s"] < 60
    assert list(manifests(warehouse)) == ["rank0-00000000000000000000"]
    assert os.listdir(warehouse.root / "_ingested") == ["rank0-00000000000000000000.json"]
    assert isinstance(pa.schema(warehouse.scan("messages").schema), pa.Schema)
