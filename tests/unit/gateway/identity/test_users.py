"""Names to userids and roles."""

import os

import pytest

from broker.errors import ConfigError
from broker.identity import NOBODY, Role
from gateway import closes
from gateway.identity.users import Users, link_principal
from gateway.principal import Denied
from gateway.settings.schema import AccessSection, GatewaySettings, OidcEntry, UserEntry
from tests.tables import for_each


def users(*entries, **access):
    return Users(GatewaySettings(users=entries, access=AccessSection(**access)))


def principal(made, name):
    return made.principal(name, kind="token", credential="token:1", expires=None)


def test_a_user_is_stamped_as_configured():
    made = users(
        UserEntry(name="a", userid=7),
        UserEntry(name="b", userid=8, roles=("user", "admin")),
        allow_admin=True,
    )
    assert (principal(made, "a").userid, principal(made, "a").roles) == (7, Role.USER)
    assert principal(made, "b").roles == Role.USER | Role.ADMIN
    assert not principal(made, "a").nobody


def test_an_unknown_user_has_no_role():
    with pytest.raises(Denied) as denied:
        principal(users(), "a")
    assert (denied.value.status, denied.value.close) == (403, closes.NO_ROLE)


@for_each("role", ["owner", "admin"])
def test_strong_roles_must_be_allowed(role):
    entry = UserEntry(name="a", userid=7, roles=(role,))
    with pytest.raises(ConfigError, match=f"allow_{role} = true"):
        users(entry)
    assert users(entry, **{f"allow_{role}": True}).known("a")


def test_a_name_stands_once():
    settings = GatewaySettings(users=(UserEntry(name="a", userid=1), UserEntry(name="a", userid=2)))
    with pytest.raises(ConfigError, match=r"users\[1\]\.name: .*each user once"):
        Users(settings)


def test_a_userid_of_two_users_is_shared():
    made = users(*(UserEntry(name=name, userid=uid) for name, uid in (("a", 7), ("b", 7), ("c", 8))))
    assert [principal(made, name).shared for name in "abc"] == [True, True, False]
    assert principal(made, "a").userid == 7, "the operator says so"


@for_each("links", ["off", "user", "owner"])
def test_who_has_the_gateways_own_userid_and_is_no_owner_is_nobody(links):
    made = users(UserEntry(name="a", userid=os.geteuid()), UserEntry(name="b", userid=7), login_links=links)
    assert [principal(made, name).userid for name in "ab"] == [NOBODY, 7]
    owner = users(UserEntry(name="a", userid=os.geteuid(), roles=("owner",)), allow_owner=True)
    assert principal(owner, "a").userid == os.geteuid()


def test_links():
    owner = link_principal("owner", credential="login:1", expires=5.0)
    assert (owner.userid, owner.roles, owner.nobody) == (os.geteuid(), Role.OWNER, False)
    guest = link_principal("user", credential="login:2", expires=5.0)
    assert (guest.userid, guest.roles, guest.nobody) == (NOBODY, Role.USER, True)


def test_certificates():
    made = users(
        UserEntry(name="a", userid=1, certificates=("CN=a", "SHA256:AB:cd", "DNS:A.example")),
        UserEntry(name="b", userid=2, certificates=("CN=b", "DNS:both.example")),
        UserEntry(name="c", userid=3, certificates=("DNS:BOTH.example",)),
    )
    assert made.by_certificate({"CN=a", "DNS:x"}) == "a"
    assert made.by_certificate({"SHA256:abcd"}) == made.by_certificate({"DNS:a.example"}) == "a"
    assert made.by_certificate({"cn=a", "CN=A"}) is None
    for several in ({"DNS:both.example"}, {"CN=a", "CN=b"}):
        with pytest.raises(Denied, match="several users"):
            made.by_certificate(several)


# ---------------------------------------------------------------- claims


def of_claims(claims, **access):
    made = users(UserEntry(name="known", userid=7), **access)
    return made.principal("new", kind="jwt", claims=claims, credential="jwt:1", expires=9.0)


def test_claims_are_taken():
    found = of_claims({"userid": 9, "roles": ["user"]})
    assert (found.name, found.userid, found.roles, found.expires) == ("new", 9, Role.USER, 9.0)


@for_each("userid", [9, "9", 9.0])
@for_each("roles", [["user"], "user"])
def test_claims_are_taken_however_their_maker_writes_them(userid, roles):
    found = of_claims({"userid": userid, "roles": roles})
    assert (type(found.userid), found.userid, found.roles) == (int, 9, Role.USER)


def test_claimed_roles_are_cut_to_what_is_allowed():
    claims = {"userid": 9, "roles": ["user", "owner", "admin", "local", 4, None]}
    assert of_claims(claims).roles == Role.USER
    assert of_claims(claims, allow_admin=True).roles == Role.USER | Role.ADMIN
    assert of_claims(claims, allow_owner=True).roles == Role.USER | Role.OWNER


