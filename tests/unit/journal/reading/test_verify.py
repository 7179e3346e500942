"""What is torn, damaged, lost or missing is told with its exact extent; what is in order is not."""

from __future__ import annotations

import fcntl
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.journal.reading.blocks import walk
from broker.journal.reading.verify import verify
from broker.wire.message import request
from tests.live.segments import T0, Rec, block, flux, header, name_of, note, peer, write, write_many
from tests.tables import for_each

OTHER_RUN = bytes(range(16, 32))


def said(count: int) -> list[Rec]:
    return [flux(T0 + n, request("kvs.get", b"x", matchtag=n + 1)) for n in range(count)]


def lost(first: int, last: int, cause: str = "shed") -> Rec:
    return note(T0, "gap", {"records": last - first + 1, "first": first, "last": last, "cause": cause})


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_a_journal_in_order(tmp_path: Path, codec: str) -> None:
    write_many(tmp_path, "rank0", said(10), 4, per_block=2, codec=codec, peers=[peer(1, "a")])
    write(tmp_path, "rank1", said(3))
    report = verify(tmp_path)
    assert report.ok
    assert report.records == 13
    assert not report.gaps
    assert not report.removed
    assert [(each.writer, each.first_seq, each.records, each.blocks) for each in report.segments] == [
        ("rank0", 0, 4, 3), ("rank0", 4, 4, 3), ("rank0", 8, 2, 2), ("rank1", 0, 3, 1),
    ]  # fmt: skip
    assert [(each.writer, each.first, each.last) for each in report.runs] == [
        ("rank0", 0, 9),
        ("rank1", 0, 2),
    ]


def test_nothing_is_in_order(tmp_path: Path) -> None:
    assert verify(tmp_path).ok
    with pytest.raises(ConfigError, match="No such file"):
        verify(tmp_path / "nowhere")


def test_what_the_writer_counted_is_a_gap_and_no_damage(tmp_path: Path) -> None:
    records = said(2)
    data = header() + block(records, 0) + block([lost(2, 8), *records], 8) + block([lost(11, 11, "died")], 11)
    (tmp_path / name_of("rank0", 0)).write_bytes(data)
    report = verify(tmp_path)
    assert report.ok
    assert [(gap.first, gap.last, gap.cause, gap.why) for gap in report.gaps] == [
        (2, 8, "shed", "counted"), (11, 11, "died", "counted"),
    ]  # fmt: skip


def test_numbers_that_nobody_explains_are_damage(tmp_path: Path) -> None:
    data = header() + block(said(2), 0) + block(said(2), 5) + block([lost(9, 9)], 9)
    (tmp_path / name_of("rank0", 0)).write_bytes(data)
    report = verify(tmp_path)
    assert not report.ok
    assert [(gap.first, gap.last, gap.why) for gap in report.gaps] == [
        (2, 4, "unknown"), (7, 8, "unknown"), (9, 9, "counted"),
    ]  # fmt: skip


def test_a_missing_segment(tmp_path: Path) -> None:
    paths = write_many(tmp_path, "rank0", said(12), 4)
    paths[1].unlink()
    report = verify(tmp_path)
    assert not report.ok
    assert [(gap.first, gap.last, gap.why) for gap in report.gaps] == [(4, 7, "missing segment")]


def test_what_retention_removed_is_told_and_no_damage(tmp_path: Path) -> None:
    paths = write_many(tmp_path, "rank0", said(12), 4)
    paths[0].unlink()
    report = verify(tmp_path)
    assert report.ok
    assert report.removed == {"rank0": 4}


def test_two_runs_of_one_writer(tmp_path: Path) -> None:
    write(tmp_path, "rank0", said(4))
    write(tmp_path, "rank0", said(3), 4, run=OTHER_RUN, base=4)
    report = verify(tmp_path)
    assert report.ok
    assert [(each.run, each.first, each.last) for each in report.runs] == [
        (bytes(range(16)).hex(), 0, 3), (OTHER_RUN.hex(), 4, 6),
    ]  # fmt: skip


def test_numbers_that_go_back(tmp_path: Path) -> None:
    (tmp_path / name_of("rank0", 0)).write_bytes(header() + block(said(3), 0) + block(said(2), 1))
    (segment,) = verify(tmp_path).segments
    assert [each.why for each in segment.damages] == ["numbers from 1 on, 3 expected: they went back"]


def test_damage_has_its_extent_and_names_the_numbers_it_cost(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(9), per_block=3)
    data = bytearray(path.read_bytes())
    _one, two, _three = walk(path)
    data[two.offset + 100] ^= 1
    path.write_bytes(data)
    report = verify(tmp_path)
    (segment,) = report.segments
    assert not report.ok
    assert [(each.offset, each.length) for each in segment.damages] == [(two.offset, two.length)]
    assert [(gap.first, gap.last, gap.why) for gap in report.gaps] == [(3, 5, "damaged")]


def test_a_torn_end_is_damage_unless_somebody_writes(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(4), per_block=2)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - 5])
    *_, report = [verify(tmp_path)]
    (segment,) = report.segments
    assert not report.ok
    assert segment.damages[0].torn
    extent = (segment.damages[0].offset, segment.damages[0].length)
    assert sum(extent) == size - 5
    with (tmp_path / ".rank0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = verify(tmp_path)
    (segment,) = report.segments
    assert report.ok
    assert segment.open
    assert segment.unfinished is not None
    assert (segment.unfinished.offset, segment.unfinished.length) == extent


@for_each(
    ("at", "value", "why"),
    [
        (12, 10_000, "record 1 of the block: body of 10000 bytes"),
        (22, 5_000, "topic of 5000 bytes"),
        (26, 200, "origin of 200"),
    ],
)
def test_an_entry_that_points_elsewhere(tmp_path: Path, at: int, value: int, why: str) -> None:
    data = bytearray(block(said(3)))
    width = {12: "<I", 22: "<H", 26: "<B"}[at]
    struct.pack_into(width, data, 64 + 64 + at, value)
    struct.pack_into("<I", data, 8, zlib.crc32(data[12:]))
    (tmp_path / name_of("rank0", 0)).write_bytes(header() + data)
    (segment,) = verify(tmp_path).segments
    assert why in segment.damages[0].why
    assert segment.damages[0].offset == 64


def test_it_works_without_numpy(tmp_path: Path) -> None:
    write(tmp_path, "rank0", [lost(0, 0), *said(3)])
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from broker.journal.reading import verify, records, follow\n"
        f"assert verify.verify({str(tmp_path)!r}).records == 4\n"
        f"assert len(list(records.records({str(tmp_path)!r}))) == 4\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
