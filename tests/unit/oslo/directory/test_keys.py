"""CURVE at a directory's port: who enters, who may announce."""

from dataclasses import replace

import pytest

from broker.identity import Role
from broker.oslo.directory import peer
from broker.oslo.directory.peer import Peer
from broker.oslo.directory.server import PLAIN_OWNER, DirectoryServer, FolderAccess, PortAccess
from broker.oslo.directory.state import LOCAL_OWNER, Replica
from broker.oslo.node import KeyEntry, NodeConfig
from broker.oslo.reactor.tuning import Tuning
from broker.transport import curve
from tests.tables import for_each
from tests.unit.oslo.directory.clouds import (
    announcer_of,
    config,
    listeners,
    reader_of,
    rpc,
    set_records,
    state,
    turn_for,
    turn_until,
)


def link_with(reactor, room, closing, certificate, server_key):
    replica = Replica()
    tuning = Tuning() if certificate is None else Tuning(curve=curve.CurveClient(certificate, server_key))
    link = Peer(reactor, room.endpoint, replica, tunings=lambda: (tuning,))
    closing.append(link)
    return link, replica


@pytest.fixture
def keys():
    return {name: curve.generate() for name in ("own", "listed", "client", "refused", "unknown")}


def guarded(reactor, tmp_path, closing, keys, **more) -> DirectoryServer:
    path = tmp_path / "own.key"
    curve.save(keys["own"], path)
    entries = (
        KeyEntry(keys["listed"].public_key, rolemask=int(Role.OWNER)),
        KeyEntry(keys["client"].public_key),
        KeyEntry(keys["refused"].public_key, rolemask=0),
    )
    settings = config(
        tmp_path, host="127.0.0.1", directory_port=0, curve_cert=str(path), keys=entries, **more
    )
    room = DirectoryServer(reactor, settings)
    room.open()
    closing.append(lambda: room.stop("the test is over"))
    return room


def test_owners_keys_and_our_own_announce_others_only_read(reactor, tmp_path, closing, keys):
    room = guarded(reactor, tmp_path, closing, keys, unlisted=int(Role.USER))
    own_key = keys["own"].public_key
    for at, name in enumerate(("own", "listed", "client", "unknown")):
        link, replica = link_with(reactor, room, closing, keys[name], own_key)
        link.announce(state(f"{name}", records=[rpc(name)]))
        turn_until(reactor, lambda r=replica: r.synced)
        if name in ("client", "unknown"):
            turn_until(reactor, lambda one=link: one.counts["refused"])
        else:
            turn_until(reactor, lambda n=at + 1: len(room.replica.here.claims) == n)
    assert {each.node for each in room.replica.announced()} == {"own", "listed"}
    assert [each.listener for each in replica.servers("nova", "compute")] == ["listed", "own"]


@pytest.mark.parametrize("who", ["refused", "plain", "wrong"])
def test_nobody_else_enters(reactor, tmp_path, closing, keys, who):
    room = guarded(reactor, tmp_path, closing, keys)
    certificate = None if who == "plain" else keys["refused" if who == "refused" else "listed"]
    server_key = keys["unknown" if who == "wrong" else "own"].public_key
    link, replica = link_with(reactor, room, closing, certificate, server_key)
    turn_for(reactor, 0.6)
    assert not link.alive
    assert not replica.synced
    assert len(room.sockets[1]) == 0
    assert room.status()["denied"]


def test_other_keys_are_tried_while_a_directory_is_silent(reactor, tmp_path, closing, keys, monkeypatch):
    """As after a reload: the directories get their new keys at different times."""
    monkeypatch.setattr(peer, "RENEW_S", 0.2)
    room = guarded(reactor, tmp_path, closing, keys)
    new, former = (
        Tuning(curve=curve.CurveClient(keys["listed"], keys[name].public_key)) for name in ("unknown", "own")
    )
    one = Peer(reactor, room.endpoint, Replica(), tunings=lambda: (new, former), pulse_s=0.1)
    closing.append(one)
    one.announce(state("n5", records=[rpc("l1")]))
    turn_until(reactor, lambda: one.alive and room.replica.here.records == 1)


@pytest.mark.parametrize("said", [{}, {"unlisted": 0}])
def test_unlisted_keys_do_not_enter_unless_a_setting_lets_them_in(reactor, tmp_path, closing, keys, said):
    room = guarded(reactor, tmp_path, closing, keys, **said)
    link, _replica = link_with(reactor, room, closing, keys["unknown"], keys["own"].public_key)
    turn_until(reactor, lambda: room.status()["denied"])
    assert not link.alive
    link, replica = link_with(reactor, room, closing, keys["listed"], keys["own"].public_key)
    turn_until(reactor, lambda: replica.synced)


