"""Whose key it is, which keys have retired and which are revoked, and what a certificate is held against."""

import pytest

from broker.errors import ConfigError
from broker.identity import ClientKey, Credentials, PeerInfo, PeerKey, Role
from broker.node.curve_keys import CurveKeys, peer_keys, retired
from broker.settings import loads
from broker.transport import curve
from tests.tables import for_each
from tests.unit.node.keyed import Site

GUEST = Credentials(77, int(Role.USER))


@pytest.fixture
def site(rundir):
    return Site(rundir, 3)


@pytest.fixture
def ring(site):
    made = CurveKeys(site.read(0))
    made.options()
    return made


def follow(ring, site, rank=0):
    settings = site.read(rank)
    ring.change(settings, ring.read_certificate(settings))


def tree_peer(key, rank=None):
    return PeerInfo("tcp://x", key=key, rank=rank)


def test_both_keys_of_a_rank_are_its_own(site):
    new = site.announce(1)[1]
    keys = peer_keys(site.read(0))
    assert keys[site.listed[1]] == keys[new.public_key] == PeerKey(1)
    assert len(keys) == 4


def test_options_of_a_listener_follow_every_change(ring, site):
    assert ring.options()["curve"].certificate == site.shown[0]
    peers, clients = ring.peers, ring.clients
    assert set(peers) == set(site.listed)
    assert clients == {}
    new = site.announce(2)[2]
    client = curve.generate()
    site.clients[client.public_key] = "userid = 77\n"
    site.write()
    follow(ring, site)
    assert peers[new.public_key] == PeerKey(2)
    assert clients[client.public_key] == ClientKey(GUEST)


def test_a_dialler_is_told_both_keys_of_its_parent(site):
    new = site.announce(0)[0]
    own = site.read(1)
    shown = CurveKeys(own).dial_options(own.host(0))["curve"]
    assert (shown.server_key, shown.next_key) == (site.listed[0], new.public_key)
    assert shown.certificate == site.shown[1]


def test_without_a_certificate_there_is_nothing_but_batches():
    plain = CurveKeys(loads('[[hosts]]\nrank = 0\naddress = "tcp://127.0.0.1:1"\n').at_rank(0))
    assert plain.options() == {"batch": True}
    assert plain.certificate is None
    assert plain.read_certificate(loads("")) is None


def test_a_parent_without_a_key_cannot_be_dialled(site):
    own = site.read(1)
    with pytest.raises(ConfigError, match="rank 0 has no public_key"):
        CurveKeys(own).dial_options(loads('[[hosts]]\nrank = 0\naddress = "tcp://127.0.0.1:1"\n').hosts[0])


# -- retired and revoked -----------------------------------------------------------------------


def test_a_key_that_its_rank_has_left_for_the_next_one_retires(ring, site):
    former = site.listed[1]
    site.announce(1)
    follow(ring, site)
    assert ring.refusal(tree_peer(former, 1), 1) == ""
    site.settle()
    follow(ring, site)
    assert ring.refusal(tree_peer(former, 1), 1) == ""
    assert former not in ring.peers
    follow(ring, site)  # and a later reading does not forget it
    assert ring.refusal(tree_peer(former, 1), 1) == ""
    assert "[[hosts]]" in ring.refusal(tree_peer(former, 1), 2)
    assert "[[hosts]]" in ring.refusal(tree_peer(former, 1))


def test_a_retired_key_that_its_rank_has_got_back_can_be_revoked(ring, site):
    former = site.listed[1]
    site.announce(1)
    follow(ring, site)
    site.settle()
    follow(ring, site)
    site.following[1] = former  # the new one was no good: the same way back
    site.write()
    follow(ring, site)
    site.settle()
    follow(ring, site)
    assert ring.refusal(tree_peer(former, 1), 1) == ""
    site.listed[1] = curve.generate().public_key
    site.write()
    follow(ring, site)
    assert ring.refusal(tree_peer(former, 1), 1) == "its key has been taken out of [[hosts]]"


