"""The broker's silence as a worker measures it, with a clock of its own."""

from types import SimpleNamespace

import pytest

from broker.nfp.names import Command
from broker.nfp.worker.heartbeat import Heartbeat


class Scene:
    """A channel to a broker of ours that is to be heard every second, and its loop's clock."""

    def __init__(self):
        self.now = 1000.0
        self.timer = (0.0, None)
        self.done = []
        self.heartbeat = Heartbeat(self, "lab", self)
        self.heartbeat.register({"keepalive_ms": 1000, "multiplier": 4})

    def send(self, packet):
        self.done.append((self.now - 1000, packet.command))

    def reopen(self, _why):
        self.done.append((self.now - 1000, "reopen"))

    def time(self):
        return self.now

    def call_at(self, when, callback):
        self.timer = (when, callback)
        return SimpleNamespace(cancel=lambda: None)

    def tick(self, late_s=0.0):
        when, callback = self.timer
        self.now = max(self.now, when + late_s)
        callback()

    @property
    def reopened(self):
        return [at for at, what in self.done if what == "reopen"]


def test_a_silent_broker_is_left():
    scene = Scene()
    assert scene.done == [(0, Command.READY)]
    while not scene.reopened:
        scene.tick()
    assert scene.reopened == [4]
    assert [what for _, what in scene.done].count(Command.KEEPALIVE) == 3


@pytest.mark.parametrize("stopped_s", [4, 60])
def test_a_worker_that_was_stopped_itself_listens_first(stopped_s):
    scene = Scene()
    scene.now += stopped_s
    assert not scene.heartbeat.broker_is_there, "it may have given us up meanwhile"
    scene.tick()
    assert scene.done[1:] == [(stopped_s, Command.KEEPALIVE)]
    while not scene.reopened:
        scene.tick()
    assert scene.reopened == [stopped_s + 4]


def test_a_worker_that_is_always_late_leaves_a_silent_broker_too():
    scene = Scene()
    while not scene.reopened and scene.now < 1100:
        scene.tick(0.6)
    assert scene.reopened == [pytest.approx(8)]  # 4 s of silence, 0.6 s late five times, and a second's grace


def test_a_worker_that_was_stopped_late_hears_the_next_keepalive():
    """The broker stood still with it, and says the next one an interval later."""
    scene = Scene()
    for _ in range(2):
        scene.tick()
    scene.now += 60
    scene.tick()
    assert scene.reopened == []
    scene.tick()
    assert scene.reopened == []
    while not scene.reopened:
        scene.tick()
    assert scene.reopened == [64]
