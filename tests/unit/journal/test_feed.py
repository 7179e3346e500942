"""What brokers beside the nodes record: after a full disk the writer is tried again, without anybody who asks."""

import functools
import heapq
import itertools
import select
import sys
import time
from pathlib import Path

import pytest

from broker.journal import feed
from broker.journal.layout import NFP, OUT
from broker.journal.options import JournalOptions
from broker.journal.recorder import Recorder

LITTLE = (sys.executable, "-S", str(Path(__file__).with_name("little_writer.py")))
WAIT_S = 40.0


class Loop:
    """An event loop whose clock is set by hand."""

    def __init__(self):
        self.now = 0.0
        self.readers = {}
        self._timers = []
        self._numbers = itertools.count()

    def add_reader(self, fd, call):
        self.readers[fd] = call

    def remove_reader(self, fd):
        del self.readers[fd]

    def call_soon(self, call):
        self.call_later(0.0, call)

    def call_later(self, delay_s, call):
        heapq.heappush(self._timers, (self.now + delay_s, next(self._numbers), call))

    def pass_time(self, seconds=0.0):
        self.now += seconds
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    def until(self, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            for fd in select.select(self.readers, [], [], 0.01)[0]:
                self.readers[fd]()
            self.pass_time(feed.FLUSH_S)


@pytest.fixture
def ended():
    return []


@pytest.fixture
def fed(tmp_path, monkeypatch, ended):
    """A feed whose writer says at its second chunk that the disk is full, and its loop."""
    monkeypatch.setattr(feed, "Recorder", functools.partial(Recorder, command=LITTLE))
    loop = Loop()
    one = feed.WingFeed(JournalOptions(directory=str(tmp_path / "j"), writer="full"))
    one._gave_up = ended.append
    one.begin(loop)
    yield one, loop
    if one.end("the test is over"):
        one.recorder.close(1.0)


def note(one, topic):
    one.note(NFP, topic, {}, direction=OUT)


def until_off(one, loop):
    """Two chunks: the second one finds the disk full."""
    loop.until(lambda: one.recorder.figures.written)
    note(one, "second")
    loop.until(lambda: not one.active)


def topics(folder):
    kept = b"".join(path.read_bytes() for path in sorted(folder.glob("*.chunk")))
    return [topic for topic in ("second", "third", "fourth") if topic.encode() in kept]


def test_it_records_again_by_itself(fed, ended, tmp_path):
    one, loop = fed
    until_off(one, loop)
    assert ended == ["off: No space left on device"]
    loop.until(lambda: one.recorder.gone)
    loop.pass_time(feed.RETRY_S / 2)
    assert not one.active
    loop.pass_time(feed.RETRY_S / 2)
    assert one.active
    note(one, "third")
    loop.until(lambda: "third" in topics(tmp_path / "j"))


def test_a_folder_that_is_away_is_tried_again_until_it_is_back(fed, tmp_path):
    one, loop = fed
    until_off(one, loop)
    loop.until(lambda: one.recorder.gone)
    folder, away = tmp_path / "j", tmp_path / "away"
    folder.rename(away)
    folder.write_text("a file")
    for _ in range(3):
        loop.pass_time(feed.RETRY_S)
        assert not one.active
    folder.unlink()
    away.rename(folder)
    loop.pass_time(feed.RETRY_S)
    assert one.active


def test_whoever_has_ended_does_not_begin_again(fed):
    one, loop = fed
    until_off(one, loop)
    assert one.end("the broker stops")
    one.recorder.close(1.0)
    loop.pass_time(10 * feed.RETRY_S)
    assert not one.end("again")
    assert not one.active
