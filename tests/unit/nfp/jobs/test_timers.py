"""Deadlines: what is due is called, whatever one of them does."""

import pytest

from broker.nfp.jobs.model import RETRY_S, Timers


def test_one_that_fails_holds_up_no_other_and_is_called_again():
    timers, called = Timers(), []

    def fails(what, now):
        called.append((what, now))
        if now < 2.0:
            raise ValueError(what)

    timers.at(1.0, fails, "a")
    timers.at(1.0, lambda what, now: called.append((what, now)), "b")
    with pytest.raises(ValueError, match="a"):
        timers.run(1.0)
    assert called == [("a", 1.0), ("b", 1.0)]
    assert timers.due == 1.0 + RETRY_S
    timers.run(1.0 + RETRY_S)
    assert called[2:] == [("a", 1.0 + RETRY_S)]
    assert len(timers) == 0


def test_one_that_failed_can_be_cancelled_by_its_owner():
    timers = Timers()

    def fails(what, now):
        raise ValueError(what)

    timer = timers.at(1.0, fails, "a")
    with pytest.raises(ValueError, match="a"):
        timers.run(1.0)
    timers.cancel(timer)
    timers.run(100.0)
    assert len(timers) == 0
