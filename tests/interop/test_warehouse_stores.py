"""Warehouses in a store that speaks S3: throttled, hung, killed in the middle, two jobs at once. Without Spark."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from gateway import delta
from gateway.cli.pipeline.describe import held
from gateway.delta import TableError
from gateway.history.files import Absent, Reading
from gateway.history.reader import Question, answer
from gateway.history.tables import Warehouse as HistoryWarehouse
from gateway.pipeline import bronze, compact, lake, schema, verify
from gateway.pipeline.errors import Conflict
from gateway.pipeline.warehouse import Run, Warehouse
from tests.live import segments
from tests.live import warehouse as history
from tests.live.s3 import Apart, place, s3_apart
from tests.spark.talk import PEERS, said

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]
ROWS = 400
LINE = r"^s3://journals/{}/messages\?region=[^@\n]*: [^\n]*{}[^\n]*$"
"""An error: the table without the key that opens the store, and what was said."""


@pytest.fixture(scope="module")
def server() -> Iterator[Apart]:
    with s3_apart() as served:
        yield served


@pytest.fixture
def s3(server: Apart) -> Apart:
    """It, without faults."""
    server.tell(refuse=0, kill=0)
    return server


@pytest.fixture
def journal(tmp_path: Path) -> str:
    segments.write_many(tmp_path / "journal", "rank0", said(ROWS), 200, peers=PEERS, per_block=50)
    return str(tmp_path / "journal")


def made(url: str, *names: str) -> Warehouse:
    """A warehouse with those tables only: each costs some requests."""
    warehouse = Warehouse(url)
    for name in names:
        lake.create(warehouse.at(name))
    return warehouse


def child(journal: str, url: str) -> subprocess.Popen[bytes]:
    """``ingest`` in a process of its own."""
    words = "import sys; from tests.interop import test_warehouse_stores as here; here.bring(*sys.argv[1:])"
    return subprocess.Popen([sys.executable, "-c", words, journal, url])


def bring(journal: str, url: str) -> None:
    bronze.bring(bronze.write, journal, Warehouse(url))


def once(journal: str, warehouse: Warehouse) -> bool:
    report = verify.verify(journal, warehouse)
    return report.ok and report.rows == ROWS and not any(each.behind for each in report.segments)


def test_a_job_that_is_killed_loses_nothing_and_brings_nothing_twice(s3: Apart, journal: str) -> None:
    warehouse = Warehouse(s3.place("killed"))
    for moment in (
        "/messages/dt=",
        "/messages/_delta_log/00000000000000000002",
    ):  # its files are there; it is committed
        running = child(journal, warehouse.place)
        s3.tell(kill=running.pid, kill_at=moment)
        assert running.wait(60) == -signal.SIGKILL
    assert once(journal, warehouse), "what was committed is there, though whoever did it never knew"
    bring(journal, warehouse.place)
    assert once(journal, warehouse)
    about = held(warehouse, "messages")
    assert (about["rows"], about["files"]) == (ROWS, 1)
    warehouse.at("messages").delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert once(journal, warehouse), "what the killed one left is gone, and nothing else"


def test_a_store_that_throttles_is_waited_for(s3: Apart, journal: str) -> None:
    warehouse = Warehouse(s3.place("slow"))
    s3.tell(refuse=2)
    bring(journal, warehouse.place)
    assert once(journal, warehouse)
    segments.write(Path(journal), "rank0", said(ROWS, ROWS), ROWS, peers=PEERS)
    s3.tell(refuse=2)
    bring(journal, warehouse.place)
    s3.tell(refuse=2)
    (done,) = compact.compact(warehouse, ["messages"])
    assert (done.files_before, done.files_after, done.rows) == (2, 1, 2 * ROWS)
    assert verify.verify(journal, warehouse).ok


def test_a_store_that_never_answers_or_refuses_is_one_line_in_time(
    s3: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"timeout": "1s", "max_retries": "1", "retry_timeout": "3s"}.items():
        monkeypatch.setitem(delta.PATIENCE, name, value)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = place(f"127.0.0.1:{deaf.getsockname()[1]}", "deaf", "key:secret@")
        with pytest.raises(TableError, match=LINE.format("deaf", "operation timed out")):
            Warehouse(url).at("messages")
    bronze = made(s3.place("full"), "messages", "_runs").at("messages")
    s3.tell(refuse=-1)
    with pytest.raises(TableError, match=LINE.format("full", "503")):
        bronze.commit([], done={"bronze": 0})
    s3.tell(refuse=0)
    rows = schema.RUNS.arrow(partition=True).empty_table()
    nowhere = Warehouse(s3.place("x").replace("journals", "nowhere"))
    with pytest.raises(TableError, match=r"s3://nowhere/x/_runs.*bucket"):
        nowhere.write_rows("_runs", pa.Table.from_pylist([Run("ingest").finish().row()], rows.schema))
    with pytest.raises(Absent, match=r"no warehouse at s3://nowhere/x"):
        HistoryWarehouse(nowhere.place).check()


def test_two_jobs_at_once_are_a_conflict_not_a_loss(s3: Apart, journal: str) -> None:
    warehouse = Warehouse(s3.place("both"))
    running = [child(journal, warehouse.place) for _turn in range(2)]
    assert [each.wait(90) for each in running] == [0, 0]
    assert once(journal, warehouse)
    first, second = warehouse.at("messages"), warehouse.at("messages")
    first.commit([], removed=first.files(), done={"one": 1})
    with pytest.raises(Conflict):
        second.commit([], removed=second.files(), done={"other": 1})


def test_the_history_reads_it(s3: Apart, tmp_path: Path) -> None:
    local = tmp_path / "warehouse"
    history.write(local, "traffic", history.traffic())
    history.write(local, "_runs", history.runs(history.LAST))
    url = s3.place("seen")
    for name in ("traffic", "_runs"):
        there, here = made(url, name), lake.Snapshot(history.TABLES[name], local / name)
        rows = here.scan()
        there.at(name).commit(there.write_rows(name, rows))
    asked = Question("traffic", history.FIRST, history.LAST)
    stored = HistoryWarehouse(url)
    assert answer(stored, asked) == answer(HistoryWarehouse(str(local)), asked)
    assert stored.tables() == ["traffic"]
    assert len(stored.runs(Reading(), 5)) == 2
