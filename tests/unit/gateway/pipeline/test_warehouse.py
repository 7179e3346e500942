"""A warehouse is for whoever made it; a commit is there whole or not at all, and nothing is there twice."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from broker.cli.main import main
from gateway.delta import TableError
from gateway.pipeline import compact, lake
from gateway.pipeline.errors import Busy, Conflict
from gateway.pipeline.schema import MESSAGES
from gateway.pipeline.warehouse import Warehouse, until_it_passes
from tests.live import traffic

DAY = "2026-03-02"


@pytest.fixture
def warehouse(bare: Path, tmp_path: Path) -> Warehouse:
    return Warehouse(shutil.copytree(bare, tmp_path / "warehouse"))


def rows(count: int, rank: int = 0):
    """So many events of one day."""
    return traffic.arrow(traffic.Player(traffic.Writer(rank=rank)).play([("event", 1, 1, 0)] * count))


def add(warehouse: Warehouse, count: int, rank: int = 0, **done: int) -> int:
    files = warehouse.write_rows("messages", rows(count, rank))
    return warehouse.add_bronze(warehouse.at("messages"), files, done)


def count(warehouse: Warehouse) -> int:
    return warehouse.scan("messages", ["seq"]).num_rows


def test_nobody_else_may_enter(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "warehouse")
    warehouse.ready()
    assert warehouse.root.stat().st_mode & 0o777 == 0o700


def test_compact_goes_on_until_it_is_told_to_leave(warehouse: Warehouse) -> None:
    for batch in range(2):
        add(warehouse, 3, stream=batch)

    def leave() -> None:
        while len(warehouse.at("messages").files()) > 1:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=leave)
    thread.start()
    assert main(["pipeline", "compact", "--warehouse", str(warehouse), "--every", "3600"]) == 0
    thread.join()
    assert count(warehouse) == 6


@pytest.mark.patient
def test_compact_goes_on_behind_a_disk_that_refused(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first round ends with it, the second one puts the files together."""
    for batch in range(2):
        add(warehouse, 3, stream=batch)
    real, refusals = compact.compact, [TableError("messages: No space left on device")]

    def full_at_first(*words, **how):
        if refusals:
            raise refusals.pop()
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*words, **how)

    monkeypatch.setattr(compact, "compact", full_at_first)
    words = ["--warehouse", str(warehouse), "--table", "messages", "--every", "1"]
    assert main(["pipeline", "compact", *words]) == 0
    assert capsys.readouterr().err == (
        "headgate pipeline compact: messages: No space left on device; again in 1 s\n"
    )
    assert len(warehouse.at("messages").files()) == 1


