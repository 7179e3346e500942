"""Who gets in at a listener of ZeroMQ, and as whom."""

from broker.identity import ClientKey, Credentials, PeerInfo, PeerKey, Role
from broker.transport import curve
from broker.transport.link import Options
from broker.transport.zeromq.gate import NO_CREDENTIALS, Gate

PEER, CLIENT, SHARED, STRANGER = (curve.generate().public_key for _ in range(4))
GUEST = Credentials(1000, Role.USER)
KEYS: dict[str, PeerKey | ClientKey] = {
    PEER: PeerKey(3),
    SHARED: PeerKey(),
    CLIENT: ClientKey(GUEST),
}


def gate(keys=KEYS, uri="tcp://127.0.0.1:1", **options) -> Gate:
    return Gate(uri, Options(keys=keys or {}, **options))


def judged(door: Gate, key: str = "", origin=NO_CREDENTIALS) -> PeerInfo | None:
    return door.judge(f"{door.uri}#1", key, origin, "192.0.2.7")


def test_a_key_says_who_it_is():
    door = gate()
    peer = judged(door, PEER)
    assert (peer.key, peer.rank, peer.user, peer.local) == (PEER, 3, None, False)
    shared = judged(door, SHARED)
    assert (shared.key, shared.rank, shared.user) == (SHARED, None, None)
    client = judged(door, CLIENT)
    assert (client.key, client.rank, client.user) == (CLIENT, None, GUEST)


def test_an_unknown_key_stays_outside_and_is_counted():
    door = gate()
    assert judged(door, STRANGER) is None
    assert judged(gate(keys=None), PEER) is None
    assert door.denied == 1


def test_a_stranger_is_told_of_and_nobody_else_is():
    told = []
    door = gate(
        refused=lambda peer, errnum, reason: told.append((peer, errnum, reason)), admit=lambda peer: 13
    )
    assert judged(door, STRANGER) is None
    assert judged(door, CLIENT) is None  # whoever does not admit knows it already
    ((peer, errnum, reason),) = told
    assert (peer.key, errnum, reason) == (STRANGER, 1, f"unknown CURVE key {STRANGER}")


def test_keys_may_change_at_any_time():
    keys = dict(KEYS)
    door = gate(keys)
    keys[STRANGER] = PeerKey(4)
    assert judged(door, STRANGER).rank == 4
    del keys[STRANGER]
    assert judged(door, STRANGER) is None


def test_the_kernel_tells_uid_gid_and_pid():
    peer = judged(gate(uri="ipc:///run/x"), origin=(1000, 100, 4711))
    assert (peer.uid, peer.gid, peer.pid, peer.local) == (1000, 100, 4711, True)
    odd = judged(gate(uri="ipc:///run/x"))
    assert (odd.uid, odd.gid, odd.pid) == (None, None, None)


def test_admit_has_the_last_word():
    seen = []
    door = gate(uri="ipc:///run/x", admit=lambda peer: seen.append(peer.uid) or 13)
    assert judged(door, origin=(1000, 100, 4711)) is None
    assert seen == [1000]
