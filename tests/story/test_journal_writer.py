"""The process that writes the journal: killed in mid-block, two of one name, a full disk, signals, the broker's end."""

import contextlib
import errno
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import zlib

import msgspec
import pytest

from broker import interpreter
from broker.extras import install
from broker.journal import marks
from broker.journal.layout import FLUX, STATE
from broker.journal.reading.verify import contents, verify
from tests.tables import for_each
from tests.unit.journal.writer.plain import T0, Chunk, block_at, calls, encoded, header, options, rows, tags

pytestmark = pytest.mark.story

PATIENCE_S = 40.0
OTHER = "f" * 32


class Live:
    """A writer and our end of its socket."""

    def __init__(self, asked, *, environment: dict[str, str] | None = None) -> None:
        self.sock, theirs = socket.socketpair()
        self.reports: list[tuple[int, int, int, int]] = []
        self.number = 0
        with theirs:
            command = [sys.executable, "-m", "broker.journal.writer", str(theirs.fileno())]
            self.process = subprocess.Popen(
                command,
                stdin=(given := interpreter.order(msgspec.json.encode(asked))),
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                env={**os.environ, **(environment or {})},
            )
        os.close(given)
        self.sock.settimeout(PATIENCE_S)

    def hear(self) -> tuple[int, int, int, int] | None:
        """The next report; None at the end."""
        said = b""
        while len(said) < marks.REPORT.size:
            try:
                more = self.sock.recv(marks.REPORT.size - len(said))
            except ConnectionResetError:  # it left chunks unread
                return None
            if not more:
                return None
            said += more
        self.reports.append(marks.REPORT.unpack(said))
        return self.reports[-1]

    def ready(self) -> int:
        """Number of the next record on disk."""
        report = self.hear()
        assert report is not None, self.process.stderr.read()
        assert report[0] == marks.READY, report
        return report[2]

    def say(self, chunk: Chunk) -> None:
        self.sock.sendall(encoded(chunk))
        self.number = chunk.first + chunk.records

    def calls(self, count: int, **more) -> None:
        self.say(calls(self.number, count, **more))

    def until_written(self, records: int) -> None:
        while not self.reports or self.reports[-1][:1] != (marks.WRITTEN,) or self.reports[-1][2] < records:
            assert self.hear() is not None, "it ended"
            assert self.reports[-1][0] != marks.OFF, self.reports

    def off(self) -> int:
        """The errno that it ends with."""
        while (report := self.hear()) is not None:
            if report[0] == marks.OFF:
                assert self.process.wait(PATIENCE_S) == 1
                return report[1]
        raise AssertionError("it ended without a word")

    def end(self) -> int:
        """As when the broker ends; the exit code."""
        self.sock.close()
        return self.process.wait(PATIENCE_S)

    def words(self) -> str:
        return self.process.stderr.read().decode()


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:

        def one(directory, *, environment=None, **more) -> Live:
            live = Live(options(directory, **more), environment=environment)
            stack.callback(over, live)
            return live

        yield one


def over(live: Live) -> None:
    live.sock.close()
    if live.process.poll() is None:
        live.process.kill()
    live.process.wait()
    live.process.stderr.close()


def eventually(condition) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_session_from_start_to_end(start, tmp_path):
    live = start(tmp_path / "j", sync="interval", codec="zstd", rotate_bytes=20_000, block_records=256)
    assert live.ready() == 0
    for _ in range(40):
        live.calls(64)
    live.sock.sendall(encoded(calls(live.number, 10))[:-40])  # and the broker is killed while it sends
    assert live.end() == 0
    assert "inside a chunk" in live.words()
    found = rows(tmp_path / "j")
    assert tags(found) == [row.seq for row in found] == list(range(40 * 64 + 9))
    assert len(list((tmp_path / "j").glob("*.fj"))) >= 2
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o700


def test_a_block_is_written_at_its_age(start, tmp_path):
    live = start(tmp_path, block_s=0.05)
    live.ready()
    live.calls(3)
    live.until_written(3)
    assert live.reports[-1][3] == sum(path.stat().st_size for path in tmp_path.glob("*.fj"))
    assert tags(rows(tmp_path)) == [0, 1, 2]
    live.calls(1)
    live.until_written(4)
    assert live.end() == 0


