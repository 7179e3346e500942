"""Access rules against a slow and obvious reading of the same text."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.access import DEFAULTS, KINDS, Access
from gateway.principal import ROLE_NAMES
from gateway.settings.schema import RuleEntry

text = st.text(alphabet="ab.", max_size=4)
rules = st.lists(
    st.builds(
        RuleEntry,
        roles=st.sets(st.sampled_from(sorted(ROLE_NAMES)), min_size=1).map(tuple),
        kinds=st.sets(st.sampled_from(KINDS), min_size=1).map(tuple),
        prefixes=st.sets(text, min_size=1, max_size=3).map(tuple),
        allow=st.booleans(),
    ),
    max_size=8,
)
some_roles = st.sets(st.sampled_from(sorted(ROLE_NAMES)))


def may(entries, role, kind, topic):
    about = [
        (len(prefix), not entry.allow)
        for entry in entries
        if role in entry.roles and kind in entry.kinds
        for prefix in entry.prefixes
        if topic.startswith(prefix)
    ]
    return not max(about)[1] if about else kind in DEFAULTS[role]


@given(rules, some_roles, st.sampled_from(KINDS), text)
def test_the_answers_are_those_of_the_text(entries, roles, kind, topic):
    access = Access(entries)
    bits = sum(ROLE_NAMES[role] for role in roles)
    expected = {role for role in ROLE_NAMES if may(entries, role, kind, topic)}
    assert set(access.roles_for(kind, topic)) == expected
    for _ in range(2):
        assert access.allows(bits, kind, topic) is bool(expected & roles)


@given(rules, some_roles, text, text)
def test_a_pattern_that_may_not_be_subscribed_covers_nothing_by_itself(entries, roles, prefix, rest):
    """Where the pattern is allowed and the topic is not, a rule longer than the pattern took it away."""
    access = Access(entries)
    bits = sum(ROLE_NAMES[role] for role in roles)
    if access.allows_pattern(bits, prefix) and not access.allows(bits, "subscribe", prefix + rest):
        assert any(
            not entry.allow and len(denied) > len(prefix) and (prefix + rest).startswith(denied)
            for entry in entries
            for denied in entry.prefixes
        )
