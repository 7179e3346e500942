"""heartbeat.pulse and its figures."""

from broker.services.heartbeat import Heartbeat
from tests.unit.services.desk import GUEST, Desk, value


def desk(rank: int = 0) -> Desk:
    return Desk(rank, kinds=[Heartbeat])


def test_rank_0_beats_each_period():
    d = desk()
    d.advance(1.9)
    assert d.events == []
    d.advance(4.2)
    assert [(event.topic, event.payload, event.sequence) for event in d.events] == [
        ("heartbeat.pulse", None, 1),
        ("heartbeat.pulse", None, 2),
        ("heartbeat.pulse", None, 3),
    ]
    figures = {"period": 2.0, "timeout": 0.0, "count": 3, "warn_thresh": 0}
    assert value(d.client().ask("heartbeat.stats-get")) == figures
    assert d.client().ask("heartbeat.stats-clear").errnum == 0
    assert value(d.client().ask("heartbeat.stats-get"))["count"] == 0


def test_a_late_beat_does_not_shift_the_grid():
    d = desk()
    d.loop.now = 102.7
    d.loop.settle()
    assert len(d.events) == 1
    assert [timer.when() for timer in d.loop.timers] == [104.0]


def test_beats_that_were_missed_are_not_made_up_for():
    d = desk()
    d.loop.now = 200.0
    d.loop.settle()
    assert len(d.events) == 1
    assert [timer.when() for timer in d.loop.timers] == [202.0]


def test_other_ranks_only_listen():
    d = desk(rank=1)
    d.advance(60)
    assert d.loop.timers == []
    assert value(d.client().ask("heartbeat.stats-get"))["count"] == 0


def test_the_period_is_a_setting():
    half = Desk(kinds=[Heartbeat], text="heartbeat_period_s = 0.5\n")
    half.advance(1.0)
    assert len(half.events) == 2


def test_figures_are_the_owners():
    assert desk().client(GUEST).refused("heartbeat.stats-get") == (1, "Request requires owner credentials")
