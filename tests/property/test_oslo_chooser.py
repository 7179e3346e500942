"""Servers take turns, whoever comes, goes or is passed over."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from broker.oslo.client.routing import Chooser
from broker.oslo.directory.state import Server

NODES = ("n1", "n2", "n3")
BOTH = frozenset({"call", "cast"})


def crowd(numbers, nodes=NODES):
    return tuple(
        Server(f"s{number:03}", f"l{number:03}", nodes[number % len(nodes)], BOTH) for number in numbers
    )


numbers = st.sets(st.integers(0, 99), min_size=1, max_size=20).map(sorted)


@given(numbers, st.integers(1, 200))
def test_everybody_gets_as_much_as_everybody_else(numbers, rounds):
    among = crowd(numbers)
    chooser = Chooser(node_at=2)
    chosen = Counter(chooser.choose("k", among).server for _ in range(rounds))
    counts = [chosen[one.server] for one in among]
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
def test_who_stays_is_never_passed_over_when_others_come_and_go(steps):
    """Between two turns of one server nobody else who was there all the time has two."""
    there = {0, 31}
    chooser = Chooser(node_at=2)
    since = Counter()
    for comes, number in steps:
        if comes:
            there.add(number)
        elif len(there) > 1 and number:
            there.discard(number)
        one = chooser.choose("k", crowd(sorted(there)))
        number = int(one.server[1:])
        since[number] += 1
        if number in (0, 31):
            other = 31 - number
            assert since[number] <= 1 or since[other] >= 1 or other not in there
            since[number], since[other] = 1, 0


@given(numbers, st.sets(st.sampled_from(NODES)), st.sets(st.integers(0, 99)), st.integers(1, 50))
def test_nodes_that_are_down_and_servers_that_were_tried_are_passed_over(numbers, down, tried, rounds):
    among = crowd(numbers)
    listeners = {f"l{number:03}" for number in tried}
    able = [one for one in among if one.node not in down and one.listener not in listeners]
    chooser = Chooser(node_at=2)
    chosen = [chooser.choose("k", among, down, listeners) for _ in range(rounds)]
    if not able:
        assert chosen == [None] * rounds
        return
    assert set(chosen) <= set(able)
    counts = Counter(chosen)
    assert max(counts.values()) - min(counts[one] for one in able) <= 1


@given(numbers, st.integers(1, 100))
def test_turns_of_different_keys_are_independent(numbers, rounds):
    among = crowd(numbers)
    chooser = Chooser(node_at=2)
    first = [chooser.choose("a", among) for _ in range(rounds)]
    assert [chooser.choose("b", among) for _ in range(rounds)] == first


@given(numbers, st.sets(st.sampled_from(NODES)), st.integers(1, 100))
def test_listeners_of_a_pool_take_turns(numbers, down, rounds):
    among = tuple(sorted((one.node, one.listener) for one in crowd(numbers)))
    able = [one for one in among if one[0] not in down]
    chooser = Chooser(node_at=0)
    chosen = Counter(chooser.choose("k", among, down) for _ in range(rounds))
    if not able:
        assert set(chosen) == {None}
        return
    counts = [chosen[one] for one in able]
    assert sum(counts) == rounds
    assert max(counts) - min(counts) <= 1
