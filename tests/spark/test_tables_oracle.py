"""Every gold table three times: Spark, DuckDB, plain Python (tests/live/oracle.py)."""

from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.pipeline.schema import table_named
from gateway.pipeline.tables.inprocess import tables_of
from tests.live import oracle, traffic

HISTORIES = 150
"""Each is a rank; all go through Spark in one job a table."""


def drawn_rows(count: int) -> list[traffic.Row]:
    """Rows of so many histories that hypothesis made up, each under a rank of its own, and of two trees."""
    drawn: list[Any] = []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(traffic.histories())
    def draw(history: Any) -> None:
        drawn.append(history)

    draw()
    gaps = traffic.Player(traffic.Writer(rank=3000)).play([("event", 1, step, 0) for step in (1, 5, -3, 0)])
    trees = traffic.tree(12, base=1000) + traffic.tree(12, base=2000, both=True)
    return traffic.several(drawn) + gaps + trees


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    return drawn_rows(HISTORIES)


@pytest.fixture(scope="module")
def bronze(spark: Any, rows: list[traffic.Row]) -> Any:
    return spark.createDataFrame(traffic.arrow(rows)).cache()


def plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def counted(table: str, rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset, in the columns that do not follow from others."""
    names = [name for name in table_named(table).names if name != "service" or table == "job_outcomes"]
    return Counter(tuple(plain(row[name]) for name in names) for row in rows)


def differences(table: str, seen: list[dict[str, Any]], meant: list[dict[str, Any]]) -> dict[str, list[Any]]:
    ours, theirs = counted(table, seen), counted(table, meant)
    return {"too much": list((ours - theirs).elements())[:5], "missing": list((theirs - ours).elements())[:5]}


@pytest.mark.parametrize("table", oracle.TABLES)
def test_spark_says_what_the_oracle_says(table: str, bronze: Any, rows: list[traffic.Row]) -> None:
    from gateway.pipeline.tables.catalogue import BUILD

    meant = oracle.TABLES[table](rows)
    assert meant, "the histories do not touch this table"
    built = BUILD[table](bronze)
    assert tuple(built.columns) == table_named(table).names
    assert differences(table, built.toArrow().to_pylist(), meant) == {"too much": [], "missing": []}


def test_a_call_over_several_brokers_counts_once(spark: Any) -> None:
    from gateway.pipeline.tables.catalogue import BUILD

    bronze = spark.createDataFrame(traffic.arrow(traffic.tree(20)))
    made = {name: BUILD[name](bronze).toArrow().to_pylist() for name in
            ("rpc", "rpc_latency", "user_usage", "traffic", "errors", "tree_traffic", "tree_latency")}  # fmt: skip
    calls, failed = 2 * 20, 2 * 2
    assert Counter(row["rank"] for row in made["rpc"]) == {2: 20, 3: 20}
    assert {row["rank"]: row["lat_ns"] for row in made["rpc"]} == {
        2: 3 * traffic.STEP_NS,
        3: 5 * traffic.STEP_NS,
    }
    assert sum(row["n"] for row in made["rpc_latency"]) == calls
    usage = {row["userid"]: row for row in made["user_usage"]}
    assert [usage[who]["requests"] for who in (1002, 1003)] == [20, 20]
    assert [usage[who]["rpc_ns"] for who in (1002, 1003)] == [
        20 * 3 * traffic.STEP_NS,
        20 * 5 * traffic.STEP_NS,
    ]
    assert Counter(row["type"] for row in made["traffic"] for _ in range(row["n"])) == {
        "request": calls, "response": calls,
    }  # fmt: skip
    assert sum(row["n"] for row in made["errors"]) == failed
    assert sum(row["n"] for row in made["tree_traffic"]) == 2 * 20 * (1 + 2)
    took = Counter[tuple[int, str, str]]()
    for row in made["tree_latency"]:
        took[row["rank"], row["source"], row["target"]] += row["sum_ns"]
    assert took[3, "client", "rank 1"] - took[1, "rank 3", "rank 0"] == 20 * 2 * traffic.STEP_NS
    assert took[1, "rank 3", "rank 0"] - took[0, "rank 1", "client"] == 20 * 2 * traffic.STEP_NS
    assert took[0, "rank 1", "client"] == 20 * traffic.STEP_NS


@pytest.mark.parametrize("table", oracle.TABLES)
def test_duckdb_says_what_the_oracle_says(table: str, rows: list[traffic.Row]) -> None:
    with tables_of(traffic.arrow(rows)) as tables:
        seen = tables.rows(table).to_pylist()
    assert differences(table, seen, oracle.TABLES[table](rows)) == {"too much": [], "missing": []}
