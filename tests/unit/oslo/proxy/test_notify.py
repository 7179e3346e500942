"""The NOTIFY pipeline of a proxy, spoken to by raw sockets."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from broker.errors import ConfigError
from broker.identity import Role
from broker.oslo.frames import HEAD_BYTES, Kind, decode, encode, notify_filter
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import BacklogConfig, Rule
from broker.oslo.proxy import listeners, notify
from broker.oslo.proxy.notify import NotifyProxy
from broker.oslo.records import Opening, Record, to_json
from tests.tables import for_each
from tests.unit.oslo.proxy.notices import EXCHANGE, FILTER, TOPIC, A, B, C, Listener, client, note, publish
from tests.unit.oslo.proxy.publishing import Rig

LISTENER = """
import sys, time, zmq
from broker.oslo.frames import Kind, encode
from broker.oslo.records import Opening, Record, to_json
folder, listener, exchange, topic = sys.argv[1:]
context = zmq.Context()
desk = context.socket(zmq.DEALER)
desk.connect(f"ipc://{folder}/notify.ctl")
desk.send_multipart([encode(Kind.OPEN), to_json(Opening(listener, (Record(exchange, topic, "", listener),), None, 2))])
desk.recv_multipart()
print("open", flush=True)
while True:
    desk.send_multipart([encode(Kind.PULSE), b""])
    time.sleep(0.05)
