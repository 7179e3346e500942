"""Peers of a directory that misbehave: bad input, silence, reading too slowly, too many."""

import os
import subprocess
import sys

import pytest

from broker.oslo import frames as envelopes
from broker.oslo.directory import server, wire
from broker.oslo.directory.state import Replica
from broker.oslo.directory.wire import DirectoryKind, Hello
from broker.oslo.proxy import acl
from broker.oslo.records import Beat
from tests.unit.oslo.directory.clouds import (
    Raw,
    announcer_of,
    config,
    listeners,
    open_room,
    reader_of,
    rpc,
    set_records,
    state,
    turn_for,
    turn_until,
)


def test_nobody_at_the_port_speaks_for_the_directorys_own_node(reactor, tmp_path, closing, caplog):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, room.endpoint, closing)
    raw.tell(DirectoryKind.HELLO, Hello())
    raw.tell(
        DirectoryKind.ANNOUNCE, state(incarnation=1 << 62, records=[rpc("evil")])
    )  # before the pipeline is there
    assert "own node" in raw.until(DirectoryKind.REFUSED).reason
    set_records(announcer_of(reactor, settings, closing, incarnation=5), [rpc("l1")])
    turn_until(reactor, lambda: room.replica.here.records == 1)
    raw.tell(DirectoryKind.ANNOUNCE, state(incarnation=5, version=1 << 62))
    raw.tell(DirectoryKind.BEAT, (Beat("n9", "call", 1, 1), Beat("n1", "call", 1 << 62, 1)))
    raw.tell(DirectoryKind.LEAVE, Beat("n1", "call", 1 << 62, 1))
    turn_until(reactor, lambda: room.status()["forbidden"] == 4)
    assert [each.listener for each in room.replica.here.claims[("n1", "call")].state.records] == ["l1"]
    raw.tell(DirectoryKind.ANNOUNCE, state("n2", records=[rpc("l2")]))
    turn_until(reactor, lambda: room.replica.here.records == 2)
    assert len([line for line in caplog.messages if "refused a peer" in line]) == 1


