"""A worker's signs of life, and the broker's silence, with a clock of its own; more of the latter with the client."""

import pytest

from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.peer.channel import Traffic
from broker.nfp.worker.session import Session
from broker.nfp.worker.store import RunStore
from tests.unit.services.desk import HandLoop


class Scene:
    """A channel to a broker of ours that is to be heard every second, and its loop's clock."""

    name, broker = "w1", "tcp://a:1"

    def __init__(self):
        self.loop = HandLoop()
        self.done = []
        self.traffic = Traffic()
        self.began = self.loop.now
        self.loop.run(self.begin)

    def begin(self):
        means = {"slots": 1, "manage": None, "localise": None, "inventory": {}}
        self.session = Session(self, "lab", {}, RunStore(None), **means)
        self.session.on_connect(self.broker, {"keepalive_ms": 1000, "multiplier": 4})

    @property
    def now(self):
        return self.loop.now - self.began

    def send(self, packet):
        self.done.append((self.now, packet.command))
        self.traffic.sent += 1
        return True

    def reopen(self, _why):
        self.done.append((self.now, "reopen"))
        self.session.unregister()

    def hear(self):
        self.traffic.received += 1
        self.session.on_packet(Packet(Sender.BROKER, Command.KEEPALIVE, service="lab"))

    def wait(self, seconds):
        self.loop.advance(seconds)

    def times(self, wanted):
        return [at for at, what in self.done if what == wanted]


def test_it_is_registered_and_says_so_each_interval():
    scene = Scene()
    assert scene.done == [(0, Command.READY)]
    for _ in range(19):
        scene.wait(0.9)
        scene.hear()
    assert scene.times(Command.KEEPALIVE) == pytest.approx(list(range(1, 18)))
    scene.session.disconnect()
    scene.wait(60)
    assert scene.done[-1] == (pytest.approx(17.1), Command.DISCONNECT)


def test_what_was_sent_counts_as_a_sign_of_life():
    scene = Scene()
    scene.wait(0.5)
    about = Packet(Sender.BROKER, Command.MMI, uuid="u", client=b"c")
    scene.session.send(about, 200, b"{}")
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
    scene.loop.now += stopped_s
    assert scene.session.hold_s <= 0, "it may have given us up meanwhile"
    scene.wait(0.4)
    assert scene.times("reopen") == []
    scene.hear()
    assert scene.session.hold_s > 0
    scene.wait(60)
    assert scene.times("reopen") == [pytest.approx(stopped_s + 4.5, abs=0.6)]