@pytest.mark.patient
def test_killed_in_mid_block_again_and_again(start, tmp_path):
    """Each record is on disk once, or a gap record counts it."""
    number, large = 0, bytes(16 << 20)
    for turn in range(4):
        live = start(tmp_path, block_s=0.01, sync=("none", "block")[turn % 2])
        following = live.ready()
        live.number = number
        live.say(calls(number, 20, cause=marks.WRITER_DIED))
        live.until_written(1)  # it is open, under its own name
        path = sorted(tmp_path.glob("*.fj"))[-1]
        size = path.stat().st_size
        assert following <= number
        live.calls(2, payload=large)
        number += 22
        until = time.monotonic() + PATIENCE_S
        while (
            path.stat().st_size == size
        ):  # without a pause: the kill is to come while the block is being written
            assert time.monotonic() < until
        live.process.kill()
        live.process.wait()
    live = start(tmp_path)
    live.ready()
    live.say(calls(number, 5, cause=marks.WRITER_DIED))
    assert live.end() == 0
    found = rows(tmp_path)
    lost = set()
    for row in found:
        if row.kind == STATE:
            gap = msgspec.json.decode(row.parts[1])
            assert gap["cause"] == marks.CAUSES[marks.WRITER_DIED]
            assert gap["records"] == gap["last"] - gap["first"] + 1
            assert row.seq == gap["last"]
            lost |= set(range(gap["first"], gap["last"] + 1))
    kept = [row.seq for row in found if row.kind == FLUX]
    assert kept == tags(found)
    assert len(set(kept)) == len(kept)
    assert lost.isdisjoint(kept)
    assert lost | set(kept) == set(range(number + 5))
    report = verify(tmp_path)
    assert report.ok, report


@pytest.mark.patient
def test_a_broker_that_comes_again_gets_numbers_behind_the_former_ones(start, tmp_path):
    first = start(tmp_path)
    first.ready()
    first.calls(10)
    assert first.end() == 0
    second = start(tmp_path, run=OTHER, rank=1)
    assert second.ready() == 10
    second.calls(5)
    second.say(calls(8, 1, cause=marks.SHED))
    assert second.end() == 0
    heads = [header(path.read_bytes()) for path in sorted(tmp_path.glob("*.fj"))]
    assert [(head["base"], head["first_seq"], head["rank"]) for head in heads] == [(0, 0, 0), (10, 10, 1)]
    assert [row.seq for row in rows(tmp_path)] == [*range(15), 17, 18]


@pytest.mark.patient
def test_two_of_one_name(start, tmp_path):
    first = start(tmp_path)
    first.ready()
    second = start(tmp_path, run=OTHER)
    assert second.off() == errno.EBUSY
    assert "another writer named rank0 is at work" in second.words()
    third = Live(msgspec.structs.replace(options(tmp_path), writer="rank1"))
    third.ready()
    first.calls(2)
    third.calls(3)
    assert (first.end(), third.end()) == (0, 0)
    third.process.stderr.close()
    assert (len(rows(tmp_path)), len(rows(tmp_path, "rank1"))) == (2, 3)


def test_the_next_one_waits_for_one_that_is_still_writing(start, tmp_path):
    first = start(tmp_path)
    first.ready()
    first.calls(200)
    first.sock.close()
    second = start(tmp_path, run=OTHER)  # a broker that is restarted at once
    assert second.ready() == 200
    assert first.process.wait(PATIENCE_S) == 0


def test_signals_for_the_terminal_are_the_brokers_business(start, tmp_path):
    live = start(tmp_path)
    live.ready()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        live.process.send_signal(number)
    live.calls(5)
    live.until_written(5)
    assert live.end() == 0
    assert len(rows(tmp_path)) == 5


def test_it_holds_no_descriptor_but_its_own(tmp_path, start):
    with (tmp_path / "somebody's").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            given = interpreter.order(msgspec.json.encode(options(tmp_path / "j")))
            process = subprocess.Popen(
                [sys.executable, "-m", "broker.journal.writer", str(theirs.fileno())],
                stdin=given,
                pass_fds=[theirs.fileno(), file.fileno()],
            )
            os.close(given)
            assert select.select([ours], [], [], PATIENCE_S)[0]
            held = {
                os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")
            }
            assert not any("somebody" in name for name in held)
    assert process.wait(PATIENCE_S) == 0


