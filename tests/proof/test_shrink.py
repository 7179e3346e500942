"""The smallest part that still fails."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proof.schedule import QUIET_S, Fault, Schedule
from tests.proof.shrink import LEAST_S, ddmin, shrink

pytestmark = pytest.mark.tools


def plan(count: int, seconds: float = 100.0) -> Schedule:
    faults = (Fault(n, "freeze", 5.0 + 4 * n, 3.0, members=(f"broker-{n}",)) for n in range(count))
    return Schedule(1, seconds, tuple(faults))


@given(st.lists(st.integers(0, 40), unique=True, min_size=1), st.data())
def test_ddmin_finds_exactly_what_is_needed(items, data):
    needed = set(data.draw(st.lists(st.sampled_from(items), unique=True)))
    tried = []

    def fails(part):
        tried.append(tuple(part))
        return needed <= set(part)

    assert ddmin(items, fails) == [item for item in items if item in needed]
    assert len(tried) <= len(items) ** 2 + 3 * len(items) + 1


@given(st.lists(st.integers(0, 30), unique=True, min_size=2), st.integers(1, 5))
def test_of_what_ddmin_leaves_nothing_can_be_left_out(items, threshold):
    threshold = min(threshold, len(items))

    def fails(part):
        return len(part) >= threshold

    kept = ddmin(items, fails)
    assert fails(kept)
    assert not any(fails(kept[:n] + kept[n + 1 :]) for n in range(len(kept)))


def test_two_faults_that_fail_together_are_all_that_remains():
    def fails(schedule):
        numbers = {fault.number for fault in schedule.faults}
        return {3, 7} <= numbers

    small = shrink(plan(10), fails)
    assert [fault.number for fault in small.faults] == [3, 7]


def test_faults_become_as_short_as_they_may():
    def fails(schedule):
        return any(fault.number == 4 and fault.lasts_s >= 1.0 for fault in schedule.faults)

    (fault,) = shrink(plan(8), fails).faults
    assert 1.0 <= fault.lasts_s < 2.0
    (shortest,) = shrink(plan(8), lambda s: any(f.number == 4 for f in s.faults)).faults
    assert LEAST_S <= shortest.lasts_s < 2 * LEAST_S


def test_the_load_begins_and_ends_near_the_faults_that_remain():
    small = shrink(plan(10), lambda schedule: any(fault.number == 9 for fault in schedule.faults))
    (fault,) = small.faults
    assert fault.at_s == 2.0
    assert small.seconds == pytest.approx(fault.end_s + QUIET_S)


def test_a_failure_that_needs_its_time_keeps_it():
    whole = plan(4)

    def fails(schedule):
        return schedule.seconds == whole.seconds and any(fault.number == 2 for fault in schedule.faults)

    small = shrink(whole, fails)
    assert (small.seconds, small.faults[0].at_s) == (100.0, whole.faults[2].at_s)


def test_load_alone_that_fails_needs_no_fault():
    assert shrink(plan(5), lambda schedule: True).faults == ()


def test_what_does_not_fail_cannot_be_made_smaller():
    with pytest.raises(ValueError, match="does not fail"):
        shrink(plan(5), lambda schedule: False)


def test_no_schedule_is_played_twice():
    played = []

    def fails(schedule):
        played.append(schedule.to_json())
        return len(schedule.faults) > 2

    shrink(plan(9), fails)
    assert len(played) == len(set(played))


def test_numbers_stay_so_that_a_fault_is_known_again():
    small = shrink(replace(plan(6), seed=42), lambda s: any(f.number == 5 for f in s.faults))
    assert (small.seed, small.faults[0].number, small.faults[0].members) == (42, 5, ("broker-5",))
