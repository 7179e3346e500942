"""Who is who, who may have which task run, who may offer which service."""

import itertools

import pytest

from broker.identity import USERID_UNKNOWN
from broker.nfp import access as room
from broker.nfp.access import OTHERS, Access
from broker.nfp.bodies import UNREADABLE
from broker.nfp.names import EVENTS, FSS, INTERNAL, JOBS, MMI_BROKER, MMI_WORKER, SID
from broker.nfp.principal import Principal, Standing, of_flux
from broker.settings.nfp import KeyEntry, RuleEntry, TaskEntry
from tests.tables import for_each

KEY = "a" * 40
STRANGE = "[*?]" * 10
"""Z85 has the characters of globs."""


def who(standing: str, name: str = "", holder: str = "key:x") -> Principal:
    return Principal(holder, Standing(standing), key="x", name=name)


# -- who is who -----------------------------------------------------------------------------------


def test_listed_keys() -> None:
    access = Access(
        [
            KeyEntry(key=KEY, name="alice", standing="owner", userid=1000),
            KeyEntry(key="b" * 40, name=None, standing="guest"),
            KeyEntry(key="c" * 40, name="gone", standing="none"),
        ]
    )
    assert access.principal_of(KEY, "n") == Principal("uid:1000", Standing.OWNER, 1000, KEY, "alice")
    assert access.principal_of("b" * 40, "n") == Principal(
        "key:" + "b" * 40, Standing.GUEST, USERID_UNKNOWN, "b" * 40, "bbbbbbbb"
    )
    assert access.principal_of("c" * 40, "n") is None


def test_a_listed_name_is_its_keys_and_so_is_its_own_clients() -> None:
    listed = [
        KeyEntry(key="K", name="w1"),
        KeyEntry(key="L", name="w1"),
        KeyEntry(key="M", name="w2-NFPClient"),
        KeyEntry(key="N", name="w3", standing="none"),
        KeyEntry(key="O"),
    ]
    access = Access(listed)
    assert access.keys_of("w1") == access.keys_of("w1-NFPClient") == {"K", "L"}
    assert access.keys_of("w2-NFPClient") == {"M"}
    for free in ("w2", "w3", "w1-NFPClient-NFPClient", "O", ""):
        assert access.keys_of(free) == set()


@for_each("unlisted", ["owner", "user", "guest"])
def test_unlisted_keys(unlisted: str) -> None:
    access = Access(unlisted=unlisted)
    assert access.principal_of(KEY, "n") == Principal(
        "key:" + KEY, Standing(unlisted), USERID_UNKNOWN, KEY, ""
    )
    assert access.principal_of("", "n") == Principal("peer:n", Standing(unlisted))


def test_unlisted_keys_denied() -> None:
    access = Access([KeyEntry(key=KEY, standing="user")], unlisted="deny")
    assert access.principal_of("b" * 40, "n") is None
    assert access.principal_of("", "n") is None
    assert access.principal_of(KEY, "n") is not None


def test_unknown_standings_are_refused() -> None:
    with pytest.raises(ValueError, match="admin"):
        Access(unlisted="admin")


# -- calls ----------------------------------------------------------------------------------------

KEPT = [
    (MMI_BROKER, "restart"),
    (MMI_BROKER, "shutdown"),
    (MMI_BROKER, "disconnect"),
    (MMI_BROKER, "unpin"),
    (MMI_BROKER, "reload"),
    (MMI_WORKER, "restart"),
    (MMI_WORKER, "shutdown"),
    (MMI_WORKER, "disconnect"),
    (SID, OTHERS),
    ("dummy", "run_shell_cmd"),
    ("all", "run_shell"),
    ("nornir", "remote_shell_cmd"),
]
ORDINARY = [
    ("dummy", "ping"),
    ("dummy", ""),
    ("dummy", "restart"),
    ("filesharing", "fetch_file"),
    (MMI_BROKER, "show_workers"),
    (SID, "get_inventory"),
    (JOBS, "list"),
    (EVENTS, "subscribe"),
]


