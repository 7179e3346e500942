"""The ports of a tree under attack: wrong keys, no keys, keys of others, recorded sessions, and a parent that is none.

Rank 0 of three with a key for each rank. Rank 2 is there; rank 1 is not, and whoever has its key may be it. Clients
have a port of their own, and keys that count there only.
"""

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import zmq

from broker.node.overlay import hello
from broker.node.overlay.control import Status
from broker.node.overlay.hello import Hello
from broker.transport import curve
from broker.transport.curve import Certificate
from broker.wire.decoding import from_parts
from broker.wire.message import CONTROL, RESPONSE, Message, request
from broker.wire.payload import any_text, decode_json
from tests.live.brokers import BrokerProcess, eventually
from tests.live.doors import dealing
from tests.live.listeners import logged, place
from tests.live.ports import free_port, free_ports
from tests.live.recorded import SILENCE_S, recorded, replayed
from tests.live.speaker import Speaker
from tests.tables import for_each

pytestmark = pytest.mark.story

UUID = "9304037f-f976-439e-aebd-4a5224d6d28c"


class Place(NamedTuple):
    """Rank 0, running, and everybody's keys."""

    root: BrokerProcess
    tree: str
    clients: str
    ranks: list[Certificate]
    owner: Certificate
    version: int

    @property
    def key(self) -> str:
        """Rank 0's public key."""
        return self.ranks[0].public_key

    def hello(self, rank: int, **more: object) -> list[bytes]:
        """The parts of a hello."""
        return list(map(bytes, hello.encode(Hello(rank, self.version, UUID, Status.FULL, **more)).parts()))

    def status(self, rank: int) -> str:
        with Speaker(self.root.uri) as speaker:
            answer = speaker.ask(request("overlay.health", matchtag=1))
            return {child["rank"]: child["status"] for child in decode_json(answer.payload)["children"]}[rank]


@contextlib.contextmanager
def three_ranks(rundir: Path) -> Iterator[Place]:
    ports = free_ports(3)
    keys = [curve.generate({"name": f"rank {rank}"}) for rank in range(3)]
    owner = curve.generate()
    hosts = "".join(
        f'[[hosts]]\nrank = {rank}\nhostname = "node{rank}"\naddress = "tcp://127.0.0.1:{ports[rank]}"\n'
        f'public_key = "{keys[rank].public_key}"\n'
        for rank in range(3)
    )
    clients = (
        '[[listen]]\nuri = "tcp://127.0.0.1:*"\n'
        f'[[clients]]\npublic_key = "{owner.public_key}"\nuserid = 1000\nroles = ["owner"]\n'
    )
    brokers = []
    try:
        for rank in (0, 2):
            curve.save(keys[rank], rundir / f"rank-{rank}.cert")
            file = rundir / f"broker-{rank}.toml"
            file.write_text(
                f'[broker]\nrundir = "{rundir}"\n[tree]\nsize = 3\ncurve_cert = "rank-{rank}.cert"\n'
                + (clients if rank == 0 else "")
                + hosts
            )
            brokers.append(BrokerProcess(file, rank, f"local://{rundir}/local-{rank}"))
        for broker in brokers:
            broker.wait_ready()
        with Speaker(brokers[0].uri) as speaker:
            said = speaker.ask(request("attr.get", b'{"name":"version"}\0', matchtag=1))
            version = hello.encode_version(decode_json(said.payload)["value"])
        clients_at = place(brokers[0], keys[0].public_key, owner).uri
        running = Place(brokers[0], f"tcp://127.0.0.1:{ports[0]}", clients_at, keys, owner, version)
        eventually(lambda: running.status(2), "full")
        yield running
    finally:
        for broker in brokers:
            broker.kill()


def well(running: Place) -> None:
    """Whatever was tried: rank 2 has not noticed, the owner is served, nothing went wrong inside."""
    assert running.status(2) == "full"
    with Speaker(running.root.uri) as speaker:
        assert speaker.ping() == 0
    assert not [line for line in running.root.lines() if "Traceback" in line or "internal error" in line]


@pytest.fixture(scope="module")
def shared(module_rundir) -> Iterator[Place]:
    with three_ranks(module_rundir) as running:
        yield running


@pytest.fixture
def there(shared) -> Iterator[Place]:
    """For those who do not get in as rank 1."""
    yield shared
    well(shared)


@pytest.fixture
def alone(rundir) -> Iterator[Place]:
    """For those who do."""
    with three_ranks(rundir) as running:
        yield running
        well(running)


def answer_of(sock: zmq.Socket[bytes], silence_s: float = 10.0) -> Message | None:
    """The next message, None when nothing comes."""
    return from_parts(sock.recv_multipart()) if sock.poll(silence_s * 1000) else None


# ---------------------------------------------------------------- keys


