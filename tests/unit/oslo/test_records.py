"""States change only by what continues them; what goes over the wire as JSON comes back."""

import msgspec
import pytest

from broker.oslo.records import Beat, Change, Opened, Opening, Record, State, applied, difference, to_json

A = Record("e", "a", "s1", "l1")
B = Record("e", "b", "s1", "l2")
C = Record("e", "a", "s2", "l3")
STATE = State("n1", "call", 5, 7, "tcp://n1:9501", records=(A, B))


def change(**values) -> Change:
    return Change(**({"node": "n1", "pipeline": "call", "incarnation": 5, "since": 7, "version": 8} | values))


def test_a_change_removes_and_then_adds():
    after = applied(STATE, change(added=(C,), removed=(A,)))
    assert after == State("n1", "call", 5, 8, "tcp://n1:9501", records=(B, C))
    assert STATE.records == (A, B)


def test_what_is_removed_and_added_again_stays():
    assert set(applied(STATE, change(added=(A,), removed=(A,))).records) == {A, B}


def test_nothing_is_there_twice():
    assert applied(STATE, change(added=(A, C, C))).records == (A, B, C)


@pytest.mark.parametrize(
    "values",
    [
        {"since": 6},
        {"since": 8, "version": 9},
        {"incarnation": 6},
        {"node": "n2"},
        {"pipeline": "cast"},
        {"version": 7},
        {"version": 3},
    ],
    ids=str,
)
def test_what_does_not_continue_a_state_is_none(values):
    assert applied(STATE, change(**values)) is None


def test_a_difference_applied_is_the_other_state():
    added, removed = difference((A, B), (B, C))
    assert (added, removed) == ((C,), (A,))
    assert difference((A,), (A,)) == ((), ())
    assert set(applied(STATE, change(added=added, removed=removed)).records) == {B, C}


def test_a_difference_is_always_in_the_same_order():
    none, empty, named = (Record("e", "t.info", "", "l", pool) for pool in (None, "", "p"))
    for before in ((none, empty, named), (named, none, empty), (empty, named, none)):
        assert difference((), before)[0] == (none, empty, named)


def test_places_name_node_and_pipeline():
    assert STATE.place == change().place == ("n1", "call")


@pytest.mark.parametrize(
    "value",
    [
        A,
        Record("e", "t.info", listener="l", pool=None),
        STATE,
        change(added=(C,)),
        Beat("n1", "call", 5, 7),
        Opening("l1", (A, B), "p", 32),
        Opened("n1", 5, "ipc:///run/cast-1.out"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_comes_back(value):
    assert msgspec.json.decode(to_json(value), type=type(value)) == value


def test_a_record_is_a_short_array():
    assert to_json(A) == b'["e","a","s1","l1",null]'
    assert msgspec.json.decode(b'["e","a"]', type=Record) == Record("e", "a")
