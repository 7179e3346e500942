"""Reading is bounded, and what cannot be read is named: old schemas, damage, partitions that change."""

import os
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.history.files import Absent, Budget, Reading
from gateway.history.reader import Question, answer
from gateway.history.scope import Scope
from gateway.history.tables import TIMES, Warehouse
from gateway.pipeline import lake
from gateway.pipeline.schema import TABLES
from tests.live import warehouse as wh
from tests.tables import for_each


@pytest.fixture
def house(tmp_path):
    wh.write(tmp_path, "traffic", wh.traffic())
    return Warehouse(str(tmp_path))


def rows_of(house, scope, reading=None, columns=("n",), table="traffic"):
    return [
        row for batch in house.read(table, columns, scope, reading or Reading()) for row in batch.to_pylist()
    ]


def test_only_the_days_of_the_scope_are_opened(house, tmp_path):
    for file in (tmp_path / "traffic" / "dt=2026-03-02").iterdir():
        file.write_bytes(b"nothing of this is read")
    reading = Reading()
    assert rows_of(house, Scope(wh.FIRST, wh.FIRST + 86400), reading)
    assert reading.damaged == []


def test_row_groups_outside_the_scope_are_passed_over(house):
    everything, an_hour = Reading(), Reading()
    list(house.read("traffic", ["n"], Scope(wh.FIRST, wh.FIRST + 86400), everything))
    list(house.read("traffic", ["n"], Scope(wh.FIRST + 7200, wh.FIRST + 10800), an_hour))
    taken = [Budget().rows - each.budget.rows for each in (everything, an_hour)]
    assert 0 < taken[1] <= taken[0] / 4


@for_each(
    ("name", "limit"),
    [
        ("rows", {"rows": 100}),
        ("bytes", {"bytes": 500}),
        ("files", {"files": 0}),
        ("time", {"seconds": -1.0}),
    ],
)
def test_a_spent_budget_is_told(house, name, limit):
    found = answer(house, Question("traffic", wh.FIRST, wh.LAST), budget=Budget(**limit))
    assert found["truncated"] == name


def test_the_newest_days_come_first(house):
    reading = Reading(Budget(rows=3000))
    days = {
        row["us"] // 10**6 >= wh.FIRST + 86400 for row in rows_of(house, Scope(wh.FIRST, wh.LAST), reading)
    }
    assert reading.budget.spent == "rows"
    assert True in days


def test_a_damaged_file_is_named_and_the_others_count(house, tmp_path):
    folder = tmp_path / "traffic" / "dt=2026-03-02"
    whole = (folder / "part-0.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.parquet").touch()
    middle = bytearray(whole)
    middle[100:2000] = bytes(1900)
    (folder / "hole.parquet").write_bytes(middle)
    wh.register(tmp_path, "traffic")
    found = answer(house, Question("traffic", wh.FIRST, wh.LAST))
    names = [f"traffic/dt=2026-03-02/{name}.parquet" for name in ("cut", "empty", "hole")]
    assert found["damaged"] == names
    assert found["series"]


def test_files_of_the_machinery_are_left_alone(house, tmp_path):
    before = len(rows_of(house, Scope(wh.FIRST, wh.LAST)))
    folder = tmp_path / "traffic" / "dt=2026-03-02"
    for name in ("_SUCCESS", ".part-1.parquet.crc", "_temporary.parquet", ".hidden.parquet"):
        (folder / name).write_bytes(b"not for readers")
    (tmp_path / "traffic" / "dt=not-a-day").mkdir()
    (tmp_path / "traffic" / "_spark_metadata").mkdir()
    reading = Reading()
    assert len(rows_of(house, Scope(wh.FIRST, wh.LAST), reading)) == before
    assert reading.damaged == []


def test_a_column_that_an_older_file_lacks_is_null(tmp_path):
    schema = pa.schema([("window", pa.timestamp("us", "UTC")), ("rank", pa.int64()), ("direction", pa.string()),
                        ("kind", pa.string()), ("n", pa.int64())])  # fmt: skip
    folder = tmp_path / "traffic" / "dt=2026-03-01"
    folder.mkdir(parents=True)
    row = {"window": wh.at(wh.FIRST + 5), "rank": 0, "direction": "in", "kind": "flux", "n": 7}
    pq.write_table(pa.Table.from_pylist([row], schema), folder / "old.parquet")
    wh.write(tmp_path, "traffic", [each for each in wh.traffic() if each["_when"] < wh.FIRST + 600])
    house = Warehouse(str(tmp_path))
    found = answer(house, Question("talkers", wh.FIRST, wh.LAST))
    assert next(row for row in found["by_userid"] if row["userid"] is None)["n"] >= 7
    assert answer(house, Question("traffic", wh.FIRST, wh.LAST))["damaged"] == []
    everything = answer(house, Question("traffic", wh.FIRST, wh.LAST, None, None, (("by", "topic"),)))
    assert "(none)" in [each["name"] for each in everything["series"]]


