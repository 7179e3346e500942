"""What a broker knows of services at it and below it, on paper: merging, order, bounds, lies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.services.providers import NAMES_MAX, ServiceLocations
from broker.wire.payload import encode_json
from tests.tables import for_each

SIZE = 15


def parent(rank: int) -> int:
    return (rank - 1) // 2 if rank else -1


def at(rank: int = 0, **bounds: int) -> ServiceLocations:
    return ServiceLocations(rank, SIZE, parent, **bounds)


def test_own_and_what_children_say_the_nearest_first():
    where = at()
    where.provide("calc", True)
    where.set_child(1, {"calc": [7, 3, 1], "kvs": [4]}, 0)
    where.set_child(2, {"calc": [2]}, 0)
    assert where.subtree() == ({"calc": [0, 1, 2, 3, 7], "kvs": [4]}, 0)
    where.provide("calc", False)
    where.forget(2)
    assert where.subtree() == ({"calc": [1, 3, 7], "kvs": [4]}, 0)
    assert where.ranks("nope") == []


@for_each(
    ("near", "ranks", "nearest"),
    [(0, [2, 3, 4], 1), (1, [3, 4, 2], 2), (9, [4, 3, 2], 1), (13, [2, 3, 4], 1), (6, [2, 3, 4], 1)],
)
def test_the_nearest_to_somebody_else(near, ranks, nearest):
    where = at()
    where.set_child(1, {"calc": [3, 4]}, 0)
    where.set_child(2, {"calc": [2]}, 0)
    assert where.nearest("calc", near) == (ranks, nearest)
    assert where.nearest("nope", near) == ([], 0)


def test_who_is_not_below_us_is_as_far_as_we_are():
    where = at(1)
    where.set_child(3, {"calc": [7]}, 0)
    where.set_child(4, {"calc": [4]}, 0)
    assert where.nearest("calc", 2) == ([4, 7], 1)


def test_what_a_child_says_replaces_what_it_said():
    where = at()
    where.set_child(1, {"calc": [1], "kvs": [3]}, 2)
    where.set_child(1, {"calc": [3]}, 0)
    assert where.subtree() == ({"calc": [3]}, 0)
    assert where.forget(1)
    assert not where.forget(1)
    assert where.subtree() == ({}, 0)


def test_beyond_the_bounds_is_counted_and_names_of_guests_go_first():
    where = at(names_max=2, ranks_max=2)
    where.set_child(1, {"42-guest": [1, 3], "b": [1, 4]}, 5)
    where.set_child(2, {"a": [2], "b": [5]}, 0)
    assert where.subtree() == ({"a": [2], "b": [1, 4]}, 5 + 1 + 2)


@for_each(
    "services",
    [
        {"calc": [2]},
        {"calc": [0]},
        {"calc": [15]},
        {"calc": [-1]},
        {"calc": [True]},
        {"calc": [1.0]},
        {"calc": ["1"]},
        {"calc": []},
        {"calc": 1},
        {"calc": None},
        {"calc": [3, 3]},
        {"calc": [1, 3, 4, 7, 8, 9, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]},
        {"": [1]},
        {"a.b": [1]},
        {"x" * 245: [1]},
        {f"s{n}": [1] for n in range(NAMES_MAX + 1)},
    ],
)
def test_a_child_that_says_what_cannot_be_true_costs_itself_only(services):
    where = at()
    where.set_child(1, {"good": [1]}, 0)
    where.set_child(2, {"other": [2]}, 0)
    with pytest.raises(ProtocolError):
        where.set_child(1, services, 0)
    assert where.subtree() == ({"other": [2]}, 0)


@for_each("left_out", [-1, 1 << 54])
def test_a_count_that_cannot_be_true(left_out):
    with pytest.raises(ProtocolError):
        at().set_child(1, {}, left_out)


odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
names = st.text(max_size=4) | st.sampled_from(["calc", "kvs", "a.b", "\ud800"])
ranks = st.lists(st.integers(-2, SIZE + 1) | odd, max_size=4) | odd


@given(st.dictionaries(names, ranks, max_size=4), st.integers())
def test_whatever_a_child_says_it_is_believed_in_whole_or_not_at_all(services, left_out):
    where = at()
    where.set_child(2, {"other": [2]}, 0)
    try:
        where.set_child(1, services, left_out)
    except ProtocolError:
        assert where.subtree() == ({"other": [2]}, 0)
        return
    told = where.subtree()
    assert {name: sorted(at_ranks) for name, at_ranks in told.services.items() if name != "other"} == {
        name: sorted(at_ranks) for name, at_ranks in services.items() if name != "other"
    }
    assert all(rank in (1, 3, 4, *range(7, 11)) for at_ranks in services.values() for rank in at_ranks)
    encode_json(told._asdict())
