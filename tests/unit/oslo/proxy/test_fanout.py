"""The FANOUT pipeline of a proxy, spoken to by raw sockets."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from broker.identity import Role
from broker.oslo.frames import Kind, decode, encode, fanout_filter, new_id
from broker.oslo.names import Pipeline
from broker.oslo.node import Rule
from broker.oslo.proxy.fanout import FEWEST_MSGS, FanoutProxy, limit
from broker.oslo.reactor.tuning import PUBLISH_MSGS
from broker.oslo.records import Opened, Opening, Record, to_json
from tests.tables import for_each
from tests.unit.oslo.proxy.publishing import Rig

NOVA = fanout_filter("openstack", "nova")
Peer = zmq.Socket[bytes]


@pytest.fixture
def rig(rundir: Path) -> Iterator[Rig]:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir) as made:
        yield made


def server(rig: Rig, *topics: str, **options: int) -> Peer:
    sock = rig.peer(zmq.SUB, "fanout.pub", **options)
    for topic in topics:
        sock.setsockopt(zmq.SUBSCRIBE, fanout_filter("openstack", topic))
    rig.confirmed(sock)
    return sock


def client(rig: Rig, where: str = "fanout.in") -> Peer:
    return rig.peer(zmq.XPUB, where)


def fanout(topic: str = "nova", exchange: str = "openstack", kind: int = Kind.FANOUT) -> bytes:
    return encode(kind, exchange, topic, id=new_id())


def publish(rig: Rig, sock: Peer, body: bytes, topic: str = "nova") -> None:
    sock.send_multipart([fanout_filter("openstack", topic), fanout(topic), body])


def test_one_message_reaches_every_server_of_the_topic_stamped_and_numbered(rig: Rig) -> None:
    servers = [server(rig, "nova") for _ in range(3)]
    other = server(rig, "cinder")
    sender = client(rig)
    topics = {tuple(rig.receive(sender)) for _ in range(2)}
    assert topics == {(b"\1" + NOVA,), (b"\1" + fanout_filter("openstack", "cinder"),)}
    for body in (b"1", b"2"):
        publish(rig, sender, body)
        for each in servers:
            data, head, got = rig.receive(each)
            envelope = decode(head)
            assert (data, got, envelope.word) == (NOVA, body, int(body))
            assert (envelope.userid, envelope.rolemask) == (os.getuid(), Role.OWNER | Role.USER | Role.LOCAL)
    rig.nothing_for(other)
    assert rig.count("published") == 2


def test_fanouts_are_counted_by_topic(rig: Rig) -> None:
    listening = server(rig, "nova")
    sender = client(rig)
    rig.receive(sender)
    for _ in range(2):
        publish(rig, sender, b"")
        rig.receive(listening)
    told = rig.room.status()["figures"]["openstack/nova"]
    assert (told["calls"], told["open"], told["errors"], told["last_error"]) == (2, 0, {}, None)


def test_numbers_count_for_each_topic(rig: Rig) -> None:
    listening = server(rig, "nova", "cinder")
    sender = client(rig)
    rig.receive(sender), rig.receive(sender)
    for topic in ("nova", "cinder", "nova"):
        publish(rig, sender, topic.encode(), topic)
    numbers = [(body, decode(head).word) for _data, head, body in (rig.receive(listening) for _ in range(3))]
    assert numbers == [(b"nova", 1), (b"cinder", 1), (b"nova", 2)]


def test_numbers_go_on_for_a_server_that_comes_back(rig: Rig) -> None:
    first = server(rig, "nova")
    sender = client(rig)
    rig.receive(sender)
    publish(rig, sender, b"")
    assert decode(rig.receive(first)[1]).word == 1
    first.close(0)
    assert rig.receive(sender) == [b"\0" + NOVA]
    again = server(rig, "nova")
    assert rig.receive(sender) == [b"\1" + NOVA]
    publish(rig, sender, b"")
    assert decode(rig.receive(again)[1]).word == 2


def test_a_topic_is_announced_and_wanted_from_clients_with_the_first_server_and_until_the_last(
    rig: Rig,
) -> None:
    near, far = client(rig), client(rig, rig.room.status()["endpoint"])
    one = server(rig, "nova")
    two = server(rig, "nova")
    for each in (near, far):
        assert rig.receive(each) == [b"\1" + NOVA]
    rig.until(lambda: rig.room._announcer.state.records == (Record("openstack", "nova"),))
    one.close(0)
    rig.until(lambda: rig.room.status()["topics"] == {"openstack/nova": 1})
    assert rig.room._announcer.state.records
    two.setsockopt(zmq.UNSUBSCRIBE, NOVA)
    for each in (near, far):
        assert rig.receive(each) == [b"\0" + NOVA]
    rig.until(lambda: rig.room._announcer.state.records == ())


def test_servers_of_another_exchange_or_with_a_longer_topic_hear_nothing(rig: Rig) -> None:
    longer = server(rig, "nova1")
    elsewhere = rig.peer(zmq.SUB, "fanout.pub")
    elsewhere.setsockopt(zmq.SUBSCRIBE, fanout_filter("other", "nova"))
    rig.confirmed(elsewhere)
    here = server(rig, "nova")
    sender = client(rig)
    for _ in range(3):
        rig.receive(sender)
    publish(rig, sender, b"x")
    assert rig.receive(here)[2] == b"x"
    rig.nothing_for(longer)
    rig.nothing_for(elsewhere)


def test_a_token_is_answered_when_what_was_subscribed_before_is_in_force(rig: Rig) -> None:
    sock = rig.peer(zmq.SUB, "fanout.pub")
    sock.setsockopt(zmq.SUBSCRIBE, NOVA)
    _token, head, body = rig.confirmed(sock)
    assert decode(head).kind == Kind.OPENED
    opened = msgspec.json.decode(body, type=Opened)
    assert (opened.node, opened.incarnation) == ("127.0.0.1", rig.room.status()["incarnation"])
    assert rig.room.status()["topics"] == {"openstack/nova": 1}
    sender = client(rig)
    assert rig.receive(sender) == [b"\1" + NOVA]
    rig.nothing_for(sender)  # tokens are nobody else's business
    rig.until(lambda: rig.room._announcer.state.records == (Record("openstack", "nova"),))


@for_each(
    ("data", "name"),
    [
        (b"", "unknown_filter"),
        (b"F", "unknown_filter"),
        (b"Fopenstack\0nova", "unknown_filter"),
        (b"Nopenstack\0nova\0", "unknown_filter"),
        (b"F" + b"x" * 600, "unknown_filter"),
        (b"Fopen\xff\0nova\0", "unknown_filter"),
        (b"?short", "unknown_filter"),
    ],
)
def test_a_filter_that_is_none_is_not_granted(rundir: Path, data: bytes, name: str) -> None:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir) as rig:
        greedy = rig.peer(zmq.SUB, "fanout.pub")
        greedy.setsockopt(zmq.SUBSCRIBE, data)
        proper = server(rig, "nova")
        rig.until(lambda: rig.count(name) == 1)
        sender = client(rig)
        assert rig.receive(sender) == [b"\1" + NOVA]
        publish(rig, sender, b"x")
        assert rig.receive(proper)[2] == b"x"
        rig.nothing_for(greedy)
        rig.nothing_for(sender)


def test_asking_twice_on_one_connection_counts_once(rig: Rig) -> None:
    twice = rig.peer(zmq.XSUB, "fanout.pub")
    twice.send(b"\1" + NOVA)
    twice.send(b"\1" + NOVA)
    rig.until(lambda: rig.room.status()["topics"] == {"openstack/nova": 1})
    rig.turn(0.1)
    assert rig.room.status()["topics"] == {"openstack/nova": 1}
    twice.close(0)
    rig.until(lambda: rig.room.status()["topics"] == {})


def test_what_is_no_subscription_is_counted_and_hurts_nobody(rig: Rig) -> None:
    proper = server(rig, "nova")
    rude = rig.peer(zmq.XSUB, "fanout.pub")
    for message in ([b"junk"], [b"junk", b"\1" + NOVA], [b"", b""], [b"\2"], [bytes(1000)] * 5):
        rude.send_multipart(message)
    rig.until(lambda: rig.count("malformed_subscription") >= 4)
    sender = client(rig)
    assert rig.receive(sender) == [b"\1" + NOVA]
    publish(rig, sender, b"x")
    assert rig.receive(proper)[2] == b"x"
    late = server(rig, "nova")
    publish(rig, sender, b"y")
    assert rig.receive(late)[2] == b"y"


def test_a_subscription_read_behind_junk_is_not_granted_to_anybody(rig: Rig) -> None:
    """libzmq cannot tell whose it is, see ``fanout``."""
    rude = rig.peer(zmq.XSUB, "fanout.pub")
    rig.until(lambda: rude.getsockopt(zmq.EVENTS) & zmq.POLLOUT)
    rude.send(b"\1" + fanout_filter("openstack", "other"))
    rig.until(lambda: "openstack/other" in rig.room.status()["topics"])
    rude.send_multipart([b"junk", b"\1" + NOVA])  # read as one message
    for _ in range(20):
        rude.send(b"junk")
        rude.send(b"\1" + NOVA)
    rig.until(lambda: rig.count("malformed_subscription") == 21)
    rig.turn(0.05)
    granted = rig.room.status()["topics"].get("openstack/nova", 0)
    assert granted <= 1
    assert rig.count("subscription_in_doubt") + granted >= 1


def test_a_killed_server_is_noticed(rig: Rig) -> None:
    sender = client(rig)
    code = (
        "import sys, time, zmq\n"
        "s = zmq.Context().socket(zmq.SUB)\n"
        "s.connect(sys.argv[1])\n"
        "s.subscribe(bytes.fromhex(sys.argv[2]))\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, rig.config.path("fanout.pub"), NOVA.hex()])
    try:
        assert rig.receive(sender) == [b"\1" + NOVA]
    finally:
        child.kill()
        child.wait()
    assert rig.receive(sender) == [b"\0" + NOVA]
    rig.until(lambda: rig.room._announcer.state.records == ())


@pytest.mark.patient
def test_a_frozen_server_costs_only_its_own_messages(rig: Rig) -> None:
    code = (
        "import sys, time, zmq\n"
        "s = zmq.Context().socket(zmq.SUB)\n"
        "s.setsockopt(zmq.RCVHWM, 10)\n"
        "s.connect(sys.argv[1])\n"
        "s.subscribe(bytes.fromhex(sys.argv[2]))\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, rig.config.path("fanout.pub"), NOVA.hex()])
    try:
        sender = rig.peer(
            zmq.XPUB, "fanout.in", SNDHWM=0
        )  # it drops nothing itself, however seldom it is read
        assert rig.receive(sender) == [b"\1" + NOVA]
        os.kill(child.pid, signal.SIGSTOP)
        well = server(rig, "nova", RCVHWM=0)
        total, seen = PUBLISH_MSGS + 5_000, []
        for number in range(total):
            publish(rig, sender, bytes(500))
            if not number % 50:
                rig.turn()
            while (
                len(seen) < number - PUBLISH_MSGS // 2
            ):  # its own thread keeps up, however busy the machine is
                seen.append(decode(rig.receive(well)[1]).word)
        seen += [decode(rig.receive(well)[1]).word for _ in range(total - len(seen))]
        assert seen == list(range(1, total + 1))
        assert rig.room.status()["exit"]["waiting"] == 0
    finally:
        child.kill()
        child.wait()


def test_a_subscriber_that_lost_messages_sees_it_by_the_numbers(rundir: Path) -> None:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir, queue_bytes=1) as rig:
        assert rig.room._exit.sock.getsockopt(zmq.SNDHWM) == FEWEST_MSGS
        rig.room._slow_consumers.close()  # on a busy machine it would be cut off instead
        slow = server(rig, "nova", RCVHWM=5)
        sender = client(rig)
        rig.receive(sender)
        body = bytes(1 << 20)
        total = 4 * FEWEST_MSGS
        for _ in range(total):
            publish(rig, sender, body)
            rig.turn()
        rig.until(lambda: rig.count("published") == total)
        numbers: list[int] = []

        def came_to_the_end() -> bool:
            publish(rig, sender, b"end")
            while slow.poll(0):
                _data, head, got = slow.recv_multipart()
                numbers.append(decode(head).word)
                if got == b"end":
                    return True
            return False

        rig.until(came_to_the_end)
        assert numbers == sorted(set(numbers))
        assert len(numbers) < total < numbers[-1]


@for_each(
    ("send_bytes", "expected"),
    [(1, FEWEST_MSGS), (1 << 20, 128), (64 << 20, 8192), (1 << 40, PUBLISH_MSGS)],
)
def test_bytes_that_may_wait_are_a_number_of_messages(send_bytes: int, expected: int) -> None:
    assert limit(send_bytes) == expected


def test_servers_that_leave_while_much_is_published_end_nothing(rundir: Path) -> None:
    """Peers that go in the middle of it, again and again; the process must live, whatever the messages' sizes are."""
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir) as rig:
        stays = server(rig, "nova")
        sender = client(rig)
        rig.receive(sender)
        for number in range(300):
            leaves = rig.context.socket(zmq.SUB)
            leaves.connect(rig.config.path("fanout.pub"))
            leaves.setsockopt(zmq.SUBSCRIBE, fanout_filter("openstack", "nova"))
            for size in (10, 1 << (number % 18)):
                publish(rig, sender, bytes(size))
            rig.turn()
            leaves.close(0)
            while stays.poll(0):
                stays.recv_multipart()
        publish(rig, sender, b"last")
        while rig.receive(stays)[2] != b"last":
            pass


