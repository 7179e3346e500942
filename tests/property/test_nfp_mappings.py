"""Merging inventories: equal to the plain reading of the rule, for any mappings."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.nfp.inventory.mappings import merged

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from((0.0, 1.0, 1.5, "", "a", "b"))
)
KEYS = st.sampled_from(("a", "b", "c"))
VALUES = st.recursive(
    SCALARS,
    lambda below: st.one_of(st.lists(below, max_size=4), st.dictionaries(KEYS, below, max_size=3)),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(KEYS, VALUES, max_size=3)


def plainly(whole: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        there = whole.get(key)
        if isinstance(there, list) and isinstance(value, list):
            for element in value:
                if element not in there:
                    there.append(element)
        elif isinstance(there, dict) and isinstance(value, dict):
            plainly(there, value)
        else:
            whole[key] = value


@given(st.lists(MAPPINGS, max_size=4))
def test_any_mappings(sources: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(sources)
    expected: dict[str, Any] = {}
    for source in copy.deepcopy(sources):
        plainly(expected, source)
    seen = merged(*sources)
    assert repr(seen) == repr(expected)
    for key in list(seen):
        if isinstance(seen[key], list):
            seen[key].append("changed")
    assert sources == before
