"""Gold behind a stream: a step takes in what bronze got, however much that is."""

from pathlib import Path

import pytest

from gateway.pipeline import follow
from gateway.pipeline.warehouse import Warehouse
from tests.live import traffic


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path / "warehouse")
    made.ready()
    made.claim("stream")
    return made


@pytest.mark.parametrize("most", [6, 7])
def test_an_addition_that_is_more_than_memory_is_good_for(
    most: int, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from its files again for each table, and gives the same."""
    monkeypatch.setattr(follow, "ROWS_MOST", most)
    calls = [("request", 1, 1, "job.b", 0), ("response", 1, 1, "job.b", 0), ("event", 1, 1, 0)]
    rows = traffic.arrow(traffic.Player(traffic.Writer()).play(calls * 2 + calls[2:]))
    assert rows.num_rows == 7
    warehouse.add_bronze(warehouse.at("messages"), warehouse.write_rows("messages", rows), {"stream": 0})
    run = follow.step(warehouse)
    assert run is not None
    assert run.rows_in == 7
    assert sum(warehouse.scan("traffic", ["n"])["n"].to_pylist()) == 7
    assert warehouse.scan("rpc", ["n_responses"])["n_responses"].to_pylist() == [1, 1]
    assert follow.step(warehouse) is None
