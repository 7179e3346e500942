"""The journal as it grows into a warehouse: every complete record once, whatever happens to segments and processes."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.pipeline import compact, schema, spans, verify
from gateway.pipeline.bronze import bring, write
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.stream import Stream
from gateway.pipeline.warehouse import Run, Warehouse
from tests.live import segments
from tests.live.segments import T0, note
from tests.spark.talk import PEERS, adds_up, numbers, said, seqs, talked


@pytest.fixture
def loop(java: None) -> object:
    """Spark's part without Spark."""
    from tests.spark.loop import Loop

    return Loop()


def read_all(
    spark, journal: Path, warehouse: Warehouse, *, gold: bool = False, **options: object
) -> list[Run]:
    """All there is now, as `--available-now` does."""
    told: list[Run] = []
    given = {name: str(value) for name, value in options.items()}
    stream = Stream(spark, journal, warehouse, gold=gold, options=given, on_run=told.append)
    try:
        stream.wait()
    finally:
        stream.stop()
    return told


def test_a_block_that_is_torn_at_a_trigger_is_read_when_it_is_whole(
    loop, journal: Path, warehouse: Warehouse
) -> None:
    """An offset is the end of a complete block: with the file's size the rest of the block would be lost in silence."""
    path = segments.write(journal, "rank0", said(100), per_block=10, peers=PEERS)
    whole = path.read_bytes()
    starts = [at for at in range(64, len(whole), 8) if whole[at : at + 4] == b"FJBK"]
    for cut, complete in (
        (starts[4] + 3, 30),
        (starts[4] + 70, 30),
        (starts[8] - 1, 60),
        (len(whole) - 8, 90),
    ):
        path.write_bytes(whole[:cut])
        read_all(loop, journal, warehouse)
        assert seqs(warehouse) == list(range(complete))
    path.write_bytes(whole)
    read_all(loop, journal, warehouse)
    assert seqs(warehouse) == list(range(100))
    assert verify.verify(journal, warehouse).ok


def test_offsets_that_are_sizes_of_files_are_refused(spark, journal: Path) -> None:
    """What would lose data in silence is an error here: no block stands at such an offset."""
    path = segments.write(journal, "rank0", said(20), per_block=10, peers=PEERS)
    size = path.stat().st_size
    begin = {"rank0": {"seg": 0, "pos": 64, "next": 0, "first": 0}}
    end = {"rank0": {"seg": 0, "pos": size - 40, "next": 20, "first": 0}}
    frame = [
        spans.plan(str(journal), begin, end),
        spans.plan(str(journal), end, {"rank0": end["rank0"] | {"pos": size}}),
    ]
    from gateway.pipeline.spans import blocks

    for planned in frame:
        with pytest.raises(Exception, match=path.name):
            list(blocks(planned[0]))


def test_growth_rotation_and_a_second_writer(loop, journal: Path, warehouse: Warehouse) -> None:
    segments.write(journal, "rank0", said(40), peers=PEERS)
    read_all(loop, journal, warehouse)
    segments.write(
        journal, "rank0", said(60), peers=PEERS, per_block=8
    )  # not what a writer does: the block grew
    first = seqs(warehouse)
    assert first == list(range(40))
    shutil.rmtree(warehouse.root)
    read_all(loop, journal, warehouse)
    segments.write(journal, "rank0", said(40, 60), 60, peers=PEERS)
    segments.write(journal, "nfp", said(10), peers=PEERS)
    read_all(loop, journal, warehouse)
    read_all(loop, journal, warehouse)
    report = verify.verify(journal, warehouse)
    assert report.ok
    assert (report.rows, report.as_json()["behind"]) == (110, 0)
    told = json.loads(warehouse.last_run()["offsets"])["writers"]
    assert set(told) == {"rank0", "nfp"}
    assert set(told["rank0"]) == {"seg", "pos", "next", "first"}


def test_limits_make_several_batches_of_whole_blocks(loop, journal: Path, warehouse: Warehouse) -> None:
    segments.write_many(journal, "rank0", said(200), 50, per_block=10, peers=PEERS)
    assert [run.rows_in for run in read_all(loop, journal, warehouse)] == [200]
    other = Warehouse(warehouse.root.with_name("other"))
    by_bytes = read_all(loop, journal, other, maxBytesPerTrigger=4000)
    assert sum(run.rows_in for run in by_bytes) == 200
    assert max(run.rows_in for run in by_bytes) <= 30
    assert all(run.rows_in % 10 == 0 for run in by_bytes)
    assert seqs(other) == seqs(warehouse) == list(range(200))
    assert verify.verify(journal, other).ok


def test_a_segment_deleted_under_a_stream_is_named_or_counted(
    loop, journal: Path, warehouse: Warehouse
) -> None:
    one, two, three = segments.write_many(journal, "rank0", said(90), 30, per_block=10, peers=PEERS)
    read_all(loop, journal, warehouse, maxBytesPerTrigger=1)
    assert seqs(warehouse) == list(range(90))
    shutil.rmtree(warehouse.root)

    hidden = {path: path.read_bytes() for path in (two, three)}
    two.unlink(), three.unlink()
    read_all(loop, journal, warehouse)
    one.unlink()  # all of it was read: nothing is lost
    two.write_bytes(hidden[two][:-100])
    read_all(loop, journal, warehouse)
    assert seqs(warehouse) == list(range(50))
    two.unlink()  # its last ten records were not
    three.write_bytes(hidden[three])
    with pytest.raises(
        PipelineError, match=f"{two.name}: the segment was deleted before its last 10 records were read"
    ):
        read_all(loop, journal, warehouse)
    assert seqs(warehouse) == list(range(50))
    (run,) = read_all(loop, journal, warehouse, onCorrupt="skip")
    assert (run.rows_in, run.lost_records) == (30, 10)
    assert seqs(warehouse) == [*range(50), *range(60, 90)]
    last = warehouse.last_run()
    assert (last["bad_blocks"], last["lost_records"]) == (1, 10)
    assert json.loads(last["offsets"])["losses"][0]["segment"] == two.name


