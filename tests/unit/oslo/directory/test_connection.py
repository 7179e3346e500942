"""A link and a directory that misbehaves: gaps, silence, nonsense, nobody there."""

import zmq

from broker.oslo.directory import wire
from broker.oslo.directory.peer import Peer
from broker.oslo.directory.state import Replica
from broker.oslo.directory.wire import DirectoryKind, Hello
from broker.oslo.frames import Kind as Envelopes
from broker.oslo.frames import encode
from tests.live.oslo_wire import tell
from tests.unit.oslo.directory.clouds import frames, listeners, rpc, state, turn_for, turn_until


class Fake:
    """A ROUTER in the place of a directory."""

    def __init__(self, reactor, closing) -> None:
        self.reactor = reactor
        self.context = zmq.Context()
        self.sock = self.context.socket(zmq.ROUTER)
        self.sock.set(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self.sock.bind_to_random_port('tcp://127.0.0.1')}"
        self.rid = b""
        self.heard = []
        closing.append(self)

    def read(self) -> list:
        while self.sock.poll(0):
            self.rid, *parts = self.sock.recv_multipart()
            self.heard.append(wire.decode(parts, wire.TO_DIRECTORY))
        return [message.kind for message in self.heard]

    def until(self, kind, times=1) -> None:
        turn_until(self.reactor, lambda: self.read().count(kind) >= times)

    def tell(self, kind, body) -> None:
        tell(self.sock, self.rid, *frames(kind, body))

    def close(self) -> None:
        self.sock.close(0)
        self.context.term()


def linked(reactor, closing):
    fake = Fake(reactor, closing)
    replica = Replica()
    link = Peer(reactor, fake.endpoint, replica, pulse_s=0.1)
    closing.append(link)
    fake.until(DirectoryKind.HELLO)
    assert fake.heard[0].body == Hello(True)
    return fake, replica, link


def say_all(fake, *each, incarnation=1, lease_s=5.0):
    fake.tell(DirectoryKind.WELCOME, wire.Welcome("d", incarnation, lease_s))
    fake.tell(DirectoryKind.STATES, wire.States(each, complete=True))


def test_a_directory_that_misses_something_is_greeted_and_told_everything(reactor, closing):
    fake, replica, link = linked(reactor, closing)
    link.announce(state("me"))
    say_all(fake, state(records=[rpc("l1")]))
    fake.until(DirectoryKind.ANNOUNCE)
    turn_until(reactor, lambda: listeners(replica) == ["l1"])
    link.announce(state("me", version=2))
    beat = (DirectoryKind.BEAT, (state("me", version=2).beat,))
    turn_until(reactor, lambda: fake.read() and beat in fake.heard)
    fake.tell(DirectoryKind.GREET, wire.Empty())
    fake.until(DirectoryKind.HELLO, 2)
    fake.heard.clear()
    say_all(fake, state(version=5, records=[rpc("l1"), rpc("l5")]))
    turn_until(reactor, lambda: listeners(replica) == ["l1", "l5"])
    fake.until(DirectoryKind.ANNOUNCE)
    assert (DirectoryKind.ANNOUNCE, state("me", version=2)) in fake.heard
    link.withdraw(("me", "call"))
    fake.until(DirectoryKind.LEAVE)
    link.withdraw(("me", "call"))


def test_a_directory_of_another_release_is_not_understood_and_named_in_the_log(reactor, closing, said):
    fake, _replica, link = linked(reactor, closing)
    head, body = frames(DirectoryKind.WELCOME, wire.Welcome("d", 1, 5.0))
    tell(fake.sock, fake.rid, head[:3] + b"\x01" + head[4:], body)
    turn_until(reactor, lambda: link.counts["malformed"])
    assert not link.alive
    assert any("saw version 1 of the directory's messages, expected 2" in line for line in said)


def test_a_directory_that_comes_back_to_life_is_asked_from_the_beginning(reactor, closing, said):
    fake, replica, link = linked(reactor, closing)
    say_all(fake, state(records=[rpc("l1")]), lease_s=0.4)
    turn_until(reactor, lambda: link.alive)
    turn_until(reactor, lambda: not link.alive)
    assert link.counts["lost"] == 1
    fake.read()
    assert fake.read().count(DirectoryKind.BEAT) >= 2
    fake.tell(DirectoryKind.ALIVE, wire.Empty())
    fake.until(DirectoryKind.HELLO, 2)
    say_all(fake, state(version=2, records=[rpc("l2")]), lease_s=0.4)
    turn_until(reactor, lambda: listeners(replica) == ["l2"])


def test_nonsense_of_a_directory_is_counted_and_logged_once(reactor, closing, said):
    fake, replica, link = linked(reactor, closing)
    say_all(fake, state(records=[rpc("l1")]))
    for _ in range(5):
        tell(fake.sock, fake.rid, b"nonsense", b"of a directory")
        tell(fake.sock, fake.rid, b"HGO")
        for body in (b'{"a":"\xff"}', b"[" * 100_000):
            tell(fake.sock, fake.rid, encode(Envelopes.STATUS), body)
        fake.sock.send_multipart([fake.rid, *frames(DirectoryKind.ALIVE, wire.Empty())])  # no bundle
        fake.tell(DirectoryKind.REFUSED, wire.DirectoryRefused("you are many"))
    turn_until(reactor, lambda: link.counts["malformed"] == 25 and link.counts["refused"] == 5)
    assert len([line for line in said if "nonsense" in line]) == 1
    assert len([line for line in said if "you are many" in line]) == 1
    assert listeners(replica) == ["l1"]


def test_a_link_to_nowhere_waits_without_hurry(reactor, closing):
    link = Peer(reactor, "tcp://127.0.0.1:1", Replica())
    closing.append(link)
    turn_for(reactor, 0.6)
    assert not link.alive
    assert link.link.refused <= 6
    assert link.link.waiting <= 1  # HELLO


def test_who_was_stopped_listens_first_and_who_always_is_finds_a_directory_silent_too(
    reactor, closing, monkeypatch
):
    clock, stopped_s, alive = reactor.now, 0.0, 0
    monkeypatch.setattr(reactor, "now", lambda: clock() + stopped_s)
    fake, _, link = linked(reactor, closing)
    say_all(fake)
    turn_until(reactor, lambda: link.alive)
    for _ in range(60):
        stopped_s += 60.0
        link._tick_timer.cancel()
        link._tick()
        alive += link.alive
    assert 10 < alive <= 52  # pulses of a tenth of a second in 5 s, and the first that was late
    assert link.counts["lost"] == 1