@for_each(
    ("message", "name"),
    [
        ([b""], "malformed"),
        ([NOVA, fanout()], "malformed"),
        ([NOVA, fanout(), b"", b""], "malformed"),
        ([NOVA, b"", b""], "malformed"),
        ([NOVA, b"\xff" * 40, b""], "malformed"),
        ([NOVA, fanout(kind=Kind.CALL), b""], "malformed"),
        ([NOVA, fanout(kind=Kind.NOTIFY), b""], "malformed"),
        ([NOVA, fanout("cinder"), b""], "malformed"),
        ([NOVA, fanout(exchange="other"), b""], "malformed"),
        ([b"F" + NOVA, fanout(), b""], "malformed"),
        ([NOVA, fanout()[:3] + b"\x09" + fanout()[4:], b""], "unknown_version"),
    ],
)
def test_a_broken_message_is_dropped_and_counted(rundir: Path, message: list[bytes], name: str) -> None:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir) as rig:
        listening = server(rig, "nova")
        sender = client(rig)
        assert rig.receive(sender) == [b"\1" + NOVA]
        publish(rig, sender, b"before")  # what may pass is remembered: that must not let this one through
        assert rig.receive(listening)[2] == b"before"
        if message[0].startswith(NOVA):
            sender.send_multipart(message)
        else:  # a peer that keeps to the protocol has no way to send what nobody subscribed to
            rig.room.on_client_message(message, rig.acl.by_ipc("x:0:0:1"), 0)
        publish(rig, sender, b"after")
        assert rig.receive(listening)[2] == b"after"
        assert rig.count(name) == 1