def test_a_key_that_is_just_replaced_is_revoked(ring, site):
    former = site.listed[1]
    site.listed[1] = curve.generate().public_key
    site.write()
    follow(ring, site)
    assert ring.refusal(tree_peer(former, 1), 1) == "its key has been taken out of [[hosts]]"


def test_a_key_to_come_that_is_taken_back_is_revoked(ring, site):
    former, new = site.listed[1], site.announce(1)[1]
    follow(ring, site)
    site.following[1] = None
    site.write()
    follow(ring, site)
    assert ring.refusal(tree_peer(new.public_key, 1), 1) == "its key has been taken out of [[hosts]]"
    assert ring.refusal(tree_peer(former, 1), 1) == ""


def test_a_key_that_goes_to_another_rank_is_no_longer_the_former_ones(ring, site):
    former = site.listed[1]
    site.listed[1], site.listed[2] = site.listed[2], site.listed[1]
    site.write()
    follow(ring, site)
    assert ring.refusal(tree_peer(former, 1), 1) == "its key is now that of rank 2"
    assert ring.refusal(tree_peer(former, 1)) == "its key is now that of rank 2"


def test_one_key_for_all_ranks_retires_too(rundir):
    site = Site(rundir, 3)
    shared, new = curve.generate(), curve.generate()
    for rank in range(3):
        site.show(rank, shared)
    site.listed, site.following = [shared.public_key] * 3, [new.public_key] * 3
    site.write()
    ring = CurveKeys(site.read(0))
    assert ring.peers[new.public_key] == PeerKey(None)
    site.show(0, new)
    site.settle()
    assert retired(ring._settings, site.read(0)) == {(shared.public_key, rank) for rank in range(3)}
    follow(ring, site)
    assert ring.refusal(tree_peer(shared.public_key), 2) == ""
    assert ring.refusal(tree_peer(new.public_key), 2) == ""


def test_clients_are_known_by_key_user_and_roles(ring, site):
    key = curve.generate().public_key
    here = PeerInfo("tcp://y", key=key, user=GUEST)
    assert ring.refusal(here) == "its key has been taken out of [[clients]]"
    site.clients[key] = "userid = 77\n"
    site.write()
    follow(ring, site)
    assert ring.refusal(here) == ""
    site.clients[key] = 'userid = 77\nroles = ["owner"]\n'
    site.write()
    follow(ring, site)
    assert ring.refusal(here) == "its key has got another user or other roles"


@for_each(
    ("roles", "mask"),
    [
        ('["user"]', Role.USER),
        ('["admin"]', Role.USER | Role.ADMIN),
        ('["user", "admin"]', Role.USER | Role.ADMIN),
        ('["owner"]', Role.OWNER),
        ('["owner", "admin"]', Role.OWNER | Role.USER | Role.ADMIN),
    ],
)
def test_an_admin_is_a_user_too(ring, site, roles, mask):
    key = curve.generate().public_key
    site.clients[key] = f"userid = 77\nroles = {roles}\n"
    site.write()
    follow(ring, site)
    known = ring.clients[key]
    assert known == ClientKey(Credentials(77, int(mask)))
    assert ring.refusal(PeerInfo("tcp://y", key=key, user=Credentials(77, int(mask)))) == ""


# -- our own certificate -----------------------------------------------------------------------


def test_our_certificate_must_be_one_that_the_others_expect(ring, site):
    site.show(0, curve.generate())
    with pytest.raises(ConfigError, match="neither public_key nor next_key of our rank"):
        ring.read_certificate(site.read(0))
    site.show(0, site.announce(0)[0])
    assert ring.read_certificate(site.read(0)) == site.shown[0]
    (site.folder / "rank-0.cert").unlink()
    with pytest.raises(ConfigError, match="cannot read the certificate"):
        ring.read_certificate(site.read(0))