def test_keys_open_their_own_port_only(there):
    """A stranger's, a client's at the tree, a rank's at the clients' port; and nobody with the wrong server key."""
    stranger = curve.generate()
    asked = list(map(bytes, request("attr.get", b'{"name":"rank"}\0', matchtag=5).parts()))
    for uri, key, why in (
        (there.tree, stranger, "unknown CURVE key"),
        (there.tree, there.owner, "unknown CURVE key"),
        (there.clients, there.ranks[1], "unknown CURVE key"),
        (there.clients, stranger, "unknown CURVE key"),
    ):
        with dealing(uri, there.key, key) as sock:
            sock.send_multipart(there.hello(1) if uri == there.tree else asked)
            logged(there.root, f"{why} {key.public_key}")
            assert answer_of(sock, 0) is None
    with contextlib.ExitStack() as stack:
        socks = []
        for uri, key in ((there.tree, there.ranks[1]), (there.clients, there.owner)):
            socks.append(stack.enter_context(dealing(uri, stranger.public_key, key)))
            socks[-1].send_multipart(there.hello(1) if uri == there.tree else asked)
        assert answer_of(socks[0], SILENCE_S) is None
        assert answer_of(socks[1], 0) is None
    with dealing(there.clients, there.key, there.owner) as sock:
        sock.send_multipart(asked)
        answer = answer_of(sock)
        assert answer is not None
        assert decode_json(answer.payload)["value"] == "0"
    assert there.status(1) == "offline"


@for_each(
    ("key", "rank", "more", "errnum", "text"),
    [
        (2, 1, {}, errno.EPERM, "the key is that of rank 2, not of rank 1"),
        (1, 2, {}, errno.EPERM, "the key is that of rank 1, not of rank 2"),
        (1, 0, {}, errno.EINVAL, "rank 0 is not a child of rank 0"),
        (1, 7, {}, errno.EINVAL, "rank 7 is not a child of rank 0"),
        (1, 1, {"hostname": "node2"}, errno.EINVAL, ""),
    ],
)
def test_a_rank_is_who_its_key_says(there, key, rank, more, errnum, text):
    with dealing(there.tree, there.key, there.ranks[key]) as sock:
        sock.send_multipart(there.hello(rank, **more))
        answer = answer_of(sock)
        assert answer is not None
        assert (answer.type, answer.errnum) == (RESPONSE, errnum)
        assert text in any_text(answer.payload)
    assert (there.status(1), there.status(2)) == ("offline", "full")


def test_without_a_good_hello_there_is_one_word(there):
    """A key of the tree alone gives nothing: requests, events and answers of who has not joined go nowhere."""
    with dealing(there.tree, there.key, there.ranks[1]) as sock, Speaker(there.root.uri) as owner:
        guest = request(
            hello.TOPIC, hello.encode(Hello(1, there.version, UUID, Status.FULL)).payload, rolemask=2
        )
        for parts in (
            request("attr.get", b'{"name":"rank"}\0', matchtag=5, rolemask=1).parts(),
            request("event.publish", b'{"topic":"x","flags":0}\0', matchtag=6, rolemask=1).parts(),
            request("groups.update", b'{"update":{"g":[{"ranks":"1","set":true}]}}\0', rolemask=1).parts(),
            guest.parts(),
        ):
            sock.send_multipart(list(map(bytes, parts)))
            answer = answer_of(sock)
            assert answer is not None
            assert answer.type == CONTROL or (answer.topic, answer.errnum) == (hello.TOPIC, errno.EPERM)
        members = owner.ask(request("groups.get", b'{"name":"g"}\0', matchtag=1))
        assert decode_json(members.payload) == {"members": ""}
    assert there.status(1) == "offline"


def test_a_second_hello_of_a_rank_ends_the_first_and_needs_its_key(alone):
    with dealing(alone.tree, alone.key, alone.ranks[1]) as first:
        first.send_multipart(alone.hello(1))
        answer = answer_of(first)
        assert answer is not None
        assert answer.errnum == 0
        eventually(lambda: alone.status(1), "full")
        with dealing(alone.tree, alone.key, alone.ranks[2]) as thief:  # the very bytes, by another rank's key
            thief.send_multipart(alone.hello(1))
            refused = answer_of(thief)
            assert refused is not None
            assert refused.errnum == errno.EPERM
        assert alone.status(1) == "full"
        with dealing(alone.tree, alone.key, alone.ranks[1]) as again:
            again.send_multipart(alone.hello(1))
            answer = answer_of(again)
            assert answer is not None
            assert answer.errnum == 0
            logged(alone.root, "rank 1 said hello again, now from ")


# ---------------------------------------------------------------- recorded sessions


def test_a_recorded_session_of_a_client_says_nothing_twice(there):
    """An owner sets an attribute; the same bytes, said again, set nothing: CURVE's keys are of one connection."""

    def set_value(value: str) -> list[bytes]:
        body = b'{"name":"test.replay","value":"%s"}\0' % value.encode()
        return list(map(bytes, request("attr.set", body, matchtag=1).parts()))

    def value() -> str:
        with Speaker(there.root.uri) as owner:
            return str(
                decode_json(owner.ask(request("attr.get", b'{"name":"test.replay"}\0', matchtag=1)).payload)[
                    "value"
                ]
            )

    with recorded(there.clients) as way:
        with dealing(way.uri, there.key, there.owner) as sock:
            sock.send_multipart(set_value("recorded"))
            assert answer_of(sock) is not None
        said = bytes(way.said)
    assert value() == "recorded"
    assert b"attr.set" not in said, "nothing of it can be read on the way"
    with dealing(there.clients, there.key, there.owner) as sock:
        sock.send_multipart(set_value("later"))
        assert answer_of(sock) is not None
    assert len(said) > 300
    replayed(there.clients, said)
    assert value() == "later"