def test_without_rules() -> None:
    access = Access()
    seen = {
        (standing, service, task): access.may_call(who(standing), service, task)
        for standing, (service, task) in itertools.product(("owner", "user", "guest"), KEPT + ORDINARY)
    }
    expected = {
        (standing, service, task): standing == "owner" or (standing == "user" and (service, task) in ORDINARY)
        for standing, service, task in seen
    }
    assert seen == expected


@for_each(("service", "task"), KEPT)
def test_what_owners_keep_needs_a_rule_that_spells_it(service: str, task: str) -> None:
    wide = Access(rules=[RuleEntry(), RuleEntry(tasks=("*shell*", "re*", "*"))])
    assert not wide.may_call(who("user"), service, task)
    spelt = Access(rules=[RuleEntry(tasks=("ping", task), standings=("user",))])
    assert spelt.may_call(who("user"), service, task)
    assert not spelt.may_call(who("guest"), service, task)


def test_first_that_fits_decides() -> None:
    access = Access(
        rules=[
            RuleEntry(services=("nornir",), tasks=("cfg*", "write"), allow=False),
            RuleEntry(services=("nor*",), tasks=("*",), standings=("guest",)),
            RuleEntry(services=("nornir",), tasks=("*",), standings=("user",), allow=False),
        ]
    )
    tasks = ("cfg_all", "write", "read", "")
    assert [access.may_call(who("user"), "nornir", task) for task in tasks] == [False] * 4
    assert [access.may_call(who("guest"), "nornir", task) for task in tasks] == [False, False, True, True]
    assert access.may_call(who("user"), "netbox", "cfg_all")
    assert not access.may_call(who("guest"), "netbox", "read")
    assert access.may_call(who("owner"), "nornir", "write")


def test_rules_for_names() -> None:
    rules = [
        RuleEntry(names=("ops-*", "uid:10*", "key:" + STRANGE), standings=("user",)),
        RuleEntry(standings=("user",), allow=False),
    ]
    access = Access(rules=rules)

    def may(name: str, holder: str) -> bool:
        return access.may_call(who("user", name, holder), "dummy", "ping")

    assert may("ops-1", "key:x")
    assert may("", "uid:1000")
    assert may("", "key:" + STRANGE)
    assert not may("dev-1", "key:x")
    assert not may("", "uid:2000")
    assert not may("", "key:" + "*" * 40)
    assert not may("", "key:[ops-1")
    globs = Access(rules=[RuleEntry(names=("key:*",), standings=("guest",))])
    assert not globs.may_call(who("guest", "", "key:x"), "dummy", "ping"), "keys have to be spelt"


def test_bodies_that_others_might_read_otherwise() -> None:
    access = Access(rules=[RuleEntry(tasks=("*", UNREADABLE))])
    assert not access.may_call(who("user"), "dummy", UNREADABLE)
    assert access.may_call(who("owner"), "dummy", UNREADABLE)
    assert "cannot be read" in access.denial(who("user"), "dummy", UNREADABLE)


def test_long_names_are_refused_unread() -> None:
    access = Access(rules=[RuleEntry(tasks=("*a*a*a*a*b",))])
    assert not access.may_call(who("user"), "dummy", "a" * 100_000)
    assert not access.may_call(who("user"), "s" * 256, "ping")


def test_patterns_are_globs_and_nothing_else() -> None:
    access = Access(rules=[RuleEntry(services=("a.c", "x[12]"), tasks=("p?ng",), standings=("guest",))])
    seen = [
        access.may_call(who("guest"), *each) for each in (("a.c", "ping"), ("abc", "ping"), ("x1", "pong"))
    ]
    assert seen == [True, False, True]
    assert not access.may_call(who("guest"), "x3", "ping")
    assert not access.may_call(who("guest"), "x1", "ping\nping")
    assert not access.may_call(who("guest"), "X1", "ping")