@for_each("unit", ["s", "ms", "us", "ns"])
@for_each("zone", [None, "UTC"])
def test_times_of_any_unit(tmp_path, unit, zone):
    root = tmp_path / f"{unit} {zone}"
    folder = root / "traffic" / "dt=2026-03-01"
    folder.mkdir(parents=True)
    when = pa.array(
        [(wh.FIRST + 30) * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]], pa.timestamp(unit, zone)
    )
    table = pa.table({"window": when, "n": [5], "direction": ["in"], "kind": ["flux"]})
    pq.write_table(table, folder / "one.parquet")
    wh.register(root, "traffic")
    house = Warehouse(str(root))
    assert [row["us"] for row in rows_of(house, Scope(wh.FIRST, wh.FIRST + 60))] == [(wh.FIRST + 30) * 10**6]
    assert rows_of(house, Scope(wh.FIRST, wh.FIRST + 30)) == []
    assert house.extent() == (wh.FIRST + 30, wh.FIRST + 40)


def test_a_date_that_is_replaced_while_it_is_read_is_read_again(house, tmp_path, monkeypatch):
    """The listing names a file that is gone when it is opened; its successor is in the log by then."""
    folder = tmp_path / "traffic" / "dt=2026-03-02"
    expected = answer(house, Question("traffic", wh.FIRST, wh.LAST))["series"]
    real, moved = Warehouse.files, []

    def files(self, table, days):
        found = real(self, table, days)
        if not moved:
            moved.append(shutil.move(folder / "part-0.parquet", folder / "part-1.parquet"))
            at = lake.Snapshot(TABLES["traffic"], tmp_path / "traffic")
            old = [file for file in at.files() if file.date == "2026-03-02"]
            fresh = [replace(file, path="dt=2026-03-02/part-1.parquet") for file in old]
            at.commit(fresh, removed=old)
        return found

    monkeypatch.setattr(Warehouse, "files", files)
    found = answer(house, Question("traffic", wh.FIRST, wh.LAST))
    assert moved
    assert found["series"] == expected
    assert found["damaged"] == []


def test_a_log_that_cannot_be_read_is_said(house, tmp_path):
    log = next((tmp_path / "traffic" / "_delta_log").glob("*0.json"))
    log.write_text("nothing of this is JSON")
    with pytest.raises(Absent, match="traffic"):
        answer(house, Question("traffic", wh.FIRST, wh.LAST))


def test_what_is_written_a_moment_later_is_seen(house, tmp_path):
    """Times of files are coarse: a log that was written just now is read again."""
    before = len(rows_of(house, Scope(wh.FIRST, wh.LAST)))
    for turn in range(3):
        wh.write(
            tmp_path, "traffic", [each for each in wh.traffic() if each["_when"] == wh.FIRST], f"more-{turn}"
        )
        now = len(rows_of(house, Scope(wh.FIRST, wh.LAST)))
        assert now > before
        before = now


def test_the_columns_that_are_asked_for_stand_in_the_schema():
    """Names are those of the pipeline: a renamed column would be null for ever."""
    from gateway.history import findings, latency, reader, traffic

    asked = {
        "traffic": (*traffic._COLUMNS, *traffic._NUMBERS), "denied": findings._DENIED, "slow": findings._SLOW,
        "rpc_latency": ("topic", "le_ns", "n", "max_ns", *latency.CAUSES, "rank", "service"),
            "tree_latency": ("rank", "source", "target", "n", "sum_ns", "service"),
            "errors": (*findings._FAILED, "n", "userid", "rank", "service"),
        "order_check": findings._ORDER, "event_gaps": findings._GAPS, "job_outcomes": findings._JOB,
        "notifications": findings._NOTE, "_runs": (*reader._RUN, "started_at", "finished_at"),
        "user_usage": ("userid", "rpc_ns", "errors"),
    }  # fmt: skip
    for table, columns in asked.items():
        assert set(columns) <= set(TABLES[table].names), table
    for table, when in TIMES.items():
        assert not when or when in TABLES[table].names


def test_it_reads_what_it_may_not_read_as_damage(house, tmp_path):
    if os.geteuid() == 0:
        file = tmp_path / "traffic" / "dt=2026-03-01" / "part-0.parquet"
        file.unlink()
        file.symlink_to(file.name)
    else:
        (tmp_path / "traffic" / "dt=2026-03-01" / "part-0.parquet").chmod(0)
    reading = Reading()
    rows_of(house, Scope(wh.FIRST, wh.LAST), reading)
    assert reading.damaged == ["traffic/dt=2026-03-01/part-0.parquet"]
