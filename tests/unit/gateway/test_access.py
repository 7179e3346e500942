"""Access rules: role x kind x prefix, the longest decides, deny wins, defaults, and what several roles mean."""

import itertools

from broker.identity import Role
from gateway import access
from gateway.access import DEFAULTS, KINDS, Access
from gateway.administration.service import OF_BROKERS
from gateway.principal import ROLE_NAMES
from gateway.settings.schema import RuleEntry
from tests.tables import for_each


def rule(roles, prefixes, *, kinds=KINDS, allow=True):
    return RuleEntry(roles=tuple(roles.split()), kinds=tuple(kinds), prefixes=tuple(prefixes), allow=allow)


@for_each(("role", "kind"), list(itertools.product(ROLE_NAMES, KINDS)))
def test_defaults(role, kind):
    expected = kind in {"owner": KINDS, "admin": ("call", "subscribe"), "user": ()}[role]
    rules = Access()
    assert rules.allows(ROLE_NAMES[role], kind, "any.thing") is expected
    assert rules.allows(ROLE_NAMES[role], kind, "") is expected
    assert (role in rules.roles_for(kind, "any.thing")) is expected
    assert (kind in DEFAULTS[role]) is expected


@for_each(("role", "kind"), list(itertools.product(ROLE_NAMES, KINDS)))
@for_each("allow", [True, False])
def test_a_rule_is_about_its_role_and_kind_alone(role, kind, allow):
    rules, plain = Access([rule(role, ["a."], kinds=[kind], allow=allow)]), Access()
    for other_role, other_kind in itertools.product(ROLE_NAMES, KINDS):
        bits = ROLE_NAMES[other_role]
        same = (other_role, other_kind) == (role, kind)
        assert rules.allows(bits, other_kind, "a.b") is (
            allow if same else plain.allows(bits, other_kind, "a.b")
        )
        assert rules.allows(bits, other_kind, "b.a") is plain.allows(bits, other_kind, "b.a")


def test_a_preset_is_what_looking_at_the_dashboard_takes():
    rules = Access([RuleEntry(roles=("user",), preset="viewer")])
    asked = {topic for topics in OF_BROKERS.values() for topic in topics}
    assert {topic for topic in asked if not rules.allows(Role.USER, "call", topic)} == set()
    assert not rules.allows(Role.USER, "call", "attr.set")
    assert not rules.allows(Role.USER, "subscribe", "attr.get")
    assert {access.rule_for("call", topic) for topic in asked} == {'preset = "viewer"'}


def test_the_longest_prefix_decides_whatever_the_order():
    entries = [
        rule("user", [""]),
        rule("user", ["job."], allow=False),
        rule("user", ["job.info"]),
        rule("user", ["job.info.secret"], allow=False),
    ]
    for order in itertools.permutations(entries):
        rules = Access(order)
        topics = [
            "attr.get",
            "job.list",
            "job.info",
            "job.information",
            "job.info.secrets",
            "job",
            "jobs.list",
        ]
        verdicts = [rules.allows(Role.USER, "call", topic) for topic in topics]
        assert verdicts == [True, False, True, True, False, True, True]


def test_of_equal_prefixes_deny_wins():
    for order in ((True, False), (False, True), (True, False, True)):
        rules = Access([rule("user", ["a."], allow=allow) for allow in order])
        assert not rules.allows(Role.USER, "call", "a.b")


def test_a_prefix_is_plain_text_as_in_flux():
    rules = Access([rule("user", ["job"]), rule("user", ["kvs."])])
    assert rules.allows(Role.USER, "call", "jobs.list")
    assert rules.allows(Role.USER, "call", "job")
    assert not rules.allows(Role.USER, "call", "kvs")
    assert rules.allows(Role.USER, "call", "kvs.")


def test_any_role_that_may_suffices_and_a_deny_concerns_its_own_role():
    rules = Access([rule("user", ["a."]), rule("admin", ["a.secret."], allow=False)])
    assert not rules.allows(Role.ADMIN, "call", "a.secret.x")
    assert rules.allows(Role.ADMIN | Role.USER, "call", "a.secret.x")
    assert not rules.allows(Role.ADMIN, "publish", "a.b")
    assert rules.allows(Role.ADMIN | Role.USER, "publish", "a.b")


def test_even_an_owner_can_be_denied():
    rules = Access([rule("owner", ["overlay."], kinds=["call"], allow=False)])
    assert not rules.allows(Role.OWNER, "call", "overlay.disconnect-subtree")
    assert rules.allows(Role.OWNER, "call", "attr.get")
    assert rules.roles_for("call", "overlay.health") == ["admin"]


def test_no_role_and_unknown_bits_may_nothing():
    rules = Access([rule("owner user admin", [""])])
    for bits in (0, int(Role.LOCAL), 1 << 20):
        assert not rules.allows(bits, "call", "a")


def test_a_pattern_needs_the_right_to_the_whole_prefix():
    rules = Access([rule("user", ["news."]), rule("user", ["news.secret."], allow=False)])
    for prefix in ("", "n", "news", "news.secret."):
        assert not rules.allows_pattern(Role.USER, prefix)
    for prefix in ("news.", "news.a", "news.secret"):
        assert rules.allows_pattern(Role.USER, prefix)
    assert not rules.allows(Role.USER, "subscribe", "news.secret.x")


def test_topics_are_bytes_or_text():
    rules = Access([rule("user", ["ü."])])
    assert rules.allows(Role.USER, "call", "ü.a")
    assert rules.allows(Role.USER, "call", "ü.a".encode())
    assert rules.roles_for("call", b"\xff") == ["owner", "admin"]


def test_answers_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(access, "CACHE_MAX", 10)
    rules = Access([rule("user", ["a.", "a" * 300])])
    for number in range(100):
        assert rules.allows(Role.USER, "call", f"a.{number}") is True
        assert rules.allows(Role.USER, "call", f"b.{number}") is False
        assert len(rules._answers) <= 10
    rules._answers.clear()
    assert rules.allows(Role.USER, "call", "a" * 400)
    assert rules._answers == {}


@for_each("topic", ["nfp.job.x.closed", "oslo.notify.a.info", "heartbeat.pulse", "overlay.x", "gateway.x"])
def test_no_rule_lets_others_than_the_owner_publish_what_programs_trust(topic):
    rules = Access([rule("user admin owner", [""]), rule("user", [topic])])
    assert [rules.allows(bits, "publish", topic) for bits in (1, 2, 8 | 2, 1 | 2)] == [
        True,
        False,
        False,
        True,
    ]
    assert rules.roles_for("publish", topic) == ["owner"]
    assert rules.allows(2, "subscribe", topic)
