"""Every gold table three times: Spark, plain Python (tests/live/oracle.py), DuckDB (tests/live/duck.py)."""

from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.pipeline.schema import table_named
from tests.live import duck, oracle, traffic

HISTORIES = 150
"""Each is a rank; all go through Spark in one job a table."""


def drawn_rows(count: int) -> list[traffic.Row]:
    """Rows of so many histories that hypothesis made up, each under a rank of its own."""
    drawn: list[Any] = []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(traffic.histories())
    def draw(history: Any) -> None:
        drawn.append(history)

    draw()
    return traffic.several(drawn)


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


@pytest.mark.parametrize("table", oracle.TABLES)
def test_duckdb_says_what_the_oracle_says(table: str, rows: list[traffic.Row]) -> None:
    seen = duck.table(table, traffic.arrow(rows))
    assert differences(table, seen, oracle.TABLES[table](rows)) == {"too much": [], "missing": []}