def test_only_our_own_node_is_announced_in_its_folder(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(DirectoryKind.HELLO, Hello())
    raw.tell(DirectoryKind.ANNOUNCE, state("n2", records=[rpc("l2")]))
    assert (
        raw.until(DirectoryKind.REFUSED).reason
        == "saw 'n2', expected 'n1': other nodes are announced over TCP"
    )
    raw.tell(DirectoryKind.BEAT, (Beat("n1", "call", 1, 1), Beat("n2", "call", 1, 1)))
    turn_until(reactor, lambda: room.counts["forbidden"] == 2)
    assert len(room.replica.here.claims) == 0


def test_other_users_of_the_folder_only_ask(reactor, tmp_path, closing, monkeypatch):
    """Who they are is the word of the kernel; here the test gives it."""
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    set_records(announcer_of(reactor, settings, closing, incarnation=5), [rpc("l1")])
    turn_until(reactor, lambda: room.replica.here.records == 1)
    (before,) = room.replica.announced()
    for module in (acl, server):
        monkeypatch.setattr(module, "credentials", lambda _address: (4711, 100, 7))
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(DirectoryKind.HELLO, Hello(want=True))
    raw.until(DirectoryKind.STATES)
    raw.tell(DirectoryKind.BEAT, ())  # as every reader does
    for kind, body in (
        (DirectoryKind.ANNOUNCE, state(incarnation=1 << 62)),
        (DirectoryKind.ANNOUNCE, state("n2")),
        (DirectoryKind.ANNOUNCE, state(incarnation=5, version=before.version + 1)),
        (DirectoryKind.BEAT, (Beat("n1", "call", 1 << 62, 1),)),
        (DirectoryKind.LEAVE, Beat("n1", "call", 1 << 62, 1)),
    ):
        raw.tell(kind, body)
    turn_until(reactor, lambda: room.counts["forbidden"] >= 5)
    assert raw.until(DirectoryKind.REFUSED).reason.startswith("uid 4711 (pid 7) may not announce")
    assert room.replica.announced() == (before,)
    raw.say(envelopes.encode(envelopes.Kind.STATUS), b"")
    turn_until(reactor, lambda: any(isinstance(each, list) for each in raw.read()))


STRANGER = """
import os, sys, zmq
from broker.oslo.directory import wire
from broker.oslo.reactor.bundle import frames_of
from broker.oslo.records import Beat, State
os.setgroups([])
os.setgid(65534)
os.setuid(65533)
context = zmq.Context()
sock = context.socket(zmq.DEALER)
sock.set(zmq.RCVTIMEO, 20000)
sock.connect(sys.argv[1])
sock.send_multipart(wire.encode(wire.DirectoryKind.HELLO, wire.Hello()))
sock.send_multipart(wire.encode(wire.DirectoryKind.LEAVE, Beat("n1", "call", 1 << 62, 1)))
sock.send_multipart(wire.encode(wire.DirectoryKind.ANNOUNCE, State("n1", "call", 1 << 62, 1, "tcp://127.0.0.1:1", "")))
kinds = set()
while kinds != {wire.DirectoryKind.WELCOME, wire.DirectoryKind.REFUSED}:
    kinds.add(wire.decode(frames_of(sock.recv_multipart())).kind)
context.destroy(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="optional: only root can be somebody else")
def test_another_user_of_the_group_is_known_by_the_kernel(reactor, rundir, closing):
    settings = config(rundir, ipc_group="65534")
    for folder in (rundir, rundir / "n1"):
        os.chown(folder, -1, 65534)
        folder.chmod(0o750)
    room = open_room(reactor, settings, closing)
    set_records(announcer_of(reactor, settings, closing, incarnation=5), [rpc("l1")])
    turn_until(reactor, lambda: room.replica.here.records == 1)
    process = subprocess.Popen([sys.executable, "-c", STRANGER, settings.path("directory.ctl")])
    try:
        turn_until(reactor, lambda: process.poll() is not None)
    finally:
        process.kill()
    assert process.returncode == 0
    assert room.counts["forbidden"] == 2
    assert room.replica.here.claims[("n1", "call")].state.incarnation == 5


def test_broken_messages_are_dropped_and_counted_and_the_room_lives(reactor, tmp_path, closing, caplog):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, room.endpoint, closing)
    bad = [
        (b"",),
        (b"", b""),
        (b"HGD\x02\x01",),
        (b"HGD\x02\x01", b"{", b""),
        (b"HGD\x02\x01", b"\xff\xfe"),
        (b"HGD\x02\x12", b"{}"),
        (b"HGD\x02\x02", b'{"node": "", "pipeline": "call"}'),
        (b"HGO" + bytes(10), b""),
        (envelopes.encode(envelopes.Kind.CALL), b""),
    ]
    for parts in bad:
        raw.say(*parts)
    turn_until(reactor, lambda: room.counts["malformed"] == len(bad))
    raw.tell(DirectoryKind.HELLO, Hello(want=True))
    assert raw.until(DirectoryKind.STATES).complete
    assert len([line for line in caplog.messages if "dropped a message" in line]) == 1


def test_an_oversized_message_ends_its_connection_only(reactor, tmp_path, closing):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, room.endpoint, closing)
    other = Raw(reactor, room.endpoint, closing)
    other.tell(DirectoryKind.HELLO, Hello())
    other.until(DirectoryKind.WELCOME)
    raw.say(b"HGD\x02\x02", bytes(wire.JSON_BYTES_MAX + 1))
    raw.tell(DirectoryKind.HELLO, Hello())
    turn_for(reactor, 0.3)
    other.tell(DirectoryKind.HELLO, Hello(want=True))
    assert other.until(DirectoryKind.STATES).complete


def test_who_never_said_hello_is_asked_for_it(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(DirectoryKind.ANNOUNCE, state(records=[rpc("l1")]))
    assert raw.until(DirectoryKind.GREET) == wire.Empty()
    assert len(room.replica.here.claims) == 0


def test_who_renews_what_is_not_known_is_asked_for_everything(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(DirectoryKind.HELLO, Hello())
    raw.tell(DirectoryKind.ANNOUNCE, state(records=[rpc("l1")]))
    raw.tell(DirectoryKind.BEAT, (Beat("n1", "call", 1, 1),))
    turn_until(reactor, lambda: room.replica.leases["renewed"])
    assert room.replica.leases["unknown"] == 0
    raw.tell(DirectoryKind.BEAT, (Beat("n1", "call", 1, 2),))
    raw.until(DirectoryKind.GREET)
    assert room.replica.leases["unknown"] == 1


def test_another_release_is_refused_and_named_in_the_log(reactor, tmp_path, closing, caplog):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, room.endpoint, closing)
    for _ in range(3):
        raw.say(b"HGD\x01\x01", b"{}")
        raw.say(b"HGD\x01\x02", b"{}")
    turn_until(reactor, lambda: room.counts["other_version"] == 6)
    raw.until(DirectoryKind.GREET)  # in our version: it cannot read that, and says so in its own log
    assert len(room.sockets[1]) == 0
    (line,) = [line for line in caplog.messages if "dropped a message" in line]
    assert "saw version 1 of the directory's messages, expected 2: the other one runs another release" in line


def test_a_reader_that_does_not_read_costs_its_own_outbox_and_is_told_all_again(
    reactor, tmp_path, closing, monkeypatch
):
    monkeypatch.setattr(server, "OUTBOX_MSGS", 8)
    settings = config(tmp_path, lease_s=30.0, beat_s=0.1)
    room = open_room(reactor, settings, closing)
    slow = Raw(reactor, settings.path("directory.ctl"), closing, receive_msgs=1)
    slow.tell(DirectoryKind.HELLO, Hello(want=True))
    announcer = announcer_of(reactor, settings, closing)
    replica, _reader = reader_of(reactor, settings, closing)
    turn_until(reactor, lambda: replica.synced)
    listening = room.sockets[0]
    big = [rpc(f"l{at:05}", server="s" * 200) for at in range(40)]
    rounds = 0

    def behind():
        nonlocal rounds
        rounds += 1
        set_records(announcer, big[rounds % 2 :: 2])
        return listening.counts["behind"]

    turn_until(reactor, behind, within_s=50)
    assert room.sockets[0].socket.waiting <= 8
    turn_until(reactor, lambda: len(listeners(replica)) == len(announcer.state.records) == 20)
    mirror = Replica()

    def caught_up():
        for message in slow.read():
            mirror.feed("x", message, 0.0)
        slow.got.clear()
        return mirror.states() == (announcer.state,)

    turn_until(reactor, caught_up)
    assert listening.counts["snapshots"] >= 3


@pytest.mark.patient
def test_listeners_that_vanish_or_fall_silent_are_forgotten(reactor, tmp_path, closing):
    settings = config(tmp_path, lease_s=0.4, beat_s=0.1)
    room = open_room(reactor, settings, closing)
    gone, silent = (Raw(reactor, settings.path("directory.ctl"), []) for _ in range(2))
    closing.append(silent)
    for raw in (gone, silent):
        raw.tell(DirectoryKind.HELLO, Hello(want=True))
    listening = room.sockets[0]
    turn_until(reactor, lambda: len(listening) == 2)
    gone.close()
    turn_until(reactor, lambda: listening.counts["lost"] == 1)
    turn_until(reactor, lambda: listening.counts["silent"] == 1)
    assert len(listening) == 0
    silent.tell(DirectoryKind.BEAT, ())
    silent.until(DirectoryKind.GREET)


def test_a_listener_is_forgotten_for_its_silence_and_only_for_that(reactor, tmp_path, closing):
    settings = config(tmp_path, lease_s=60.0, beat_s=20.0)
    listening = open_room(reactor, settings, closing).sockets[0]
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(DirectoryKind.HELLO, Hello(want=True))
    raw.until(DirectoryKind.WELCOME)
    (rid,) = listening._peers
    for _ in range(2):
        for _ in range(server.SILENT_LEASES):
            listening.tick(60.0)
        assert listening.heard(rid), "before it is too late"
    for _ in range(server.SILENT_LEASES):
        listening.tick(60.0)
    assert listening.counts["silent"] == 0
    listening.tick(0.1)
    assert (len(listening), listening.counts["silent"]) == (0, 1)


def test_a_directory_that_was_stopped_forgets_nobody_for_it(reactor, tmp_path, closing, monkeypatch):
    settings = config(tmp_path, lease_s=0.1, beat_s=0.025)
    listening = open_room(reactor, settings, closing).sockets[0]
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(DirectoryKind.HELLO, Hello(want=True))
    raw.until(DirectoryKind.WELCOME)
    clock = reactor.now
    monkeypatch.setattr(reactor, "now", lambda: clock() + (server.SILENT_LEASES + 1) * 0.1)
    for _ in range(3):
        reactor.turn()
    assert (len(listening), listening.counts["silent"]) == (1, 0)


def test_more_listeners_than_allowed_are_refused(reactor, tmp_path, closing, monkeypatch):
    monkeypatch.setattr(server, "PEERS_MAX", 1)
    settings = config(tmp_path)
    open_room(reactor, settings, closing)
    first, second = (Raw(reactor, settings.path("directory.ctl"), closing) for _ in range(2))
    first.tell(DirectoryKind.HELLO, Hello())
    first.until(DirectoryKind.WELCOME)
    second.tell(DirectoryKind.HELLO, Hello())
    assert "others are listening" in second.until(DirectoryKind.REFUSED).reason
