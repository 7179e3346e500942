"""Who may connect, as what: the whole table (RFC 12, "Guest Authentication", "Credential Assignment")."""

import errno
import itertools

from broker.identity import USERID_UNKNOWN, Credentials, PeerInfo, Role
from broker.ingress.admission import Access, admit
from tests.tables import for_each

ME, ROOT, GUEST, ADMIN, MEMBER, OVERFLOW = 1000, 0, 2000, 3000, 4000, 65534
UNSET = b"\xff\xff\xff\xff\0\0\0\0"
"""Credentials as clients send them."""
REFUSED = "refused"


def access(guest, root, overflow):
    return Access(
        ME,
        allow_guest=guest,
        allow_root_owner=root,
        admin_uids={ADMIN},
        admin_gids={50},
        overflow_uid=OVERFLOW,
        allow_overflow=overflow,
        groups_of=lambda uid: {MEMBER: (7, 50), OVERFLOW: (50,)}.get(uid, (uid,)),
    )


def outcome(peer, rules):
    """(userid, rolemask) that an unstamped message gets, or REFUSED."""
    admission = admit(peer, rules)
    if admission.errnum:
        assert admission.errnum == errno.EPERM
        assert admission.reason
        assert not admission.policy.cred.rolemask, "nobody may use the policy of a refusal"
        return REFUSED
    stamped = admission.policy.stamp(UNSET)
    return int.from_bytes(stamped[:4], "big"), int.from_bytes(stamped[4:], "big")


def expected(uid, guest, root, overflow):
    if uid == ME or (uid == ROOT and root):
        return ME, 5
    if uid == USERID_UNKNOWN or not guest or (uid == OVERFLOW and not overflow):
        return REFUSED
    return uid, 14 if uid in (ADMIN, MEMBER) else 6


@for_each(
    ("uid", "guest", "root", "overflow"),
    list(
        itertools.product((ME, ROOT, GUEST, ADMIN, MEMBER, OVERFLOW, USERID_UNKNOWN), *([(False, True)] * 3))
    ),
)
def test_the_table_of_uids(uid, guest, root, overflow):
    rules = access(guest, root, overflow)
    want = expected(uid, guest, root, overflow)
    assert outcome(PeerInfo("x", uid=uid, local=True), rules) == want
    away = (want[0], want[1] & ~Role.LOCAL) if want != REFUSED else REFUSED
    assert outcome(PeerInfo("x", uid=uid, local=False), rules) == away


def test_nobody_is_refused_in_every_user_namespace():
    """Several programs run as nobody, whether or not the kernel says so of strangers, too."""
    nobody = PeerInfo("x", uid=65534, local=True)
    assert outcome(nobody, Access(ME, allow_guest=True)) == REFUSED
    assert outcome(nobody, Access(ME, allow_guest=True, admin_uids={65534}, allow_overflow=True)) == (
        65534,
        6,
    )
    assert outcome(nobody, Access(65534)) == (65534, 5), "who runs as nobody owns the instance"


def test_whoever_is_not_mapped_is_stamped_as_nobody():
    rules = Access(ME, allow_guest=True, overflow_uid=99, allow_overflow=True)
    assert outcome(PeerInfo("x", uid=99, local=True), rules) == (65534, 6)


def test_where_the_owner_is_the_overflow_uid_nobody_is_taken_for_it():
    """Found here: in a user namespace that does not map the owner, every stranger has the owner's uid."""
    peer = PeerInfo("x", uid=OVERFLOW, local=True)
    rules = Access(OVERFLOW, allow_guest=True, overflow_uid=OVERFLOW)
    assert outcome(peer, rules) == REFUSED
    shared = Access(OVERFLOW, allow_guest=True, overflow_uid=OVERFLOW, allow_overflow=True)
    assert outcome(peer, shared) == (OVERFLOW, 6)


@for_each(
    ("user", "stamped"),
    [
        (Credentials(77, Role.USER), (77, 2)),
        (Credentials(77, Role.USER | Role.ADMIN), (77, 10)),
        (Credentials(ME, Role.OWNER), (ME, 1)),
    ],
)
@for_each("guest", [False, True])
@for_each("local", [False, True])
def test_a_known_key_has_its_user_and_is_never_local(user, stamped, guest, local):
    peer = PeerInfo("tcp://x", user=user, key="k", local=local)
    assert outcome(peer, access(guest, False, False)) == stamped
    assert admit(peer, access(guest, False, False)).policy.pass_through is user.owner


@for_each("uid", [None, ME, GUEST])
def test_a_tree_peer_is_trusted_and_loses_local(uid):
    policy = admit(PeerInfo("x", rank=3, uid=uid), access(False, False, False)).policy
    assert policy.stamp(bytes.fromhex("00000001000000ff")).hex() == "00000001000000fb"
    assert policy.stamp(UNSET) == UNSET


def test_who_has_no_identity_is_refused():
    assert outcome(PeerInfo("x"), access(True, True, True)) == REFUSED


def test_root_as_owner_speaks_in_nobodys_name():
    policy = admit(PeerInfo("x", uid=ROOT, local=True), access(False, True, False)).policy
    assert policy.stamp(bytes.fromhex("000004d200000002")) == Credentials(ME, 5).encode()


def test_groups_are_looked_up_only_where_they_matter():
    asked = []

    def groups_of(uid):
        asked.append(uid)
        return ()

    admit(PeerInfo("x", uid=GUEST), Access(ME, allow_guest=True, groups_of=groups_of))
    admit(
        PeerInfo("x", uid=ADMIN),
        Access(ME, allow_guest=True, admin_uids={ADMIN}, admin_gids={1}, groups_of=groups_of),
    )
    admit(PeerInfo("x", uid=GUEST), Access(ME, admin_gids={1}, groups_of=groups_of))
    assert asked == []
    admit(PeerInfo("x", uid=GUEST), Access(ME, allow_guest=True, admin_gids={1}, groups_of=groups_of))
    assert asked == [GUEST]