"""


@pytest.fixture
def rig(rundir: Path) -> Iterator[Rig]:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir) as made:
        yield made


def test_notifications_are_counted_by_topic_and_so_is_what_a_pool_does_not_get(rig: Rig) -> None:
    one = Listener(rig, A)
    sender = client(rig, "notify.in")
    publish(sender, "x", A)
    assert one.next() == "x"
    publish(sender, "y", "nobody")
    name = f"{EXCHANGE}/{TOPIC}"
    rig.until(lambda: rig.room.status()["figures"][name]["calls"] == 2)
    told = rig.room.status()["figures"][name]
    assert (told["errors"], told["last_error"]["userid"]) == ({str(errno.EHOSTUNREACH): 1}, os.getuid())


def test_the_chosen_listener_gets_it_stamped(rig: Rig) -> None:
    one, two = Listener(rig, A), Listener(rig, B)
    assert (one.opened.node, one.opened.incarnation) == ("127.0.0.1", rig.room.status()["incarnation"])
    for where in ("notify.in", rig.room.status()["endpoint"]):
        sender = client(rig, where)
        publish(sender, "x", B)
        assert two.next() == "x"
        envelope = decode(two.head)
        assert (envelope.exchange, envelope.topic, envelope.listeners) == (EXCHANGE, TOPIC, (B,))
        local = Role.USER | Role.OWNER | Role.LOCAL
        assert envelope.rolemask == (local if where == "notify.in" else Role.USER)
    rig.nothing_for(one.registration)


def test_every_pool_gets_one_copy(rig: Rig) -> None:
    one, two, three = Listener(rig, A), Listener(rig, B), Listener(rig, C, "billing")
    sender = client(rig)
    publish(sender, "1", A, C)
    publish(sender, "2", B, C)
    assert (one.next(), two.next(), three.next(), three.next()) == ("1", "2", "1", "2")
    for each in (one, two, three):
        rig.nothing_for(each.registration, 0.02)


def test_the_topic_is_wanted_and_announced_as_long_as_somebody_listens(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "STRAGGLE_S", 0.05)
    sender = rig.peer(zmq.XPUB, "notify.in")
    one = Listener(rig, A, "billing", 5, TOPIC, "events.error")
    assert {bytes(rig.receive(sender)[0][1:]) for _ in range(2)} == {
        FILTER,
        notify_filter(EXCHANGE, "events.error"),
    }
    expected = {Record(EXCHANGE, topic, "", A, "billing") for topic in (TOPIC, "events.error")}
    rig.until(lambda: set(rig.room._announcer.state.records) == expected)
    two = Listener(rig, B)
    one.close()
    assert rig.receive(sender) == [b"\0" + notify_filter(EXCHANGE, "events.error")]
    rig.until(lambda: rig.room._announcer.state.records == (Record(EXCHANGE, TOPIC, "", B),))
    two.close()
    assert rig.receive(sender) == [b"\0" + FILTER]
    rig.until(lambda: rig.room._announcer.state.records == ())


def test_credit_limits_what_is_published_and_the_rest_follows_in_order(rig: Rig) -> None:
    one = Listener(rig, A, credit=2)
    sender = client(rig)
    for number in range(6):
        publish(sender, str(number), A)
    assert [one.next(), one.next()] == ["0", "1"]
    rig.nothing_for(one.registration)
    assert rig.room.status()["waiting"] == 4
    one.say(Kind.CREDIT, b"", word=3)
    assert [one.next() for _ in range(3)] == ["2", "3", "4"]
    rig.nothing_for(one.registration)
    one.say(Kind.CREDIT, b"", word=1)
    assert one.next() == "5"


def test_a_listener_without_room_costs_nobody_else_anything(rundir: Path) -> None:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, queue_msgs=3) as rig:
        Listener(rig, A, credit=0)
        well = Listener(rig, B, "billing")
        sender = client(rig)
        for number in range(20):
            publish(sender, str(number), A, B)
        assert [well.next() for _ in range(20)] == [str(number) for number in range(20)]
        assert rig.room.status()["waiting"] == 3
        assert rig.count("lost_full") == 17


def test_notifiers_wait_for_a_listener_that_gives_credit_and_nothing_is_lost(rundir: Path) -> None:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, queue_msgs=10) as rig:
        one = Listener(rig, A, credit=5)
        sender = rig.peer(zmq.XPUB, "notify.in", XPUB_NODROP=1, SNDHWM=1)
        assert rig.receive(sender)[0][:2] == b"\1N"
        sent = 0
        got: list[str] = []
        while len(got) < 200:
            if sent < 200:
                frames = [notify_filter(EXCHANGE, TOPIC), note(A), str(sent).encode() + bytes(64 << 10)]
                with contextlib.suppress(zmq.Again):
                    sender.send_multipart(frames, zmq.NOBLOCK)
                    sent += 1
            rig.turn()
            if rig.room.status()["back_pressure"]["paused"] or sent == 200:
                got.append(one.next().rstrip("\0"))
                one.say(Kind.CREDIT, b"", word=1)
        assert got == [str(number) for number in range(200)]
        assert rig.count("pauses") >= 1
        assert rig.count("lost_full") == 0
        rig.until(lambda: not rig.room.status()["back_pressure"]["paused"], "the entry to be read again")


def test_a_listener_without_credit_is_not_waited_for(rundir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "STILL_S", 0.1)
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, queue_msgs=3) as rig:
        Listener(rig, A, credit=0)
        sender = client(rig)
        for number in range(20):
            publish(sender, str(number), A)
        rig.until(lambda: rig.count("lost_full") == 17, "all to be read")
        assert rig.count("pauses") == rig.count("pauses_still") == 1


def test_the_end_of_a_listener_ends_the_pause_for_it(rundir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "STILL_S", 600.0)
    monkeypatch.setattr(listeners, "PAUSE_MAX_S", 600.0)
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, queue_msgs=3) as rig:
        one, well = Listener(rig, A, credit=0), Listener(rig, B, "billing")
        sender = client(rig)
        for number in range(20):
            publish(sender, str(number), A)
        publish(sender, "for another one", B)
        rig.until(lambda: rig.count("pauses") == 1, "a pause")
        rig.nothing_for(well.registration)
        one.close()
        assert well.next() == "for another one"


def test_what_waits_for_one_that_closes_goes_to_its_pool(rig: Rig) -> None:
    one = Listener(rig, A, credit=1)
    sender = client(rig)
    for body in "123":
        publish(sender, body, A)
    assert one.next() == "1"
    rig.until(lambda: rig.room.status()["waiting"] == 2)
    two = Listener(rig, B)
    one.close()
    assert [two.next(), two.next()] == ["2", "3"]
    publish(sender, "4", A)
    assert two.next() == "4"
    assert (rig.count("moved"), rig.count("rechosen"), rig.count("unconfirmed")) == (2, 1, 1)


def test_a_killed_listener_gives_way_to_its_pool(rig: Rig) -> None:
    command = [sys.executable, "-c", LISTENER, rig.config.ipc_dir, A, EXCHANGE, TOPIC]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        rig.until(lambda: A in rig.room.pools)
        sender = client(rig)
        for number in range(5):
            publish(sender, str(number), A)
        rig.until(lambda: rig.count("handed") == 2 and rig.room.status()["waiting"] == 3)
        two = Listener(rig, B)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    assert [two.next() for _ in range(3)] == ["2", "3", "4"]
    rig.nothing_for(two.registration)
    assert rig.count("unconfirmed") == 2
    rig.until(lambda: rig.room._announcer.state.records == (Record(EXCHANGE, TOPIC, "", B),))


def test_a_frozen_listener_gives_way_after_its_lease(rundir: Path) -> None:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, lease_s=0.4) as rig:
        command = [sys.executable, "-c", LISTENER, rig.config.ipc_dir, A, EXCHANGE, TOPIC]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        try:
            rig.until(lambda: A in rig.room.pools)
            os.kill(child.pid, signal.SIGSTOP)
            sender = client(rig)
            for number in range(3):
                publish(sender, str(number), A)
            rig.until(lambda: rig.room.status()["waiting"] == 1)
            two = Listener(rig, B)

            def gone() -> bool:
                two.registration.send_multipart([encode(Kind.PULSE), b""])
                return A not in rig.room.pools

            rig.until(gone)
            assert rig.count("lapsed") == 1
            assert (two.next(), rig.count("unconfirmed")) == ("2", 2)
        finally:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def test_an_opening_with_records_of_several_pools_is_refused(rig: Rig) -> None:
    registration = rig.peer(zmq.DEALER, "notify.ctl")
    opening = Opening(A, (Record(EXCHANGE, TOPIC, "", A, "billing"),), None, 1)
    registration.send_multipart([encode(Kind.OPEN), to_json(opening)])
    head, _body = rig.receive(registration)
    assert (decode(head).kind, decode(head).reason) == (Kind.REFUSED, Reason.MALFORMED)
    assert len(rig.room.pools) == 0


def test_opening_again_with_the_same_words_is_confirmed_and_changes_nothing(rig: Rig) -> None:
    one = Listener(rig, A, credit=1)
    sender = client(rig)
    publish(sender, "1", A)
    publish(sender, "2", A)
    rig.until(lambda: rig.room.status()["waiting"] == 1)
    assert one.next() == "1"
    head, _body = rig.open(one.registration, A, [(EXCHANGE, TOPIC)], None, 1)
    assert head.kind == Kind.OPENED
    assert rig.room.status()["waiting"] == 1


def broken() -> list[tuple[list[bytes], str]]:
    good = note(A)
    return [
        ([b""], "malformed"),
        ([FILTER], "malformed"),
        ([FILTER, good], "malformed"),
        ([FILTER, good, b"", b""], "malformed"),
        ([FILTER, b"", b""], "malformed"),
        ([FILTER, good[:3] + b"\x07" + good[4:], b""], "unknown_version"),
        ([FILTER, note(A, kind=Kind.FANOUT), b""], "malformed"),
        ([FILTER, note(A, topic="other.info"), b""], "malformed"),
        ([b"F" + FILTER[1:], good, b""], "malformed"),
        ([FILTER + b"x", good, b""], "malformed"),
        ([FILTER, note(), b""], "unaddressed"),
        ([FILTER, good[:HEAD_BYTES], b""], "malformed"),
        ([FILTER, note("x"), b""], "lost_unknown"),
        ([notify_filter(EXCHANGE, "gone.info"), note(A, topic="gone.info"), b""], "lost_pool"),
    ]


@for_each(("message", "name"), broken())
def test_a_broken_message_is_dropped_and_counted(rundir: Path, message: list[bytes], name: str) -> None:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir) as rig:
        one = Listener(rig, A)
        sender = client(rig)
        if message[0].startswith(FILTER):
            sender.send_multipart(message)
        else:  # a peer that keeps to the protocol has no way to send what nobody subscribed to
            rig.room.on_client_message(message, rig.acl.by_ipc("x:0:0:1"), 0)
        publish(sender, "after", A)
        assert one.next() == "after"
        assert rig.count(name) == 1


def test_broken_control_messages_are_dropped_and_counted(rig: Rig) -> None:
    one = Listener(rig, A)
    sender = client(rig)
    for frames in (
        [b""],
        [b"x" * 60, b"", b""],
        [encode(Kind.REQUEUE, listeners=(A,))],
        [encode(Kind.REQUEUE, listeners=(A,)), b"", b""],
        [encode(Kind.REQUEUE, listeners=(A,)), note(A, kind=Kind.CALL), b""],
        [encode(Kind.NOTIFY, listeners=(A,)), b""],
        [encode(Kind.CREDIT, word=5), b""],
        [encode(Kind.CREDIT, listeners=(B,), word=5), b""],
        [encode(Kind.REQUEUE, listeners=(B,)), note(A), b""],
    ):
        one.registration.send_multipart(frames)
    rig.until(lambda: rig.count("requeue_unknown") == 1)
    assert rig.count("malformed") == 4
    assert rig.count("unexpected") == 2
    assert rig.count("credit_unknown") == 2
    publish(sender, "after", A)
    assert one.next() == "after"


def test_nobody_gives_credit_for_others(rig: Rig) -> None:
    one = Listener(rig, A, credit=0)
    two = Listener(rig, B)
    sender = client(rig)
    publish(sender, "x", A)
    rig.until(lambda: rig.room.status()["waiting"] == 1)
    two.registration.send_multipart([encode(Kind.CREDIT, listeners=(A,), word=5), b""])
    rig.until(lambda: rig.count("credit_unknown") == 1)
    rig.nothing_for(one.registration)


def test_what_arrives_just_after_the_last_listener_left_is_counted(rig: Rig) -> None:
    one = Listener(rig, A)
    sender = client(rig)
    one.close()
    publish(sender, "x", A)
    rig.until(lambda: rig.count("lost_pool") == 1)


def test_rules_decide_who_sends_and_who_listens(rundir: Path) -> None:
    rules = (
        Rule(topics=("secret.*",), action="listen", allow=False),
        Rule(topics=("events.error",), action="send", allow=False),
    )
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, rules=rules) as rig:
        registration = rig.peer(zmq.DEALER, "notify.ctl")
        head, _body = rig.open(registration, B, [(EXCHANGE, "secret.info")])
        assert (head.kind, head.reason) == (Kind.REFUSED, Reason.DENIED)
        one = Listener(rig, A, None, 10, TOPIC, "events.error")
        sender = client(rig, topics=2)
        publish(sender, "no", A, topic="events.error")
        publish(sender, "yes", A)
        assert one.next() == "yes"
        assert rig.count("denied") == 1
        one.say(Kind.REQUEUE, note(A, topic="events.error"), b"smuggled")
        rig.until(lambda: rig.count("denied") == 2)
        rig.nothing_for(one.registration)


def test_status_tells_socket_types_endpoints_counts_and_listeners(rig: Rig) -> None:
    one = Listener(rig, A, "billing", 7)
    sender = client(rig)
    publish(sender, "x", A)
    assert one.next() == "x"
    told = rig.status(one.registration)
    assert [each["type"] for each in told["entries"]] == ["SUB", "SUB"]
    assert told["endpoint"].startswith("tcp://127.0.0.1:")
    assert told["control"]["type"] == "ROUTER"
    assert told["topics"] == {f"{EXCHANGE}/{TOPIC}": 1}
    member = told["members"][0]
    assert (member["listener"], member["pool"], member["credit"], member["unconfirmed"]) == (
        A,
        "billing",
        6,
        1,
    )
    assert told["counts"]["handed"] == 1


def test_leaving_counts_what_is_lost_and_frees_the_files(rundir: Path) -> None:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir) as rig:
        one = Listener(rig, A, credit=0)
        sender = client(rig)
        publish(sender, "x", A)
        rig.until(lambda: rig.room.waiting)
        rig.room.stop("stopping", returns=False)
        assert decode(rig.receive(one.registration)[0]).reason == Reason.LEAVING
        rig.room.close()
        rig.room.close()
        assert rig.room.counters.status()["lost_at_close"] == 1
        assert not list(rundir.iterdir())


def test_a_pipeline_that_cannot_be_opened_closes_its_backlog(rundir: Path) -> None:
    file = rundir / "backlog.db"
    (rundir / "notify.ctl").mkdir()
    rig = Rig(NotifyProxy, Pipeline.NOTIFY, rundir, backlog=BacklogConfig(("*",), path=str(file)))
    with rig.context, pytest.raises(ConfigError, match="notify"):
        rig.room.open()
    rig.reactor.close()
    assert file.exists()
    assert not [
        each for each in Path("/proc/self/fd").iterdir() if each.is_symlink() and each.readlink() == file
    ]


def test_whoever_asks_and_does_not_read_fills_no_memory(rundir: Path) -> None:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, queue_msgs=10) as rig:
        socket = rig.room.servers
        mute = rig.peer(zmq.DEALER, "notify.ctl", SNDHWM=0, RCVHWM=1)
        sent = 0
        while not socket.refused:
            assert sent < 50_000
            for _ in range(100):
                mute.send_multipart([encode(Kind.STATUS), b""])
            sent += 100
            rig.turn()
            assert socket.waiting <= 10


def test_credit_counts_once_what_was_given_before_has_been_read(rundir: Path) -> None:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, queue_msgs=50) as rig:
        rig.context.setsockopt(zmq.RCVHWM, 1)
        one = Listener(rig, A, None, 20)
        socket, sender = rig.room.servers, client(rig)
        member = rig.room.pools.get(A)
        body = "x" * 100_000
        for _ in range(20):  # credit for what it has not read
            for _ in range(20):
                publish(sender, body, A)
            one.say(Kind.CREDIT, b"", word=20)
            rig.turn(0.005)
        assert socket.waiting <= 50 + 40
        rig.until(lambda: member.queue, "some to wait for credit")
        head, answer = rig.open(rig.peer(zmq.DEALER, "notify.ctl"), B, [(EXCHANGE, TOPIC)])
        assert head.kind == Kind.OPENED, answer
        given = rig.count("handed")
        for _ in range(given):
            assert one.next() == body
        rig.until(lambda: rig.count("handed") > given, "the credit that was held")
        assert one.next() == body
