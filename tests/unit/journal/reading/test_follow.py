"""Following all writers over rotation, retention, restarts and a block in the making."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.journal.reading.blocks import Block, Damage, salvage, walk
from broker.journal.reading.follow import Follower, Missed, News
from broker.wire.message import request
from tests.live.segments import T0, Rec, block, flux, header, name_of, note, write


def said(count: int) -> list[Rec]:
    return [flux(T0 + n, request("kvs.get", b"x" * 50, matchtag=n + 1)) for n in range(count)]


def numbers(news: Iterator[News]) -> list[int]:
    out: list[int] = []
    for each in news:
        assert isinstance(each, Block), each
        out += range(each.first_seq, each.first_seq + each.count)
    return out


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(tmp_path)
    yield follower
    follower.close()


def test_an_empty_journal_that_fills(tmp_path: Path, following: Follower) -> None:
    assert list(following.poll()) == []
    write(tmp_path, "rank0", said(2))
    write(tmp_path, "nfp", said(1))
    assert sorted(numbers(following.poll())) == [0, 0, 1]
    assert list(following.poll()) == []


def test_a_block_comes_when_it_is_whole_and_once(tmp_path: Path, following: Follower) -> None:
    path = tmp_path / name_of("rank0", 0)
    data = header() + block(said(3), 0) + block(said(2), 3)
    seen: list[int] = []
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        seen += numbers(following.poll())
        assert len(seen) in (0, 3, 5)
    assert seen == [0, 1, 2, 3, 4]


def test_rotation_and_a_segment_deleted_under_the_follower(tmp_path: Path, following: Follower) -> None:
    path = write(tmp_path, "rank0", said(2))
    assert numbers(following.poll()) == [0, 1]
    with path.open("ab") as file:
        file.write(block(said(2), 2))
    path.unlink()  # it is open: what was appended is read all the same
    write(tmp_path, "rank0", said(1), 4)
    assert numbers(following.poll()) == [2, 3, 4]


def test_segments_deleted_before_they_were_read_are_told(tmp_path: Path, following: Follower) -> None:
    write(tmp_path, "rank0", said(2))
    assert numbers(following.poll()) == [0, 1]
    write(tmp_path, "rank0", said(3), 7)
    missed, came = following.poll()
    assert missed == Missed("rank0", 2, 6)
    assert isinstance(came, Block)


def test_a_gap_that_the_writer_tells_of_is_no_missing_segment(tmp_path: Path, following: Follower) -> None:
    write(tmp_path, "rank0", said(2))
    list(following.poll())
    write(tmp_path, "rank0", [note(T0, "gap", {"records": 5, "first": 2, "last": 6, "cause": "shed"})], 6)
    assert numbers(following.poll()) == [6]


def test_damage_in_the_middle_is_told_once_and_stepped_over(tmp_path: Path, following: Follower) -> None:
    path = tmp_path / name_of("rank0", 0)
    hurt = bytearray(block(said(2), 2))
    hurt[80] ^= 1
    path.write_bytes(header() + block(said(2), 0) + hurt)
    assert numbers(following.poll()) == [0, 1]
    assert list(following.poll()) == []  # it may be a block in the making
    with path.open("ab") as file:
        file.write(block(said(2), 4))
    damage, came = following.poll()
    assert isinstance(damage, Damage)
    assert damage.length == len(hurt)
    assert isinstance(came, Block)
    assert came.first_seq == 4
    assert list(following.poll()) == []


def test_a_torn_end_counts_as_damage_once_there_is_a_later_segment(
    tmp_path: Path, following: Follower
) -> None:
    write(tmp_path, "rank0", said(2), tail=block(said(1), 2)[:-3])
    assert numbers(following.poll()) == [0, 1]
    write(tmp_path, "rank0", said(1), 2)
    damage, came = following.poll()
    assert isinstance(damage, Damage)
    assert damage.torn
    assert isinstance(came, Block)
    assert list(following.poll()) == []


def test_a_damaged_header_is_told_once(tmp_path: Path, following: Follower) -> None:
    path = write(tmp_path, "rank0", said(2))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    damage, came = following.poll()
    assert isinstance(damage, Damage)
    assert damage.offset == 0
    assert isinstance(came, Block)
    assert list(following.poll()) == []


@pytest.mark.parametrize(("start", "there"), [("begin", [0, 1, 2, 3]), ("newest", [1, 2, 3]), ("end", [])])
def test_where_it_starts(tmp_path: Path, start: str, there: list[int]) -> None:
    for first, count in ((0, 1), (1, 2), (3, 1)):
        write(tmp_path, "rank0", said(count), first)
    follower = Follower(tmp_path, start=start)
    try:
        assert numbers(follower.poll()) == there
        write(tmp_path, "rank0", said(1), 4)
        write(tmp_path, "rank1", said(1), 9)  # a writer that appears later is news from its begin
        assert sorted(numbers(follower.poll())) == [4, 9]
    finally:
        follower.close()


def test_readers_beside_a_writer_that_appends_byte_by_byte(tmp_path: Path) -> None:
    """Every read sees whole blocks only; what was complete stays complete."""
    path = tmp_path / name_of("rank0", 0)
    data = header() + b"".join(block(said(2), 2 * n) for n in range(60))
    done = threading.Event()

    def append() -> None:
        try:
            with path.open("wb", buffering=0) as file:
                for at in range(0, len(data), 37):
                    file.write(data[at : at + 37])
        finally:
            done.set()

    thread = threading.Thread(target=append)
    thread.start()
    follower = Follower(tmp_path)
    try:
        seen = numbers(follower.blocks(done.is_set, poll_s=0.001))
        end = 64
        deadline = time.monotonic() + 30
        while end < len(data):
            assert time.monotonic() < deadline
            end = max([end, *(each.end for each in salvage(path, end) if isinstance(each, Block))])
            assert [each.end for each in walk(path, 64, end)][-1:] == ([end] if end > 64 else [])
        seen += numbers(follower.poll())
        assert seen == list(range(120))
    finally:
        thread.join()
        follower.close()
