"""Peers of a directory that misbehave: bad input, silence, reading too slowly, too many."""

from broker.oslo import frames as envelopes
from broker.oslo.directory import audience, wire
from broker.oslo.directory.replica import Replica
from broker.oslo.directory.wire import Hello, Kind
from broker.oslo.records import Beat
from tests.unit.oslo.directory.clouds import (
    Raw,
    announcer_of,
    changed,
    config,
    listeners,
    open_room,
    reader_of,
    rpc,
    state,
    turn_for,
    turn_until,
)


def test_another_peer_of_the_port_cannot_replace_what_this_node_announced(reactor, tmp_path, closing):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    announcer_of(reactor, settings, closing, incarnation=5).set_records([rpc("l1")])
    turn_until(reactor, lambda: room.registry.records == 1)
    raw = Raw(reactor, room.endpoint, closing)
    raw.tell(Kind.HELLO, Hello())
    raw.tell(Kind.ANNOUNCE, state(incarnation=1 << 62, records=[rpc("evil")]))
    assert "another key" in raw.until(Kind.REFUSED).reason
    raw.tell(Kind.LEAVE, Beat("n1", "call", 1 << 62, 1))
    turn_until(reactor, lambda: room.registry.counts["foreign"] == 2)
    assert [each.listener for each in room.registry.state(("n1", "call")).records] == ["l1"]


def test_broken_messages_are_dropped_and_counted_and_the_room_lives(reactor, tmp_path, closing, caplog):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, room.endpoint, closing)
    bad = [
        (b"",),
        (b"", b""),
        (b"HGD\x01\x01",),
        (b"HGD\x01\x01", b"{", b""),
        (b"HGD\x01\x01", b"\xff\xfe"),
        (b"HGD\x02\x01", b"{}"),
        (b"HGD\x01\x12", b"{}"),
        (b"HGD\x01\x02", b'{"node": "", "pipeline": "call"}'),
        (b"HGO" + bytes(10), b""),
        (envelopes.encode(envelopes.Kind.CALL), b""),
    ]
    for parts in bad:
        raw.say(*parts)
    turn_until(reactor, lambda: room.counts["malformed"] == len(bad))
    raw.tell(Kind.HELLO, Hello(want=True))
    assert raw.until(Kind.STATES).complete
    assert len([line for line in caplog.messages if "dropped a message" in line]) == 1


def test_an_oversized_message_ends_its_connection_only(reactor, tmp_path, closing):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, room.endpoint, closing)
    other = Raw(reactor, room.endpoint, closing)
    other.tell(Kind.HELLO, Hello())
    other.until(Kind.WELCOME)
    raw.say(b"HGD\x01\x02", bytes(wire.TOLD_BYTES_MAX + 1))
    raw.tell(Kind.HELLO, Hello(node="again"))
    turn_for(reactor, 0.3)
    other.tell(Kind.HELLO, Hello(want=True))
    assert other.until(Kind.STATES).complete


def test_who_never_said_hello_is_asked_for_it(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(Kind.ANNOUNCE, state(records=[rpc("l1")]))
    assert raw.until(Kind.RESEND) == ()
    assert len(room.registry) == 0


def test_a_change_that_does_not_fit_is_answered_by_resend(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(Kind.HELLO, Hello())
    raw.tell(Kind.CHANGE, changed(1, 2, added=[rpc("l1")]).body)
    assert raw.until(Kind.RESEND) == (("n1", "call"),)
    assert room.registry.counts["resent"] == 1


def test_a_reader_that_does_not_read_costs_its_own_outbox_and_is_told_all_again(
    reactor, tmp_path, closing, monkeypatch
):
    monkeypatch.setattr(audience, "OUTBOX_MSGS", 8)
    settings = config(tmp_path, lease_s=30.0, beat_s=0.1)
    room = open_room(reactor, settings, closing)
    slow = Raw(reactor, settings.path("directory.ctl"), closing)
    slow.tell(Kind.HELLO, Hello(want=True))
    announcer = announcer_of(reactor, settings, closing)
    replica, _reader = reader_of(reactor, settings, closing)
    turn_until(reactor, lambda: replica.synced)
    listening = room._doors[0].audience
    big = [rpc(f"l{at:05}", server="s" * 200) for at in range(40)]
    rounds = 0

    def behind():
        nonlocal rounds
        rounds += 1
        announcer.set_records(big[rounds % 2 :: 2])
        return listening.counts["behind"]

    turn_until(reactor, behind, within_s=50)
    assert room._doors[0].pipe.waiting <= 8
    turn_until(reactor, lambda: len(listeners(replica)) == len(announcer.state.records) == 20)
    mirror = Replica()

    def caught_up():
        for message in slow.read():
            mirror.feed("x", message, 0.0)
        slow.got.clear()
        return mirror.state("n1", "call") == announcer.state

    turn_until(reactor, caught_up)
    assert listening.counts["snapshots"] >= 3


def test_listeners_that_vanish_or_fall_silent_are_forgotten(reactor, tmp_path, closing):
    settings = config(tmp_path, lease_s=0.4, beat_s=0.1)
    room = open_room(reactor, settings, closing)
    gone, silent = (Raw(reactor, settings.path("directory.ctl"), []) for _ in range(2))
    closing.append(silent)
    for raw in (gone, silent):
        raw.tell(Kind.HELLO, Hello(want=True))
    listening = room._doors[0].audience
    turn_until(reactor, lambda: len(listening) == 2)
    gone.close()
    turn_until(reactor, lambda: listening.counts["lost"] == 1)
    turn_until(reactor, lambda: listening.counts["silent"] == 1)
    assert len(listening) == 0
    silent.tell(Kind.BEAT, ())
    assert silent.until(Kind.RESEND) == ()


def test_more_listeners_than_allowed_are_refused(reactor, tmp_path, closing, monkeypatch):
    monkeypatch.setattr(audience, "PEERS_MAX", 1)
    settings = config(tmp_path)
    open_room(reactor, settings, closing)
    first, second = (Raw(reactor, settings.path("directory.ctl"), closing) for _ in range(2))
    first.tell(Kind.HELLO, Hello())
    first.until(Kind.WELCOME)
    second.tell(Kind.HELLO, Hello())
    assert "others are listening" in second.until(Kind.REFUSED).reason
