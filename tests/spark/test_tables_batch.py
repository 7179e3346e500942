"""``batch``: gold of whole dates; done again it changes nothing, one date touched is as good as all made."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.live import oracle, traffic
from tests.spark.test_tables_oracle import differences, drawn_rows

NOTHING: dict[str, list[Any]] = {"too much": [], "missing": []}


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    return drawn_rows(40)


pytestmark = pytest.mark.timeout(400)  # a loaded machine takes a minute for some


def fill(warehouse: Any, rows: list[traffic.Row]) -> None:
    """Bronze as ``ingest`` leaves it: a file for each run in each of its dates."""
    runs: dict[str, list[traffic.Row]] = defaultdict(list)
    for row in rows:
        runs[row["run"]].append(row)
    for run, some in runs.items():
        warehouse.write_rows("messages", traffic.arrow(some), run)


def gold(warehouse: Any) -> dict[str, list[Any]]:
    return {name: warehouse.scan(name).to_pylist() for name in oracle.TABLES}


def test_gold_is_the_oracles_and_again_the_same(spark: Any, rows: list[traffic.Row], tmp_path: Path) -> None:
    from gateway.pipeline.batch import batch
    from gateway.pipeline.warehouse import Warehouse

    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, rows)
    warehouse.update_feed(feed="ingest", dirty=warehouse.dates("messages"))
    told: list[tuple[int, int]] = []
    with warehouse.lock("test"):
        run = batch(spark, warehouse, tell=lambda done, of: told.append((done, of)))
    first = gold(warehouse)
    for name, build in oracle.TABLES.items():
        assert differences(name, first[name], build(rows)) == NOTHING, name
    assert run.rows_in == len(rows)
    assert run.rows_out == sum(map(len, first.values()))
    assert told[-1] == (len(first), len(first))
    assert warehouse.feed()["dirty"] == []
    with warehouse.lock("test"):
        assert batch(spark, warehouse).rows_in == 0, "nothing was touched"
        batch(spark, warehouse, warehouse.dates("messages")[-1:])
    for name, rows_again in gold(warehouse).items():
        assert differences(name, rows_again, first[name]) == NOTHING, name


def test_a_late_date_sets_its_neighbours_right(spark: Any, tmp_path: Path) -> None:
    """The answers of calls made before midnight come into bronze after gold was made."""
    from gateway.pipeline.batch import batch
    from gateway.pipeline.warehouse import Warehouse

    writer = traffic.Writer(rank=1, now_ns=traffic.MIDNIGHT_NS - traffic.S)
    for tag in (1, 2, 3):
        writer.request(1, tag, "job.b")
    writer.event(1, "hb", 1)
    before = list(writer.rows)
    writer.now_ns += 2 * traffic.S
    for tag in (1, 2):
        writer.response(1, tag, "job.b")
    writer.event(1, "hb", 3)
    warehouse = Warehouse(tmp_path / "w")
    names = ("rpc", "rpc_latency", "event_gaps", "user_usage")
    with warehouse.lock("test"):
        fill(warehouse, before)
        batch(spark, warehouse, warehouse.dates("messages"), tables=names)
        assert [row["n_responses"] for row in warehouse.scan("rpc").to_pylist()] == [0, 0, 0]
        fill(warehouse, writer.rows)
        batch(spark, warehouse, ["2026-03-02"], tables=names)
    for name in names:
        assert (
            differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](writer.rows)) == NOTHING
        ), name


def test_what_a_stream_has_open_is_left_to_it(spark: Any, tmp_path: Path) -> None:
    """``batch`` replaces what a stream added; the stream goes on, and nothing is there twice or missing."""
    from gateway.pipeline.batch import batch
    from gateway.pipeline.follow import make_gold
    from gateway.pipeline.warehouse import Warehouse

    writer = traffic.Writer(rank=1, now_ns=traffic.MIDNIGHT_NS + traffic.S)
    for tag in (1, 2):
        writer.request(1, tag, "job.b")
    writer.response(1, 1, "job.b")
    writer.event(1, "hb", 1)
    first = list(writer.rows)
    writer.response(1, 2, "job.b")
    writer.event(1, "hb", 3)
    warehouse = Warehouse(tmp_path / "w")
    with warehouse.lock("test"):
        warehouse.claim("stream", "q")
        files = warehouse.write_rows("messages", traffic.arrow(first), "batch-0000000000-0")
        warehouse.update_feed(bronze=0)  # and it was killed: gold knows nothing of it
        batch(spark, warehouse)
        assert warehouse.feed()["gold"] == 0
        assert [row["matchtag"] for row in warehouse.scan("rpc").to_pylist()] == [1]
        files = warehouse.write_rows(
            "messages", traffic.arrow(writer.rows[len(first) :]), "batch-0000000001-0"
        )
        warehouse.update_feed(bronze=1)
        make_gold(spark, warehouse, 1, files)
        warehouse.update_feed(gold=1)
    for name in ("rpc", "event_gaps"):
        assert (
            differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](writer.rows)) == NOTHING
        ), name
