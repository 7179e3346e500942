"""States change only by what continues them; what goes over the wire as JSON comes back."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.oslo.records import Beat, Change, Offer, Opened, Opening, Record, State, chars_of, to_json

A = Record("e", "a", "s1", "l1")
B = Record("e", "b", "s1", "l2")
C = Record("e", "a", "s2", "l3")
SOME = (A, B, C, Record("e", "t.info", "", "l4", "pool"), Record("e", "t.info", "", "l4"))
STATE = State("n1", "call", 5, 7, "tcp://n1:9501", records=(A, B))


def change(**values) -> Change:
    return Change(**({"node": "n1", "pipeline": "call", "incarnation": 5, "since": 7, "version": 8} | values))


def applied(**values) -> Offer:
    offer = Offer(STATE)
    assert offer.apply(change(**values))
    return offer


def test_a_change_removes_and_then_adds():
    offer = Offer(STATE)
    assert offer.apply(change(added=(C,), removed=(A,)))
    assert offer.state() == State("n1", "call", 5, 8, "tcp://n1:9501", records=(B, C))
    assert STATE.records == (A, B)


def test_what_is_removed_and_added_again_stays():
    assert applied(added=(A,), removed=(A,)).state().records == (B, A)


def test_nothing_is_there_twice():
    assert applied(added=(A, C, C)).state().records == (A, B, C)
    assert len(Offer(State("n1", "call", 5, 7, "", records=(A, A))).records) == 1


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
def test_what_does_not_continue_an_offer_changes_nothing(values):
    offer = Offer(STATE)
    assert not offer.apply(change(added=(C,), **values))
    assert offer.state() == STATE


@settings(max_examples=50)
@given(*[st.lists(st.sampled_from(SOME), max_size=8)] * 3)
def test_what_a_change_leads_to_is_known_before(before, added, removed):
    offer = Offer(State("n1", "call", 5, 7, "", records=tuple(before)))
    news = change(added=tuple(added), removed=tuple(removed))
    expected = offer.after(news)
    assert offer.apply(news)
    assert set(offer.records) == set(before) - set(removed) | set(added)
    assert expected == (len(offer.records), offer.chars)
    assert offer.chars == sum(map(chars_of, offer.records))


def test_an_offer_says_a_state_whatever_the_order_of_its_records():
    offer = Offer(STATE)
    assert offer.says(msgspec.structs.replace(STATE, records=(B, A)))
    for values in ({"records": (A,)}, {"version": 8}, {"endpoint": ""}, {"key": "k"}, {"node": "n2"}):
        assert not offer.says(msgspec.structs.replace(STATE, **values))


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
