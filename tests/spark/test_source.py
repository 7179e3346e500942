"""The data source `headgate`, batch: columns, projection, filters, damage, versions, options."""

import json
import struct
import zlib
from pathlib import Path

import pytest

from gateway.pipeline import schema
from gateway.pipeline.errors import PipelineError
from tests.live import segments
from tests.live.segments import T0, flux, note
from tests.spark.talk import PEERS, request, said
from tests.tables import for_each


def load(spark, path: Path, **options: object):
    told = {name: str(value) for name, value in options.items()}
    return spark.read.format("headgate").options(**told).load(str(path))


def rows(frame) -> list[dict[str, object]]:
    return sorted(
        (row.asDict() for row in frame.collect()), key=lambda row: (row["writer"] or "", row["seq"] or 0)
    )


def test_every_column_is_what_was_written(spark, tmp_path: Path) -> None:
    records = [
        *said(50),
        flux(T0 + 60_000, request("kvs.get", matchtag=9), peer=2, via=1, direction=2, reason=1),
        note(
            T0 + 70_000, "gap", {"records": 2, "first": 51, "last": 52, "cause": "the writer did not keep up"}
        ),
    ]
    segments.write(tmp_path, "rank0", records, 7, per_block=16, peers=PEERS)
    found = rows(load(spark, tmp_path).selectExpr("*", "unix_micros(ts) AS us"))
    assert len(found) == len(records)
    for row, (index, record) in zip(found, enumerate(records), strict=True):
        expected = record.expected(7 + index)
        expected["ts"] = row["ts"] if row["us"] == expected["ts"] else expected["ts"]
        expected["peer"], expected["via"] = _name(record.peer), _name(record.via)
        assert {name: row[name] for name in expected} == expected
        assert str(row["dt"]) == "2026-01-01"


def _name(number: int) -> str:
    return {0: "", 1: "unix:1", 2: "unix:2"}[number]


def test_a_schema_projects_and_an_unknown_column_is_refused(spark, tmp_path: Path) -> None:
    segments.write(tmp_path, "rank0", said(20), peers=PEERS)
    few = spark.read.format("headgate").schema("seq bigint, topic string").load(str(tmp_path))
    assert few.columns == ["seq", "topic"]
    assert [row.topic for row in few.orderBy("seq").collect()][:2] == ["kvs.get", "job.list"]
    with pytest.raises(Exception, match="no column 'nonsense' in messages"):
        spark.read.format("headgate").schema("nonsense string").load(str(tmp_path)).collect()
    with pytest.raises(Exception, match="column userid of messages: int asked for; it is bigint"):
        spark.read.format("headgate").schema("seq bigint, userid int").load(str(tmp_path)).collect()


def test_several_journals_are_one_table_and_short_segments_are_read_together(spark, tmp_path: Path) -> None:
    from gateway.pipeline.source import Options

    places = [tmp_path / name / "journal" for name in ("a", "b")]
    for place in places:
        segments.write_many(place, "rank0", said(100), 10, peers=PEERS)
    read = spark.read.format("headgate").schema("seq bigint")
    found = read.load([str(place) for place in places])
    assert found.rdd.getNumPartitions() == 2, "of 20 segments"
    assert found.count() == 200
    assert read.load(str(tmp_path / "*" / "journal")).count() == 200
    assert read.load(str(next(iter(places[0].iterdir())))).count() == 10
    with pytest.raises(Exception, match="no such journal"):
        read.load(str(tmp_path / "c*")).count()
    with pytest.raises(PipelineError, match="2 journals; a stream reads one"):
        Options.parse({"path": str(tmp_path / "*" / "journal")}).journal  # noqa: B018 - it is looked up


def test_a_split_segment_knows_its_peers(spark, tmp_path: Path) -> None:
    """The dictionary stands at the segment's begin, in front of every range but the first."""
    segments.write(tmp_path, "rank0", said(400), per_block=8, peers=PEERS)
    found = load(spark, tmp_path, splitBytes=4096)
    assert found.rdd.getNumPartitions() > 3
    assert {row.peer for row in found.select("peer").distinct().collect()} == {"unix:1"}
    assert sorted(row.seq for row in found.select("seq").collect()) == list(range(400))


def test_a_stream_of_spans_says_where_each_batch_begins_and_ends(java, tmp_path: Path) -> None:
    """As the stream's tasks get them, without a JVM between: each record once, and the offsets of the batch."""
    from pyspark.sql.types import StructType

    from gateway.pipeline import bronze, spans
    from gateway.pipeline.source import Options, StreamReader

    segments.write_many(tmp_path / "j", "rank0", said(100), 50, per_block=10, peers=PEERS)
    options = {"path": str(tmp_path / "j"), "spans": "true", "tasks": "2", "splitBytes": "2000"}
    reader = StreamReader(Options.parse(options), StructType([]))
    until = spans.latest(str(tmp_path / "j"), reader.initialOffset())
    run, found = bronze.task(bronze.How(str(tmp_path / "w"))), bronze.Written()
    parts = reader.partitions({}, until)
    assert len(parts) > 2
    for part in parts:
        for batch in run(reader.read(part)):
            found.take(batch["written"][0].as_py())
    assert (found.rows, found.offset, found.losses) == (100, ({}, until), [])
    for part in reader.partitions(until, until):
        for batch in run(reader.read(part)):
            found.take(batch["written"][0].as_py())
    assert (found.rows, found.offset) == (100, ({}, {}))
    begun = StreamReader(Options.parse({**options, "startingOffsets": json.dumps(until)}), StructType([]))
    assert begun.initialOffset() == until


