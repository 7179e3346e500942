"""Time in which the process was not run is nobody's silence."""

import pytest

from broker.awake import LATE_S, AwakeClock, Deadline, StallMeter, stall_s
from tests.tables import for_each


def test_a_timer_that_is_a_little_late_was_not_absent():
    assert stall_s(10, 9) == stall_s(10, 10) == stall_s(10, 10 + LATE_S) == 0
    assert stall_s(10, 13) == 3


def test_the_clock_leaves_out_what_a_timer_came_too_late():
    time = [100.0]
    clock = AwakeClock(lambda: time[0])
    assert clock.now() == 100
    clock.wakes_at(clock.loop_time(102))
    time[0] = 101.0
    assert clock.now() == 101
    time[0] = 132.0
    assert clock.now() == clock.now() == 102
    time[0] = 132.25
    assert clock.now() == 102.25
    clock.wakes_at(clock.loop_time(104.25))
    time[0] = 134.5  # a quarter of a second late: work
    assert clock.now() == 104.5
    assert clock.loop_time(105) == 135


def test_the_clock_never_goes_back():
    time = [0.0]
    clock = AwakeClock(lambda: time[0])
    last = 0.0
    for step in (0.1, 3.0, 0.2, 9.0, 0.0, 0.4, 0.6, 30.0):
        clock.wakes_at(clock.loop_time(clock.now() + 0.3))
        time[0] += step
        assert clock.now() >= last
        last = clock.now()


class Loop:
    """One timer, and its clock."""

    now = 100.0

    def time(self):
        return self.now

    def call_at(self, when, call, *args):
        self.when, self.call = when, lambda: call(*args)
        return self

    def call_later(self, delay, call, *args):
        return self.call_at(self.now + delay, call, *args)

    def cancel(self):
        self.call = None


def test_a_deadline_that_comes_late_is_put_off_once():
    loop, called = Loop(), []
    Deadline(loop, 110.0, 5.0, lambda: called.append(loop.now))
    loop.now = 110.1
    loop.call()
    assert called == [110.1]
    deadline = Deadline(loop, 120.0, 5.0, lambda: called.append(loop.now))
    loop.now = 150.0
    loop.call()
    assert (called, loop.when) == ([110.1], 155.0)
    loop.now = 190.0
    loop.call()
    assert called == [110.1, 190.0]
    deadline.cancel()
    assert loop.call is None


def test_a_look_that_is_late_takes_out_all_since_the_one_before():
    time = [100.0]
    stall = StallMeter(lambda: time[0])
    stall.wakes_at(102.0)
    time[0] = 101.0
    assert stall.stalled_s() == 0, "an early one"
    time[0] = 160.0
    assert stall.stalled_s() == 59, "stopped nobody knows when"
    assert stall.stalled_s() == 0
    stall.wakes_at(162.0)
    time[0] = 162.25
    assert stall.stalled_s() == 0, "a quarter of a second late: work"
    stall.wakes_at(164.0)
    time[0] = 170.0
    assert stall.stalled_s() == 7.75


@for_each("late", [0.6, 2.0, 3600.0])
@for_each("every", [0.1, 2.0])
@for_each("early", [False, True], ids=["by the timer", "and early ones"])
def test_who_is_late_at_each_look_still_counts_silence(late, every, early):
    time = [100.0]
    stall = StallMeter(lambda: time[0])
    counted = 0.0
    for _ in range(10):
        before = time[0]
        stall.wakes_at(before + every)
        time[0] += 0.01
        absent = stall.stalled_s() if early else 0.0
        time[0] = before + every + late
        absent += stall.stalled_s()
        absent += stall.stalled_s()  # another one in the same turn
        counted += time[0] - before - absent
    assert counted == pytest.approx(9 * every, abs=0.02)


def test_who_was_late_long_ago_is_excused_again():
    time = [100.0]
    stall = StallMeter(lambda: time[0])
    for start in (100.0, 200.0):
        time[0] = start
        stall.wakes_at(start + 2)
        time[0] += 60
        assert stall.stalled_s() == 60