def test_what_is_no_chunk_turns_capture_off_with_a_word(start, tmp_path):
    live = start(tmp_path)
    live.ready()
    live.calls(7)
    live.sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
    assert live.off() == errno.EPROTO
    assert "expected 48 47 4a 43" in live.words()
    assert tags(rows(tmp_path)) == list(range(7))


@pytest.mark.patient
def test_a_broken_frame_turns_capture_off_behind_the_last_good_one(start, tmp_path):
    live = start(tmp_path)
    live.ready()
    live.calls(3)
    good = calls(3, 4)
    live.say(Chunk(3, 4, 0, good.data.replace(good.data[16:20], b"\xde\xad\xbe\xef")))
    assert live.off() == errno.EPROTO
    assert "record 3 of this run" in live.words()
    assert tags(rows(tmp_path)) == [0, 1, 2]
    assert live.reports[-1][2] == 3


@for_each("library", ["numpy", "zstandard"])
def test_a_library_that_is_missing_is_named(start, tmp_path, library):
    folder = tmp_path / library
    folder.mkdir()
    (folder / f"{library}.py").write_text(f"raise ImportError('none here', name='{library}')\n")
    path = os.pathsep.join([str(folder), os.getcwd()])
    live = start(folder / "j", codec="zstd", environment={"PYTHONPATH": path})
    assert live.off() == errno.ENOPKG
    assert f"{library} is not installed: {install('journal')}" in live.words()


