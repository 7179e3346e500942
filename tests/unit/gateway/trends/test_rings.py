"""Figures over time: what is kept, for how long, and what a range of it is."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.trends import rings
from gateway.trends.rings import COARSE, COARSE_S, FINE, HOLD_S, NAMES_MAX, Ring, Rings

BEGIN = 1_795_700_000


def shown(ring, first, last):
    return [None if value != value else value for value in ring.values(first, last)]


def test_a_ring_keeps_the_newest_and_forgets_the_rest():
    ring = Ring(1, 4)
    for number in range(10):
        ring.put(number, float(number))
    assert shown(ring, 4, 11) == [None, None, 6.0, 7.0, 8.0, 9.0, None, None]
    assert ring.last == 9


def test_what_a_ring_has_not_yet_let_go_is_forgotten_all_the_same():
    ring = Ring(1, 16)
    for number in range(18):
        ring.put(number, float(number))
    assert shown(ring, 0, 3) == [None, None, 2.0, 3.0]


def test_a_gap_takes_the_value_behind_it_and_a_long_one_is_unknown():
    ring = Ring(1, 100)
    ring.put(0, 1.0)
    ring.put(3, 4.0)
    ring.put(3 + HOLD_S + 2, 5.0)
    assert shown(ring, 0, 4) == [1.0, 4.0, 4.0, 4.0, None]
    assert ring.last == 3 + HOLD_S + 2
    ring.put(2, 9.0)
    assert shown(ring, 2, 2) == [4.0], "what is past does not change"


def test_a_clock_that_was_set_back_is_followed():
    ring = Ring(1, 100)
    ring.put(1000, 1.0)
    ring.put(1000 - rings.BACK_S, 2.0)
    assert ring.last == 1000
    ring.put(500, 3.0)
    assert (ring.last, shown(ring, 500, 500)) == (500, [3.0])


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1e6, width=32)), max_size=60), st.integers(1, 16))
def test_a_ring_is_the_newest_of_all_values(puts, capacity):
    ring, model, newest = Ring(1, capacity), {}, -1
    for number, value in puts:
        ring.put(number, value)
        if number >= newest:
            model[number] = newest = number
            model[number] = value
    found = list(ring.values(0, 41))
    for number, value in enumerate(found):
        if number > newest or number <= newest - capacity:
            assert math.isnan(value)
        elif number in model:
            assert value == model[number]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30, unique=True).map(sorted))
def test_what_is_kept_is_taken_up_again(numbers):
    ring, again = Ring(10, 20), Ring(10, 20)
    for number in numbers:
        ring.put(number, float(number))
    again.restore(*ring.kept())
    assert shown(again, 0, 31) == shown(ring, 0, 31)
    assert again.last == ring.last


def filled(seconds):
    every = Rings()
    for second in range(seconds):
        every.put(BEGIN + second, {"calls": float(second % 10), "ms:0": float(second % 10)})
    return every


def test_minutes_are_seconds_and_hours_are_tens_of_them():
    every = filled(FINE + 100)
    last = BEGIN + FINE + 99
    fine = every.read(last, 60)
    assert (fine["step"], fine["count"], fine["begin"]) == (1, 60, last - 59)
    assert fine["series"]["calls"][-3:] == [7.0, 8.0, 9.0]
    coarse = every.read(last, 3600)
    assert (coarse["step"], coarse["count"]) == (COARSE_S, 360)
    assert coarse["series"]["calls"][-2:] == [4.5, 4.5], "the mean of a rate"
    assert coarse["series"]["ms:0"][-2:] == [9.0, 9.0], "the most of a latency"
    assert coarse["series"]["calls"][0] is None


def test_a_day_has_no_more_points_than_can_be_drawn():
    every = filled(100)
    day = every.read(BEGIN + 99, 86_400)
    assert day["count"] <= rings.POINTS_MAX
    assert day["step"] * day["count"] <= 86_400 < day["step"] * (day["count"] + 1)
    assert all(len(values) == day["count"] for values in day["series"].values())
    assert day["begin"] + day["step"] * day["count"] > BEGIN + 99


def test_figures_are_asked_for_by_name_and_marks_of_the_range_come_along():
    every = filled(100)
    every.mark(BEGIN - 1000, "long ago")
    every.mark(BEGIN + 90.5, "rank 3 does not answer")
    told = every.read(BEGIN + 99, 60, ["ms"])
    assert list(told["series"]) == ["ms:0"]
    assert told["marks"] == [[BEGIN + 90.5, "rank 3 does not answer"]]


def test_names_are_bounded_and_old_ones_give_way():
    every = Rings()
    every.put(BEGIN, {f"calls:{number}": 1.0 for number in range(NAMES_MAX)})
    every.put(BEGIN + 1, {"calls:new": 1.0})
    assert (len(every.tracks), every.left_out) == (NAMES_MAX, 1)
    every.put(BEGIN + (COARSE + 2) * COARSE_S, {"calls:new": 1.0})
    assert list(every.tracks) == ["calls:new"]
