"""Gold in pieces, as Spark's tasks make it, here one after another: the same tables, and nothing of what failed."""

import shutil
from pathlib import Path

import pytest

from gateway.delta import TableError
from gateway.pipeline import pieces
from gateway.pipeline.batch import NAMES, batch
from gateway.pipeline.pieces import Piece
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle, traffic
from tests.live.gold import NOTHING, differences, drawn_rows, fill

REST = [name for name in NAMES if name != pieces.JOBS]
SOME = ["traffic", "rpc", "order_check"]


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    return drawn_rows(5)


@pytest.fixture(scope="module")
def filled(rows: list[traffic.Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("filled") / "w"
    fill(Warehouse(place), rows)
    return place


@pytest.fixture
def warehouse(filled: Path, tmp_path: Path) -> Warehouse:
    return Warehouse(shutil.copytree(filled, tmp_path / "w"))


def planned(warehouse: Warehouse, names: list[str]) -> Piece:
    bronze = warehouse.at("messages")
    paths = [each.path for each in bronze.files()]
    return Piece(warehouse.place, dict.fromkeys(names, bronze.dates()), paths, threads=1)


def files(warehouse: Warehouse, name: str) -> list[Path]:
    return list(Path(warehouse.table(name)).glob("dt=*/*"))


@pytest.mark.parametrize("names", [SOME, pytest.param(REST, marks=pytest.mark.patient)], ids=["some", "all"])
def test_pieces_by_rank_are_together_the_oracles(
    warehouse: Warehouse, rows: list[traffic.Row], names: list[str]
) -> None:
    bronze = warehouse.at("messages")
    some = pieces.by_rank(planned(warehouse, names), bronze, 3)
    assert sorted(rank for each in some for rank in each.ranks) == sorted({row["rank"] for row in rows})
    assert all(len(each.paths) < len(bronze.files()) for each in some), (
        "only files that have such rows are read"
    )
    dates = bronze.dates()
    with pieces.uncommitted(warehouse) as written:
        pieces.together(warehouse, map(pieces.make, some), written)
        for name in names:
            warehouse.replace(written.pop(name, []), warehouse.at(name), dates, {})
    for name in names:
        assert differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](rows)) == NOTHING, name


@pytest.mark.parametrize(
    "names", [[*SOME, pieces.JOBS], pytest.param(NAMES, marks=pytest.mark.patient)], ids=["some", "all"]
)
def test_rows_beyond_what_is_sorted_at_a_time_are_made_by_rank(
    warehouse: Warehouse, rows: list[traffic.Row], monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """As a day of 100 million is, of which the memory of one piece held a fifth."""
    ranks = []
    make = pieces.make
    monkeypatch.setattr("gateway.pipeline.batch.PIECE_ROWS", -(-len(rows) // 3))
    monkeypatch.setattr(pieces, "make", lambda piece, done: ranks.append(piece.ranks) or make(piece, done))
    told: list[tuple[int, int]] = []
    batch(None, warehouse, tables=names, tell=lambda done, total: told.append((done, total)))
    assert len(ranks) == 3 + 1, "and NFP's jobs, of all ranks"
    assert sorted(rank for some in ranks for rank in some) == sorted({row["rank"] for row in rows})
    assert told[-1][0] == told[-1][1]
    for name in names:
        assert differences(name, warehouse.scan(name).to_pylist(), oracle.TABLES[name](rows)) == NOTHING, name


def test_what_a_task_wrote_that_did_not_end_is_in_no_table(
    warehouse: Warehouse, rows: list[traffic.Row]
) -> None:
    """It was killed, its files are there, and it was done again."""
    pieces.make(planned(warehouse, ["traffic"]))
    assert files(warehouse, "traffic")
    batch(None, warehouse, tables=["traffic"])
    assert differences("traffic", warehouse.scan("traffic").to_pylist(), oracle.traffic(rows)) == NOTHING


def test_a_piece_that_fails_leaves_no_file(warehouse: Warehouse, rows: list[traffic.Row]) -> None:
    for date in warehouse.dates("messages"):
        Path(warehouse.table("rpc"), f"dt={date}").write_text("where a folder should be")
    before = files(warehouse, "traffic")
    with pytest.raises(Exception, match="rpc"):
        pieces.make(planned(warehouse, ["traffic", "rpc"]))
    assert files(warehouse, "traffic") == before == []


def test_a_file_of_bronze_that_is_gone_is_one_line(warehouse: Warehouse) -> None:
    piece = planned(warehouse, ["traffic", "rpc"])
    Path(warehouse.table("messages"), piece.paths[0]).unlink()
    with pytest.raises(TableError, match=r"messages: .*parquet") as told:
        pieces.make(piece)
    assert "\n" not in str(told.value)
    assert not files(warehouse, "traffic")