@for_each(
    "claims",
    [
        {},
        {"roles": ["user"]},
        {"userid": 9},
        {"userid": 9, "roles": []},
        {"userid": 9, "roles": {"user": 1}},
        {"userid": 9, "roles": ["owner"]},
        {"userid": 9, "roles": ["local"]},
        {"userid": 2**32 - 1, "roles": ["user"]},
        {"userid": -1, "roles": ["user"]},
        {"userid": 9.5, "roles": ["user"]},
        {"userid": True, "roles": ["user"]},
        {"userid": "09", "roles": ["user"]},
        {"userid": "0", "roles": ["user"]},
        {"userid": "7", "roles": ["user"]},
        {"userid": "-9", "roles": ["user"]},
        {"userid": "9", "roles": "user admin"},
        {"userid": 0, "roles": ["user"]},
        {"userid": os.geteuid(), "roles": ["user"]},
        {"userid": NOBODY, "roles": ["user"]},
        {"userid": 7, "roles": ["user"]},
        {"userid": 2**31, "roles": ["user"]},
        {"userid": 2**32 - 3, "roles": ["user"]},
    ],
)
def test_claims_without_a_role_or_a_userid_that_they_may_say_are_refused(claims):
    with pytest.raises(Denied) as denied:
        of_claims(claims)
    assert denied.value.close == closes.NO_ROLE


@for_each(
    ("name", "kind", "login", "taken"),
    [
        ("corp:alice", "jwt", "", False),
        ("corp:alice", "cookie", "jwt:1", False),
        ("corp:listed", "jwt", "", False),
        ("corp:alice", "cookie", "oidc:lab", False),
        ("corp:alice", "cookie", "oidc:corp", True),
        ("corp:listed", "token", "", True),
        ("corp", "jwt", "", True),
        ("owner", "jwt", "", False),
        ("guest", "cookie", "oidc:lab", False),
        ("lab:x", "cookie", "oidc:lab", True),
    ],
)
def test_names_of_one_source_never_meet_those_of_another(name, kind, login, taken):
    corp, lab = (
        OidcEntry(name=name, issuer="https://id", client_id="x", url="https://gate", user_prefix=prefix)
        for name, prefix in (("corp", None), ("lab", ""))
    )
    made = Users(GatewaySettings(users=(UserEntry(name="corp:listed", userid=7),), oidc=(corp, lab)))
    claims = {"userid": 9, "roles": ["user"]}
    try:
        found = made.principal(
            name, kind=kind, login=login, claims=claims, credential="x:1", expires=None
        ).name
    except Denied as denied:
        found = denied.status
    assert found == (name if taken else 403)


# ---------------------------------------------------------------- other users, read again


def claimed(*roles):
    former = users(allow_admin=True, allow_owner=True)
    claims = {"userid": 9, "roles": list(roles)}
    return former.principal("new", kind="jwt", claims=claims, credential="jwt:1", expires=9.0)


def test_claims_lose_the_roles_that_are_not_let_in_any_more():
    mine = claimed("admin")
    assert users(allow_admin=True).again(mine) == mine
    left = users().again(mine)
    assert (left.roles, left.expires, left.nobody) == (Role.USER, 9.0, False)
    mine = claimed("owner")
    assert users(allow_admin=True).again(mine) is None


def test_the_owner_of_the_instance_is_nobody_else():
    """The gateway hears who that is when it joins: with a key it may run as somebody else."""
    entries = (UserEntry(name="a", userid=1500), UserEntry(name="b", userid=7))
    before, after = (Users(GatewaySettings(users=entries), owner) for owner in (None, 1500))
    assert [principal(after, name).userid for name in "ab"] == [NOBODY, 7]
    assert after.again(principal(before, "a")) is None
    assert after.again(principal(before, "b")) == principal(before, "b")
    more = {
        "kind": "jwt",
        "credential": "jwt:1",
        "expires": 9.0,
        "claims": {"userid": 1600, "roles": ["user"]},
    }
    claimed = before.principal("c", **more)
    assert Users(GatewaySettings(), 1600).again(claimed) is None
    with pytest.raises(Denied, match="no claim may say"):
        Users(GatewaySettings(), 1600).principal("c", **more)


def test_claims_end_once_another_user_has_their_userid():
    assert users(UserEntry(name="a", userid=9)).again(claimed("user")) is None


def test_claims_end_once_the_name_is_a_configured_users():
    mine = claimed("user")
    assert users(UserEntry(name="new", userid=9)).again(mine) is None


def test_a_certificate_is_shown_again_once_its_entry_has_others_however_often_users_were_read():
    entry = UserEntry(name="a", userid=1, certificates=("CN=a",))
    mine = users(entry).principal("a", kind="tls", credential="tls:1", expires=None)
    assert users(entry).again(mine) == mine
    other = UserEntry(name="a", userid=1, certificates=("CN=b",))
    assert users(other).again(users(entry).again(mine)) is None
    assert users(other).again(principal(users(entry), "a")).name == "a"
    assert users().again(mine) is None


def test_a_login_by_a_token_or_at_a_provider_is_judged_again_as_others_are():
    entry = UserEntry(name="a", userid=1)
    kept = {"kind": "cookie", "credential": "login:1", "expires": 9.0, "login": "token:1"}
    mine = users(entry).principal("a", **kept)
    more = users(UserEntry(name="a", userid=1, roles=("admin",)), allow_admin=True).again(mine)
    assert (more.role_names, more.login, more.expires) == (["user", "admin"], "token:1", 9.0)
    assert users().again(mine) is None
    claims, kept = {"roles": ["admin", "user"]}, kept | {"login": "oidc:corp"}
    theirs = users(allow_admin=True).principal("corp:b", claims=claims, own=2**31 + 5, **kept)
    assert (theirs.role_names, theirs.userid) == (["user", "admin"], 2**31 + 5)
    for own in (0, 9, 2**32 - 2, "x"):
        with pytest.raises(Denied, match="own_userids"):
            users(allow_admin=True).principal("corp:b", claims=claims, own=own, **kept)
    less = users().again(theirs)
    assert (less.role_names, less.login) == (["user"], "oidc:corp")
