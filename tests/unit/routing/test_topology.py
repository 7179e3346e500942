"""The tree's shape, against the slow and obvious way to say the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.routing.topology import NO_PARENT, RANK_MAX, Topology, parse
from tests.tables import for_each


@st.composite
def trees(draw):
    size = draw(st.integers(1, 40))
    if draw(st.booleans()):
        return Topology(size, draw(st.integers(1, 6)))
    order = draw(st.permutations(range(1, size)))
    reached, parents = [0], [0] * size
    for rank in order:
        parents[rank] = draw(st.sampled_from(reached))
        reached.append(rank)
    return Topology(size, parents=parents)


def above(tree, rank):
    """All ancestors of ``rank``, nearest first."""
    found = []
    while rank != 0:
        rank = tree.parent(rank)
        found.append(rank)
    return found


@given(trees())
def test_parents_and_children_agree(tree):
    for rank in range(tree.size):
        for child in tree.children(rank):
            assert tree.parent(child) == rank
    everybody = [child for rank in range(tree.size) for child in tree.children(rank)]
    assert sorted(everybody) == list(range(1, tree.size))
    assert tree.parent(0) == NO_PARENT


@given(trees())
def test_child_towards_is_the_child_whose_subtree_holds_the_target(tree):
    for rank in range(tree.size):
        for target in range(tree.size):
            obvious = [c for c in tree.children(rank) if c == target or c in above(tree, target)]
            assert tree.child_towards(rank, target) == (obvious[0] if obvious else NO_PARENT)


@given(trees())
def test_depth_subtree_and_descendants(tree):
    depths = [len(above(tree, rank)) for rank in range(tree.size)]
    assert [tree.depth(rank) for rank in range(tree.size)] == depths
    assert tree.max_depth() == max(depths)
    for rank in range(tree.size):
        below = {rank} | {other for other in range(tree.size) if rank in above(tree, other)}
        assert set(tree.subtree(rank)) == below
        assert tree.descendants(rank) == len(below) - 1


@for_each(
    ("parents", "says"),
    [
        ([0, 0], "2 parents are given for 3 ranks"),
        ([0, 0, 7], "parent 7 is not a rank"),
        ([0, 0, -1], "parent -1 is not a rank"),
        ([0, 2, 1], "no tree: 2 ranks cannot be reached"),
        ([0, 1, 0], "no tree: 1 ranks cannot be reached"),
    ],
)
def test_what_is_no_tree_is_refused(parents, says):
    with pytest.raises(ConfigError, match=says):
        Topology(3, parents=parents)


@for_each("size", [0, -1, RANK_MAX + 2])
def test_a_size_out_of_range_is_refused(size):
    with pytest.raises(ConfigError, match="size"):
        Topology(size)


def test_the_largest_instance_has_its_last_rank():
    assert Topology(RANK_MAX + 1, 32).parent(RANK_MAX) == (RANK_MAX - 1) // 32


@for_each(("text", "fanout"), [("kary:1", 1), ("kary:32", 32), ("kary", 2), ("kary:", 2)])
def test_kary_is_parsed(text, fanout):
    assert parse(text, 8).fanout == fanout


def test_custom_without_parents_is_flat():
    assert list(parse("custom", 4).children(0)) == [1, 2, 3]


@for_each("text", ["kary:0", "kary:-1", "kary:x", "kary:\N{SUPERSCRIPT TWO}", "custom:3", "", "mincrit"])
def test_other_names_are_refused(text):
    with pytest.raises(ConfigError):
        parse(text, 8)
