"""A directory with real sockets: announcing, reading, restarts, silence, several nodes."""

import os
import stat
import threading
import time
from dataclasses import replace

import msgspec
import pytest

from broker.errors import ConfigError
from broker.oslo import records
from broker.oslo.directory import server
from broker.oslo.directory.server import DirectoryServer
from broker.oslo.directory.wire import DirectoryKind, Hello
from broker.oslo.frames import Kind, decode, encode
from broker.oslo.reactor import naming
from broker.oslo.records import Record
from tests.unit.oslo.directory.clouds import (
    DEADLINE_S,
    Raw,
    announcer_of,
    config,
    listeners,
    open_again,
    open_room,
    reader_of,
    rpc,
    set_records,
    state,
    turn_for,
    turn_until,
)


def test_what_a_pipeline_offers_is_seen_by_its_node_and_ends_with_it(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    announcer = announcer_of(reactor, settings, closing)
    replica, reader = reader_of(reactor, settings, closing)
    turn_until(reactor, lambda: replica.synced and replica.state("n1", "call"))
    assert replica.state("n1", "call").endpoint == "tcp://127.0.0.1:9501"
    assert reader.alive
    set_records(announcer, [rpc("l1"), rpc("l2")])
    turn_until(reactor, lambda: listeners(replica) == ["l1", "l2"])
    set_records(announcer, [rpc("l2"), rpc("l3")])
    turn_until(reactor, lambda: listeners(replica) == ["l2", "l3"])
    announcer.leave()
    turn_until(reactor, lambda: replica.state("n1", "call") is None)
    assert listeners(replica) == []
    assert room.replica.leases["left"] == 1


def test_changes_of_one_turn_are_told_at_once(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    announcer = announcer_of(reactor, settings, closing)
    turn_until(reactor, lambda: len(room.replica.here.claims) == 1)
    set_records(announcer, [rpc(f"start{at}") for at in range(10)])
    turn_until(reactor, lambda: room.replica.here.records == 10)
    version = announcer.state.version
    for count in range(20):
        set_records(
            announcer, [rpc(f"start{at}") for at in range(10)] + [rpc(f"{at}") for at in range(count)]
        )
    turn_until(reactor, lambda: room.replica.here.records == 29)
    assert announcer.state.version == version + 1
    assert room.replica.here.claims[("n1", "call")].state.version == version + 1


def test_records_keep_the_fields_of_their_pipeline_and_bad_ones_are_counted(reactor, tmp_path, closing):
    settings = config(tmp_path)
    open_room(reactor, settings, closing)
    announcer = announcer_of(reactor, settings, closing, "fanout")
    replica, _reader = reader_of(reactor, settings, closing)
    set_records(
        announcer,
        [Record("nova", "t", "server", "l1"), Record("nova", "t", "other", "l2"), Record("a\nb", "t")],
    )
    turn_until(reactor, lambda: replica.fanout_nodes("nova", "t") == ("n1",))
    assert replica.state("n1", "fanout").records == (Record("nova", "t"),)
    assert announcer.counts["unfit"] == 1


def test_too_many_records_wait_until_others_end(reactor, tmp_path, closing, said, monkeypatch):
    monkeypatch.setattr(records, "RECORDS_MAX", 3)
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    announcer = announcer_of(reactor, settings, closing)
    set_records(announcer, [rpc("l1")])
    turn_until(reactor, lambda: room.replica.here.records == 1)
    announcer.add([rpc(f"l{at}") for at in range(2, 6)])
    turn_until(reactor, lambda: room.replica.here.records == 3)
    assert "5 listeners are too many for one node's directory; 2 of them wait" in said[-1]
    announcer.add([rpc("l6")])
    announcer.remove([rpc("l4"), rpc("nobody")])
    turn_for(reactor, 0.05)
    assert names_of(announcer) == ["l1", "l2", "l3"]
    announcer.remove([rpc("l1"), rpc("l2")])
    turn_until(reactor, lambda: names_of(announcer) == ["l3", "l5", "l6"])
    turn_until(reactor, lambda: room.replica.announced() == (announcer.state,))
    assert (
        announcer.counts["unfit"] == len([connection for connection in said if "too many" in connection]) == 1
    )
    announcer.add([rpc("l7")])
    turn_until(reactor, lambda: announcer.counts["unfit"] == 2)


def test_what_is_offered_already_is_not_told_again(reactor, tmp_path, closing):
    settings = config(tmp_path)
    open_room(reactor, settings, closing)
    announcer = announcer_of(reactor, settings, closing)
    announcer.add([rpc("l1")])
    turn_until(reactor, lambda: names_of(announcer) == ["l1"])
    version = announcer.state.version
    announcer.add([rpc("l1")])
    announcer.remove([rpc("l2")])
    turn_for(reactor, 0.05)
    assert (announcer.state.version, names_of(announcer)) == (version, ["l1"])


def names_of(announcer):
    return [each.listener for each in announcer.state.records]


def test_a_frozen_pipeline_is_gone_after_its_lease(reactor, tmp_path, closing):
    settings = config(tmp_path, lease_s=0.6, beat_s=0.1)
    room = open_room(reactor, settings, closing)
    replica, _reader = reader_of(reactor, settings, closing)
    raw = Raw(reactor, settings.path("directory.ctl"), closing)
    raw.tell(DirectoryKind.HELLO, Hello())
    raw.tell(DirectoryKind.ANNOUNCE, state(records=[rpc("l1")]))
    turn_until(reactor, lambda: listeners(replica) == ["l1"])
    turn_until(reactor, lambda: listeners(replica) == [])
    assert room.replica.leases["expired"] == 1


def test_a_restarted_directory_is_told_everything_again(reactor, tmp_path, closing):
    settings = config(tmp_path)
    first = open_room(reactor, settings, closing)
    announcer = announcer_of(reactor, settings, closing)
    set_records(announcer, [rpc("l1")])
    replica, _reader = reader_of(reactor, settings, closing)
    turn_until(reactor, lambda: listeners(replica) == ["l1"])
    first.stop("restarted")
    turn_for(reactor, 0.3)
    assert listeners(replica) == ["l1"]  # what is known stays known
    second = open_room(reactor, settings, closing)
    turn_until(reactor, lambda: second.replica.here.records == 1)
    seen = []
    replica.on_change.append(lambda: seen.append(listeners(replica)))
    set_records(announcer, [rpc("l1"), rpc("l2")])
    turn_until(reactor, lambda: listeners(replica) == ["l1", "l2"])
    assert all("l1" in each for each in seen)  # and never was away


@pytest.mark.patient
def test_a_silent_directory_is_noticed_and_takes_nothing_away(reactor, tmp_path, closing, said):
    settings = config(tmp_path, lease_s=0.5, beat_s=0.1)
    room = open_room(reactor, settings, closing)
    announcer = announcer_of(reactor, settings, closing)
    set_records(announcer, [rpc("l1")])
    replica, reader = reader_of(reactor, settings, closing)
    turn_until(reactor, lambda: listeners(replica) == ["l1"])
    room.stop("gone")
    turn_until(reactor, lambda: not reader.alive)
    assert listeners(replica) == ["l1"]
    assert any("silent for 0.5 s" in connection for connection in said)


def test_a_restarted_pipeline_replaces_the_one_before(reactor, tmp_path, closing):
    settings = config(tmp_path)
    open_room(reactor, settings, closing)
    replica, _reader = reader_of(reactor, settings, closing)
    old = announcer_of(reactor, settings, closing, incarnation=10)
    set_records(old, [rpc("old")])
    turn_until(reactor, lambda: listeners(replica) == ["old"])
    new = announcer_of(reactor, settings, closing, incarnation=20)
    set_records(new, [rpc("new")])
    turn_until(reactor, lambda: listeners(replica) == ["new"])
    old.leave()
    turn_for(reactor, 0.3)
    assert listeners(replica) == ["new"]


def test_the_room_says_what_it_counts(reactor, tmp_path, closing):
    settings = config(tmp_path, host="127.0.0.1", directory_port=0)
    room = open_room(reactor, settings, closing)
    set_records(announcer_of(reactor, settings, closing), [rpc("l1")])
    turn_until(reactor, lambda: room.replica.here.records == 1)
    raw = Raw(reactor, room.endpoint, closing)
    raw.say(encode(Kind.STATUS, id=bytes(range(16))), b"")
    turn_until(reactor, raw.read)
    head, body = raw.got[0]
    said = msgspec.json.decode(body)
    assert decode(head).id == bytes(range(16))
    assert [each["type"] for each in said["sockets"]] == ["ROUTER", "ROUTER"]
    assert (said["records"], said["node"], said["uplinks"], said["redis"]) == (1, "n1", [], [])
    assert said["registry"]["announced"] >= 1


def test_the_file_is_for_its_owner_and_goes_with_the_room(reactor, tmp_path, closing):
    settings = config(tmp_path)
    room = open_room(reactor, settings, closing)
    path = os.path.join(settings.ipc_dir, "directory.ctl")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    room.stop("done")
    assert not os.path.exists(path)
    room.stop("twice")


def test_plaintext_off_loopback_needs_a_word_of_the_operator(reactor, tmp_path, closing):
    room = DirectoryServer(reactor, config(tmp_path, host="0.0.0.0", directory_port=0))
    with pytest.raises(ConfigError, match="plaintext off loopback"):
        room.open()
    open_room(reactor, config(tmp_path, host="0.0.0.0", directory_port=0, insecure=True), closing)


# ---------------------------------------------------------------- several nodes


def two_nodes(reactor, tmp_path, closing, **more):
    far = config(tmp_path, "n2", host="127.0.0.1", directory_port=0, **more)
    far_room = open_room(reactor, far, closing)
    near = config(tmp_path, "n1", directories=(far_room.endpoint,), **more)
    return near, far, open_room(reactor, near, closing), far_room


def test_nodes_see_each_other_by_their_directories(reactor, tmp_path, closing):
    near, far, near_room, far_room = two_nodes(reactor, tmp_path, closing)
    here = announcer_of(reactor, near, closing)
    there = announcer_of(reactor, far, closing)
    set_records(here, [rpc("near")])
    set_records(there, [rpc("far")])
    near_replica, _ = reader_of(reactor, near, closing)
    far_replica, _ = reader_of(reactor, far, closing)
    turn_until(reactor, lambda: listeners(near_replica) == listeners(far_replica) == ["far", "near"])
    set_records(here, [rpc("near"), rpc("near2")])
    turn_until(reactor, lambda: listeners(far_replica) == ["far", "near", "near2"])
    there.leave()
    turn_until(reactor, lambda: listeners(near_replica) == ["near", "near2"])
    assert [each.place for each in near_room.replica.announced()] == [("n1", "call")]  # nothing is echoed
    assert {each.place for each in far_room.replica.announced()} == {("n1", "call")}
    here.leave()
    turn_until(reactor, lambda: listeners(far_replica) == [])


@pytest.mark.patient
def test_known_hosts_stay_known_while_the_other_directory_is_away_and_it_is_told_again(
    reactor, tmp_path, closing
):
    near, far, near_room, far_room = two_nodes(reactor, tmp_path, closing, lease_s=0.8, beat_s=0.1)
    set_records(announcer_of(reactor, near, closing), [rpc("near")])
    there = announcer_of(reactor, far, closing)
    set_records(there, [rpc("far")])
    replica, _ = reader_of(reactor, near, closing)
    turn_until(reactor, lambda: listeners(replica) == ["far", "near"] and far_room.replica.here.records == 2)
    far_room.stop("away")
    turn_until(reactor, lambda: not near_room.peers[0].alive)
    assert listeners(replica) == ["far", "near"]
    port = int(far_room.endpoint.rpartition(":")[2])
    again = open_again(reactor, config(tmp_path, "n2", host="127.0.0.1", directory_port=port), closing)
    turn_until(reactor, lambda: again.replica.here.records == 2)
    there.leave()
    turn_until(reactor, lambda: listeners(replica) == ["near"])


def test_a_directory_whose_name_is_not_resolved_keeps_nobody(reactor, tmp_path, closing, monkeypatch):
    answers = threading.Event()

    def look_up(_host):
        assert answers.wait(DEADLINE_S)
        return ("127.0.0.1",)

    monkeypatch.setattr(naming, "look_up", look_up)
    monkeypatch.setattr(server, "GATHER_S", 0.3)
    closing.append(answers.set)
    far_room = open_room(reactor, config(tmp_path, "n2", host="127.0.0.1", directory_port=0), closing)
    endpoint = far_room.endpoint.replace("127.0.0.1", "directory.example")
    near = config(tmp_path, "n1", directories=(endpoint,))
    room = open_room(reactor, near, closing)
    here = announcer_of(reactor, near, closing)
    set_records(here, [rpc("l1")])
    replica, _ = reader_of(reactor, near, closing)
    turn_until(reactor, lambda: replica.synced and listeners(replica) == ["l1"])
    assert not room.peers[0].alive
    assert len(far_room.replica.here.claims) == 0
    answers.set()
    turn_until(reactor, lambda: far_room.replica.here.records == 1)
    assert room.status()["uplinks"][0]["endpoint"] == endpoint


def test_snapshots_wait_for_the_other_directories_only_a_while(reactor, tmp_path, closing, monkeypatch):
    near, _far, near_room, _far_room = two_nodes(reactor, tmp_path, closing)
    replica, _ = reader_of(reactor, near, closing)
    turn_until(reactor, lambda: replica.synced)
    assert near_room.peers[0].heard_all
    alone = config(tmp_path, "n3", directories=("tcp://127.0.0.1:1",))
    monkeypatch.setattr(server, "GATHER_S", 0.4)
    begin = time.monotonic()
    open_room(reactor, alone, closing)
    replica, _ = reader_of(reactor, alone, closing)
    turn_until(reactor, lambda: replica.synced)
    assert time.monotonic() - begin >= 0.4


def test_a_link_to_oneself_is_given_up(reactor, tmp_path, closing, said):
    first = config(tmp_path, host="127.0.0.1", directory_port=0)
    port = open_room(reactor, first, closing)
    endpoint = port.endpoint
    port.stop("to know a free port")
    number = int(endpoint.rpartition(":")[2])
    settings = config(tmp_path, host="127.0.0.1", directory_port=number, directories=(endpoint,))
    room = open_again(reactor, settings, closing)
    set_records(announcer_of(reactor, settings, closing), [rpc("l1")])
    turn_until(reactor, lambda: room.peers[0].link.closed)
    replica, _ = reader_of(reactor, settings, closing)
    turn_until(reactor, lambda: listeners(replica) == ["l1"])
    assert room.replica.leases["foreign"] == 0
    assert any("this node itself" in connection for connection in said)


def test_two_nodes_of_one_name_are_told_so(reactor, tmp_path, closing, said):
    far_room = open_room(reactor, config(tmp_path, "far", host="127.0.0.1", directory_port=0), closing)
    settings = replace(config(tmp_path, "other", directories=(far_room.endpoint,)), node="far")
    room = open_room(reactor, settings, closing)
    turn_until(reactor, lambda: any("another node is called far" in connection for connection in said))
    assert room.replica.states() == ()


def test_a_reader_without_a_proxy_asks_over_tcp_and_finds_the_local_one_later(reactor, tmp_path, closing):
    far = config(tmp_path, "n2", host="127.0.0.1", directory_port=0)
    room = open_room(reactor, far, closing)
    set_records(announcer_of(reactor, far, closing), [rpc("far")])
    turn_until(reactor, lambda: room.replica.here.records == 1)
    nowhere = config(tmp_path, "n3")
    replica, reader = reader_of(reactor, nowhere, closing, directories=(room.endpoint,))
    turn_until(reactor, lambda: listeners(replica) == ["far"])
    assert list(reader.peers) == [room.endpoint]
    late = config(tmp_path, "n4")
    replica, reader = reader_of(reactor, late, closing)
    turn_for(reactor, 0.2)
    assert not reader.peers
    open_room(reactor, late, closing)
    turn_until(reactor, lambda: replica.synced)


def test_a_reader_finds_its_local_directory_though_another_one_answers(reactor, tmp_path, closing):
    """An application that starts before its node's proxy; that one knows more than a directory of the list."""
    far = config(tmp_path, "far", host="127.0.0.1", directory_port=0)
    far_room = open_room(reactor, far, closing)
    near = config(tmp_path, "near")
    replica, reader = reader_of(reactor, near, closing, directories=(far_room.endpoint,))
    turn_until(reactor, lambda: reader.alive and replica.synced)
    open_room(reactor, near, closing)
    announcer = announcer_of(reactor, near, closing)
    set_records(announcer, [rpc("next-door")])
    turn_until(reactor, lambda: listeners(replica) == ["next-door"])


def test_a_reader_whose_directory_goes_asks_the_others(reactor, tmp_path, closing):
    near, far, near_room, far_room = two_nodes(reactor, tmp_path, closing, lease_s=0.5, beat_s=0.1)
    replica, reader = reader_of(reactor, near, closing, directories=(far_room.endpoint,))
    turn_until(reactor, lambda: replica.synced)
    assert len(reader.peers) == 1
    near_room.stop("away")
    turn_until(reactor, lambda: reader.peers.get(far_room.endpoint) and reader.peers[far_room.endpoint].alive)
    set_records(announcer_of(reactor, far, closing), [rpc("new")])
    turn_until(reactor, lambda: listeners(replica) == ["new"])
