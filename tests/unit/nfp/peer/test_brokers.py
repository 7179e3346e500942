"""Which broker is tried next, how long to wait, and what the log says of one that cannot be reached."""

import logging

import pytest

from broker import backoff
from broker.errors import ConfigError, LinkBroken, LinkEnded, LinkRefused
from broker.nfp.peer.brokers import FIRST_S, HANGUPS, LATE_S, LONG_S, REASONS_MAX, SOON_S, Brokers


@pytest.fixture(autouse=True)
def _longest(monkeypatch):
    monkeypatch.setattr(backoff.random, "uniform", lambda _low, high: high)


def brokers(*endpoints, failover_s=0.0):
    return Brokers("me", endpoints, {}, failover_s, 0.0)


def fail(them, now, error=None):
    """Whether another one is tried next."""
    before = them.current
    them.note_failure(error or LinkBroken("nobody there"), now)
    return them.current is not before


def test_goes_on_in_a_circle_when_patience_is_over_and_not_before():
    them = brokers("a", "b", failover_s=5.0)
    assert not fail(them, 4.9)
    assert them.current.endpoint == "a"
    assert fail(them, 5.0)
    assert them.current.endpoint == "b"
    assert not fail(them, 9.0)
    assert fail(them, 10.0)
    assert them.current.endpoint == "a"


def test_stays_with_the_one_that_answered():
    them = brokers("a", "b", failover_s=5.0)
    fail(them, 5.0)
    them.note_reached(6.0)
    them.note_left(100.0, 94.0)
    assert them.current.endpoint == "b"
    assert not fail(them, 104.0)
    assert fail(them, 105.0)


def test_a_single_one_and_no_patience_setting_never_go_on():
    assert not fail(brokers("a", failover_s=5.0), 1e6)
    assert not fail(brokers("a", "b"), 1e6)


def test_waits_grow_slowly_at_first_and_start_anew():
    them = brokers("a")
    fail(them, 1.0)
    assert them.pause_s == FIRST_S
    for _ in range(9):
        fail(them, 1.0)
    assert them.pause_s == SOON_S
    for _ in range(9):
        fail(them, LONG_S)
    assert them.pause_s == LATE_S
    them.note_reached(LONG_S)
    them.note_left(LONG_S, 2 * LATE_S)
    assert them.pause_s == FIRST_S


def test_conversations_that_end_at_once_are_made_less_and_less_often():
    them = brokers("a")
    for _ in range(9):
        them.note_reached(1.0)
        them.note_left(1.0, 0.1)
    assert them.pause_s == LATE_S
    them.note_reached(1.0)
    them.note_left(9.0, 8.0)
    assert them.pause_s == FIRST_S


def test_too_many_brokers():
    with pytest.raises(ConfigError, match="1 to 64"):
        brokers(*map(str, range(65)))


def test_one_that_refuses_is_tried_less_often_than_one_that_is_away():
    them = brokers("a")
    for _ in range(9):
        fail(them, 1.0, LinkRefused("no"))
    assert them.pause_s == LATE_S


def test_each_reason_is_said_once_until_the_broker_answers(caplog):
    """A client without a key sees two reasons in turn, for as long as its job waits."""
    them = brokers("b")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            fail(them, 1.0, LinkEnded("b hung up"))
            fail(them, 1.0, LinkBroken("b speaks something else"))
    assert len(caplog.records) == 2
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        them.note_answer()
        for _ in range(HANGUPS):
            fail(them, 1.0, LinkEnded("b hung up"))
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "me: the broker b answers now",
        "me: cannot reach the broker: b hung up a",
    ]


def test_ever_new_reasons_do_not_fill_the_log(caplog):
    them = brokers("b")
    with caplog.at_level(logging.WARNING):
        for number in range(10 * REASONS_MAX):
            fail(them, 1.0, LinkBroken(f"reason {number}"))
    assert len(caplog.records) == REASONS_MAX
