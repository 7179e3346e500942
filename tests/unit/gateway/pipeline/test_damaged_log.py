"""A log of Delta that is damaged is said in one line: which file, and what to do; nothing is passed over."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.cli.main import main
from gateway import delta
from gateway.delta import TableError
from gateway.history import files, tables
from gateway.pipeline import lake
from gateway.pipeline.warehouse import BRONZE, GOLD, Warehouse
from tests.live import traffic
from tests.tables import for_each

LAST = "00000000000000000003.json"
MIDDLE = "00000000000000000001.json"
FIRST = "00000000000000000000.json"


def add(warehouse: Warehouse, **done: int) -> int:
    rows = traffic.arrow(traffic.Player(traffic.Writer()).play([("event", 1, 1, 0)] * 5))
    return warehouse.add_bronze(warehouse.at("messages"), warehouse.write_rows("messages", rows), done)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three additions of five rows."""
    made = Warehouse(tmp_path_factory.mktemp("whole") / "warehouse")
    for name in ("messages", "traffic", "_runs"):
        lake.create(made.at(name))
    for batch in range(3):
        add(made, stream=batch)
    return made.root


@pytest.fixture
def log(whole: Path, tmp_path: Path) -> Path:
    """The log of bronze, of a copy."""
    return copied(whole, tmp_path)


def copied(whole: Path, tmp_path: Path) -> Path:
    shutil.rmtree(tmp_path / "warehouse", ignore_errors=True)
    shutil.copytree(whole, tmp_path / "warehouse")
    return tmp_path / "warehouse" / "messages" / "_delta_log"


def empty(log: Path, name: str) -> None:
    (log / name).write_bytes(b"")


def cut(log: Path, name: str) -> None:
    (log / name).write_bytes((log / name).read_bytes()[:200])


def rubbish(log: Path, name: str) -> None:
    (log / name).write_bytes(b"[1]\n\xffrubbish")


def missing(log: Path, name: str) -> None:
    (log / name).unlink()


@for_each(
    ("harm", "name"),
    [*itertools.product((empty, cut, rubbish), (FIRST, MIDDLE, LAST)), (missing, FIRST), (missing, MIDDLE)],
)
def test_it_is_named(
    whole: Path,
    tmp_path: Path,
    harm: Callable[[Path, str], None],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = copied(whole, tmp_path)
    harm(log, name)
    with pytest.raises(TableError) as found:
        Warehouse(log.parent.parent).at("messages")
    where, _, what = str(found.value).partition(": ")
    assert where == (str(log) if (harm, name) == (missing, FIRST) else f"{log}/{name}")
    assert what.endswith("or make the tables anew: headgate pipeline batch --journal DIR --warehouse NEW")
    assert main(["pipeline", "describe", "--warehouse", str(log.parent.parent)]) == 1
    assert capsys.readouterr().err == f"headgate pipeline: {found.value}\n"


def test_a_log_that_is_lost_is_no_empty_table(log: Path) -> None:
    shutil.rmtree(log)
    with pytest.raises(TableError, match="_delta_log: missing, though the table has files"):
        Warehouse(log.parent.parent).ready()


@pytest.mark.parametrize("harm", [empty, missing])
def test_the_history_says_it(log: Path, harm: Callable[[Path, str], None]) -> None:
    harm(log, FIRST) if harm is empty else shutil.rmtree(log)
    with pytest.raises(files.Absent, match=r"_delta_log.*; put the file back from a copy, or "):
        tables.Warehouse(str(log.parent.parent)).files("messages", ["2026-03-02"])


def test_a_gold_table_is_made_anew(log: Path) -> None:
    root = log.parent.parent
    empty(root / "traffic" / "_delta_log", FIRST)
    with pytest.raises(
        TableError,
        match=rf"delete {root}/traffic and make it anew: headgate pipeline batch --warehouse {root}",
    ):
        Warehouse(root).ready()


def test_where_the_last_commit_is_missing_no_number_means_two_additions(log: Path) -> None:
    """Gold was made of an addition that bronze has lost since: the next one is another."""
    warehouse = Warehouse(log.parent.parent)
    warehouse.at("_runs").commit([], done={GOLD: 2})
    missing(log, LAST)
    assert warehouse.at("messages").done(BRONZE) == 1
    assert add(warehouse, stream=2) == 3
    assert [note["rows"] for note in warehouse.at("messages").notes(2, BRONZE, 3)] == [5]


def test_a_folder_that_is_just_being_made_is_empty(tmp_path: Path) -> None:
    """It was not there when pyarrow listed it, and there when pyarrow looked why."""

    class Making:
        def get_file_info(self, selector: object) -> list[object]:
            raise FileNotFoundError(2, "Cannot list directory", str(tmp_path))

    assert delta.listed(Making(), str(tmp_path)) == []
    assert delta.listed(*delta.filesystem(str(tmp_path / "nowhere"))) == []
