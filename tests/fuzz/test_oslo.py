"""Damaged multiparts at every socket of a node's proxy: dropped, counted, and it goes on.

Fixed seeds; ``HEADGATE_FUZZ_LIVE`` sets how many messages, ``make soak`` sends many more. Some of the peers speak ZMTP
by hand, since a library would not let them say to a SUB what it has not subscribed to, nor break off in a frame.
"""

import contextlib
import os
import time
from collections import Counter
from random import Random

import pytest
import zmq

from broker.oslo.frames import Kind, decode, encode, fanout_filter, new_id, notify_filter
from broker.oslo.node import NodeConfig
from broker.oslo.records import Opening, Record, to_json
from tests.live.oslo import Proxy, until
from tests.live.oslo_fuzz import CORPUS, Wire, broken_bytes, damaged
from tests.live.oslo_raw import Client, Server
from tests.live.oslo_wire import hear

MESSAGES = int(os.environ.get("HEADGATE_FUZZ_LIVE", "20000"))
SOAK_MESSAGES = 200_000
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
CHECK_EVERY = 2_000
PATIENCE_MS = 40_000
GROWTH_KIB = 32 << 10
"""Between the half and the end: what is remembered of addresses and senders fills up to fixed limits."""
PIPELINES = ("call", "fanout", "notify", "cast")
CONFIG = {
    "message_bytes_max": 1 << 20,
    "lease_s": 2.0,
    "beat_s": 0.5,
    "queue_msgs": 1_000,
    "queue_bytes": 4 << 20,
    "pending_max": 2_000,
}


class Peers:
    """Right peers of a proxy, and the sockets of wrong ones."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.config = NodeConfig(str(proxy.folder))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socks: list[zmq.Socket[bytes]] = []

    def socket(self, kind: int, endpoint: str, **options: int) -> zmq.Socket[bytes]:
        sock = self.context.socket(kind)
        self.socks.append(sock)
        settings = {"LINGER": 0, "RCVTIMEO": PATIENCE_MS, "SNDTIMEO": PATIENCE_MS, **options}
        for name, value in settings.items():
            sock.set(getattr(zmq, name), value)
        sock.connect(endpoint)
        return sock

    def file(self, name: str) -> str:
        return self.config.path(name)

    def port(self, room: str) -> str:
        number = (
            9500
            if room == "directory"
            else {"call": 9501, "fanout": 9502, "notify": 9503, "cast": 9504}[room]
        )
        return f"tcp://{self.proxy.host}:{number}"

    def close(self) -> None:
        for sock in self.socks:
            sock.close(0)
        self.context.term()


class Innocents:
    """A server and a listener on the node, and clients on it and off it, that use every pipeline."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.servers = {room: Server(peers, room) for room in ("call", "cast")}
        for server in self.servers.values():
            server.open("innocent", "s", "i")
        self.clients = [
            Client(peers.socket(zmq.DEALER if room == "call" else zmq.PUSH, where))
            for room in ("call", "cast")
            for where in (peers.file(f"{room}.in"), peers.port(room))
        ]
        self.listener = new_id().hex()[:24]
        self.hears = peers.socket(zmq.SUB, peers.file("fanout.pub"))
        self.subscribed(self.hears, fanout_filter("i", "innocent"))
        self.desk = peers.socket(zmq.DEALER, peers.file("notify.ctl"))
        opening = Opening(self.listener, (Record("i", "innocent.info", "", self.listener),), None, 1_000_000)
        self.desk.send_multipart([encode(Kind.OPEN, id=new_id()), to_json(opening)])
        assert decode(hear(self.desk)[0]).kind == Kind.OPENED
        self.publishers = [
            (self.publisher(where, data), data)
            for room, data in (
                ("fanout", fanout_filter("i", "innocent")),
                ("notify", notify_filter("i", "innocent.info")),
            )
            for where in (peers.file(f"{room}.in"), peers.port(room))
        ]

    def subscribed(self, sock: zmq.Socket[bytes], data: bytes) -> None:
        """Subscribed, and confirmed."""
        token = b"?" + new_id()
        sock.setsockopt(zmq.SUBSCRIBE, data)
        sock.setsockopt(zmq.SUBSCRIBE, token)
        assert sock.recv_multipart()[0] == token
        sock.setsockopt(zmq.UNSUBSCRIBE, token)

    def publisher(self, where: str, data: bytes) -> zmq.Socket[bytes]:
        """One whose node has subscribed to that filter."""
        sock = self.peers.socket(zmq.XPUB, where, XPUB_VERBOSE=1)
        while sock.recv() != b"\1" + data:
            pass
        return sock

    def pulse(self) -> None:
        """Show that they are alive."""
        for desk in (self.servers["call"].ctl, self.servers["cast"].ctl, self.desk):
            desk.send_multipart([encode(Kind.PULSE), b""])

    def work(self) -> None:
        """One call, cast, fan-out and notification from each side arrives."""
        self.pulse()
        for client in self.clients[:2]:
            number = client.call("innocent", b"?", exchange="i")
            got = self.request("call", number)
            self.servers["call"].reply(got, b"!")
            answer = client.get()
            assert (answer.kind, answer.envelope.id, answer.rest) == (Kind.REPLY, number, [b"!"])
        for client in self.clients[2:]:
            self.request("cast", client.cast("innocent", b"", exchange="i"))
        for sock, data in self.publishers:
            self.publish(sock, data)

    def request(self, room: str, number: bytes):
        server = self.servers[room]
        while True:
            if room == "call":
                frames = server.early.pop(0) if server.early else hear(server.ctl)
                if len(frames) != 3:
                    assert decode(frames[0]).kind == Kind.PULSE, frames
                    continue
                server.early.insert(0, frames)
            got = server.get()
            if got.envelope.id == number:
                return got

    def publish(self, sock: zmq.Socket[bytes], data: bytes) -> None:
        number = new_id()
        if data[:1] == b"F":
            sock.send_multipart([data, encode(Kind.FANOUT, "i", "innocent", id=number), b"body"])
            came = self.hears.recv_multipart()
        else:
            head = encode(Kind.NOTIFY, "i", "innocent.info", "", (self.listener,), id=number)
            sock.send_multipart([data, head, b"body"])
            while decode((notice := hear(self.desk))[0]).kind != Kind.NOTIFY:
                pass
            came = [b"", notice[0], notice[2]]
        assert (decode(came[1]).id, came[2]) == (number, b"body")


