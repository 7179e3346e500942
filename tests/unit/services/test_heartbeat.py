"""heartbeat.pulse and its figures."""

from broker.services.heartbeat import Heartbeat
from tests.unit.services.little_broker import GUEST, Desk, value


def desk(rank: int = 0, period: float = 2.0) -> Desk:
    return Desk(rank=rank, services=lambda context: [Heartbeat(context, period)])


def test_rank_0_beats_each_period():
    d = desk()
    d.context.advance(1.9)
    assert d.context.events == []
    d.context.advance(4.2)
    assert [(event.topic, event.payload, event.sequence) for event in d.context.events] == [
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
    (timer,) = d.context.timers
    d.context.time = 102.7
    d.context.timers.remove(timer)
    timer.callback()
    assert [timer.due for timer in d.context.timers] == [104.0]


def test_beats_that_were_missed_are_not_made_up_for():
    d = desk()
    (timer,) = d.context.timers
    d.context.time = 200.0
    d.context.timers.remove(timer)
    timer.callback()
    assert len(d.context.events) == 1
    assert [timer.due for timer in d.context.timers] == [202.0]


def test_other_ranks_only_listen():
    d = desk(rank=1)
    d.context.advance(60)
    assert d.context.timers == []
    assert value(d.client().ask("heartbeat.stats-get"))["count"] == 0


def test_figures_are_the_owners():
    assert desk().client(GUEST).refused("heartbeat.stats-get") == (1, "Request requires owner credentials")