def test_a_range_of_time(spark, tmp_path: Path) -> None:
    segments.write(tmp_path, "rank0", said(100), per_block=16, peers=PEERS)
    some = load(spark, tmp_path, startingTs=T0 + 10_000, endingTs="2026-01-01T00:00:00.000020")
    assert sorted(row.seq for row in some.select("seq").collect()) == list(range(10, 20))


def test_payloads_are_there_when_asked_for(spark, tmp_path: Path) -> None:
    whole = [flux(T0, request("kvs.get", b"\x00abc\xff", matchtag=1), peer=1)]
    stripped = [whole[0].with_(ts=T0 + 1, stripped=True)]
    segments.write(tmp_path, "rank0", whole + stripped, peers=PEERS)
    found = rows(load(spark, tmp_path, payload="true"))
    assert bytes(found[0]["payload"]) == b"\x00abc\xff"
    assert found[1]["payload"] is None
    assert found[0]["payload_len"] == found[1]["payload_len"] == 5
    assert "payload" not in load(spark, tmp_path).columns


def test_what_is_no_text_is_shown_with_backslashes(spark, tmp_path: Path) -> None:
    proto = request("x", matchtag=1).parts()[-1]
    segments.write(
        tmp_path, "rank0", [flux(T0, [b"\xff\x00r", b"", b"a.\xfe", b"{}", proto], peer=1)], peers=PEERS
    )
    (row,) = rows(load(spark, tmp_path))
    assert (row["topic"], row["service"], row["origin"]) == ("a.\\xfe", "a", "\\xff\x00r")


def test_an_empty_journal_is_an_empty_table(spark, tmp_path: Path) -> None:
    assert load(spark, tmp_path).count() == 0
    segments.write(tmp_path, "rank0", [])
    assert load(spark, tmp_path).count() == 0
    with pytest.raises(Exception, match="nowhere"):
        load(spark, tmp_path / "nowhere").count()


def test_damage_is_an_error_or_a_counted_loss(spark, tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(100), per_block=10, peers=PEERS)
    data = bytearray(path.read_bytes())
    at = data.index(b"FJBK", data.index(b"FJBK", data.index(b"FJBK") + 4) + 4)  # the second numbered block
    data[at + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=rf"{path.name}: \d+ bytes at {at}: CRC"):
        load(spark, tmp_path).collect()
    kept = rows(load(spark, tmp_path, onCorrupt="skip"))
    assert [row["seq"] for row in kept] == [*range(10), *range(20, 100)]


def test_a_torn_tail_is_not_read_and_no_error(spark, tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(30), per_block=10, peers=PEERS)
    whole = path.read_bytes()
    last = whole.rindex(b"FJBK")
    for cut in (last + 3, len(whole) - 1):  # every byte of it: test_offsets
        path.write_bytes(whole[:cut])
        assert [row["seq"] for row in rows(load(spark, tmp_path).select("writer", "seq"))] == list(range(20))


def test_a_newer_version_is_refused_in_words(spark, tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(3))
    head = bytearray(path.read_bytes())
    head[4:6] = struct.pack("<H", 2)
    head[60:64] = struct.pack("<I", zlib.crc32(head[:60]))
    path.write_bytes(head)
    with pytest.raises(Exception, match=r"segment of version 2; this program knows versions up to 1"):
        load(spark, tmp_path, onCorrupt="skip").count()


@for_each(
    "options, text",
    [
        ({"onCorrupt": "ignore"}, "option onCorrupt: 'ignore'; expected fail or skip"),
        ({"maxBytesPerTrigger": "many"}, "option maxBytesPerTrigger: 'many'; expected bytes above 0"),
        ({"startingTs": "yesterday"}, "option startingTs: 'yesterday'; expected a date and time"),
        ({"pathGlobFilter": "x"}, "option pathglobfilter: unknown"),
        ({"payload": "no"}, "option payload: 'no'; expected true or false"),
    ],
)
def test_wrong_options_say_what_was_expected(
    java, tmp_path: Path, options: dict[str, str], text: str
) -> None:
    """As Spark hands them over; that it shows the text is seen where a column is unknown."""
    from gateway.pipeline.source import Options

    with pytest.raises(PipelineError, match=text):
        Options.parse({"path": str(tmp_path), **options})


def test_the_schema_is_the_documented_one(spark, tmp_path: Path) -> None:
    segments.write(tmp_path, "rank0", said(1), peers=PEERS)
    assert tuple(load(spark, tmp_path).columns) == schema.MESSAGES.names