def test_a_message_for_nobody_is_counted(rig: Rig) -> None:
    who = rig.acl.by_ipc("x:0:0:1")
    rig.room.on_client_message([NOVA, fanout(), b""], who, 0)
    assert rig.count("nobody") == 1


def test_rules_decide_who_sends_and_who_listens(rundir: Path) -> None:
    rules = (
        Rule(topics=("nova",), action="listen", allow=False),
        Rule(topics=("cinder",), action="send", allow=False),
    )
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir, rules=rules) as rig:
        refused = server(rig, "nova")
        assert rig.count("subscription_denied") == 1
        granted = server(rig, "cinder", "glance")
        sender = client(rig)
        topics = {bytes(rig.receive(sender)[0]) for _ in range(2)}
        assert topics == {b"\1" + fanout_filter("openstack", each) for each in ("cinder", "glance")}
        publish(rig, sender, b"no", "cinder")
        publish(rig, sender, b"yes", "glance")
        assert rig.receive(granted)[2] == b"yes"
        assert rig.count("denied") == 1
        rig.nothing_for(refused)
        refused.close(0)
        rig.turn(0.1)
        assert rig.room.status()["topics"] == {"openstack/cinder": 1, "openstack/glance": 1}


def test_a_client_from_the_network_is_stamped_as_unlisted(rig: Rig) -> None:
    listening = server(rig, "nova")
    sender = client(rig, rig.room.status()["endpoint"])
    rig.receive(sender)
    publish(rig, sender, b"x")
    envelope = decode(rig.receive(listening)[1])
    assert envelope.rolemask == Role.USER


