"""The ZAP handler: who gets in, and as whom."""

import asyncio

import zmq

from broker.identity import ClientKey, Credentials, PeerInfo, PeerKey, Role
from broker.transport import curve
from broker.transport.link import Options
from broker.transport.zeromq.zap import ListenerPolicy, Zap

PEER, CLIENT, SHARED, STRANGER = (curve.generate().public_key for _ in range(4))
GUEST = Credentials(1000, Role.USER)
KEYS: dict[str, PeerKey | ClientKey] = {
    PEER: PeerKey(3),
    SHARED: PeerKey(),
    CLIENT: ClientKey(GUEST),
}


def gate(keys=KEYS, uri="tcp://127.0.0.1:1", **options) -> ListenerPolicy:
    return ListenerPolicy(uri, Options(keys=keys or {}, **options))


def peer_for(door: ListenerPolicy, address: str, key: str = "") -> PeerInfo | None:
    tag = door.judge(address, key)
    return None if tag is None else door.peer(tag, address)


def test_a_key_says_who_it_is():
    door = gate()
    peer = peer_for(door, "127.0.0.1", PEER)
    assert (peer.key, peer.rank, peer.user, peer.local) == (PEER, 3, None, False)
    shared = peer_for(door, "127.0.0.1", SHARED)
    assert (shared.key, shared.rank, shared.user) == (SHARED, None, None)
    client = peer_for(door, "::ffff:10.0.0.7", CLIENT)
    assert (client.key, client.rank, client.user) == (CLIENT, None, GUEST)
    assert client.address.startswith("tcp://10.0.0.7#")


def test_an_unknown_key_stays_outside_and_is_counted():
    door = gate()
    assert door.judge("127.0.0.1", STRANGER) is None
    assert gate(keys=None).judge("127.0.0.1", PEER) is None
    assert door.gate.denied == 1


def test_a_stranger_is_told_of_and_nobody_else_is():
    told = []
    door = gate(
        refused=lambda peer, errnum, reason: told.append((peer, errnum, reason)), admit=lambda peer: 13
    )
    door.judge("::ffff:192.0.2.7", STRANGER)
    door.judge("192.0.2.7", CLIENT)  # whoever does not admit knows it already
    ((peer, errnum, reason),) = told
    assert peer.address.startswith("tcp://192.0.2.7#")
    assert (peer.key, errnum, reason) == (STRANGER, 1, f"unknown CURVE key {STRANGER}")


def test_keys_may_change_at_any_time():
    keys = dict(KEYS)
    door = gate(keys)
    keys[STRANGER] = PeerKey(4)
    tag = door.judge("127.0.0.1", STRANGER)
    assert tag is not None
    assert door.peer(tag, "127.0.0.1").rank == 4
    del keys[STRANGER]
    assert door.peer(tag, "127.0.0.1") is None
    assert door.judge("127.0.0.1", STRANGER) is None


def test_no_two_connections_are_tagged_alike():
    door = gate()
    assert door.judge("127.0.0.1", PEER) != door.judge("127.0.0.1", PEER)


def test_ipc_tells_uid_gid_and_pid():
    peer = peer_for(gate(uri="ipc:///run/x"), "localhost:1000:100:4711")
    assert (peer.uid, peer.gid, peer.pid, peer.local) == (1000, 100, 4711, True)
    odd = peer_for(gate(uri="ipc:///run/x"), "localhost")
    assert (odd.uid, odd.gid, odd.pid) == (None, None, None)


def test_admit_has_the_last_word():
    seen = []
    door = gate(uri="ipc:///run/x", admit=lambda peer: seen.append(peer.uid) or 13)
    assert door.judge("localhost:1000:100:4711", "") is None
    assert seen == [1000]


def test_the_size_cap_is_the_largest_anyone_has():
    assert gate(max_bytes=lambda peer: 5 if peer.rank is None else 500).largest_bytes() == 500


def test_replies():
    async def check():
        with zmq.Context() as context:
            handler = Zap(context.socket(zmq.ROUTER), asyncio.get_running_loop())
            door = gate()
            domain = handler.add(door)
            key = zmq.utils.z85.decode(PEER)
            asked = [b"1.0", b"7", domain, b"127.0.0.1", b"", b"CURVE", key]
            version, number, code, _text, tag, metadata = handler.reply(asked)
            assert (version, number, code, metadata) == (b"1.0", b"7", b"200", b"")
            assert tag.decode().endswith(f" {PEER}")
            assert handler.reply([*asked[:6], bytes(32)])[2] == b"400"
            assert handler.reply([*asked[:2], b"elsewhere", *asked[3:]]) == []
            door.shut = True
            assert handler.reply(asked) == []
            door.shut = False
            handler.remove(domain)
            assert handler.reply(asked) == []
            handler.close()

    asyncio.run(check())


def test_a_handler_may_follow_another_at_once():
    async def check():
        with zmq.Context() as context:
            for _ in range(50):
                handler = Zap(context.socket(zmq.ROUTER), asyncio.get_running_loop())
                handler.close()
                handler.close()

    asyncio.run(check())
