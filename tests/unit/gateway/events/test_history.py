import pytest

from gateway.events.history import NUMBERS, History, distance, follower
from tests.unit.gateway.events.audience import event

EPOCH = "one"


def filled(count, *, msgs=100, size=1 << 20, start=0):
    history = History(msgs, size)
    history.begin(EPOCH, start)
    sequence = start
    for _ in range(count):
        sequence = follower(sequence)
        history.add(event(sequence))
    return history


def sequences(messages):
    return [message.sequence for message in messages]


def test_the_baseline_is_exact():
    history = filled(0, start=41)
    assert history.covers(EPOCH, 41)
    assert history.since(41, 99) == []
    assert not history.covers(EPOCH, 40)
    assert not history.covers(EPOCH, 42)
    history.add(event(42))
    assert history.covers(EPOCH, 41)
    assert sequences(history.since(41, 99)) == [42]
    assert history.last == 42


def test_nothing_is_covered_before_it_began():
    history = History(10, 1000)
    assert not history.covers("", 0)
    assert not history.covers(EPOCH, 0)


def test_another_epoch_is_never_covered():
    history = filled(3)
    assert history.covers(EPOCH, 1)
    assert not history.covers("two", 1)
    history.begin("two", 0)
    assert not history.covers(EPOCH, 1)
    assert history.covers("two", 0)


def test_what_was_dropped_is_not_covered():
    history = filled(10, msgs=4)
    assert [history.covers(EPOCH, n) for n in range(12)] == [False] * 6 + [True] * 5 + [False]
    assert sequences(history.since(6, 99)) == [7, 8, 9, 10]
    assert len(history) == 4
    with pytest.raises(LookupError, match="behind 5"):
        history.since(5, 99)


def test_bytes_are_bounded():
    size = event(1).size
    history = filled(10, size=3 * size + 1)
    assert len(history) == 3
    assert history.bytes == 3 * size
    assert not history.covers(EPOCH, 6)
    assert history.covers(EPOCH, 7)


def test_an_event_above_the_bound_leaves_nothing_behind_but_its_number():
    history = History(10, 5)
    history.begin(EPOCH, 0)
    history.add(event(1))
    assert (len(history), history.bytes, history.last) == (0, 0, 1)
    assert history.covers(EPOCH, 1)
    assert not history.covers(EPOCH, 0)


def test_a_history_of_none_still_knows_who_missed_nothing():
    history = filled(5, msgs=0)
    assert history.covers(EPOCH, 5)
    assert not history.covers(EPOCH, 4)


def test_a_hole_cannot_be_bridged():
    history = filled(3)
    history.mark_gap()
    assert [history.covers(EPOCH, n) for n in range(6)] == [False] * 6
    with pytest.raises(LookupError):
        history.since(3, 99)
    history.add(event(7))
    assert [n for n in range(10) if history.covers(EPOCH, n)] == [6, 7]
    assert sequences(history.since(6, 99)) == [7]


def test_a_number_left_out_is_a_hole_by_itself():
    history = filled(3)
    history.add(event(5))
    assert [n for n in range(10) if history.covers(EPOCH, n)] == [4, 5]


def test_numbers_wrap():
    history = filled(4, start=NUMBERS - 2)
    assert sequences(history.since(NUMBERS - 2, 99)) == [NUMBERS - 1, NUMBERS, 1, 2]
    assert sequences(history.since(NUMBERS, 99)) == [1, 2]
    assert history.covers(EPOCH, NUMBERS - 2)
    assert not history.covers(EPOCH, NUMBERS - 3)


def test_steps():
    assert (follower(0), follower(1), follower(NUMBERS)) == (1, 2, 1)
    assert distance(7, 7) == 0
    assert distance(7, 6) == NUMBERS - 1
    assert distance(NUMBERS - 1, 1) == 2


def test_dropped_places_are_given_back():
    history = filled(10_000, msgs=16)
    assert len(history._messages) < 3000
    assert sequences(history.since(9990, 99)) == list(range(9991, 10_001))
