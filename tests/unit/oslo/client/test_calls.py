"""Pending calls: deadlines, heartbeats, what is left of answered ones."""

import pytest

from broker.awake import StallMeter
from broker.oslo.client.calls import SPARE, PendingCall, PendingCalls
from broker.oslo.contract import Address
from tests.tables import for_each

WHERE = Address("x", "t")


def call(number, due_s=None, monitor_s=None):
    answers = []
    made = PendingCall(
        WHERE, b"", number.to_bytes(16), answers.append, due_s=due_s, timeout_s=due_s, monitor_s=monitor_s
    )
    return made, answers


def test_a_call_ends_at_its_time_and_not_before():
    calls = PendingCalls()
    one, _ = call(1, due_s=10.0)
    calls.add(one)
    assert calls.pop_due(9.999) == []
    assert calls.pop_due(10.0) == [one]
    assert len(calls) == 0
    assert calls.get(one.id) is None


def test_a_call_without_end_never_ends():
    calls = PendingCalls()
    one, _ = call(1)
    calls.add(one)
    assert calls.next_end_s() is None
    assert calls.pop_due(1e12) == []
    assert calls.pop(one.id) is one


def test_who_was_stopped_waits_for_heartbeats_anew_and_for_nothing_else():
    calls = PendingCalls()
    monitored, unheard, plain = call(1, 9.0, 2.0)[0], call(2, 9.0, 2.0)[0], call(3, 9.0)[0]
    for one in (monitored, unheard, plain):
        one.beaten(0.0)
        calls.add(one)
    unheard.mark_repeated()
    calls.forgive(0.0, 1.0)
    assert [one.end_s for one in (monitored, unheard, plain)] == [2.0, 9.0, 9.0]
    calls.forgive(3.0, 5.0)
    assert [one.end_s for one in (monitored, unheard, plain)] == [5.0, 9.0, 9.0]
    calls.forgive(5.0, 5.0)
    assert [one.end_s for one in (monitored, unheard, plain)] == [7.0, 9.0, 9.0]
    assert calls.pop_due(6.0) == []
    calls.forgive(3.0, 10.0)
    assert monitored.end_s == 9.0


@for_each(("late_s", "end_s"), [(0.0, 2.0), (0.6, 5.2), (60.0, 124.0)])
def test_a_caller_that_is_always_late_misses_heartbeats_too(late_s, end_s):
    """Its timer comes so much too late each time, and nobody answers: as the sender of calls looks."""
    now_s, calls = 0.0, PendingCalls()
    stall = StallMeter(lambda: now_s)
    one, _ = call(1, monitor_s=2.0)
    one.beaten(now_s)
    calls.add(one)
    for _ in range(100):
        stall.wakes_at(calls.next_end_s())
        now_s = calls.next_end_s() + late_s
        calls.forgive(stall.stalled_s(), now_s)
        if calls.pop_due(now_s):
            break
    assert now_s == pytest.approx(end_s)


def test_a_heartbeat_moves_the_end_of_a_monitored_call_but_not_beyond_its_whole_time():
    calls = PendingCalls()
    one, _ = call(1, due_s=5.0, monitor_s=2.0)
    one.beaten(0.0)
    calls.add(one)
    assert (one.end_s, one.monitored_out) == (2.0, True)
    one.beaten(1.5)
    assert calls.pop_due(2.0) == []
    one.beaten(3.4)
    assert (one.end_s, one.monitored_out) == (5.0, False)
    assert calls.pop_due(3.5) == []
    assert calls.pop_due(5.0) == [one]


def test_only_the_first_answer_counts():
    one, answers = call(1)
    one.finish(b"first")
    one.finish(b"second")
    assert answers == [b"first"]
    assert (one.answer, one.over) == (b"first", True)


def test_answered_calls_do_not_pile_up():
    calls = PendingCalls()
    for number in range(10_000):
        one, _ = call(number, due_s=1e6)
        calls.add(one)
        calls.pop(one.id)
    assert len(calls) == 0
    assert len(calls._ends) <= SPARE + 3


def test_ends_come_in_order_of_time():
    calls = PendingCalls()
    for number, due_s in enumerate((3.0, 1.0, 2.0)):
        calls.add(call(number, due_s)[0])
    assert calls.next_end_s() == 1.0
    assert [one.due_s for one in calls.pop_due(2.5)] == [1.0, 2.0]
