"""``batch`` by the tasks of Spark makes the tables that it makes in this process, and that the oracle makes."""

from pathlib import Path
from typing import Any

import pytest

from gateway.pipeline.batch import batch
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.follow import step
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle, traffic
from tests.live.gold import NOTHING, differences, drawn_rows, fill, gold


def test_tables_are_those_of_one_process_and_the_oracles(spark: Any, tmp_path: Path) -> None:
    """Of many ranks, a tree among them, two dates, and a job that two ranks tell of."""
    rows = drawn_rows(25)
    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, rows)
    told: list[tuple[int, int]] = []
    run = batch(spark, warehouse, tell=lambda done, of: told.append((done, of)))
    made = gold(warehouse)
    assert (run.by, run.rows_in, run.rows_out) == ("Spark", len(rows), sum(map(len, made.values())))
    assert told[-1] == (3, 3), "two tasks of ranks, since two run at once, and one of jobs"
    assert batch(spark, warehouse).rows_in == 0, "nothing was touched"
    batch(None, warehouse, warehouse.dates("messages"))
    here = gold(warehouse)
    for name, build in oracle.TABLES.items():
        assert differences(name, made[name], build(rows)) == NOTHING, name
        assert differences(name, here[name], made[name]) == NOTHING, name


def test_what_a_stream_has_open_is_left_to_it(spark: Any, tmp_path: Path) -> None:
    """Calls and a job are open at two ranks; the stream goes on, and nothing is there twice or missing."""
    asked, answered = ("request", 1, 1, "job.b", 0), ("response", 1, 1, "job.b", 0)
    player = [traffic.Player(traffic.Writer(rank, now_ns=traffic.MIDNIGHT_NS + traffic.S)) for rank in (1, 2)]
    first: list[traffic.Row] = []
    for each in player:
        first += each.play([asked, answered, asked])
    player[0].job(1, "")
    first.append(player[0].to.rows[-1])
    have = [len(each.to.rows) for each in player]
    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, first, "stream")
    batch(spark, warehouse)
    assert sorted(row["rank"] for row in warehouse.scan("rpc").to_pylist()) == [1, 2]
    assert warehouse.scan("job_outcomes").num_rows == 0
    for each in player:
        each.play([answered])
    player[0].job(1, "COMPLETED")
    rest = [row for each, seen in zip(player, have, strict=True) for row in each.to.rows[seen:]]
    fill(warehouse, rest, "stream")
    assert step(warehouse) is not None
    for name in ("rpc", "job_outcomes"):
        assert (
            differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](first + rest)) == NOTHING
        ), name


def test_what_fails_in_a_task_is_one_line_and_changes_nothing(spark: Any, tmp_path: Path) -> None:
    """The place of a table takes no files."""
    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, drawn_rows(3))
    batch(None, warehouse)
    before = gold(warehouse)
    place = Path(warehouse.table("traffic"), f"dt={warehouse.dates('traffic')[0]}")
    place.rename(tmp_path / "kept")
    place.write_text("where a folder was")
    with pytest.raises(PipelineError, match=r"traffic: .*dt=2026-") as told:
        batch(spark, warehouse, warehouse.dates("messages"))
    place.unlink()
    (tmp_path / "kept").rename(place)
    assert "\n" not in str(told.value)
    assert gold(warehouse) == before
