"""Subscribers of fan-outs that read nothing are cut off; those that read, however slowly, are not."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from broker.oslo.frames import Kind, encode, fanout_filter, new_id
from broker.oslo.names import Pipeline
from broker.oslo.proxy import subscribers
from broker.oslo.proxy.fanout import FanoutProxy
from broker.oslo.proxy.subscribers import LOOK_S, STILL_S, SlowConsumers
from tests.unit.oslo.proxy.publishing import Rig

NOVA, CINDER = fanout_filter("openstack", "nova"), fanout_filter("openstack", "cinder")
READER = """
import sys, time, zmq
s = zmq.Context().socket(zmq.SUB)
s.setsockopt(zmq.RCVHWM, 1)
s.connect(sys.argv[1])
s.subscribe(bytes.fromhex(sys.argv[2]))
while True:
    data, head, body = s.recv_multipart()
    print(int.from_bytes(head[12:16]), len(body), flush=True)
    time.sleep(float(sys.argv[3]))
"""
BIG = bytes(1 << 20)


class Reader:
    """A server process: prints the number and the size of each fan-out that it reads."""

    def __init__(self, rig: Rig, pause_s: float = 0.0) -> None:
        command = [sys.executable, "-c", READER, rig.config.path("fanout.pub"), NOVA.hex(), str(pause_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def next(self) -> tuple[int, int]:
        assert self.process.stdout is not None
        number, size = map(int, self.process.stdout.readline().split())
        return number, size

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def reading(rig: Rig, pause_s: float = 0.0) -> Iterator[Reader]:
    made = Reader(rig, pause_s)
    try:
        yield made
    finally:
        made.end()


def publish(sock: zmq.Socket[bytes], body: bytes, data: bytes = NOVA, topic: str = "nova") -> None:
    sock.send_multipart([data, encode(Kind.FANOUT, "openstack", topic, id=new_id()), body])


def test_a_frozen_one_is_cut_off_and_comes_back(rundir: Path) -> None:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir, queue_bytes=4 << 20) as rig, reading(rig) as reader:
        well = rig.peer(zmq.SUB, "fanout.pub")
        well.setsockopt(zmq.SUBSCRIBE, CINDER)
        rig.confirmed(well)
        sender = rig.peer(zmq.XPUB, "fanout.in")
        assert {rig.receive(sender)[0] for _ in range(2)} == {b"\1" + NOVA, b"\1" + CINDER}
        reader.freeze()
        for _ in range(40):
            publish(sender, BIG)
        rig.until(lambda: rig.count("published") == 40)
        assert rig.count("subscribers_cut") == 0  # it would be too soon

        def cut() -> int:
            publish(sender, BIG, CINDER, "cinder")
            rig.receive(well)
            return rig.count("subscribers_cut")

        rig.until(cut)
        assert rig.receive(sender) == [b"\0" + NOVA]  # it is no server any more
        assert rig.room.status()["topics"] == {"openstack/cinder": 1}
        assert any(f"pid {reader.process.pid} does not read" in line for line in rig.said)
        reader.thaw()
        assert rig.receive(sender) == [b"\1" + NOVA]
        publish(sender, b"after")
        rig.until(lambda: rig.room.status()["topics"].get("openstack/nova"))
        rig.turn(0.1)
        got = [reader.next()]
        while got[-1] != (41, 5):
            got.append(reader.next())
        assert len(got) < 20  # what the kernel and the process had; the rest was freed
        assert rig.count("subscribers_cut") == 1


@pytest.mark.patient
def test_a_slow_one_and_one_without_messages_stay(rundir: Path) -> None:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir, queue_bytes=1 << 30) as rig, reading(rig, 0.15) as reader:
        idle = rig.peer(zmq.SUB, "fanout.pub")
        idle.setsockopt(zmq.SUBSCRIBE, CINDER)
        rig.confirmed(idle)
        sender = rig.peer(zmq.XPUB, "fanout.in")
        assert {rig.receive(sender)[0] for _ in range(2)} == {b"\1" + NOVA, b"\1" + CINDER}
        total = int(3 * STILL_S / 0.15)
        for _ in range(total):
            publish(sender, BIG)
        rig.turn(3 * STILL_S)
        assert [reader.next()[0] for _ in range(total)] == list(range(1, total + 1))
        assert rig.count("subscribers_cut") == 0
        assert rig.room.status()["topics"] == {"openstack/nova": 1, "openstack/cinder": 1}


class Watched:
    """One peer that reads nothing, and the clock of who watches it; a look is due every half second."""

    def __init__(self, monkeypatch, bytes_max: int) -> None:
        self.now_s = 0.0
        self.cut: list[int] = []
        self._due: list[Callable[[], None]] = []
        monkeypatch.setattr(subscribers, "SocketEvents", lambda *_: None)
        monkeypatch.setattr(subscribers, "_unread", lambda _sock: 4096)
        reactor: Any = SimpleNamespace(
            now=lambda: self.now_s, call_later=lambda _s, call: self._due.append(call)
        )
        self.consumers = SlowConsumers(
            reactor,
            None,  # type: ignore[arg-type]
            "",
            bytes_max=bytes_max,
            cut=self.cut.append,
        )
        self.consumers._peers[3] = subscribers._Peer(socket.socket(socket.AF_UNIX), 42)

    def look(self, after_s: float) -> None:
        self.now_s += after_s
        self._due.pop()()

    def end(self) -> None:
        self.consumers._peers.pop(3).sock.close()


@pytest.fixture
def watch(monkeypatch) -> Iterator[Callable[[int], Watched]]:
    with contextlib.ExitStack() as stack:

        def make(bytes_max: int) -> Watched:
            made = Watched(monkeypatch, bytes_max)
            stack.callback(made.end)
            return made

        yield make


@pytest.mark.parametrize("when", ["before the look", "behind it"])
def test_who_is_late_at_each_look_cuts_off_those_for_whom_too_much_waits_all_the_same(when, watch) -> None:
    watched = watch(1 << 20)
    for _ in range(3):
        if when == "behind it":
            watched.look(LOOK_S + 0.6)
            watched.consumers.published(1 << 20)
        else:
            watched.now_s += LOOK_S + 0.6
            watched.consumers.published(1 << 20)
            watched.look(0.0)
    assert watched.cut == [42]


def test_what_is_published_while_the_proxy_stood_still_counts(watch) -> None:
    watched = watch(1 << 20)
    watched.look(LOOK_S)
    watched.consumers.published(2 << 20)
    watched.look(60.0)
    assert watched.cut == [], "it may read first"
    watched.look(LOOK_S)
    watched.look(LOOK_S)
    assert watched.cut == [42]


def test_who_comes_and_goes_leaves_no_descriptor(rundir: Path) -> None:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir) as rig:
        stalls = rig.room._slow_consumers
        for _ in range(20):
            sub = rig.context.socket(zmq.SUB)
            sub.connect(rig.config.path("fanout.pub"))
            sub.setsockopt(zmq.SUBSCRIBE, NOVA)
            rig.until(lambda: rig.room.status()["topics"])
            assert len(stalls._peers) == 1
            sub.close(0)
            rig.until(lambda: not rig.room.status()["topics"])
            rig.until(lambda: not stalls._peers)
