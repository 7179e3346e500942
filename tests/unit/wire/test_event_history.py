import tracemalloc

import pytest

from broker.wire import message as wire
from broker.wire.event_history import (
    FRAME_BYTES,
    NUMBERS,
    SEGMENT_COST,
    FrameHistory,
    MessageHistory,
    distance,
    follower,
)

EPOCH = "one"


def event(sequence, payload=None):
    return wire.event("t", payload, sequence=sequence)


def filled(count, *, msgs=100, size=1 << 20, start=0):
    history = MessageHistory(msgs, size)
    history.begin(EPOCH, start)
    sequence = start
    for _ in range(count):
        sequence = follower(sequence)
        history.add([event(sequence)])
    return history


def sequences(messages):
    return [message.sequence for message in messages]


def test_the_baseline_is_exact():
    history = filled(0, start=41)
    assert history.covers(EPOCH, 41)
    assert history.since(41, 99) == []
    assert not history.covers(EPOCH, 40)
    assert not history.covers(EPOCH, 42)
    history.add([event(42)])
    assert history.covers(EPOCH, 41)
    assert sequences(history.since(41, 99)) == [42]
    assert history.last == 42


def test_nothing_is_covered_before_it_began():
    history = MessageHistory(10, 1000)
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
    assert history.held_bytes == 3 * size
    assert not history.covers(EPOCH, 6)
    assert history.covers(EPOCH, 7)


def test_an_event_above_the_bound_leaves_nothing_behind_but_its_number():
    history = MessageHistory(10, 5)
    history.begin(EPOCH, 0)
    history.add([event(1)])
    assert (len(history), history.held_bytes, history.last) == (0, 0, 1)
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
    history.add([event(7)])
    assert [n for n in range(10) if history.covers(EPOCH, n)] == [6, 7]
    assert sequences(history.since(6, 99)) == [7]


def test_a_number_left_out_is_a_hole_by_itself():
    history = filled(3)
    history.add([event(5)])
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
    assert len(history._held) < 3000
    assert sequences(history.since(9990, 99)) == list(range(9991, 10_001))


def frames(count, *, size=1 << 20, age_s=0.0, payload=b"x"):
    history = FrameHistory(size, age_s)
    history.begin(EPOCH, 0)
    for number in range(1, count + 1):
        history.add(event(number, payload), number)
    return history


def test_rank_0_keeps_the_frames_that_its_links_send():
    history = FrameHistory(1 << 20, 0.0)
    history.begin(EPOCH, 0)
    message = event(1)
    history.add(message, 1)
    (held,) = history.since(0, 9)
    assert held == message.framed()


@pytest.mark.parametrize("size", [1, 100, 1000, 5000, 1 << 20])
def test_rank_0_keeps_within_its_bound_and_nearly_as_many_as_fit(size):
    frame = len(event(1, b"x").framed())
    for count in (1, 7, 500):
        history = frames(count, size=size)
        assert history.held_bytes <= max(size, frame + FRAME_BYTES)
        assert len(history) >= min(count, (size - 2 * SEGMENT_COST) // (frame + FRAME_BYTES) // 2)
        assert history.last == count
        assert history.before == count - len(history)
        assert not history.covers(EPOCH, history.before - 1)
        for number in range(history.before, count + 1):
            assert history.covers(EPOCH, number)
            assert history.since(number, 3) == [
                event(each, b"x").framed() for each in range(number + 1, min(number + 4, count + 1))
            ]
        if history.before:
            with pytest.raises(LookupError, match="are not all held"):
                history.since(history.before - 1, 9)


def test_an_event_above_the_bound_of_rank_0_leaves_nothing_behind_but_its_number():
    history = frames(3, size=1000)
    history.add(event(4, b"x" * 2000), 4)
    assert (len(history), history.held_bytes, history.last) == (0, 0, 4)
    assert history.covers(EPOCH, 4)


@pytest.mark.parametrize("every", [1, 100, 10_000])
def test_a_frame_takes_no_more_than_it_counts_for(every):
    """However many segments they are in: one is made at each look."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        history = frames(0, size=1 << 20)
        for number in range(1, 20_001):
            history.add(event(number, b"y" * 50), number)
            if number % every == 0:
                history.mark(float(number))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert history.before > 0
    assert after - before < (1 << 20) + 65536


def test_what_is_too_old_goes():
    history = frames(2, age_s=10.0)
    history.mark(100.0)
    history.add(event(3), 3)
    history.mark(105.0)
    history.mark(110.0)
    assert history.before == 0
    history.mark(110.5)
    assert history.before == 2
    history.mark(116.0)
    assert (history.before, len(history), history.held_bytes) == (3, 0, 0)
    assert history.covers(EPOCH, 3)


def test_the_number_at_a_time_is_that_of_the_newest_event_then():
    history = frames(2)
    history.mark(100.0)
    history.add(event(3), 3)
    history.mark(101.0)
    history.mark(102.0)
    assert [history.number_at(when) for when in (99.0, 100.5, 101.0, 500.0)] == [0, 2, 3, 3]


def test_since_when_all_is_held_is_known():
    history = frames(2, size=1000, age_s=10.0)
    history.mark(100.0)
    assert history.holds_since(0.0)
    history.add(event(3), 3)
    history.mark(105.0)
    history.mark(110.5)  # the first two are too old
    assert [history.holds_since(when) for when in (99.0, 100.0, 105.0)] == [False, True, True]
    for number in range(4, 40):
        history.add(event(number), number)
    assert history.before > 3
    assert not history.holds_since(110.6)  # there was no room, and when those came was not looked at
    history.mark(111.0)
    assert [history.holds_since(when) for when in (110.6, 111.0)] == [False, True]


def test_since_when_all_is_held_of_what_was_put_in_front():
    history = frames(0, size=1000)
    history.begin(EPOCH, 2)
    history.mark(100.0)
    assert [history.holds_since(when) for when in (99.0, 100.0)] == [False, True]
    assert history.prepend(2, [event(2).framed()], 95.0)
    assert [history.holds_since(when) for when in (94.0, 95.0)] == [False, True]
    assert history.prepend(1, [event(1).framed()], 90.0)
    assert history.holds_since(0.0)


def test_what_is_put_in_front_ends_where_the_history_begins():
    history = frames(0, size=1000)
    history.begin(EPOCH, 10)
    history.add(event(11), 11)
    assert not history.prepend(9, [event(9).framed()], 5.0)
    assert history.prepend(10, [event(9).framed(), event(10).framed()], 5.0)
    assert not history.prepend(8, [event(8, b"x" * 1000).framed()], 4.0)
    assert not history.prepend(8, [event(7, b"x" * 1000).framed(), event(8).framed()], 4.0)
    assert (history.before, history.last, len(history)) == (7, 11, 4)
    assert history.held_bytes <= 1000
    assert history.since(7, 9) == [event(number).framed() for number in range(8, 12)]
    history.mark(6.0)
    assert [history.number_at(when) for when in (3.0, 4.5, 5.5, 6.5)] == [7, 8, 10, 11]