def test_a_directory_that_cannot_be_made(start, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    live = start(tmp_path / "file" / "j")
    assert live.off() == errno.ENOTDIR
    assert "Not a directory" in live.words()


def test_options_that_make_no_sense(start, tmp_path):
    assert start(tmp_path, run="no uuid").off() == errno.EINVAL


def test_old_segments_go_while_it_writes(start, tmp_path):
    live = start(tmp_path, rotate_bytes=50_000, keep_bytes=200_000, block_records=64, block_s=60.0)
    live.ready()
    for turn in range(100):
        live.calls(64)
        if turn % 10 == 9:
            live.until_written(live.number)
    assert live.end() == 0
    found = rows(tmp_path)
    assert found[-1].seq == 6399
    assert [row.seq for row in found] == list(range(found[0].seq, 6400))
    assert found[0].seq > 3000


@pytest.mark.patient
def test_age_seals_and_deletes_while_nothing_happens(start, tmp_path):
    live = start(tmp_path, rotate_s=0.2, keep_s=0.4, block_s=0.01)
    live.ready()
    live.calls(5)
    live.until_written(5)
    eventually(lambda: not list(tmp_path.glob("*.fj")))
    live.calls(1)
    live.until_written(6)
    assert live.end() == 0
    later = start(tmp_path, block_s=0.01)  # one that keeps what it writes
    assert later.ready() == 6
    later.say(calls(6, 1))
    later.until_written(7)
    assert max(path.name for path in tmp_path.glob("*.fj")) == "rank0-00000000000000000006.fj"
    assert later.end() == 0


@pytest.fixture
def small(rundir):
    """A file system of one MiB for the journal."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to mount a small file system")
    place = rundir / "j"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("optional: needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.patient
@pytest.mark.parametrize("rotate_bytes", [128 << 20, 100_000])
def test_a_full_disk(start, small, rotate_bytes):
    live = start(small, block_records=256, rotate_bytes=rotate_bytes, keep_bytes=0)
    live.ready()
    with contextlib.suppress(OSError):  # it has gone
        for _ in range(200):
            live.calls(256)
    assert live.off() == errno.ENOSPC
    assert "No space left on device" in live.words()
    found = rows(small)  # an assertion fails in it if anything is torn
    assert len(found) % 256 == 0
    assert tags(found) == list(range(len(found)))
    assert live.reports[-1][2] == len(found) > 1000
    assert not list(small.glob(".*begun"))

    again = start(small, keep_bytes=0)  # still full
    assert again.ready() == len(found)
    again.say(calls(len(found), 20_000))
    assert again.off() == errno.ENOSPC
    assert len(rows(small)) == len(found)

    for path in sorted(small.glob("*.fj"))[:-1]:
        path.unlink()
    (path,) = small.glob("*.fj")
    if rotate_bytes > 1 << 20:
        path.unlink()  # all was in one
    later = start(small)
    assert later.ready() == len(found)
    later.say(calls(len(found) + 5, 10, ts=T0 + 1, cause=marks.SHED))
    assert later.end() == 0
    assert [row.seq for row in rows(small)][-11:] == list(range(len(found) + 4, len(found) + 15))
    for path in small.glob("*.fj"):
        block_at(path.read_bytes(), 64)


@pytest.mark.patient
def test_what_a_full_disk_cost_is_told_by_the_next_run(start, small):
    live = start(small, block_records=256, rank=7, keep_bytes=0)
    live.ready()
    with contextlib.suppress(OSError):  # it has gone
        for _ in range(200):
            live.calls(256)
    assert live.off() == errno.ENOSPC
    on_disk = len(rows(small))
    words = live.words()
    assert "headgate[7] ERROR journal: capture ends" in words
    told = int(words.rpartition("No space left on device; ")[2].split()[0])
    sent = live.number + 256  # of the last chunk only a part, perhaps
    assert live.number - on_disk <= told <= sent - on_disk
    assert told > 0
    live.sock.close()

    still_full = start(small, run=OTHER, keep_bytes=0)
    assert still_full.ready() == on_disk + told
    still_full.calls(2000)
    assert still_full.off() == errno.ENOSPC
    still_full.sock.close()
    (path,) = small.glob("*.fj")
    path.unlink()  # there is room again, and the numbers are in the notes only
    later = start(small, run="e" * 32, block_s=0.01)
    assert later.ready() == on_disk + told + 2000
    later.calls(3)
    later.until_written(3)
    later.process.kill()
    later.process.wait()
    same = start(small, run="e" * 32)
    assert same.ready() == on_disk + told + 2003
    same.number = 3
    same.calls(1)
    assert same.end() == 0
    (gap, *others) = rows(small)
    assert msgspec.json.decode(gap.parts[1]) == {
        "records": told + 2000,
        "first": on_disk,
        "last": on_disk + told + 1999,
        "cause": "not written by the run before: No space left on device",
    }
    assert [row.seq for row in others] == [on_disk + told + 2000 + n for n in range(4)]
    assert tags(others) == [0, 1, 2, 3]
    report = verify(small)
    assert report.ok, report


def test_a_segment_of_another_version_is_left_alone(start, tmp_path):
    first = start(tmp_path)
    first.ready()
    first.calls(5)
    assert first.end() == 0
    (path,) = tmp_path.glob("*.fj")
    data = bytearray(path.read_bytes())
    data[4:6] = (2).to_bytes(2, "little")
    data[60:64] = zlib.crc32(data[:60]).to_bytes(4, "little")
    path.write_bytes(data)
    second = start(tmp_path, run=OTHER)
    assert second.off() == errno.ENOTSUP
    assert "segment of version 2, this writer knows 1: use another directory" in second.words()
    assert path.read_bytes() == data
    assert sorted(each.name for each in tmp_path.iterdir()) == [".rank0.lock", path.name]
    (segment,) = contents(tmp_path)
    assert (segment.version, segment.records) == (2, 0)
    (checked,) = verify(tmp_path).segments
    (damage,) = checked.damages
    assert (damage.length, damage.why) == (len(data), "segment of version 2, this program knows 1")


def test_what_only_looks_like_a_segment_is_passed_over(start, tmp_path):
    (tmp_path / "rank0-00000000000000006000.fj").mkdir()
    (tmp_path / ".rank0-a-00000000000000000000.fj.begun").write_bytes(b"of a living writer rank0-a")
    live = start(tmp_path, keep_bytes=1)
    assert live.ready() == 0
    live.calls(5)
    assert live.end() == 0
    assert (tmp_path / ".rank0-a-00000000000000000000.fj.begun").exists()
    assert [each.records for each in contents(tmp_path)] in ([], [5])
    assert verify(tmp_path).ok


@pytest.mark.patient
def test_it_logs_from_the_level_of_the_broker_on(start, tmp_path):
    said = []
    for level in (logging.INFO, logging.WARNING):
        live = start(tmp_path / str(level), keep_s=0.2, rotate_s=0.1, block_s=0.01, log_level=level, rank=4)
        live.ready()
        live.calls(5)
        live.until_written(5)
        eventually(lambda level=level: not list((tmp_path / str(level)).glob("*.fj")))
        assert live.end() == 0
        said.append(live.words())
    assert re.fullmatch(r"\S+\.\d{3} headgate\[4\] INFO journal: 1 segments deleted.*\n", said[0])
    assert said[1] == ""