def test_a_recorded_hello_makes_nobody_a_rank(alone):
    """Rank 1 joins by way of somebody who keeps what it said, and leaves; the record does not bring it back."""
    with recorded(alone.tree) as way:
        with dealing(way.uri, alone.key, alone.ranks[1]) as sock:
            sock.send_multipart(alone.hello(1))
            answer = answer_of(sock)
            assert answer is not None
            assert answer.errnum == 0
            eventually(lambda: alone.status(1), "full")
        eventually(lambda: alone.status(1), "lost")
        said = bytes(way.said)
    assert b"overlay" not in said
    assert UUID.encode() not in said
    before = [line for line in alone.root.lines() if "rank 1 joined" in line]
    came = replayed(alone.tree, said)
    assert UUID.encode() not in came
    assert alone.status(1) == "lost"
    assert [line for line in alone.root.lines() if "rank 1 joined" in line] == before


# ---------------------------------------------------------------- other protocols


PLAIN = {
    "http": b"GET /v1/session HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "flux": b"\0" + bytes.fromhex("1200eeff00000030") + bytes(48),
    "zmtp-null": b"\xff"
    + bytes(8)
    + b"\x7f\x03\x00"
    + b"NULL".ljust(20, b"\0")
    + bytes(32)
    + b"\x04\x19\x05READY"
    + bytes(19),
    "zmtp-plain": b"\xff"
    + bytes(8)
    + b"\x7f\x03\x00"
    + b"PLAIN".ljust(20, b"\0")
    + bytes(32)
    + b"\x04\x08\x05HELLO\0\0",
    "zmtp-2": b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00" + bytes(40),
    "curve-rubbish": b"\xff"
    + bytes(8)
    + b"\x7f\x03\x00"
    + b"CURVE".ljust(20, b"\0")
    + bytes(32)
    + b"\x04\xc8"
    + bytes(200),
    "nothing": b"",
    "long": b"\xff" * 70_000,
}


@for_each("port", ["tree", "clients"])
@pytest.mark.patient
def test_whoever_speaks_no_curve_is_not_heard(there, port):
    uri = getattr(there, port)
    host, _, number = uri.removeprefix("tcp://").rpartition(":")
    fds = there.root.fds()
    for name, data in PLAIN.items():
        with socket.create_connection((host, int(number)), 5) as sock, contextlib.suppress(OSError):
            sock.settimeout(0.3)
            sock.sendall(data)
            came = b""
            with contextlib.suppress(TimeoutError):
                while more := sock.recv(1 << 16):
                    came += more
            assert b"READY" not in came, name
            assert b"rank" not in came, name
    with dealing(uri) as sock:  # a ZeroMQ library without keys
        sock.send_multipart(there.hello(1))
        assert answer_of(sock, SILENCE_S) is None
    eventually(lambda: there.root.fds() <= fds)
    assert there.status(1) == "offline"


# ---------------------------------------------------------------- a parent that is none


@pytest.mark.patient
@pytest.mark.parametrize("true", [True, False])
def test_a_child_tells_nothing_to_who_only_has_its_parents_address(rundir, true):
    """Whoever took rank 0's address: without its secret key no hello comes; with it, one does."""
    keys = [curve.generate() for _ in range(2)]
    server = keys[0] if true else curve.generate()
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        sock = stack.enter_context(context.socket(zmq.ROUTER))
        sock.set(zmq.LINGER, 0)
        sock.set(zmq.CURVE_SERVER, 1)
        sock.set(zmq.CURVE_SECRETKEY, (server.secret_key or "").encode())
        port = sock.bind_to_random_port("tcp://127.0.0.1")
        hosts = "".join(
            f'[[hosts]]\nrank = {rank}\nhostname = "node{rank}"\naddress = "tcp://127.0.0.1:{where}"\n'
            f'public_key = "{keys[rank].public_key}"\n'
            for rank, where in enumerate((port, free_port()))
        )
        curve.save(keys[1], rundir / "rank-1.cert")
        file = rundir / "broker-1.toml"
        file.write_text(
            f'[broker]\nrundir = "{rundir}"\n[tree]\nsize = 2\ncurve_cert = "rank-1.cert"\n' + hosts
        )
        child = BrokerProcess(file, 1, f"local://{rundir}/local-1")
        stack.callback(child.kill)
        if true:
            assert sock.poll(10_000)
            assert hello.TOPIC.encode() in sock.recv_multipart()
        else:
            logged(child, "handshake")
            assert not sock.poll(SILENCE_S * 1000)
        assert not any("joined" in line for line in child.lines())