def test_the_key_of_our_directories_is_one_that_announces_unless_it_is_listed_as_another(keys):
    other = keys["unknown"].public_key
    config = NodeConfig(ipc_dir="/x", curve_cert="/c", directory_key=other)
    assert owner_of(PortAccess(config), other) == other
    assert owner_of(PortAccess(replace(config, keys=(KeyEntry(other),))), other) == ""


def test_our_own_key_announces_whatever_it_is_listed_as(keys):
    own = keys["own"].public_key
    access = PortAccess(NodeConfig(ipc_dir="/x", curve_cert="/c", keys=(KeyEntry(own),)))
    assert owner_of(access, own) == ""
    access.own_key = own
    assert owner_of(access, own) == own


def owner_of(access, key, *nodes):
    return access.judge_announcement(access.judge("10.0.0.1", key), set(nodes), "n1")[0]


def test_a_key_cannot_take_over_what_another_announced(reactor, tmp_path, closing, keys):
    room = guarded(reactor, tmp_path, closing, keys)
    own_key = keys["own"].public_key
    first, _ = link_with(reactor, room, closing, keys["own"], own_key)
    first.announce(state("n5", incarnation=5, records=[rpc("first")]))
    turn_until(reactor, lambda: len(room.replica.here.claims) == 1)
    second, _ = link_with(reactor, room, closing, keys["listed"], own_key)
    second.announce(state("n5", incarnation=9, records=[rpc("second")]))
    turn_until(reactor, lambda: room.replica.leases["foreign"])
    assert [each.listener for each in room.replica.announced()[0].records] == ["first"]
    turn_until(reactor, lambda: second.counts["refused"])


def test_nodes_that_share_a_certificate_see_each_other(reactor, tmp_path, closing, keys):
    far = guarded(reactor, tmp_path, closing, keys)
    near_config = config(tmp_path, "n2", directories=(far.endpoint,), curve_cert=str(tmp_path / "own.key"))
    near = DirectoryServer(reactor, near_config)
    near.open()
    closing.append(lambda: near.stop("the test is over"))
    turn_until(reactor, lambda: near.peers[0].heard_all)


def test_without_curve_all_peers_of_the_port_are_one():
    access = PortAccess(NodeConfig(ipc_dir="/x"))
    assert owner_of(access, "", "n2") == PLAIN_OWNER
    assert owner_of(access, "", "n2", "n1") == ""
    assert not access.enters("")
    closed = PortAccess(NodeConfig(ipc_dir="/x", unlisted=0))
    assert closed.judge("127.0.0.1", "") is None
    assert closed.denied == 1


@for_each(
    ("address", "owner"),
    [
        ("localhost:1000:100:7", LOCAL_OWNER),
        ("localhost:0:0:1", LOCAL_OWNER),
        ("localhost:1001:100:7", ""),
        ("localhost:1001:1000:0", ""),
        ("localhost", ""),
        ("", ""),
        ("localhost:-1:0:0", ""),
    ],
)
def test_who_announces_in_the_folder_is_our_own_user_or_root(address, owner):
    access = FolderAccess(NodeConfig(ipc_dir="/x"), uid=1000)
    assert access.judge_announcement(address, {"n1"}, "n1")[0] == owner
    assert access.judge_announcement(address, {"n1", "n2"}, "n1")[0] == ""


@pytest.mark.patient
def test_a_key_that_spoke_for_a_node_first_cannot_keep_its_own_pipelines_out(
    reactor, tmp_path, closing, keys
):
    room = guarded(reactor, tmp_path, closing, keys)
    link, _replica = link_with(reactor, room, closing, keys["listed"], keys["own"].public_key)
    link.announce(state("n1", incarnation=1 << 62, records=[rpc("other")]))
    turn_until(reactor, lambda: len(room.replica.here.claims) == 1)
    settings = config(tmp_path)
    replica, _reader = reader_of(reactor, settings, closing)
    turn_until(reactor, lambda: listeners(replica) == ["other"])
    set_records(announcer_of(reactor, settings, closing, incarnation=5), [rpc("mine")])
    turn_until(reactor, lambda: listeners(replica) == ["mine"])
    turn_until(reactor, lambda: link.counts["refused"])  # its next word about it
    assert room.replica.here.claims[("n1", "call")].owner == LOCAL_OWNER
