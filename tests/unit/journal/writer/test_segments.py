"""Blocks become files: names, headers, rotation, peers repeated, sync; a whole block at the end when a write fails."""

import errno
import os
import resource
import stat
from types import SimpleNamespace

import pytest

from broker.journal import marks
from broker.journal.layout import DICTIONARY
from broker.journal.writer import recovery
from broker.journal.writer import segments as room
from broker.journal.writer.blocks import BlockBuilder
from broker.journal.writer.recovery import Notes, recover
from broker.journal.writer.segments import Segments
from tests.unit.journal.writer.plain import (
    RUN,
    T0,
    block_at,
    blocks,
    calls,
    chunk,
    header,
    item,
    options,
    rows,
    tags,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.wall = T0

    def monotonic(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return self.wall


class Desk:
    """A builder and its segments, with clocks that stand still."""

    def __init__(self, directory, **more) -> None:
        self.options = options(directory, **more)
        self.clock = Clock()
        self.fd = os.open(directory / ".rank0.lock", os.O_RDWR | os.O_CREAT)
        notes = Notes(self.fd)
        found = recover(str(directory), "rank0", self.options.run, notes)
        self.found = found
        self.builder = BlockBuilder(self.options, base=found.base, number=found.next_seq - found.base)
        self.segments = Segments(
            self.options,
            found,
            notes,
            self.builder,
            monotonic=self.clock.monotonic,
            wall_ns=self.clock.wall_ns,
        )

    def say(self, *chunks) -> None:
        """One block."""
        for each in chunks:
            for block in self.builder.add(each, T0):
                self.segments.append(block)
        block = self.builder.build()
        if block is not None:
            self.segments.append(block)

    def calls(self, count: int, **more) -> None:
        self.say(calls(self.builder.number, count, **more))

    def close(self) -> None:
        self.segments.close()
        os.close(self.fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.glob("*.fj"))


def test_a_segment_and_its_header(tmp_path):
    with Desk(tmp_path, rank=3, capture="both", payload=False) as desk:
        assert names(tmp_path) == []  # nothing to say, no file
        desk.calls(5)
        desk.calls(2)
        assert desk.segments.next_seq == 7
        assert desk.segments.written == 7
    (path,) = tmp_path.glob("*.fj")
    data = path.read_bytes()
    assert path.name == "rank0-00000000000000000000.fj"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert header(data) == {"flags": 2, "rank": 3, "run": RUN, "first_seq": 0, "created": T0, "base": 0}
    assert [len(block.rows) for block in blocks(data)] == [5, 2]
    assert all(block.rank == 3 for block in blocks(data))
    assert desk.segments.disk_bytes == len(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".rank0.lock", path.name]


def test_rotation_by_size(tmp_path):
    with Desk(tmp_path, rotate_bytes=4000) as desk:
        for _ in range(10):
            desk.calls(10)
        desk.calls(1, payload=b"x" * 10_000)  # larger than a segment: one of its own
        desk.calls(1)
    data = [path.read_bytes() for path in sorted(tmp_path.glob("*.fj"))]
    firsts = [header(each)["first_seq"] for each in data]
    assert names(tmp_path) == [f"rank0-{first:020d}.fj" for first in firsts]
    assert len(data) >= 5
    assert all(len(each) <= 4000 or len(blocks(each)) == 1 for each in data)
    assert [row.seq for row in rows(tmp_path)] == tags(rows(tmp_path)) == list(range(102))


def test_rotation_by_age_asks_the_clock_that_does_not_step(tmp_path):
    with Desk(tmp_path, rotate_s=10.0) as desk:
        desk.calls(1)
        desk.clock.wall -= 10**15  # back by days
        desk.calls(1)
        desk.clock.wall += 10**16
        desk.segments.tick()
        desk.calls(1)
        assert len(names(tmp_path)) == 1
        assert desk.segments.due() == 110.0
        desk.clock.now += 10
        desk.segments.tick()
        assert len(names(tmp_path)) == 1
        desk.segments.tick()
        desk.calls(1)
        desk.clock.now += 11
        desk.calls(1)  # without a tick in between
    assert names(tmp_path) == [f"rank0-{first:020d}.fj" for first in (0, 3, 4)]


def test_peers_are_repeated_as_they_were_before_the_block(tmp_path):
    def known(number: int) -> bytes:
        return item(marks.entry_of_dictionary({"id": number, "name": f"p{number}"}), DICTIONARY, peer=number)

    with Desk(tmp_path, rotate_bytes=1) as desk:
        desk.say(chunk(0, [known(1), known(2)]))
        desk.say(chunk(2, [item(marks.note("link.down", {"peer": 1}), 4), known(3)]))
        desk.calls(1)
    data = [path.read_bytes() for path in sorted(tmp_path.glob("*.fj"))]
    repeated = [
        [row.peer for block in blocks(each) if block.flags & 1 for row in block.rows] for each in data
    ]
    assert repeated == [[], [1, 2], [2, 3]]
    assert [blocks(each)[0].first_seq for each in data] == [0, 2, 4]
    assert [row.seq for row in rows(tmp_path)] == list(range(5))


@pytest.mark.parametrize(("sync", "expected"), [("none", 0), ("interval", 2), ("block", 4)])
def test_sync(tmp_path, monkeypatch, sync, expected):
    calls_made = []
    real = os.fdatasync
    with Desk(tmp_path, sync=sync, sync_s=1.0) as desk:
        desk.calls(1)
        monkeypatch.setattr(os, "fdatasync", lambda fd: (calls_made.append(fd), real(fd)))
        desk.calls(1)
        desk.segments.tick()  # too early
        desk.calls(1)
        desk.clock.now += 1.0
        desk.segments.tick()
        desk.segments.tick()  # nothing new
        desk.calls(1)
    assert len(calls_made) == expected


def test_a_deleted_segment_is_followed_by_another(tmp_path):
    with Desk(tmp_path) as desk:
        desk.calls(3)
        (tmp_path / names(tmp_path)[0]).unlink()
        desk.calls(2)
    assert names(tmp_path) == ["rank0-00000000000000000003.fj"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("first", [True, False])
def test_a_write_that_fails_half_way(tmp_path, monkeypatch, error, first):
    real = os.writev
    with Desk(tmp_path) as desk:
        if not first:
            desk.calls(20)
        before = [path.read_bytes() for path in tmp_path.glob("*.fj")]

        def failing(fd, views):
            if sum(map(len, views)) < 1500:
                raise OSError(error, os.strerror(error))
            return real(fd, [views[0][:700]])

        monkeypatch.setattr(os, "writev", failing)
        with pytest.raises(OSError, match=os.strerror(error)) as caught:
            desk.calls(30)
        assert caught.value.errno == error
        monkeypatch.undo()
        assert [path.read_bytes() for path in tmp_path.glob("*.fj")] == before
        assert len(list(tmp_path.iterdir())) == 1 + len(before)  # no half segment under another name


def test_few_bytes_a_call(tmp_path, monkeypatch):
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [views[0][:7]]))
    with Desk(tmp_path) as desk:
        desk.calls(3)
        desk.calls(3)
    assert tags(rows(tmp_path)) == list(range(6))


def test_a_limit_on_file_sizes_ends_with_a_complete_block(tmp_path):
    """A real refusal by the kernel in the middle of a block, without a file system of our own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Desk(tmp_path) as desk:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            with pytest.raises(OSError) as caught:
                for _ in range(100):
                    desk.calls(100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    found = rows(tmp_path)
    assert found
    assert len(found) % 100 == 0
    assert tags(found) == list(range(len(found)))
    assert desk.segments.written == len(found)


def test_a_file_of_that_name_is_never_replaced(tmp_path):
    with Desk(tmp_path) as desk:
        (tmp_path / "rank0-00000000000000000000.fj").write_bytes(b"somebody else's")
        with pytest.raises(FileExistsError):
            desk.calls(1)
        assert (tmp_path / "rank0-00000000000000000000.fj").read_bytes() == b"somebody else's"
        assert len(list(tmp_path.iterdir())) == 2


def test_retention_by_bytes_spares_the_open_segment(tmp_path):
    with Desk(tmp_path, rotate_bytes=2000, keep_bytes=6000) as desk:
        (tmp_path / "rank00-00000000000000000000.fj").write_bytes(bytes(50_000))  # another writer's
        for _ in range(20):
            desk.calls(9)
            left = sorted(tmp_path.glob("rank0-*.fj"))
            assert sum(path.stat().st_size for path in left) <= 6000 + 2000
            assert desk.segments.disk_bytes == sum(path.stat().st_size for path in left)
        assert [row.seq for row in rows(tmp_path)][-1] == 179
        assert rows(tmp_path)[0].seq > 100
        desk.calls(1, payload=bytes(20_000))  # alone above the bound, and open
        desk.clock.now = desk.segments.due()
        desk.segments.tick()
        assert [row.seq for row in rows(tmp_path)] == [180]
    assert (tmp_path / "rank00-00000000000000000000.fj").exists()


def test_unasked_all_writers_of_a_folder_keep_a_tenth_of_their_disk(tmp_path, monkeypatch):
    """Neither one of them nor many can fill it; what is sealed late would not be deleted in time."""
    disk = SimpleNamespace(f_frsize=1000, f_blocks=120)
    monkeypatch.setattr(recovery.os, "statvfs", lambda path: disk)
    (tmp_path / "nfp-00000000000000000000.fj").write_bytes(bytes(50))
    with Desk(tmp_path) as desk:
        for _ in range(20):
            desk.calls(9)
            assert sum(path.stat().st_size for path in tmp_path.glob("rank0-*.fj")) <= 6000 + 6000 // 4
        assert rows(tmp_path)[0].seq > 100
        assert (tmp_path / "nfp-00000000000000000000.fj").exists()
        disk.f_blocks = 1 << 50
        assert recovery.fair_share(str(tmp_path), "rank0") == 2 << 30
        assert recovery.fair_share(str(tmp_path), "rank1") == (4 << 30) // 3


def test_retention_by_age_asks_when_it_was_written_to_last(tmp_path):
    with Desk(tmp_path, rotate_bytes=1, keep_s=100.0) as desk:
        for _ in range(3):
            desk.calls(1)
        paths = sorted(tmp_path.glob("*.fj"))
        now_s = desk.clock.wall / 1e9
        for path, age in zip(paths, (101, 99, 500), strict=True):
            os.utime(path, (now_s - age, now_s - age))
        desk.segments.tick()
        assert sorted(tmp_path.glob("*.fj")) == paths  # not yet
        desk.clock.now = desk.segments.due()
        desk.segments.tick()
        assert sorted(tmp_path.glob("*.fj")) == paths[1:]
        desk.clock.wall -= 10**18
        desk.clock.now = desk.segments.due()
        desk.segments.tick()  # the clock stepped back: nothing is old
        assert sorted(tmp_path.glob("*.fj")) == paths[1:]


def test_numbers_go_on_when_retention_left_nothing(tmp_path):
    with Desk(tmp_path, keep_bytes=1) as desk:
        desk.calls(50)
    assert names(tmp_path) == []
    with Desk(tmp_path, run="f" * 32) as desk:
        assert (desk.found.base, desk.found.next_seq) == (50, 50)
        desk.calls(1)
    assert names(tmp_path) == ["rank0-00000000000000000050.fj"]


def test_what_cannot_be_deleted_stays(tmp_path, monkeypatch, caplog):
    with Desk(tmp_path, rotate_bytes=1, keep_bytes=1) as desk:
        monkeypatch.setattr(room.os, "unlink", lambda path: (_ for _ in ()).throw(PermissionError(13, "no")))
        desk.calls(1)
        desk.calls(1)
        assert len(names(tmp_path)) == 2
        assert "cannot be deleted" in caplog.text
        monkeypatch.undo()


def test_a_reader_sees_whole_blocks_only_or_a_torn_one_at_the_end(tmp_path):
    """Each block is appended behind the last one; what was read before never changes."""
    with Desk(tmp_path) as desk:
        seen = b""
        for _ in range(20):
            desk.calls(7)
            (path,) = tmp_path.glob("*.fj")
            data = path.read_bytes()
            assert data.startswith(seen)
            block_at(data, len(seen) or 64)
            seen = data
