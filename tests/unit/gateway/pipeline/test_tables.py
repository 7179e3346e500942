"""Every gold table twice: by DuckDB, and in plain Python (tests/live/oracle.py)."""

from collections import Counter
from typing import Any

import pytest

from gateway.pipeline.schema import table_named
from gateway.pipeline.tables import inprocess
from gateway.pipeline.tables.inprocess import tables_of
from tests.live import oracle, traffic
from tests.live.gold import NOTHING, differences, drawn_rows
from tests.tables import for_each

HISTORIES = 100
"""Each is a rank."""


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    return drawn_rows(HISTORIES)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(inprocess.SLICE_ROWS, id="whole", marks=pytest.mark.patient),
        pytest.param(97, id="sliced"),
    ],
)
def made(rows: list[traffic.Row], request: pytest.FixtureRequest) -> dict[str, list[Any]]:
    """Calls of a slice of the keys at a time, or of all."""
    with pytest.MonkeyPatch.context() as patch, tables_of(traffic.arrow(rows)) as tables:
        patch.setattr(inprocess, "SLICE_ROWS", request.param)
        return {name: tables.rows(name).to_pylist() for name in oracle.TABLES}


@for_each("table", oracle.TABLES)
def test_a_table_is_the_oracles(table: str, made: dict[str, list[Any]], rows: list[traffic.Row]) -> None:
    meant = oracle.TABLES[table](rows)
    assert meant, "the histories do not touch this table"
    assert tuple(made[table][0]) == table_named(table).names
    assert differences(table, made[table], meant) == NOTHING


def test_a_call_over_several_brokers_counts_once() -> None:
    names = ("rpc", "rpc_latency", "user_usage", "traffic", "errors", "tree_traffic", "tree_latency")
    with tables_of(traffic.arrow(traffic.tree(20))) as tables:
        made = {name: tables.rows(name).to_pylist() for name in names}
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