def test_remembered_decisions_are_bounded_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "DECISIONS_MAX", 100)
    access = Access(rules=[RuleEntry(tasks=("t1*",), allow=False)])
    for _ in range(2):
        for number in range(room.DECISIONS_MAX + 10):
            assert access.may_call(who("user"), "s", f"t{number}") is not str(number).startswith("1")
            assert access.idempotent("s", f"t{number}") is None
    assert access._decided.cache_info().currsize <= 100


def test_remembered_decisions_are_of_one_principal() -> None:
    access = Access(rules=[RuleEntry(names=("a",)), RuleEntry(allow=False)])
    assert access.may_call(who("user", "a"), "s", "t")
    assert not access.may_call(who("user", "b"), "s", "t")
    assert not access.may_call(who("user", "", "uid:1"), "s", "t")
    assert access.may_call(who("user", "", "a"), "s", "t")


def test_denial_says_who_and_what() -> None:
    text = Access().denial(who("guest"), "dummy", "x" * 500)
    assert text == f"not allowed: a guest may not call dummy {'x' * 64}"
    assert Access().denial(who("guest"), "dummy", "") == "not allowed: a guest may not call dummy"


def test_users_of_the_broker() -> None:
    access = Access()
    owner, user, guest = of_flux(0, 1), of_flux(1000, 2), of_flux(65534, 0)
    assert [access.may_call(each, "dummy", "ping") for each in (owner, user, guest)] == [True, True, False]


# -- offers ---------------------------------------------------------------------------------------


def test_offers_of_listed_keys() -> None:
    access = Access([KeyEntry(key=KEY, services=("nornir", "net*")), KeyEntry(key="b" * 40)])
    worker, client = access.principal_of(KEY, "w"), access.principal_of("b" * 40, "c")
    assert worker is not None
    assert client is not None
    assert [access.may_offer(worker, name) for name in ("nornir", "netbox", "dummy")] == [True, True, False]
    assert not access.may_offer(client, "nornir")


@for_each("offer", [True, False])
def test_offers_of_unlisted(offer: bool) -> None:
    access = Access([KeyEntry(key="c" * 40)], offer_unlisted=offer)
    for key in (KEY, ""):
        peer = access.principal_of(key, "w")
        assert peer is not None
        assert access.may_offer(peer, "nornir") is offer


@for_each("service", [*sorted(INTERNAL), "all"])
def test_what_nobody_offers(service: str) -> None:
    access = Access([KeyEntry(key=KEY, standing="owner", services=("*",))])
    listed = access.principal_of(KEY, "w")
    assert listed is not None
    for peer in (listed, who("user"), of_flux(0, 1)):
        assert not access.may_offer(peer, service)


def test_names_of_the_text_are_for_owners() -> None:
    access = Access([KeyEntry(key=KEY, services=("*",))])
    listed = access.principal_of(KEY, "w")
    assert listed is not None
    for service in (FSS, "another.service.broker", MMI_WORKER):
        assert not access.may_offer(listed, service)
        assert not access.may_offer(who("user"), service)
        assert access.may_offer(of_flux(0, 1), service)


def test_offers_in_this_process() -> None:
    access = Access(offer_unlisted=False)
    assert access.may_offer(of_flux(0, 1), "filesharing")
    assert not access.may_offer(of_flux(1000, 2), "filesharing")


# -- tasks ----------------------------------------------------------------------------------------


def test_idempotent_tasks() -> None:
    access = Access(
        tasks=[
            TaskEntry(service="nornir", task="cfg*", idempotent=False),
            TaskEntry(service="nor*", task="*", idempotent=True),
            TaskEntry(service="*", task="pay", idempotent=False),
        ]
    )
    seen = [
        access.idempotent(*each) for each in (("nornir", "cfg"), ("nornir", "cli"), ("x", "pay"), ("x", "y"))
    ]
    assert seen == [False, True, False, None]
    assert access.idempotent("nornir", "t" * 1000) is None
