"""A warehouse in a store: Spark's tasks write and read it through pyarrow, and it holds what one in a folder does."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway import pipeline
from gateway.pipeline import gold, verify
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle, segments
from tests.live.gold import NOTHING, differences, drawn_rows, fill
from tests.live.s3 import Apart
from tests.spark.talk import PEERS, talked

TABLES = ("traffic", "event_gaps")


def test_batch_makes_the_same_tables_in_a_store(spark: Any, s3: Apart) -> None:
    from gateway.pipeline.compact import compact

    rows = drawn_rows(8)
    warehouse = Warehouse(s3.place("warehouse"))
    fill(warehouse, rows)
    compact(warehouse, ["messages"])
    s3.tell(refuse=2)
    run = gold.batch(spark, warehouse, tables=TABLES)
    made = {name: warehouse.scan(name).to_pylist() for name in TABLES}
    assert (run.rows_in, run.rows_out) == (len(rows), sum(map(len, made.values())))
    for name in TABLES:
        assert differences(name, made[name], oracle.TABLES[name](rows)) == NOTHING, name
    pipeline.views(spark, warehouse.place)
    assert spark.sql("SELECT count(*), count(DISTINCT run) FROM messages").first() == (
        len(rows),
        len({row["run"] for row in rows}),
    )


def test_a_stream_brings_bronze_and_gold_into_a_store(spark: Any, s3: Apart, tmp_path: Path) -> None:
    """Throttled, ended and begun again, beside ``batch``; its checkpoint is a directory that must be named."""
    from gateway.pipeline.stream import Stream

    journal = tmp_path / "journal"
    journal.mkdir()
    warehouse = Warehouse(s3.place("live"))
    with pytest.raises(
        PipelineError, match=r"^s3://journals/live\?[^@]*: a store; the stream needs --checkpoint"
    ):
        Stream(spark, journal, warehouse)
    with pytest.raises(PipelineError, match="No FileSystem for scheme"):
        Stream(spark, journal, warehouse, checkpoint="s3://journals/checkpoint")

    def bring(first: int) -> None:
        segments.write(journal, "rank0", talked(first, 60), first, per_block=10, peers=PEERS)
        stream = Stream(spark, journal, warehouse, checkpoint=str(tmp_path / "checkpoint"))
        s3.tell(refuse=3)
        stream.wait()

    bring(0)
    run = gold.batch(spark, warehouse)
    assert (run.rows_in, warehouse.feed()["gold"]) == (60, 0)
    bring(60)
    assert warehouse.feed() | {"query": ""} == {"feed": "stream", "query": "", "bronze": 1, "gold": 1}
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.rows) == (True, 120)
    rows = warehouse.scan("messages").to_pylist()
    assert differences("rpc", warehouse.scan("rpc").to_pylist(), oracle.rpc(rows)) == NOTHING
    assert sum(warehouse.scan("traffic", ["n"])["n"].to_pylist()) == 120


@pytest.mark.between
@pytest.mark.timeout(300)
def test_a_stream_into_a_store_that_is_killed_brings_each_once(java: None, s3: Apart, tmp_path: Path) -> None:
    """When bronze is committed and gold half made; it goes on where it was."""
    journal = tmp_path / "journal"
    warehouse = Warehouse(s3.place("killed"))
    segments.write(journal, "rank0", talked(0, 200), per_block=10, peers=PEERS)
    words = [sys.executable, "-m", "gateway.pipeline", "stream", "-j", str(journal), "-w", warehouse.place]
    words += ["--checkpoint", str(tmp_path / "checkpoint"), "--available-now", "--master", "local[1]"]
    for code in (-signal.SIGKILL, 0):
        with subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True, text=True) as running:
            if code:
                s3.tell(kill=-running.pid, kill_at="/traffic/_delta_log/00000000000000000001")
            assert running.wait(120) == code, running.stderr.read()[-2000:]
        assert warehouse.feed()["gold"] == (-1 if code else 0)
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.rows) == (True, 200)
    rows = warehouse.scan("messages").to_pylist()
    for name in ("rpc", "traffic"):
        assert differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](rows)) == NOTHING, name
