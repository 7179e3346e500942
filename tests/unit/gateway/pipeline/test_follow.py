"""Gold behind a stream: a step takes in what bronze got, however much that is."""

import shutil
from pathlib import Path

import pytest

from gateway.pipeline import follow
from gateway.pipeline.batch import batch
from gateway.pipeline.warehouse import Warehouse
from tests.live import traffic

CALL = [("request", 1, 1, "job.b", 0), ("response", 1, 1, "job.b", 0), ("event", 1, 1, 0)]


@pytest.fixture
def warehouse(bare: Path, tmp_path: Path) -> Warehouse:
    made = Warehouse(shutil.copytree(bare, tmp_path / "warehouse"))
    made.claim("stream")
    return made


def add(warehouse: Warehouse, rows: list[traffic.Row], number: int) -> None:
    files = warehouse.write_rows("messages", traffic.arrow(rows))
    warehouse.add_bronze(warehouse.at("messages"), files, {"stream": number})


def counted(warehouse: Warehouse, name: str) -> list[int]:
    return warehouse.scan(name, ["n"])["n"].to_pylist()


def test_an_addition_that_is_more_than_memory_is_good_for(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from its files again for each table, and gives the same."""
    monkeypatch.setattr(follow, "ROWS_MOST", 6)
    add(warehouse, traffic.Player(traffic.Writer()).play(CALL * 2 + CALL[2:]), 0)
    run = follow.step(warehouse)
    assert run is not None
    assert run.rows_in == 7
    assert sum(counted(warehouse, "traffic")) == 7
    assert warehouse.scan("rpc", ["n_responses"])["n_responses"].to_pylist() == [1, 1]
    assert follow.step(warehouse) is None


@pytest.mark.patient
def test_batch_makes_what_steps_leave_to_it(warehouse: Warehouse) -> None:
    """Though gold of the stream knows all: one row of the many for a key, and the order, which no step sees whole."""
    player = traffic.Player(traffic.Writer(both=True))
    for number in range(2):
        have = len(player.to.rows)
        add(warehouse, player.play(CALL)[have:], number)
        assert follow.step(warehouse) is not None
    assert follow.step(warehouse) is None
    before = counted(warehouse, "traffic")
    tables = ["traffic", "order_check"]
    assert batch(None, warehouse, tables=tables).rows_in == 12
    assert sum(counted(warehouse, "order_check")) == 6
    assert len(counted(warehouse, "traffic")) < len(before)
    assert sum(counted(warehouse, "traffic")) == sum(before)
    assert batch(None, warehouse, tables=tables).rows_in == 0
    assert follow.step(warehouse) is None
