"""Who comes in, as whom, and what they may do."""

from broker.identity import USERID_UNKNOWN, Credentials, Role
from broker.oslo.node import KeyEntry, NodeConfig, Rule
from broker.oslo.proxy.acl import AccessControl
from broker.transport import curve
from tests.tables import for_each

KEY, GUEST, BANNED, STRANGER = (curve.generate().public_key for _ in range(4))
USER = Credentials(1000, int(Role.USER | Role.LOCAL))


def acl(uid: int = 500, shared_uid: int | None = None, **settings) -> AccessControl:
    return AccessControl(NodeConfig("/run/x", **settings), uid, shared_uid)


@for_each(
    ("address", "who"),
    [
        ("localhost:500:100:4711", Credentials(500, 7)),
        ("localhost:0:0:1", Credentials(0, 7)),
        ("localhost:1000:100:4711", Credentials(1000, 6)),
        ("localhost:65534:100:4711", None),
        ("127.0.0.1", None),
        ("", None),
        ("localhost:x:1:2", None),
    ],
)
def test_a_local_peer_is_who_the_kernel_says(address, who):
    assert acl(shared_uid=65534).by_ipc(address) == who


def test_our_own_uid_is_ours_even_when_it_is_the_shared_one():
    assert acl(uid=65534, shared_uid=65534).by_ipc("localhost:65534:1:2") == Credentials(65534, 7)


def test_a_key_says_who_a_remote_peer_is_and_never_local():
    keys = (
        KeyEntry(KEY, "boss", 7, int(Role.OWNER | Role.USER | Role.LOCAL)),
        KeyEntry(GUEST, userid=8),
        KeyEntry(BANNED, rolemask=0),
    )
    door = acl(curve_cert="/x", keys=keys, unlisted=int(Role.USER | Role.LOCAL))
    assert door.by_key(door.judge("10.0.0.1", KEY)) == Credentials(7, int(Role.OWNER | Role.USER))
    assert door.by_key(door.judge("10.0.0.1", GUEST)) == Credentials(8, int(Role.USER))
    assert door.by_key(door.judge("10.0.0.1", STRANGER)) == Credentials(USERID_UNKNOWN, int(Role.USER))
    assert door.judge("10.0.0.1", BANNED) is None
    assert door.judge("10.0.0.1", "") is None
    assert door.denied == 2


def test_with_curve_only_keys_that_are_known_come_in():
    """Listed ones, our own, which nodes share, and that of our directories; whatever else needs a setting."""
    own, directory = (curve.generate().public_key for _ in range(2))
    door = acl(curve_cert="/x", keys=(KeyEntry(KEY),), directory_key=directory)
    door.let_in(own)
    for key in (KEY, own, directory):
        assert door.by_key(door.judge("10.0.0.1", key)) == Credentials(USERID_UNKNOWN, int(Role.USER))
    assert door.judge("10.0.0.1", STRANGER) is None
    assert acl(curve_cert="/x", unlisted=int(Role.USER)).judge("10.0.0.1", STRANGER)


def test_a_nodes_key_that_is_listed_is_what_the_list_says():
    keys = (KeyEntry(BANNED, rolemask=0), KeyEntry(KEY, userid=7, rolemask=int(Role.OWNER)))
    door = acl(curve_cert="/x", keys=keys, directory_key=BANNED)
    door.let_in(KEY)
    assert door.judge("10.0.0.1", BANNED) is None
    assert door.by_key(door.judge("10.0.0.1", KEY)) == Credentials(7, int(Role.OWNER))


def test_without_curve_unlisted_decides():
    assert acl().by_key(acl().judge("10.0.0.1", "")) == Credentials(USERID_UNKNOWN, int(Role.USER))
    assert acl(unlisted=0).judge("10.0.0.1", "") is None


def test_a_message_without_tag_is_of_nobody():
    assert acl().by_key("") is None
    assert acl(curve_cert="/x").by_key("1 ") is None


def test_no_two_connections_are_tagged_alike():
    door = acl()
    assert door.judge("a", "") != door.judge("a", "")


def test_the_first_rule_that_fits_decides():
    rules = (
        Rule(topics=("secret*",), action="send", users=(7,)),
        Rule(topics=("secret*",), action="send", allow=False),
        Rule(exchanges=("nova",), action="listen", roles=int(Role.OWNER)),
        Rule(exchanges=("nova",), action="listen", allow=False),
    )
    door = acl(rules=rules)
    assert door.may_send(Credentials(7, int(Role.USER)), "x", "secret.1")
    assert not door.may_send(USER, "x", "secret.1")
    assert door.may_send(USER, "x", "open")
    assert door.may_listen(USER, "x", "secret.1")
    assert door.may_listen(Credentials(500, int(Role.OWNER)), "nova", "t")
    assert not door.may_listen(USER, "nova", "t")
    assert door.may_send(USER, "nova", "t")


def test_without_rules_users_and_owners_may_others_not():
    assert acl().may_send(USER, "x", "t")
    assert acl().may_listen(Credentials(1, int(Role.OWNER)), "x", "t")
    assert not acl().may_send(Credentials(1, int(Role.LOCAL)), "x", "t")


def test_globs_match_case_and_the_whole_name():
    door = acl(rules=(Rule(topics=("Bill*",), allow=False),))
    assert not door.may_send(USER, "x", "Billing")
    assert door.may_send(USER, "x", "billing")
    assert door.may_send(USER, "x", "pre.Billing")


def test_what_is_remembered_is_bounded():
    door = acl()
    for number in range(20_000):
        assert door.may_send(USER, "x", f"t{number}")
    assert door.may_send.cache_info().currsize <= 16_384
