"""A worker's signs of life, and the broker's silence, with a clock of its own; more of the latter with the client."""

from types import SimpleNamespace

import pytest

from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.peer.channel import Traffic
from broker.nfp.worker.heartbeat import Heartbeat


class Scene:
    """A channel to a broker of ours that is to be heard every second, and its loop's clock."""

    name, broker = "w1", "tcp://a:1"

    def __init__(self):
        self.now = 1000.0
        self.timers = []
        self.done = []
        self.traffic = Traffic()
        self.heartbeat = Heartbeat(self, "lab", self)
        self.heartbeat.register({"keepalive_ms": 1000, "multiplier": 4})

    def send(self, packet):
        self.done.append((self.now - 1000, packet.command))
        self.traffic.sent += 1

    def reopen(self, _why):
        self.done.append((self.now - 1000, "reopen"))
        self.heartbeat.stop()

    def hear(self):
        self.traffic.received += 1
        self.heartbeat.note_received(Packet(Sender.BROKER, Command.KEEPALIVE, service="lab"))

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        return self.call_at(self.now + delay, callback)

    def call_at(self, when, callback):
        entry = (when, callback)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self.timers and self.timers.remove(entry))

    def wait(self, seconds):
        end = self.now + seconds
        while (due := min(self.timers, key=lambda entry: entry[0], default=None)) and due[0] <= end:
            self.timers.remove(due)
            self.now = max(self.now, due[0])
            due[1]()
        self.now = end

    def times(self, wanted):
        return [at for at, what in self.done if what == wanted]


def test_it_is_registered_and_says_so_each_interval():
    scene = Scene()
    assert scene.done == [(0, Command.READY)]
    for _ in range(20):
        scene.wait(0.9)
        scene.hear()
    assert scene.times(Command.KEEPALIVE) == pytest.approx(list(range(1, 18)))
    scene.heartbeat.disconnect()
    scene.wait(60)
    assert scene.done[-1] == (pytest.approx(18), Command.DISCONNECT)


def test_what_was_sent_counts_as_a_sign_of_life():
    scene = Scene()
    scene.wait(0.5)
    scene.heartbeat.note_sent()
    scene.wait(0.9)
    assert scene.times(Command.KEEPALIVE) == []
    scene.wait(0.2)
    assert scene.times(Command.KEEPALIVE) == [1.5]


def test_a_silent_broker_is_left():
    scene = Scene()
    scene.wait(60)
    assert scene.times("reopen") == [4]
    assert len(scene.times(Command.KEEPALIVE)) in (3, 4)


@pytest.mark.parametrize("stopped_s", [4, 60])
def test_a_worker_that_was_stopped_itself_listens_first(stopped_s):
    scene = Scene()
    scene.now += stopped_s
    assert not scene.heartbeat.broker_is_there, "it may have given us up meanwhile"
    scene.wait(0.4)
    assert scene.times("reopen") == []
    scene.hear()
    assert scene.heartbeat.broker_is_there
    scene.wait(60)
    assert scene.times("reopen") == [pytest.approx(stopped_s + 4.5, abs=0.6)]