def test_two_jobs_make_it_at_once(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            made = Warehouse(tmp_path / "both")
            made.ready()
            made.claim("stream")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _turn in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == []
    assert Warehouse(tmp_path / "both").feed()["feed"] == "stream"


def test_what_is_not_committed_is_not_there(warehouse: Warehouse) -> None:
    files = warehouse.write_rows("messages", rows(3))
    assert count(warehouse) == 0
    assert add(warehouse, 2) == 0
    assert add(warehouse, 4) == 1
    assert count(warehouse) == 6
    warehouse.at("messages").commit(files)
    assert count(warehouse) == 9


def test_files_say_what_is_in_them(warehouse: Warehouse) -> None:
    """By it readers pass them over; so do those of files that another writer, such as Spark's, left in a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for rank in (3, 5):
        add(warehouse, 4, rank=rank)
    folder = warehouse.root / "messages" / "data-0123" / f"dt={DAY}"
    folder.mkdir(parents=True)
    for name, some in (("part-0.parquet", rows(2, 7)), ("part-1.parquet", rows(0, 7))):
        pq.write_table(some.drop_columns(["dt"]).cast(MESSAGES.arrow()), folder / name)
    (folder.parent / "_SUCCESS").touch()
    place = str(warehouse.root / "messages")
    found = lake.files_in(place, "data-0123")
    assert [(each.path, each.date, each.rows) for each in found] == [
        (f"data-0123/dt={DAY}/part-0.parquet", DAY, 2)
    ]
    assert lake.files_in(place, "nothing-there") == []
    warehouse.at("messages").commit(found)
    latest = warehouse.at("messages").delta
    told = pa.table(latest.get_add_actions(flatten=True)).sort_by("min.rank").to_pylist()
    assert [(each["min.rank"], each["max.rank"], each["num_records"]) for each in told] == [
        (3, 3, 4),
        (5, 5, 4),
        (7, 7, 2),
    ]
    scanned = warehouse.scan("messages")
    moments = scanned["ts"].to_pylist()
    for each in told:
        assert each["min.ts"] <= min(moments) <= max(moments) <= each["max.ts"]
        assert (each["min.type"], each["null_count.type"], each["null_count.nodeid"]) == (
            "event",
            0,
            each["num_records"],
        )
    kept = latest.to_pyarrow_table(filters=[("rank", "=", 5)])
    assert kept.num_rows == 4
    assert len(list(latest.to_pyarrow_dataset().get_fragments(filter=ds.field("rank") == 5))) == 1


def test_a_snapshot_stays_as_it_was(warehouse: Warehouse) -> None:
    add(warehouse, 3)
    before = warehouse.at("messages")
    add(warehouse, 4)
    compact.compact(warehouse, ["messages"])
    assert (before.scan().num_rows, count(warehouse)) == (3, 7)


def test_what_was_done_is_known_and_two_of_a_job_conflict(warehouse: Warehouse) -> None:
    assert warehouse.at("messages").done("stream") == -1
    one, other = warehouse.at("messages"), warehouse.at("messages")
    files = warehouse.write_rows("messages", rows(3))
    warehouse.add_bronze(one, files, {"stream": 7})
    assert warehouse.at("messages").done("stream") == 7
    with pytest.raises(Conflict):
        warehouse.add_bronze(other, files, {"stream": 7})
    assert add(warehouse, 5, stream=7) == 0, "it is there already"
    assert count(warehouse) == 3


def test_two_that_replace_the_same_files_conflict(warehouse: Warehouse) -> None:
    """Also where one of them only puts files together: its rows would come back."""
    for _turn in range(3):
        add(warehouse, 2)
    stale = warehouse.at("messages")
    compact.compact(warehouse, ["messages"])
    with pytest.raises(Conflict):
        stale.commit(warehouse.write_rows("messages", rows(1)), removed=stale.files())
    assert count(warehouse) == 6
    fresh, stale = warehouse.at("messages"), warehouse.at("messages")
    fresh.commit(warehouse.write_rows("messages", rows(1)), removed=fresh.files())
    with pytest.raises(Conflict):
        stale.commit(warehouse.write_rows("messages", rows(6)), removed=stale.files(), same=True)
    assert count(warehouse) == 1


def test_who_replaces_or_compacts_and_who_adds_do_not_conflict(warehouse: Warehouse) -> None:
    add(warehouse, 2)
    stale = warehouse.at("messages")
    add(warehouse, 3)
    stale.commit(warehouse.write_rows("messages", rows(1)), removed=stale.files())
    assert count(warehouse) == 4
    stale = warehouse.at("messages")
    compact.compact(warehouse, ["messages"])
    warehouse.add_bronze(stale, warehouse.write_rows("messages", rows(7)), {})
    assert count(warehouse) == 11


def test_the_history_says_what_was_done_and_folders_of_killed_jobs_go(warehouse: Warehouse) -> None:
    place = warehouse.root / "messages"
    for job, age_h in (("part-0123", 3), ("part-4567", 1)):
        left = place / job / "_temporary" / "0"
        left.mkdir(parents=True)
        (place / job / "_SUCCESS").touch()
        for folder in (left, left.parent, place / job):
            os.utime(folder, (time.time() - age_h * 3600,) * 2)
    for _turn in range(2):
        add(warehouse, 2)
    (orphan,) = warehouse.write_rows("messages", rows(1))
    os.utime(place / orphan.path, (time.time() - 3 * 3600,) * 2)
    compact.compact(warehouse, ["messages"], keep_hours=2)
    assert not (place / orphan.path).exists()
    assert sorted(each.name for each in place.iterdir()) == ["_delta_log", f"dt={DAY}", "part-4567"]
    at = warehouse.at("messages")
    at.commit(warehouse.write_rows("messages", rows(1)), removed=at.files())
    history = warehouse.at("messages").delta.history()
    told = [each.get("headgate", {}).get("operation", each["operation"]) for each in history]
    assert told[:5] == ["REPLACE", "VACUUM END", "VACUUM START", "OPTIMIZE", "WRITE"]


def test_notes_are_those_that_were_asked_for(warehouse: Warehouse) -> None:
    for number in range(6):
        add(warehouse, number + 1, stream=10 + number)
        compact.compact(warehouse, ["messages"])
    bronze = warehouse.at("messages")
    assert [note["rows"] for note in bronze.notes(1, "bronze", 4)] == [3, 4, 5]
    assert [note["rows"] for note in bronze.notes(11, "stream", 12)] == [3]
    assert bronze.notes(5, "bronze", 5) == []


def test_many_writers_and_a_compaction_lose_nothing(warehouse: Warehouse) -> None:
    problems: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            for _turn in range(4):
                until_it_passes(lambda: add(warehouse, 5, rank))
        except BaseException as error:
            problems.append(error)

    def join() -> None:
        try:
            for _turn in range(3):
                compact.compact(warehouse, ["messages"])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)] + [
        threading.Thread(target=join)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == []
    assert count(warehouse) == 2 * 4 * 5
    assert warehouse.feed()["bronze"] == 7


REPLACES = """
import sys
from gateway.pipeline.schema import MESSAGES
from gateway.pipeline.warehouse import Warehouse
from tests.unit.gateway.pipeline.test_warehouse import rows
warehouse = Warehouse(sys.argv[1])
for turn in range(1, 1000):
    on = warehouse.at("messages")
    on.commit(warehouse.write_rows("messages", rows(40, turn)), removed=on.files())
    print(turn, flush=True)
"""


@pytest.mark.patient
@pytest.mark.timeout(120)
def test_killed_at_any_moment_it_holds_the_old_or_the_new(warehouse: Warehouse, tmp_path: Path) -> None:
    """A job that replaces a day again and again is killed, each time a bit later: the day never has other rows."""
    add(warehouse, 40)
    for later_s in (0.0, 0.005, 0.01, 0.015, 0.02):
        job = subprocess.Popen(
            [sys.executable, "-c", REPLACES, str(warehouse.root)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[4],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        )
        job.stdout.readline()
        time.sleep(later_s)
        job.send_signal(signal.SIGKILL)
        job.communicate()
        found = warehouse.scan("messages", ["rank"])["rank"].to_pylist()
        assert len(found) == 40
        assert len(set(found)) == 1


def test_an_ingest_does_not_overtake_a_stream(warehouse: Warehouse) -> None:
    warehouse.claim("ingest")
    warehouse.claim("stream")
    with pytest.raises(Busy, match="fed by a stream"):
        warehouse.claim("ingest")
    assert warehouse.feed() == {"feed": "stream", "bronze": -1, "gold": -1}
