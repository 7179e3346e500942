"""state-machine.get, wait, monitor."""

from broker.wire.message import STREAMING
from tests.tables import for_each
from tests.unit.services.desk import GUEST, Desk, value


def at(state: str, rank: int = 0) -> Desk:
    return Desk(rank, state=state)


def test_get():
    desk = at("run")
    desk.advance(7.25)
    assert value(desk.client(GUEST).ask("state-machine.get")) == {"state": "run", "duration": 7.25}
    assert value(at("quorum", rank=3).client().ask("state-machine.get", {"x": 1}))["state"] == "quorum"


def test_wait_is_answered_when_the_broker_runs():
    assert at("run").client(GUEST).ask("state-machine.wait").payload is None
    desk = at("init")
    me, gone = desk.client(), desk.client()
    tag, lost = me.send("state-machine.wait"), gone.send("state-machine.wait")
    gone.silent("state-machine.disconnect")
    desk.enter("quorum")
    assert me.take(tag) == []
    desk.enter("run")
    assert [message.errnum for message in me.take(tag)] == [0]
    desk.enter("cleanup")
    assert me.take(tag) == gone.take(lost) == []


def test_wait_fails_when_running_is_over():
    refusal = (22, "broker has surpassed RUN state")
    assert at("cleanup").client().refused("state-machine.wait") == refusal
    desk = at("join")
    me = desk.client()
    tag = me.send("state-machine.wait")
    desk.enter("shutdown")
    assert [message.errnum for message in me.take(tag)] == [22]


@for_each(
    ("data", "first"),
    [
        (None, [{"state": 5}]),
        ({}, [{"state": 5}]),
        ({"final": -1}, [{"state": 5}]),
        ({"final": 7}, [{"state": 5}]),
        ({"final": 5}, [{"state": 5}, 61]),
        ({"final": 3}, [61]),
    ],
)
def test_what_a_monitor_hears_first(data, first):
    assert at("run").client().stream("state-machine.monitor", data).news() == first


def test_a_monitor_hears_each_state_up_to_its_last():
    desk = at("join")
    me = desk.client()
    stream, every = me.stream("state-machine.monitor", {"final": 6}), me.stream("state-machine.monitor")
    for state in ("init", "run", "cleanup", "shutdown"):
        desk.enter(state)
    assert stream.news() == [{"state": 1}, {"state": 3}, {"state": 5}, {"state": 6}, 61]
    assert every.news() == [{"state": number} for number in (1, 3, 5, 6, 7)]
    me.silent("state-machine.cancel", {"matchtag": every.tag})
    assert every.news() == [61]


def test_a_last_state_that_is_skipped_ends_the_stream_without_it():
    desk = at("init")
    stream = desk.client().stream("state-machine.monitor", {"final": 5})
    desk.enter("cleanup")
    desk.enter("shutdown")
    assert stream.news() == [{"state": 3}, 61]


def test_without_streaming_there_is_one_answer():
    desk = at("run")
    me = desk.client()
    assert value(me.ask("state-machine.monitor", {"final": 9})) == {"state": 5}
    assert value(me.ask("state-machine.monitor", {"final": 5})) == {"state": 5}
    desk.enter("cleanup")
    assert desk.answers == []


def test_monitors_are_for_the_owner_and_go_with_them():
    desk = at("run")
    assert desk.client(GUEST).refused("state-machine.monitor", {"final": 5}, flags=STREAMING) == (
        1,
        "Request requires owner credentials",
    )
    me = desk.client()
    stream = me.stream("state-machine.monitor")
    stream.news()
    me.silent("state-machine.disconnect")
    desk.enter("cleanup")
    assert stream.news() == []
