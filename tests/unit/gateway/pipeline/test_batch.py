"""``batch``: gold of whole dates; done again it changes nothing, one date touched is as good as all made."""

from pathlib import Path

import pytest

from gateway.pipeline.batch import NAMES, batch
from gateway.pipeline.follow import step
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle, traffic
from tests.live.gold import NOTHING, differences, drawn_rows, fill, gold


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    return drawn_rows(5)


@pytest.mark.parametrize(
    "names", [("traffic", "rpc", "rpc_latency"), pytest.param(tuple(NAMES), marks=pytest.mark.patient)]
)
def test_gold_is_the_oracles_and_again_the_same(
    rows: list[traffic.Row], tmp_path: Path, names: tuple[str, ...]
) -> None:
    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, rows)
    told: list[tuple[int, int]] = []
    run = batch(None, warehouse, tables=names, tell=lambda done, of: told.append((done, of)))
    first = gold(warehouse, names)
    for name in names:
        assert differences(name, first[name], oracle.TABLES[name](rows)) == NOTHING, name
    assert run.rows_in == len(rows)
    assert run.rows_out == sum(map(len, first.values()))
    assert told[-1] == (len(first), len(first))
    assert warehouse.feed() == {"feed": "ingest", "bronze": 0, "gold": 0 if len(names) == len(NAMES) else -1}
    assert batch(None, warehouse, tables=names).rows_in == 0, "nothing was touched"
    batch(None, warehouse, warehouse.dates("messages")[-1:], tables=names)
    for name, rows_again in gold(warehouse, names).items():
        assert differences(name, rows_again, first[name]) == NOTHING, name


@pytest.mark.patient
def test_a_late_date_sets_its_neighbours_right(tmp_path: Path) -> None:
    """The answers of calls made before midnight come into bronze after gold was made."""

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
    fill(warehouse, before)
    batch(None, warehouse, tables=names)
    assert [row["n_responses"] for row in warehouse.scan("rpc").to_pylist()] == [0, 0, 0]
    fill(warehouse, writer.rows[len(before) :])
    run = batch(None, warehouse, tables=names)
    assert run.offsets == {"dates": ["2026-03-02"]}
    assert warehouse.feed()["gold"] == -1, "only some tables were made"
    for name in names:
        assert (
            differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](writer.rows)) == NOTHING
        ), name


@pytest.mark.patient
def test_what_a_stream_has_open_is_left_to_it(tmp_path: Path) -> None:
    """``batch`` replaces what a stream added; the stream goes on, and nothing is there twice or missing."""

    writer = traffic.Writer(rank=1, now_ns=traffic.MIDNIGHT_NS + traffic.S)
    for tag in (1, 2):
        writer.request(1, tag, "job.b")
    writer.response(1, 1, "job.b")
    writer.event(1, "hb", 1)
    first = list(writer.rows)
    writer.response(1, 2, "job.b")
    writer.event(1, "hb", 3)
    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, first, "stream")  # and it was killed: gold knows nothing of it
    batch(None, warehouse)
    assert warehouse.feed()["gold"] == 0
    assert [row["matchtag"] for row in warehouse.scan("rpc").to_pylist()] == [1]
    fill(warehouse, writer.rows[len(first) :], "stream")
    run = step(warehouse)
    assert (run.rows_in, run.batch_id, warehouse.feed()["gold"]) == (2, 1, 1)
    assert step(warehouse) is None
    for name in ("rpc", "event_gaps"):
        assert (
            differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](writer.rows)) == NOTHING
        ), name


@pytest.mark.patient
def test_tables_that_are_ahead_are_waited_for(tmp_path: Path) -> None:
    """``batch`` made one table, a killed step another one: the next step brings all to where they are, none twice."""

    writer = traffic.Writer(rank=1, now_ns=traffic.MIDNIGHT_NS + traffic.S)
    warehouse = Warehouse(tmp_path / "w")
    seen = 0
    for number in range(3):
        writer.request(1, 1, "job.b")
        writer.response(1, 1, "job.b")
        fill(warehouse, writer.rows[seen:], "stream")
        seen = len(writer.rows)
        if number == 0:
            batch(None, warehouse, tables=["traffic"])
            assert sum(row["n"] for row in warehouse.scan("traffic").to_pylist()) == 2
    until = []
    while run := step(warehouse):
        until.append(run.batch_id)
    assert until == [0, 2]
    for name in ("traffic", "rpc", "rpc_latency"):
        table = warehouse.scan(name).to_pylist()
        count = len(table) if name == "rpc" else sum(row["n"] for row in table)
        assert count == (6 if name == "traffic" else 3), name
