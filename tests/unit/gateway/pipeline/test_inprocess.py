"""Tables by DuckDB: what it writes beside memory is private and goes, what it says is one line."""

import stat
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from gateway.pipeline.errors import PipelineError
from gateway.pipeline.tables.inprocess import tables_of
from tests.live import traffic


@pytest.fixture
def bronze() -> pa.Table:
    return traffic.arrow(traffic.Player(traffic.Writer()).play([("event", 1, 1, 0)] * 5))


def test_what_does_not_fit_into_memory_is_nobody_elses(
    bronze: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files say who talked to whom."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with tables_of(bronze) as tables:
        assert tables.rows("traffic").num_rows == 1
        (place,) = tmp_path.iterdir()
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []


def test_what_duckdb_says_is_one_line(bronze: pa.Table) -> None:
    with (
        pytest.raises(PipelineError, match=r"^DuckDB: .*rank") as told,
        tables_of(bronze.drop("rank")) as tables,
    ):
        tables.rows("traffic")
    assert "\n" not in str(told.value)


def test_a_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    pq.write_table(traffic.arrow([]), tmp_path / "a.parquet")
    rows = ds.dataset(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(PipelineError, match=r"a\.parquet") as told, tables_of(rows) as tables:
        tables.rows("traffic")
    assert "\n" not in str(told.value)


def test_an_answer_may_have_any_number_for_an_error() -> None:
    """What it says is up to whoever answers: 32 bits, of which an errno has one less."""
    writer = traffic.Writer()
    for tag, number in enumerate((2, 2**31, 2**32 - 1), 1):
        writer.request(1, tag, "job.b")
        writer.response(1, tag, "job.b", number)
    with tables_of(traffic.arrow(writer.rows)) as tables:
        failed = tables.rows("errors").to_pylist()
        assert sum(tables.rows("user_usage")["errors"].to_pylist()) == 3
        assert sorted(tables.rows("rpc")["errnum"].to_pylist()) == [2, 2**31, 2**32 - 1]
    assert sorted((row["errno"], row["n"]) for row in failed) == [(2, 1), (2**31 - 1, 2)]


def test_a_clock_that_is_set_while_calls_are_open() -> None:
    """From 1970 to now: a few such calls are together more than 64 bits hold."""
    writer = traffic.Writer(now_ns=traffic.S)
    for tag in range(1, 8):
        writer.request(1, tag, "job.b")
    writer.now_ns = traffic.MIDNIGHT_NS
    for tag in range(1, 8):
        writer.response(1, tag, "job.b", 0)
    with tables_of(traffic.arrow(writer.rows)) as tables:
        assert tables.rows("rpc")["lat_ns"].to_pylist() == [traffic.MIDNIGHT_NS - traffic.S] * 7
        for name in ("rpc_latency", "tree_latency"):
            assert tables.rows(name)["sum_ns"].to_pylist() == [2**63 - 1]
        assert max(tables.rows("user_usage")["rpc_ns"].to_pylist()) == 2**63 - 1


def test_a_long_query_prints_nothing(bronze: pa.Table, capfd: pytest.CaptureFixture[str]) -> None:
    """DuckDB draws a bar into standard output, where the JSON of ``--json`` goes."""
    with tables_of(bronze) as tables:
        tables._base.execute("SET progress_bar_time = 1")
        tables._base.sql("SELECT sum(hash(a.range, b.range)) FROM range(6000) a, range(6000) b").fetchall()
    assert capfd.readouterr().out == ""
