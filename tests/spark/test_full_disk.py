"""A disk that is full below the tables: one line, and tables as they were."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.errors import HeadgateError
from gateway.pipeline.gold import batch
from gateway.pipeline.warehouse import Warehouse
from tests.live import traffic
from tests.live.gold import NOTHING, differences, fill, gold

NAMES = ("traffic", "rpc", "rpc_latency", "user_usage", "tree_latency")
"""Of the tables: made in one go, some of rows, some of sums."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
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


def refused(spark: Any, warehouse: Warehouse) -> str:
    """What ``batch`` says that fails, which is one line; "" when there was room."""
    told = ""
    try:
        batch(spark, warehouse, warehouse.dates("messages"), tables=NAMES)
    except HeadgateError as error:
        told = str(error)
    assert "\n" not in told
    return told


def same(before: dict[str, list[Any]], now: dict[str, list[Any]]) -> bool:
    """Rows, in whatever order they were written."""
    return all(differences(name, now[name], rows) == NOTHING for name, rows in before.items())


def test_each_table_is_as_it_was_or_as_it_is_to_be(spark: Any, small: Path) -> None:
    """Whatever room there is; with room it is done again."""
    warehouse = Warehouse(small / "warehouse")
    fill(warehouse, calls(2000))
    assert not refused(spark, warehouse)
    before = gold(warehouse, NAMES)
    filler = small / "filler"
    said = []
    for room_kib in (0, 32):
        free = os.statvfs(small).f_bavail * os.statvfs(small).f_bsize
        filler.write_bytes(bytes(max(0, free - room_kib * 1024)))
        said.append(refused(spark, warehouse))
        filler.unlink()
        assert same(before, gold(warehouse, NAMES)), room_kib
    assert said[0]
    assert all("No space left on device" in line for line in said if line), said
    assert not refused(spark, warehouse)
    assert same(before, gold(warehouse, NAMES))