def test_numbers_that_the_writer_itself_says_were_lost_are_no_loss_of_the_stream(
    loop, journal: Path, warehouse: Warehouse
) -> None:
    one = segments.write(journal, "rank0", said(30), peers=PEERS)
    read_all(loop, journal, warehouse)
    gap = note(
        T0 + 40_000, "gap", {"records": 5, "first": 30, "last": 34, "cause": "the writer did not keep up"}
    )
    segments.write(journal, "rank0", [gap, *said(10, 35)], 34, peers=PEERS)
    one.unlink()
    (run,) = read_all(loop, journal, warehouse)
    assert (run.rows_in, run.losses) == (11, [])


def test_damage_ends_the_stream_or_is_counted(loop, journal: Path, warehouse: Warehouse) -> None:
    path = segments.write(journal, "rank0", said(100), per_block=10, peers=PEERS)
    data = bytearray(path.read_bytes())
    at = data.index(b"FJBK", 5000)
    data[at + 70] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=f"{path.name}: .* bytes at {at}"):
        read_all(loop, journal, warehouse)
    (run,) = read_all(loop, journal, warehouse, onCorrupt="skip")
    assert (run.rows_in, len(run.losses), run.lost_records) == (90, 1, 10)
    assert verify.verify(journal, warehouse).ok


def test_a_batch_done_again_adds_nothing(spark, journal: Path, warehouse: Warehouse) -> None:
    """The checkpoint's last commit is taken away: Spark does that batch again, from the same offsets."""
    segments.write(journal, "rank0", said(30), per_block=10, peers=PEERS)
    read_all(spark, journal, warehouse, gold=True)
    segments.write(journal, "rank0", said(30, 30), 30, per_block=10, peers=PEERS)
    read_all(spark, journal, warehouse, gold=True)
    before = {name: warehouse.at(name).delta.version() for name in schema.TABLES}
    commits = warehouse.root / "_checkpoint" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink(missing_ok=True)
    (run,) = read_all(spark, journal, warehouse, gold=True)
    assert (run.batch_id, run.rows_in) == (1, 30)
    assert {name: warehouse.at(name).delta.version() for name in schema.TABLES} == before
    assert seqs(warehouse) == list(range(60))
    assert sum(warehouse.scan("traffic", ["n"])["n"].to_pylist()) == 60
    assert numbers(warehouse) == numbers(warehouse, "gold") == [0, 1]


def until(met: Callable[[], bool], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


@pytest.mark.timeout(600)
def test_stream_batch_and_compact_at_once(spark, journal: Path, warehouse: Warehouse) -> None:
    """All write into one warehouse at the same time; what is there at the end is what plain Python says."""
    from gateway.pipeline.gold import batch, step

    segments.write(journal, "rank0", talked(0, 20), per_block=10, peers=PEERS)
    warehouse.ready()
    ended = threading.Event()
    problems: list[BaseException] = []

    def again_and_again(job: Callable[[], object]) -> None:
        try:
            while not ended.is_set():
                job()
        except BaseException as error:
            problems.append(error)

    jobs = [
        threading.Thread(target=again_and_again, args=(job,))
        for job in (
            lambda: compact.compact(warehouse),
            lambda: batch(spark, warehouse, ["2026-01-01"], tables=["traffic", "rpc"]),
        )
    ]
    stream = Stream(spark, journal, warehouse, trigger_s=0.2)
    try:
        for job in jobs:
            job.start()
        for turn in range(1, 4):
            segments.write(journal, "rank0", talked(20 * turn, 20), 20 * turn, per_block=10, peers=PEERS)
            until(lambda: len(seqs(warehouse)) == 20 * (turn + 1))  # noqa: B023 - called here
    finally:
        ended.set()
        for job in jobs:
            job.join()
        stream.stop()
    stream.check()
    assert problems == []
    while step(spark, warehouse):
        pass
    assert seqs(warehouse) == list(range(80))
    assert verify.verify(journal, warehouse).ok
    compact.compact(warehouse)
    adds_up(warehouse)


def test_a_stream_whose_checkpoint_is_gone_goes_on_where_bronze_is(
    loop, journal: Path, warehouse: Warehouse
) -> None:
    """So does one behind an ``ingest``; the checkpoint that was put away is refused then: it is older than bronze."""
    segments.write(journal, "rank0", said(10), peers=PEERS)
    bring(write, journal, warehouse)
    segments.write(journal, "rank0", said(10, 10), 10, peers=PEERS)
    assert [run.rows_in for run in read_all(loop, journal, warehouse)] == [10]
    away = (warehouse.root / "_checkpoint").rename(warehouse.root / "_away")
    segments.write(journal, "rank0", said(10, 20), 20, peers=PEERS)
    assert [run.rows_in for run in read_all(loop, journal, warehouse)] == [10]
    assert seqs(warehouse) == list(range(30))
    assert verify.verify(journal, warehouse).ok
    shutil.rmtree(warehouse.root / "_checkpoint")
    away.rename(warehouse.root / "_checkpoint")
    segments.write(journal, "rank0", said(10, 30), 30, peers=PEERS)
    with pytest.raises(
        PipelineError, match=r"has rank0 up to .*, and this begins at .*: another job read on"
    ):
        read_all(loop, journal, warehouse)
    assert seqs(warehouse) == list(range(30))
