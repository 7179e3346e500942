"""Matching file by file gives the calls that the hashed window gives, however the records are cut into files."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.live import oracle, traffic
from tests.spark.test_tables_oracle import differences, drawn_rows

Files = list[str]

pytestmark = pytest.mark.timeout(400)  # a loaded machine takes a minute for some


def cut(rows: list[traffic.Row], directory: Path, seed: int) -> Files:
    """Each run in one to four files: in order, of any length."""
    rng = random.Random(seed)
    runs: dict[str, list[traffic.Row]] = {}
    for row in oracle.in_order(rows):
        runs.setdefault(row["run"], []).append(row)
    paths = []
    for run, records in runs.items():
        cuts = sorted({0, len(records), *(rng.randrange(len(records) + 1) for _ in range(rng.randrange(4)))})
        for begin, end in pairwise(cuts):
            path = directory / f"{run}-{begin}.parquet"
            pq.write_table(traffic.arrow(records[begin:end]), path)
            paths.append(str(path))
    return paths


def normal(table: Any) -> list[str]:
    """Rows as text, in an order of their own."""
    return sorted(map(repr, table.toArrow().to_pylist()))


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    """What came in of many histories, and of one with many calls in flight."""
    busy = [row | {"rank": 1000, "run": "busy"} for row in traffic.busy(400, clients=4)]
    return [row for row in drawn_rows(60) if row["direction"] == "in"] + busy


@pytest.mark.parametrize("seed", [1, 2])
def test_files_give_what_the_window_gives(
    spark: Any, rows: list[traffic.Row], tmp_path: Path, seed: int
) -> None:
    from gateway.pipeline.tables import calls, matching

    paths = cut(rows, tmp_path, seed)
    assert matching.fits(paths)
    bronze = spark.read.parquet(*paths)
    whole = calls.calls(calls.legs(bronze))
    with matching.matched(spark, paths, bronze) as found:
        assert found.columns == whole.columns
        assert normal(found) == normal(whole)


def test_tables_from_files_are_the_oracles(spark: Any, rows: list[traffic.Row], tmp_path: Path) -> None:
    from gateway.pipeline.tables import matching
    from gateway.pipeline.tables.catalogue import FROM_CALLS

    paths = cut(rows, tmp_path, 3)
    bronze = spark.read.parquet(*paths)
    nothing = {"too much": [], "missing": []}
    with matching.matched(spark, paths, bronze, origins=False) as found:
        latency = FROM_CALLS["rpc_latency"](found, bronze).toArrow().to_pylist()
    assert differences("rpc_latency", latency, oracle.rpc_latency(rows)) == nothing
    with matching.matched(spark, paths, bronze) as found:
        table = FROM_CALLS["rpc"](found, bronze).toArrow().to_pylist()
    assert differences("rpc", table, oracle.rpc(rows)) == nothing


def test_a_fence_keeps_an_open_call_from_a_later_answer(spark: Any, tmp_path: Path) -> None:
    from gateway.pipeline.tables import calls, matching

    writer = traffic.Writer(rank=3)
    for name in ("ask", "ask", "answer", "answer"):
        (writer.request if name == "ask" else writer.response)(1, 1, "a.b")
    paths = []
    for number, (begin, end) in enumerate([(0, 1), (1, 3), (3, 4)]):
        paths.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(traffic.arrow(writer.rows[begin:end]), paths[-1])
    with matching.matched(spark, paths, spark.read.parquet(*paths)) as found:
        seen = {(row["call"], row["what"], row["n_responses"], row["reused"]) for row in found.collect()}
    assert seen == {
        (1, calls.REQUEST, 0, True),
        (2, calls.REQUEST, 1, False),
        (4, calls.CAME_IN, 1, False),
    }


@pytest.mark.parametrize("why", ["overlap", "two runs", "deliveries"])
def test_files_that_do_not_fit_go_through_the_window(spark: Any, tmp_path: Path, why: str) -> None:
    from gateway.pipeline.tables import calls, endpoints, matching

    writer = traffic.Writer(rank=3, both=why == "deliveries")
    for tag in range(1, 5):
        writer.request(1, tag, "a.b")
    if why == "two runs":
        writer.restart()
    for tag in range(1, 5):
        writer.response(1, tag, "a.b")
    odd = why == "overlap"
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for number, path in enumerate(paths):
        some = writer.rows[number::2] if odd else writer.rows if not number else traffic.Writer(rank=4).rows
        pq.write_table(
            traffic.arrow(some or [traffic.Writer(rank=4).add(topic="x", type="event", aux1=1)]), path
        )
    assert not matching.fits(paths)
    bronze = spark.read.parquet(*paths)
    with matching.matched(spark, paths, bronze) as found:
        assert normal(found) == normal(calls.calls(calls.legs(endpoints.resolved(bronze))))
        assert found.count()