class Hostile:
    """Peers at every socket that say damaged things; each keeps count of what it sent."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.sent: Counter[str] = Counter()
        self.torn: Counter[str] = Counter()
        self.came = 0
        self.socks: dict[str, tuple[str, zmq.Socket[bytes]]] = {}
        self.wires: dict[str, tuple[str, str, str, Wire]] = {}
        for room in ("call", "cast"):
            kind = zmq.DEALER if room == "call" else zmq.PUSH
            self.socks[f"{room} tcp"] = (room, peers.socket(kind, peers.port(room)))
            self.socks[f"{room} ipc"] = (room, peers.socket(kind, peers.file(f"{room}.in")))
        for room in PIPELINES:
            self.socks[f"{room} ctl"] = (f"{room}.ctl", peers.socket(zmq.DEALER, peers.file(f"{room}.ctl")))
        self.socks["directory tcp"] = ("directory", peers.socket(zmq.DEALER, peers.port("directory")))
        self.socks["directory ipc"] = ("directory", peers.socket(zmq.DEALER, peers.file("directory.ctl")))
        for room in ("fanout", "notify"):
            for way, where in (("tcp", peers.port(room)), ("ipc", peers.file(f"{room}.in"))):
                self.wires[f"{room} {way}"] = (room, where, "PUB", Wire(where, "PUB"))
        where = peers.file("fanout.pub")
        self.socks["fanout pub"] = ("fanout.pub", peers.socket(zmq.XSUB, where))
        self.wires["fanout sub"] = ("fanout.pub", where, "SUB", Wire(where, "SUB"))
        self.names = [*self.socks, *self.wires]
        # somebody who asks and never reads the answers
        self.deaf = peers.socket(zmq.DEALER, peers.port("call"), RCVHWM=1)

    def say(self, number: int) -> None:
        dice = Random(f"{SEED}-{number}")
        name = self.names[number % len(self.names)]
        if name in self.socks:
            seeds, sock = self.socks[name]
            with contextlib.suppress(zmq.Again):
                sock.send_multipart(damaged(CORPUS[seeds], dice))
                self.sent[name] += 1
            while sock.type != zmq.PUSH and sock.poll(0):
                sock.recv_multipart()
                self.came += 1
        else:
            self.say_by_hand(name, dice)
        if number % 50 == 0:
            self.deaf.send_multipart(CORPUS["call"][2])
            self.sent["call tcp"] += 1

    def say_by_hand(self, name: str, dice: Random) -> None:
        seeds, where, kind, wire = self.wires[name]
        try:
            wire.say(damaged(CORPUS[seeds], dice))
            self.sent[name] += 1
            if dice.random() < 0.98:
                return
            with contextlib.suppress(OSError):
                wire.raw(broken_bytes(dice))
            wire.leave()
        except OSError:
            self.torn[name] += 1
            wire.cut()
        self.wires[name] = (seeds, where, kind, Wire(where, kind))

    def leave(self) -> None:
        """All that was said arrives. Harmless twice."""
        for _seeds, _where, _kind, wire in self.wires.values():
            wire.leave()


def said_to(sent: Counter[str], room: str) -> int:
    """Messages that were sent to a room's entries."""
    return sent[f"{room} tcp"] + sent[f"{room} ipc"]


