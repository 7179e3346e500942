"""What tells states apart; what goes over the wire as JSON comes back."""

import msgspec

from broker.oslo.records import Beat, Opened, Opening, Record, State, to_json
from tests.tables import for_each

A = Record("e", "a", "s1", "l1")
B = Record("e", "b", "s1", "l2")
STATE = State("n1", "call", 5, 7, "tcp://n1:9501", records=(A, B))


def test_a_state_says_whose_it_is_and_how_old_and_what_renews_it():
    assert STATE.place == STATE.beat.place == ("n1", "call")
    assert STATE.age == STATE.beat.age == (5, 7)
    assert STATE.beat == Beat("n1", "call", 5, 7)
    assert State("n1", "call", 6, 1, "").age > State("n1", "call", 5, 8, "").age > STATE.age


@for_each(
    "value",
    [
        A,
        Record("e", "t.info", listener="l", pool=None),
        STATE,
        Beat("n1", "call", 5, 7),
        Opening("l1", (A, B), "p", 32),
        Opened("n1", 5, message_bytes_max=1 << 20),
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_comes_back(value):
    assert msgspec.json.decode(to_json(value), type=type(value)) == value


def test_a_record_is_a_short_array():
    assert to_json(A) == b'["e","a","s1","l1",null]'
    assert msgspec.json.decode(b'["e","a"]', type=Record) == Record("e", "a")
