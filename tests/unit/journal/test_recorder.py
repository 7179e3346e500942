"""Chunks on their way to the writer: order, bounds, losses that are named, a writer that dies, a disk that is full."""

import contextlib
import fcntl
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from broker.errors import ConfigError, NotReady
from broker.extras import lacking
from broker.journal import premises, recorder
from broker.journal.options import JournalOptions
from broker.journal.recorder import Recorder
from broker.journal.tap import Tap
from broker.journal.writer import intake
from broker.wire.message import request
from tests.live import segments
from tests.live.chunks import IN, chunks_of

LITTLE = (sys.executable, "-S", str(Path(__file__).with_name("little_writer.py")))
WAIT_S = 40.0
NOTHING, SHED, DIED = 0, 1, 2


@pytest.fixture
def make(tmp_path):
    """Recorders with a little writer; all are closed at the end."""
    made = []

    def one(kind="plain", *, command=LITTLE, **options):
        states = []
        chosen = JournalOptions(directory=str(tmp_path / "j"), writer=kind, **options)
        new = Recorder(chosen, on_state=states.append, command=command)
        new.states = states
        made.append(new)
        return new

    yield one
    for each in made:
        each.close(1.0)


def until(condition, *recorders):
    """Serve the recorders until the condition holds, as a loop with a timer would."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        select.select(recorders, [], [], 0.02)
        for each in recorders:
            each.poll()


def kept(recorder):
    """All chunks the little writers kept."""
    files = sorted(Path(recorder.options.directory).glob("*.chunk"))
    return [chunk for path in files for chunk in chunks_of(path.read_bytes())]


def payloads(recorder):
    return [r.message.payload for chunk in kept(recorder) for r in chunk[3] if r.kind == 1]


def put(tap, payload):
    tap.add(tap.mark(IN, 0, 0, 0))
    tap.add(request("a.b", payload).framed())


def hand(tap, *some):
    for payload in some:
        put(tap, payload)
    tap.flush()


def test_chunks_arrive_in_order_and_numbered(make):
    one = make()
    one.start()
    assert one.state == "on"
    tap = Tap(one)
    hand(tap, b"1", b"2")
    hand(tap, b"3")
    one.close()
    assert [chunk[:3] for chunk in kept(one)] == [(0, 2, NOTHING), (2, 1, NOTHING)]
    assert payloads(one) == [b"1", b"2", b"3"]
    assert one.figures.handed == one.figures.written == 3
    assert one.figures.waiting_bytes == 0
    assert one.states == ["on", "off"]
    assert one.pid == 0


def test_what_is_handed_before_the_writer_is_up_is_not_lost(make):
    one = make()
    one.start()
    hand(Tap(one), *(b"%d" % i for i in range(500)))
    one.close()
    assert payloads(one) == [b"%d" % i for i in range(500)]


def test_a_chunk_of_many_pieces_and_one_larger_than_the_socket(make):
    one = make()
    one.start()
    tap = Tap(one, now_ns=lambda: 1)
    for number in range(2000):
        put(tap, b"%d" % number)
        tap.end_batch()  # a piece each
    put(tap, b"L" * (3 << 20))
    tap.flush()
    until(lambda: not tap.waiting, one)
    one.close()
    assert payloads(one) == [*(b"%d" % i for i in range(2000)), b"L" * (3 << 20)]


def test_close_writes_what_a_slow_writer_did_not_take_yet(make, tmp_path):
    one = make("slow")
    one.start()
    tap = Tap(one)
    for number in range(40):
        hand(tap, bytes([number]) * 100_000)
    assert one.waiting
    assert 0 < one.figures.waiting_bytes <= one.options.queue_bytes
    (tmp_path / "j" / "go").touch()
    one.close()
    assert [payload[:1] for payload in payloads(one)] == [bytes([number]) for number in range(40)]


def test_a_full_queue_sheds_chunks_and_names_the_loss(make, tmp_path):
    one = make("slow", queue_bytes=1 << 20)
    one.start()
    tap = Tap(one)
    for number in range(100):
        hand(tap, bytes([number]) * 50_000)
        assert one.figures.waiting_bytes <= one.options.queue_bytes
    shed = one.figures.shed
    assert shed > 0
    (tmp_path / "j" / "go").touch()
    until(lambda: not tap.waiting, one)
    hand(tap, b"after")
    one.close()
    chunks = kept(one)
    assert one.figures.handed == 101
    assert sum(said for _first, said, _cause, _records in chunks) + shed == 101
    jump = next(c for c in chunks if c[2])
    assert jump[:3] == (100, 0, SHED), "it is told as soon as the queue is empty"
    assert chunks[-1][:3] == (100, 1, NOTHING)
    assert one.figures.lost == 0


def test_a_shed_chunk_between_others_is_named_by_the_next(make, tmp_path):
    one = make("slow", queue_bytes=1 << 20)
    one.start()
    tap = Tap(one)
    numbers = iter(range(10_000))
    while not one.figures.shed:
        hand(tap, b"%05d" % next(numbers) + bytes(100_000))
    hand(tap, b"small")
    assert one.figures.shed == 1
    (tmp_path / "j" / "go").touch()
    one.close()
    jump = next(c for c in kept(one) if c[2])
    assert jump[1:3] == (1, SHED)
    assert jump[0] == next(numbers)
    assert payloads(one)[-1] == b"small"


def test_one_message_larger_than_the_queue_is_kept_when_nothing_waits(make):
    one = make(queue_bytes=1 << 20)
    one.start()
    tap = Tap(one)
    hand(tap, b"x" * (4 << 20))
    until(lambda: not tap.waiting, one)
    one.close()
    assert [len(payload) for payload in payloads(one)] == [4 << 20]


def test_two_messages_larger_than_the_queue_may_wait_one_behind_the_other(make, tmp_path):
    """With ``capture = both`` a message is there twice, as it came and as it left."""
    one = make("slow", queue_bytes=1 << 20)
    one.start()
    tap = Tap(one)
    put(tap, b"small" * 1000)
    put(tap, b"x" * (4 << 20))
    put(tap, b"x" * ((4 << 20) - 100))
    tap.flush()
    assert one.figures.shed == 0
    hand(tap, b"x" * (4 << 20))
    assert one.figures.shed == 1
    (tmp_path / "j" / "go").touch()
    until(lambda: not tap.waiting, one)
    one.close()
    assert [len(payload) >> 20 for payload in payloads(one)] == [0, 4, 3]


def test_peers_that_came_while_records_were_shed_are_introduced_behind_the_loss(make, tmp_path):
    one = make("slow", queue_bytes=1 << 20)
    one.start()
    tap = Tap(one)
    gone = tap.peer("early", 2, "client")
    while not one.figures.shed:
        hand(tap, bytes(100_000))
    late = tap.peer("late", 2, "client")
    put(tap, bytes(100_000))
    tap.flush()
    tap.forget(gone)
    shed = one.figures.shed
    assert shed >= 3, "the introduction is among them"
    (tmp_path / "j" / "go").touch()
    until(lambda: not tap.waiting, one)
    hand(tap, b"after")
    one.close()
    chunks = kept(one)
    (jump,) = [at for at, chunk in enumerate(chunks) if chunk[2]]
    assert chunks[jump][2] == SHED
    assert [(each.kind, each.peer) for each in chunks[jump][3]] == [(255, late)]
    assert sum(each.kind == 255 for chunk in chunks for each in chunk[3]) == 2, "once"
    assert chunks[-1][0] + chunks[-1][1] == one.figures.handed, "each has a number"
    assert sum(chunk[1] for chunk in chunks) + shed == one.figures.handed


def test_the_writer_logs_from_the_level_of_our_log_on(make, tmp_path, caplog):
    caplog.set_level("WARNING", logger="headgate")
    one = make(command=(sys.executable, "-c", "import sys; open('said', 'w').write(sys.stdin.read())"))
    (tmp_path / "j").mkdir(mode=0o700)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        one.start()
    finally:
        os.chdir(before)
    until(lambda: one.figures.restarts or (tmp_path / "said").exists())
    until(lambda: (tmp_path / "said").read_text().endswith("}"))
    assert json.loads((tmp_path / "said").read_text())["log_level"] == logging.WARNING


def test_a_dead_writer_is_replaced_and_told_of_all_peers(make, caplog):
    one = make()
    one.start()
    tap = Tap(one)
    tap.peer("a", 2, "client")
    gone = tap.peer("b", 2, "client")
    hand(tap, b"1")
    until(lambda: one.figures.written == 3, one)
    descriptor, first = one.fileno(), one.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: tap.waiting, one)
    tap.forget(gone)
    hand(tap, b"2")
    until(lambda: one.figures.restarts == 1 and not tap.waiting, one)
    assert one.fileno() == descriptor
    assert one.pid not in (0, first)
    hand(tap, b"3")
    one.close()
    assert [chunk[:3] for chunk in kept(one)] == [
        (0, 3, NOTHING),
        (3, 1, DIED),
        (4, 1, NOTHING),
        (5, 1, NOTHING),
    ]
    (told,) = kept(one)[1][3]
    assert (told.kind, told.peer) == (255, 1)
    assert payloads(one) == [b"1", b"2", b"3"]
    assert one.figures.lost == 0
    assert one.figures.handed == 6
    assert one.states == ["on", "off"], "it never was off in between"
    assert "another one takes over" in caplog.text


def test_what_a_dead_writer_had_is_counted_as_lost(make, tmp_path):
    one = make("slow")
    one.start()
    tap = Tap(one)
    hand(tap, b"1", b"2", b"3")
    hand(tap, b"4" * (2 << 20))
    assert one.waiting
    os.kill(one.pid, signal.SIGKILL)
    hand(tap, b"5")
    until(lambda: one.figures.restarts == 1, one)
    (tmp_path / "j" / "go").touch()
    until(lambda: not tap.waiting, one)
    one.close()
    assert one.figures.lost == 4
    assert [chunk[:3] for chunk in kept(one)] == [(4, 1, DIED)]
    assert payloads(one) == [b"5"]


def test_writers_that_never_start_end_capture(make, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "RESTART_S", (0.001, 0.001))
    one = make("failed_start")
    one.start()
    tap = Tap(one)
    hand(tap, b"1")
    until(lambda: one.state != "on", one)
    assert one.state == "off: the writer does not start"
    assert one.figures.restarts == recorder.FAILED_STARTS_MAX - 1
    hand(tap, b"2")
    assert one.figures.shed == 1
    assert not one.waiting
    assert "capture is off" in caplog.text


def test_a_full_disk_turns_capture_off_until_it_is_started_again(make, caplog):
    one = make("full")
    one.start()
    tap = Tap(one)
    hand(tap, b"1")
    hand(tap, b"2")
    until(lambda: one.state != "on", one)
    assert one.state == "off: No space left on device"
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    assert "No space left on device; 1 records that the writer had are lost" in caplog.text
    assert (one.figures.handed, one.figures.written, one.figures.shed, one.figures.lost) == (2, 1, 0, 1)
    hand(tap, b"3")
    assert one.figures.shed >= 1
    assert not tap.waiting
    until(lambda: one.gone)
    one.start()
    hand(tap, b"4")
    until(lambda: one.figures.written > 1 or one.state != "on", one)
    assert one.states[:3] == ["on", "off: No space left on device", "on"]
    assert payloads(one) == [b"1", b"4"]
    assert kept(one)[-1][0] >= 2, "numbers go on"


def test_stop_and_start_go_on_with_the_numbers(make):
    one = make()
    one.start()
    one.start()
    tap = Tap(one)
    tap.peer("a", 2, "client")
    hand(tap, b"1")
    one.stop("asked to")
    one.stop("twice")
    assert one.state == "off: asked to"
    hand(tap, b"while off")
    one.start()
    hand(tap, b"2")
    one.close()
    assert payloads(one) == [b"1", b"2"]
    assert [chunk[0] for chunk in kept(one)] == [0, 2, 3]
    assert one.figures.shed == 1
    assert one.figures.lost == 0


def test_a_mute_writer_is_killed_at_the_deadline(make, caplog):
    one = make("mute")
    one.start()
    hand(Tap(one), b"1")
    until(lambda: one.figures.written == 1, one)
    process = one.pid
    one.close(0.2)
    assert "is killed" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_close_without_start_and_twice(make):
    one = make()
    one.close()
    other = make()
    other.start()
    other.close()


def test_the_writer_takes_what_the_recorder_sends():
    assert recorder.CHUNK_MAX_BYTES == intake.CHUNK_MAX_BYTES


def test_a_chunk_that_no_writer_takes_is_shed(make, monkeypatch):
    monkeypatch.setattr(recorder, "CHUNK_MAX_BYTES", 100_000)
    one = make()
    one.start()
    tap = Tap(one)
    hand(tap, b"x" * 100_000)
    hand(tap, b"small")
    one.close()
    assert payloads(one) == [b"small"]
    assert [chunk[:3] for chunk in kept(one)] == [(1, 0, SHED), (1, 1, NOTHING)]
    assert one.figures.shed == 1


# -- what must be there ------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_made(make, tmp_path):
    (tmp_path / "j").write_text("a file")
    one = make()
    with pytest.raises(ConfigError, match="journal directory"):
        one.start()
    assert one.state == "off"
    (tmp_path / "j").unlink()
    one.start()
    assert one.state == "on"


def test_the_directory_is_private(make, tmp_path):
    one = make()
    one.start()
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "j" / ".plain.lock").stat().st_mode & 0o777 == 0o600


def test_a_second_writer_of_the_same_name_is_refused(make, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "FORMER_S", 0.1)
    one = make()
    (tmp_path / "j").mkdir()
    lock = os.open(premises.lock_path(one.options), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotReady, match="another writer named plain is at work"):
            one.start()
    finally:
        os.close(lock)


def test_the_writer_of_a_broker_that_was_just_killed_is_waited_for(make, tmp_path):
    one = make()
    (tmp_path / "j").mkdir(mode=0o700)
    former = premises.Lock(one.options)
    leaving = threading.Timer(0.1, former.close)
    leaving.start()
    try:
        one.start()
        assert one.state == "on"
    finally:
        leaving.join()
    premises.take(make("other").options).close()
    with contextlib.closing(premises.Lock(make("third").options)), pytest.raises(ConfigError):
        premises.take(make("third").options)


@pytest.mark.parametrize("what", ["mode", "owner", "link"])
def test_a_directory_that_is_not_ours_alone(make, tmp_path, monkeypatch, what):
    one, place = make(), tmp_path / "j"
    place.mkdir(mode=0o700)
    if what == "mode":
        place.chmod(0o777)
        said = "mode 0777 lets everybody write there"
    elif what == "owner":
        monkeypatch.setattr(premises.os, "geteuid", lambda: os.getuid() + 1)
        said = f"it belongs to uid {os.getuid()}, expected {os.getuid() + 1}"
    else:
        (place / ".plain.lock").symlink_to(tmp_path / "elsewhere")
        said = "symbolic link"
    with pytest.raises(ConfigError, match=said):
        one.start()
    assert not (tmp_path / "elsewhere").exists()


def test_a_segment_of_another_version_is_refused_before_a_writer_starts(make, tmp_path):
    (tmp_path / "j").mkdir(mode=0o700)
    segments.write(tmp_path / "j", "plain", [segments.note(segments.T0, "x", {})], version=2)
    segments.write(tmp_path / "j", "other", [segments.note(segments.T0, "x", {})])
    with pytest.raises(ConfigError, match="segment of version 2, this writer knows 1: use another directory"):
        make().start()
    premises.take(make("other").options).close()


# -- where the writer comes from ---------------------------------------------------------------------


def test_nothing_of_the_current_directory_runs(tmp_path, monkeypatch):
    """A folder with modules of ours and of Python's in it: whoever starts a broker there does not run them."""
    (tmp_path / "broker").mkdir()
    for name in ("broker/__init__.py", "select.py", "numpy.py", "runpy.py"):
        (tmp_path / name).write_text("raise SystemExit('of the current directory')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    done = subprocess.run(recorder.WRITER, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, "usage: python -m broker.journal.writer" in done.stderr) == (2, True), (
        done.stderr
    )
    bare = [sys.executable, "-S", *recorder.WRITER[1:]]  # as where nothing is installed
    done = subprocess.run(bare, capture_output=True, text=True, timeout=30, check=False)
    assert "of the current directory" not in done.stderr
    assert "No module named 'broker" not in done.stderr


def test_a_missing_library_says_what_to_install(make, monkeypatch):
    monkeypatch.setattr(premises, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(lacking("numpy"))):
        make().start()


def test_a_command_that_is_not_there(make):
    one = make(command=("/nonexistent/writer",))
    with pytest.raises(ConfigError, match="cannot be started: No such file"):
        one.start()
    assert one.state == "off"


def test_a_run_has_a_name(make):
    assert len(make().options.run) == 32
    assert make(run="ab" * 16).options.run == "ab" * 16


@pytest.mark.patient
def test_a_writer_has_its_lock_before_it_runs(make, tmp_path, monkeypatch):
    """Whoever asks for the same name a moment later is refused, however long the first process takes to begin."""
    monkeypatch.setattr(recorder, "FORMER_S", 0.1)
    slow = [sys.executable, "-c", "import sys; sys.stdin.read(); import time; time.sleep(60)"]
    first, second = make(command=slow), make()
    first.start()
    with pytest.raises(ConfigError, match="another writer named plain"):
        second.start()
    first.close(0.0)
    second.start()