def arrived(told: dict) -> int:
    """Messages that came in at a room's entries and at its control socket, but for the question that told us."""
    return sum(entry["in"] for entry in told["entries"]) + told["control"]["in"] - 1


def accounted(told: dict, *outcomes: str) -> int:
    """Messages that were given on, answered, or dropped under one of these names."""
    given = told["control"]["out"] + told["control"]["waiting"] + told.get("waiting", 0)
    return given + sum(told["counts"].get(name, 0) for name in outcomes)


def counts_add_up(proxy: Proxy, sent: Counter[str]) -> None:
    """Whatever reached a room is counted under one name; what libzmq keeps to itself is not seen there."""
    bad = ("malformed", "unknown_version", "unexpected", "denied", "stranger")
    cast = until(lambda: settled(proxy, "cast", said_to(sent, "cast")), what="all casts to be read")
    assert "lapsed" not in cast["counts"], "links were asked whether they are there, which is no answer"
    credit = ("credits", "credit_unknown")
    assert arrived(cast) == accounted(cast, *bad, "no_route", "repeat_lost", "full", "expired", *credit), cast
    fanout = proxy.status("fanout")
    assert arrived(fanout) == accounted(fanout, *bad, "nobody", "published"), fanout
    call = until(lambda: settled(proxy, "call", said_to(sent, "call")), what="all calls to be read")
    assert call["pending"] <= CONFIG["pending_max"]
    notify = proxy.status("notify")
    for told in (cast, fanout, call, notify):
        assert told["counts"]["malformed"] > 0
        assert told["counts"]["unknown_version"] > 0
    assert proxy.status("directory")["malformed"] > 0


def settled(proxy: Proxy, room: str, least: int) -> dict | None:
    told = proxy.status(room)
    return told if sum(entry["in"] for entry in told["entries"]) >= least else None


def hold(folder, messages: int) -> None:
    proxy = Proxy(folder / "n", **CONFIG)
    peers = Peers(proxy)
    hostile = None
    try:
        innocents = Innocents(peers)
        innocents.work()
        hostile = Hostile(peers)
        resident = 0
        beat_s = time.monotonic()
        for number in range(1, messages + 1):
            hostile.say(number)
            if time.monotonic() - beat_s > 0.3:
                beat_s = time.monotonic()
                innocents.pulse()
            if number % CHECK_EVERY == 0:
                innocents.work()
            if number == messages // 2:
                resident = proxy.rss_kib()
        hostile.leave()
        assert hostile.came > 0
        innocents.work()
        counts_add_up(proxy, hostile.sent)
        assert proxy.rss_kib() - resident < GROWTH_KIB
        assert proxy.process.poll() is None
    finally:
        if hostile is not None:
            hostile.leave()
        peers.close()
        code = proxy.stop()
    assert code == 0
    broken = [
        line
        for line in proxy.log.read_text().splitlines()
        if "Traceback" in line or "thread of the sockets" in line
    ]
    assert not broken, proxy.log.read_text()[-4000:]


@pytest.mark.parametrize("messages", [2000, pytest.param(MESSAGES, marks=pytest.mark.patient)])
def test_a_live_proxy_survives_damaged_multiparts(rundir, messages):
    hold(rundir, messages)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_live_proxy_survives_very_many_multiparts(rundir):
    hold(rundir, SOAK_MESSAGES)
