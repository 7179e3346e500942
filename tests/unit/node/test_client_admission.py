"""Who comes in gets the port that fits; the keys of the settings; uids that mean several people."""

import os

from broker.identity import Credentials, PeerInfo, Role
from broker.ingress.admission import Access
from broker.node.client_admission import ClientAdmission, groups_of
from tests.unit.node.desk import Desk, PaperLink, run, ticks


def come_in(desk, peer, access, **more):
    door = ClientAdmission(desk.broker, access, 100, 1000, **more)
    link = PaperLink(_options(desk))
    link.peer = peer
    assert door.admit(peer) == 0
    door.accept(link)
    return door, link.data


def _options(desk):
    from broker.transport.link import Options

    return Options(flusher=desk.broker.flusher)


def test_owner_and_guest_get_what_is_theirs():
    async def script():
        desk = Desk()
        access = Access(1000, allow_guest=True, overflow_uid=65534, allow_overflow=True)
        door, owner = come_in(desk, PeerInfo("o", uid=1000, local=True), access)
        _, guest = come_in(desk, PeerInfo("g", uid=2000, local=True), access, cmb1=True)
        _, shared = come_in(desk, PeerInfo("s", uid=65534, local=True), access)
        assert (owner.owner, guest.owner, shared.owner) == (True, False, False)
        assert (owner.cred.userid, guest.cred.userid, shared.cred.userid) == (1000, 2000, 65534)
        assert (owner.cmb1, guest.cmb1) == (False, True)
        assert (door.max_bytes(owner.link.peer), door.max_bytes(guest.link.peer)) == (1000, 100)
        assert len({port.uuid for port in (owner, guest, shared)}) == 3
        assert all(len(port.uuid) == 36 and port.link.reading for port in (owner, guest, shared))
        owner.link.abort(Exception("x"))
        await ticks()
        assert owner not in desk.broker.router.ports

    run(script())


def test_a_refusal_is_one_log_line(caplog):
    async def script():
        door = ClientAdmission(Desk().broker, Access(1000), 1, 1)
        assert door.admit(PeerInfo("local:///x#7", uid=2000, pid=77)) == 1
        assert [r.getMessage() for r in caplog.records] == [
            "refused local:///x#7 (pid 77): uid 2000 is a guest and guests are not allowed"
        ]

    run(script())


def test_a_known_user_is_stamped_as_such():
    async def script():
        desk = Desk()
        peer = PeerInfo("tcp://x", key="k", user=Credentials(77, Role.USER | Role.ADMIN))
        _, port = come_in(desk, peer, Access(1000))
        assert port.policy.stamp(bytes(8)) == Credentials(77, 10).encode()

    run(script())


def test_groups_of_a_uid_without_an_account():
    assert groups_of(4_000_000_000) == ()
    assert os.getgid() in groups_of(os.getuid()) or not groups_of(os.getuid())
