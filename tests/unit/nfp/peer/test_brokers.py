"""Which broker is tried next, and how long to wait."""

import pytest

from broker import backoff
from broker.errors import ConfigError
from broker.nfp.peer.brokers import FIRST_S, LATE_S, LONG_S, SOON_S, Brokers


@pytest.fixture(autouse=True)
def _longest(monkeypatch):
    monkeypatch.setattr(backoff.random, "uniform", lambda _low, high: high)


def test_goes_on_in_a_circle_when_patience_is_over_and_not_before():
    them = Brokers(["a", "b"], 5.0, 0.0)
    assert not them.note_failure(4.9)
    assert them.current == "a"
    assert them.note_failure(5.0)
    assert them.current == "b"
    assert not them.note_failure(9.0)
    assert them.note_failure(10.0)
    assert them.current == "a"


def test_stays_with_the_one_that_answered():
    them = Brokers(["a", "b"], 5.0, 0.0)
    them.note_failure(5.0)
    them.note_reached(6.0)
    them.note_left(100.0, 94.0)
    assert them.current == "b"
    assert not them.note_failure(104.0)
    assert them.note_failure(105.0)


def test_a_single_one_and_no_patience_setting_never_go_on():
    assert not Brokers(["a"], 5.0, 0.0).note_failure(1e6)
    assert not Brokers(["a", "b"], 0, 0.0).note_failure(1e6)


def test_waits_grow_slowly_at_first_and_start_anew():
    them = Brokers(["a"], 0, 0.0)
    them.note_failure(1.0)
    assert them.pause_s == FIRST_S
    for _ in range(9):
        them.note_failure(1.0)
    assert them.pause_s == SOON_S
    for _ in range(9):
        them.note_failure(LONG_S)
    assert them.pause_s == LATE_S
    them.note_reached(LONG_S)
    them.note_left(LONG_S, 2 * LATE_S)
    assert them.pause_s == FIRST_S


def test_conversations_that_end_at_once_are_made_less_and_less_often():
    them = Brokers(["a"], 0, 0.0)
    for _ in range(9):
        them.note_reached(1.0)
        them.note_left(1.0, 0.1)
    assert them.pause_s == LATE_S
    them.note_reached(1.0)
    them.note_left(9.0, 8.0)
    assert them.pause_s == FIRST_S


def test_too_many_brokers():
    with pytest.raises(ConfigError, match="1 to 64"):
        Brokers([str(each) for each in range(65)], 0, 0.0)


def test_one_that_refuses_is_tried_less_often_than_one_that_is_away():
    them = Brokers(["a"], 0, 0.0)
    for _ in range(9):
        them.note_failure(1.0, refused=True)
    assert them.pause_s == LATE_S
