"""Bounds of a question: which days it touches, how wide the steps of its charts are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.history.scope import DAY_S, LEAST_S, POINTS, Scope, date_of, start_of
from tests.tables import for_each


@given(st.integers(0, 4 * 10**9), st.integers(1, 400 * DAY_S), st.sampled_from([10, 60]))
def test_a_chart_covers_the_time_with_few_steps(since, span, least):
    asked = Scope(since, since + span)
    step = asked.step(least)
    times = asked.times(step)
    assert step >= least
    assert len(times) == asked.steps(step) <= POINTS + 1
    assert times[0] <= since < times[0] + step
    assert times[-1] < since + span <= times[-1] + step


@given(st.integers(0, 4 * 10**9), st.integers(1, 60 * DAY_S))
def test_days_are_those_it_touches(since, span):
    asked = Scope(since, since + span)
    assert asked.days == sorted({date_of(since), date_of(since + span - 1), *asked.days}, reverse=True)
    assert start_of(asked.days[-1]) <= since < start_of(asked.days[-1]) + DAY_S
    whole = asked.whole_days()
    assert whole.days == asked.days
    assert whole.since % DAY_S == whole.until % DAY_S == 0


def test_what_is_left_out_comes_from_the_end_of_the_data():
    assert Scope.of(None, None, (0, 1000), seconds=100) == Scope(900, 1000)
    assert Scope.of(900.2, None, (0, 1000)) == Scope(900, 1000)
    assert Scope.of(None, 500.1, (0, 1000), seconds=100, rank=3) == Scope(401, 501, None, 3)


@given(st.integers(12, 4 * 10**8).map(lambda tens: tens * 10), st.integers(1, DAY_S // 10))
def test_data_of_less_than_a_day_is_shown_whole_and_with_room(first, tens):
    end = first + tens * 10
    shown = Scope.of(None, None, (first, end))
    assert shown.since < first
    assert shown.until > end
    assert shown.span >= LEAST_S
    assert shown.since % 60 == shown.until % 60 == 0
    assert shown.span <= max(LEAST_S, tens * 10 + 2 * (2 * shown.step() + 60))


def test_a_session_of_seconds_has_steps_of_ten_seconds():
    shown = Scope.of(None, None, (1795318580, 1795318590))
    assert (shown.step(), shown.span) == (10, 120)


@for_each(("since", "until"), [(10, 10), (10, 5), (0, 5e9), (-1, 5)])
def test_bounds_that_make_no_sense(since, until):
    with pytest.raises(ValueError, match="expected 0 <= since < until"):
        Scope.of(since, until, (0, 100))
