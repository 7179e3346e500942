"""Waiting in a real thread, and what is counted as handed over."""

import threading
import time

from broker.oslo.client.client import SubmitQueue
from broker.oslo.client.waiting import NativeWaiter, new_waiter
from tests.live.oslo_raw import PATIENCE_S, until


def test_without_eventlet_the_waiter_is_a_real_lock():
    assert isinstance(new_waiter(), NativeWaiter)


def test_set_before_and_after_and_twice():
    waiter = NativeWaiter()
    waiter.set()
    waiter.set()
    assert waiter.wait(None)
    assert waiter.wait(0.0)


def test_a_waiter_gives_up_after_its_time():
    begin = time.monotonic()
    assert not NativeWaiter().wait(0.05)
    assert time.monotonic() - begin >= 0.05
    assert not NativeWaiter().wait(-1.0)


def test_another_thread_wakes_it():
    waiter = NativeWaiter()
    thread = threading.Thread(target=waiter.set)
    thread.start()
    assert waiter.wait(PATIENCE_S)
    thread.join()


def test_callers_may_hand_over_so_much_and_no_more():
    submit_queue = SubmitQueue(msgs_max=3, bytes_max=100)
    assert [submit_queue.give(10) for _ in range(4)] == [True, True, True, False]
    submit_queue.take(10)
    assert submit_queue.give(10)
    assert submit_queue.waiting == 3


def test_bytes_count_but_one_message_always_fits():
    submit_queue = SubmitQueue(msgs_max=10, bytes_max=100)
    assert submit_queue.give(1_000)
    assert not submit_queue.has_room()
    assert not submit_queue.give(1)
    submit_queue.take(1_000)
    assert submit_queue.give(60)
    assert not submit_queue.give(41)


def test_who_waits_for_room_is_woken_when_half_of_it_is_free():
    submit_queue = SubmitQueue(msgs_max=4, bytes_max=1_000)
    for _ in range(4):
        assert submit_queue.give(1)
    went_on = []
    thread = threading.Thread(
        target=lambda: went_on.append(submit_queue.wait(PATIENCE_S, submit_queue.has_room)), daemon=True
    )
    thread.start()
    until(lambda: submit_queue._waiters, "somebody who waits")
    submit_queue.take(1)
    assert not went_on
    submit_queue.take(1)
    thread.join(PATIENCE_S)
    assert went_on == [None]


def test_nobody_waits_when_there_is_room_by_then():
    submit_queue = SubmitQueue()
    submit_queue.wait(PATIENCE_S, lambda: True)
    assert not submit_queue._waiters
