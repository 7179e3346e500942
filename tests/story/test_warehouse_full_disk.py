"""A disk that is full below the tables, or below what DuckDB has no memory for: one line, and tables as they were."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from broker.cli.main import main
from gateway.pipeline.tables import inprocess
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle, traffic
from tests.live.gold import NOTHING, differences, fill, gold

pytestmark = [pytest.mark.story, pytest.mark.patient]
CALLS = 40_000


@pytest.fixture
def small(tmp_path: Path):
    """A file system of three MiB."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to mount a small file system")
    place = tmp_path / "small"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("optional: needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def calls(count: int) -> list[traffic.Row]:
    writer = traffic.Writer()
    for number in range(count):
        writer.request(1, number % 1000 + 1, "job.b")
        writer.response(1, number % 1000 + 1, "job.b")
        writer.now_ns += 10**6
    return writer.rows


def refused(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``batch`` says that fails, which is one line; "" when there was room."""
    code = main(["pipeline", "batch", "--warehouse", str(warehouse), "--since", "1970-01-01"])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == code
    return "".join(lines)


def same(before: dict[str, list[Any]], now: dict[str, list[Any]]) -> bool:
    """Rows, in whatever order they were written."""
    return all(differences(name, now[name], rows) == NOTHING for name, rows in before.items())


def test_below_what_duckdb_has_no_memory_for(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warehouse = Warehouse(tmp_path / "warehouse")
    fill(warehouse, calls(CALLS))
    before = {name: warehouse.at(name).files() for name in oracle.TABLES}
    with monkeypatch.context() as less:
        less.setattr(tempfile, "tempdir", str(small))
        less.setattr(inprocess, "MEMORY_MIB", 8)
        line = refused(warehouse, capsys)
    assert "DuckDB: " in line
    assert list(small.iterdir()) == []
    assert {name: warehouse.at(name).files() for name in oracle.TABLES} == before
    assert not list(Path(warehouse.table("traffic")).glob("dt=*/*")), "nothing that was written stays"
    assert main(["pipeline", "batch", "--warehouse", str(warehouse)]) == 0
    assert warehouse.scan("rpc").num_rows == CALLS


def test_below_the_tables(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever room there is, each table is as it was or as it is to be; with room it is done again."""
    warehouse = Warehouse(small / "warehouse")
    fill(warehouse, calls(2000))
    assert main(["pipeline", "batch", "--warehouse", str(warehouse)]) == 0
    before = gold(warehouse)
    filler = small / "filler"
    said = []
    for room_kib in (0, 16, 32, 64):
        free = os.statvfs(small).f_bavail * os.statvfs(small).f_bsize
        filler.write_bytes(bytes(max(0, free - room_kib * 1024)))
        said.append(refused(warehouse, capsys))
        filler.unlink()
        assert same(before, gold(warehouse)), room_kib
    assert said[0]
    assert all("No space left on device" in line for line in said if line), said
    assert not refused(warehouse, capsys)
    assert same(before, gold(warehouse))
