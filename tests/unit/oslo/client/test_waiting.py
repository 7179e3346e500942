"""Waiting in a real thread, and what is counted as handed over."""

import threading
import time

import pytest

from broker.oslo.client import client
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


@pytest.fixture
def bounded_to(monkeypatch):
    """``SubmitQueue`` with other bounds."""

    def bound(msgs, size):
        monkeypatch.setattr(client, "HANDED_MSGS", msgs)
        monkeypatch.setattr(client, "HANDED_BYTES", size)
        return SubmitQueue()

    return bound


def test_callers_may_hand_over_so_much_and_no_more(bounded_to):
    submit_queue = bounded_to(3, 100)
    assert [submit_queue.give(10) for _ in range(4)] == [True, True, True, False]
    submit_queue.take(10)
    assert submit_queue.give(10)
    assert submit_queue.waiting == 3


def test_bytes_count_but_the_message_that_makes_it_full_fits(bounded_to):
    submit_queue = bounded_to(10, 100)
    assert submit_queue.give(1_000)
    assert not submit_queue.has_room()
    assert not submit_queue.give(1)
    submit_queue.take(1_000)
    assert submit_queue.give(60)
    assert submit_queue.give(41)
    assert not submit_queue.give(1)


def test_who_waits_for_room_is_woken_when_half_of_it_is_free(bounded_to):
    submit_queue = bounded_to(4, 1_000)
    for _ in range(4):
        assert submit_queue.give(1)
    went_on = []
    thread = threading.Thread(
        target=lambda: went_on.append(submit_queue.wait(PATIENCE_S, submit_queue.has_room)), daemon=True
    )
    thread.start()
    until(lambda: len(submit_queue), "somebody who waits")
    submit_queue.take(1)
    assert not went_on
    submit_queue.take(1)
    thread.join(PATIENCE_S)
    assert went_on == [True]


def test_nobody_waits_when_there_is_room_by_then():
    submit_queue = SubmitQueue()
    submit_queue.wait(PATIENCE_S, lambda: True)
    assert len(submit_queue) == 0
