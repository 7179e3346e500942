"""One-time links and cookies."""

import pytest

from broker.identity import Role
from gateway import closes
from gateway.identity.login import LOGINS, Logins, add_link
from gateway.identity.proxies import Client
from gateway.identity.store import Store
from gateway.principal import Denied, Principal
from gateway.settings.schema import AccessSection
from tests.tables import for_each

HERE = Client("127.0.0.1", "127.0.0.1", "http", local=True, loopback_listener=True)
AWAY = Client("6.6.6.6", "6.6.6.6", "https", local=False, loopback_listener=False)
OWNER = AccessSection(login_links="owner", login_link_s=60.0, cookie_s=600.0)
USER = AccessSection(login_links="user", login_link_s=60.0, cookie_s=600.0)
OFF = AccessSection()


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def store(tmp_path, clock):
    made = Store(tmp_path, wall=lambda: clock[0])
    yield made
    made.close()


def denied(call, *arguments):
    with pytest.raises(Denied) as found:
        call(*arguments)
    return found.value


def test_a_link_is_for_one_login(store):
    logins = Logins(store, OWNER)
    secret = logins.make_link()
    made = logins.redeem(secret, HERE)
    assert made.principal.owner
    assert made.principal.kind == "cookie"
    assert logins.principal(made.cookie, HERE) == made.principal
    again = denied(logins.redeem, secret, HERE)
    assert (again.status, again.close, again.public) == (401, closes.BAD_CREDENTIAL, "credential refused")


def test_secrets_are_in_no_file_and_no_text(store):
    logins = Logins(store, OWNER)
    secret = logins.make_link()
    made = logins.redeem(secret, HERE)
    unused = logins.make_link()
    content = b"".join(path.read_bytes() for path in store.statedir.iterdir())
    for each in (secret, unused, made.cookie):
        assert each.encode() not in content
        assert each not in repr(made.principal)
    assert secret not in str(denied(logins.redeem, secret, HERE))


def test_times(store, clock):
    logins = Logins(store, OWNER)
    late, intime = logins.make_link(), logins.make_link()
    clock[0] += 59
    made = logins.redeem(intime, HERE)
    assert made.principal.expires == clock[0] + 600
    clock[0] += 2
    denied(logins.redeem, late, HERE)
    clock[0] += 597
    assert logins.principal(made.cookie, HERE) is not None
    clock[0] += 1
    assert logins.principal(made.cookie, HERE) is None
    assert not logins.open(made.principal.credential)


def test_the_owners_link_counts_on_this_machine_only_and_is_not_used_up_elsewhere(store):
    logins = Logins(store, OWNER)
    secret = logins.make_link()
    refused = denied(logins.redeem, secret, AWAY)
    assert (refused.status, refused.close) == (403, closes.NO_ROLE)
    made = logins.redeem(secret, HERE)
    assert denied(logins.principal, made.cookie, AWAY).status == 403
    assert logins.principal(made.cookie, HERE) is not None


def test_a_users_link_counts_anywhere_unless_it_is_for_this_machine(store):
    logins = Logins(store, USER)
    made = logins.redeem(logins.make_link(), AWAY)
    assert made.principal.role_names == ["user"]
    assert logins.principal(made.cookie, AWAY) is not None
    local = logins.make_link(loopback_only=True)
    assert denied(logins.redeem, local, AWAY).status == 403
    cookie = logins.redeem(local, HERE).cookie
    assert denied(logins.principal, cookie, AWAY).status == 403


def test_links_give_no_more_than_the_setting(store):
    assert denied(Logins(store, OFF).make_link).status == 403
    assert denied(Logins(store, USER).make_link, "owner").status == 403
    secret = add_link(store, "owner", seconds=60.0, loopback_only=False)  # written by somebody who may
    assert denied(Logins(store, USER).redeem, secret, HERE).status == 403
    assert denied(Logins(store, OFF).redeem, secret, HERE).status == 403
    assert denied(Logins(store, OWNER).redeem, secret, AWAY).status == 403
    assert Logins(store, OWNER).make_link("user")


def test_the_setting_ends_logins(store):
    owner, user = (
        Logins(store, OWNER).redeem(Logins(store, OWNER).make_link(role), HERE) for role in ("owner", "user")
    )
    later = Logins(store, USER)
    assert later.principal(owner.cookie, HERE) is None
    assert later.principal(user.cookie, HERE) == user.principal
    assert not later.open(owner.principal.credential)
    assert Logins(store, OFF).principal(user.cookie, HERE) is None


def test_logout(store):
    logins = Logins(store, USER)
    made, other = (logins.redeem(logins.make_link(), HERE) for _ in range(2))
    before = store.changes()
    logins.logout(made.principal.credential)
    assert store.changes() > before
    assert logins.principal(made.cookie, HERE) is None
    assert not logins.open(made.principal.credential)
    assert logins.open(other.principal.credential)
    logins.logout(made.principal.credential)


def test_a_login_that_counts_no_more_can_be_ended(store):
    made = Logins(store, USER).redeem(Logins(store, USER).make_link(), HERE)
    Logins(store, OFF).end(made.cookie)
    Logins(store, OFF).end("unknown")
    assert Logins(store, USER).principal(made.cookie, HERE) is None


@for_each("secret", ["", "x", "\udcff", "x" * 100_000, "' OR 1=1 --"])
def test_junk(store, secret):
    logins = Logins(store, USER)
    made = logins.redeem(logins.make_link(), HERE)
    assert denied(logins.redeem, secret, HERE).status == 401
    assert logins.principal(secret, HERE) is None
    assert logins.principal(made.cookie, HERE) is not None


def test_logins_of_claims_are_those_of_their_source(store):
    logins = Logins(store, AccessSection())
    for source in ("jwt:1", "oidc:corp", "jwt:2", "token:1"):
        logins.begin(*logins.drafted(source, "alice", {}))

    def seen(kind, credential, login="", certificates=None):
        mine = Principal("alice", 7, Role.USER, kind, credential, login=login, certificates=certificates)
        return sorted(each.source for each in logins.of(mine))

    assert seen("jwt", "jwt:3") == seen("cookie", "login:1", "jwt:1") == ["jwt:1", "jwt:2"]
    assert seen("cookie", "login:1", "oidc:corp") == ["oidc:corp"]
    assert len(seen("cookie", "login:1", "oidc:corp", ())) == 4, "the settings name the user"


def test_logins_are_bounded(store, clock, monkeypatch):
    assert LOGINS == 4096
    monkeypatch.setattr("gateway.identity.login.LOGINS", 3)
    logins, made = Logins(store, USER), []
    for _ in range(5):
        clock[0] += 1
        made.append(logins.redeem(logins.make_link(), HERE))
    assert [logins.principal(each.cookie, HERE) is not None for each in made] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_ended_rows_are_removed(store, clock):
    logins = Logins(store, USER)
    logins.redeem(logins.make_link(), HERE)
    logins.make_link()
    clock[0] += 10_000
    logins.redeem(logins.make_link(), HERE)
    assert store.reading("SELECT count(*) FROM links") == [(0,)]
    assert store.reading("SELECT count(*) FROM logins") == [(1,)]