def test_status_tells_socket_types_endpoints_counts_and_topics(rig: Rig) -> None:
    listening = server(rig, "nova")
    sender = client(rig)
    rig.receive(sender)
    publish(rig, sender, b"x")
    rig.receive(listening)
    registration = rig.peer(zmq.DEALER, "fanout.ctl")
    told = rig.status(registration)
    assert [(each["type"], each["endpoint"].partition(":")[0]) for each in told["entries"]] == [
        ("XSUB", "tcp"),
        ("XSUB", "ipc"),
    ]
    assert (told["exit"]["type"], told["control"]["type"]) == ("XPUB", "ROUTER")
    assert told["topics"] == {"openstack/nova": 1}
    assert told["counts"]["published"] == 1
    assert told["entries"][1]["in"] == 1


def test_nobody_registers_at_the_control_socket(rig: Rig) -> None:
    registration = rig.peer(zmq.DEALER, "fanout.ctl")
    listener = "a" * 24
    opening = Opening(listener, (Record("openstack", "nova", "", listener),))
    registration.send_multipart([encode(Kind.OPEN), to_json(opening)])
    head, body = rig.receive(registration)
    assert decode(head).kind == Kind.REFUSED
    assert b"subscription" in body
    for frames in (
        [b""],
        [b"x" * 40, b""],
        [encode(Kind.CREDIT, word=3), b""],
        [encode(Kind.FANOUT), b"", b""],
    ):
        registration.send_multipart(frames)
    rig.until(lambda: rig.count("malformed") == 2 and rig.count("unexpected") == 2)


def test_a_new_client_is_told_of_more_topics_than_a_queue_holds(rig: Rig) -> None:
    """libzmq drops subscriptions that do not fit: the limit of these sockets is lifted."""
    many = 1_100
    sock = rig.peer(zmq.SUB, "fanout.pub", SNDHWM=0)
    for number in range(many):
        sock.setsockopt(zmq.SUBSCRIBE, fanout_filter("openstack", str(number)))
    rig.confirmed(sock)
    sender = client(rig, rig.room.status()["endpoint"])
    assert len({bytes(rig.receive(sender)[0]) for _ in range(many)}) == many
    rig.until(lambda: len(rig.room._announcer.state.records) == many)


def test_leaving_is_said_and_closing_frees_the_files(rundir: Path) -> None:
    with Rig(FanoutProxy, Pipeline.FANOUT, rundir) as rig:
        server(rig, "nova")
        rig.room.stop("stopping", returns=False)
        rig.turn(0.05)
        rig.room.close()
        rig.room.close()
        assert not list(rundir.iterdir())
