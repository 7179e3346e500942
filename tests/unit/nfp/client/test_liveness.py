"""A broker that says nothing: asked for a sign of life, given up; and what is no silence."""

import asyncio
import contextlib
import threading
import time
from types import SimpleNamespace

import pytest

from broker.nfp.client import Limits
from broker.nfp.opening import BrokerOpen
from broker.nfp.peer import liveness
from broker.nfp.peer.channel import Traffic
from broker.nfp.peer.liveness import LEAST_S, STRETCH_MAX, BrokerLiveness
from tests.tables import for_each
from tests.unit.nfp.client.running import WITHIN_S, run

HOLD_S = 15.0
QUICK = {"keepalive_ms": 250, "multiplier": 4}


class Scene:
    """A client, its channel, and a clock that is turned by hand."""

    def __init__(self, opened=None, broker="tcp://a:1"):
        self.now = 1000.0
        self.due = []
        self.awaited = True
        self.broker, self.name, self.traffic = broker, "c", Traffic(received=7, sent=3)
        self.done = []
        self.silence = BrokerLiveness(self, lambda: self.awaited, self._probe, self)
        self.silence.begin(opened)

    def _probe(self):
        self.done.append(("probe", round(self.now - 1000.0, 1)))
        self.traffic.sent += 1

    def reopen(self, why):
        self.done.append(("reopen", round(self.now - 1000.0, 1)))

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        entry = (self.now + delay, callback)
        self.due.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self.due and self.due.remove(entry))

    def wait(self, seconds):
        end = self.now + seconds
        while self.due and min(self.due)[0] <= end:
            self.now, callback = self.due.pop(self.due.index(min(self.due)))
            callback()
        self.now = end

    def freeze(self, seconds):
        """The clock goes on, and we do not."""
        self.now += seconds
        self.due = [(max(when, self.now), callback) for when, callback in self.due]

    def hear(self):
        self.traffic.received += 1


def test_it_is_asked_half_way_and_given_up_at_the_end():
    scene = Scene()
    scene.wait(60)
    assert scene.done == [("probe", 7.5), ("reopen", 15.0)]


@for_each(
    ("opened", "hold_s"),
    [
        (None, HOLD_S),
        ({}, HOLD_S),
        ({"keepalive_ms": 1000, "multiplier": 4}, 4.0),
        ({"keepalive_ms": "soon", "multiplier": -1}, HOLD_S),
        ({"keepalive_ms": 50, "multiplier": 2}, LEAST_S),
    ],
)
def test_the_time_is_what_the_broker_tells_workers(opened, hold_s):
    scene = Scene(opened)
    assert scene.silence.hold_s == hold_s
    scene.wait(hold_s - 0.01)
    assert [what for what, _ in scene.done] == ["probe"]
    scene.wait(0.02)
    assert [what for what, _ in scene.done] == ["probe", "reopen"]


def test_any_packet_is_a_sign_of_life():
    scene = Scene()
    for _ in range(20):
        scene.wait(7)
        scene.hear()
    assert scene.done == []
    scene.wait(10)
    scene.hear()  # the answer to the probe
    scene.wait(10)
    assert [what for what, _ in scene.done] == ["probe", "probe"]


def test_a_broker_of_which_nothing_is_awaited_may_be_silent():
    scene = Scene()
    scene.awaited = False
    scene.wait(600)
    assert scene.done == []
    scene.awaited = True
    scene.wait(16)
    assert [what for what, _ in scene.done] == ["probe", "reopen"]
    assert scene.done[-1][1] >= 614  # counted from when something was awaited


def test_a_question_that_was_given_up_still_has_no_answer():
    """Requests wait 10 s: a client that asks now and then would never come to the end of the hold time."""
    scene = Scene()
    scene.awaited = False
    scene.wait(600)
    scene.traffic.sent += 1
    scene.wait(16)
    assert [what for what, _ in scene.done] == ["probe", "reopen"]


def test_what_was_heard_ends_the_wait_for_what_was_sent():
    scene = Scene()
    scene.awaited = False
    scene.traffic.sent += 1
    scene.wait(5)
    scene.hear()
    scene.wait(600)
    assert scene.done == []


def test_time_in_which_we_were_frozen_does_not_count():
    scene = Scene()
    scene.wait(10)
    scene.freeze(3600)
    scene.wait(0.1)
    assert [what for what, _ in scene.done] == ["probe"]
    scene.hear()  # it was there to be read
    scene.wait(7)
    assert len(scene.done) == 1
    scene.freeze(3600)
    scene.wait(30)
    assert [what for what, _ in scene.done] == ["probe", "probe", "reopen"]


def test_who_is_always_late_gives_a_silent_broker_up_too():
    scene = Scene()
    for _ in range(20):
        scene.freeze(4)
        scene.wait(0.01)
    assert [what for what, _ in scene.done] == ["probe", "reopen"]


def test_a_conversation_that_is_over_is_not_watched():
    scene = Scene()
    scene.wait(10)
    scene.silence.end()
    scene.silence.end()
    scene.wait(60)
    assert [what for what, _ in scene.done] == ["probe"]
    scene.silence.begin(None)
    assert scene.silence.silent_s == 0.0
    scene.wait(14.9)
    assert [what for what, _ in scene.done] == ["probe", "probe"]


def test_an_open_that_comes_late_changes_the_time():
    scene = Scene()
    scene.wait(1)
    scene.silence.begin({"keepalive_ms": 1000, "multiplier": 2})
    scene.wait(2.1)
    assert [what for what, _ in scene.done] == ["probe", "reopen"]
    assert len(scene.due) == 0


def test_a_broker_in_this_process_is_frozen_only_when_we_are():
    scene = Scene(broker="")
    scene.wait(600)
    assert scene.done == []


def test_after_silences_in_a_row_more_patience_lets_a_large_packet_come():
    scene = Scene()
    waited = []
    for _ in range(5):
        scene.hear()  # its OPEN
        began = scene.now
        scene.wait(3600)
        waited.append(scene.done[-1][1] - (began - 1000.0))
        scene.silence.begin(None)
    assert [round(each / HOLD_S) for each in waited] == [1, 2, 4, 8, STRETCH_MAX]
    assert scene.silence.hold_s == HOLD_S * STRETCH_MAX
    scene.wait(HOLD_S * 3)
    scene.hear()  # it came
    scene.wait(2)
    assert scene.silence.hold_s == HOLD_S


# -- a client and a broker ------------------------------------------------------------------------


@pytest.mark.patient
def test_a_broker_that_answers_the_probe_keeps_its_clients(broker, monkeypatch):
    """With deployed NorFab's broker, which tells no time, ours is shortened here."""
    broker.tells = QUICK
    monkeypatch.setattr(liveness, "broker_of", lambda said: BrokerOpen(**QUICK))

    def probes():
        return broker.count("OPEN" if broker.push else "MMI") - broker.push

    async def work(client):
        job = await client.submit("dummy", "never ends")
        await job.accepted()
        began = time.monotonic()
        await eventually(lambda: probes() >= 3)
        assert probes() <= 2 * (time.monotonic() - began) + 1, "it asks no oftener than it has to"
        assert client._channel.traffic.connections == 1
        assert client.unknown == 0
        job.give_up()

    run(work, broker, limits=Limits(poll_s=60))
    assert broker.count("POST") == 1


@pytest.mark.patient
def test_nothing_is_asked_by_a_client_that_awaits_nothing(ours):
    ours.tells = QUICK

    async def work(client):
        await client.run("dummy", "ping")
        await asyncio.sleep(1.5)
        assert client._channel.traffic.connections == 1

    run(work, ours)
    assert ours.count("OPEN") <= 2  # what it said last may have gone unanswered for a look


@pytest.mark.patient
@pytest.mark.parametrize("what", ["job", "question", "subscription"])
def test_a_broker_that_hangs_is_left_and_asked_again(ours, what):
    ours.tells = QUICK

    async def work(client):
        job = await client.submit("dummy", "never ends") if what == "job" else None
        async with contextlib.AsyncExitStack() as stack:
            if what == "subscription":
                await stack.enter_async_context(client.subscribe())
            await client.mmi("show_workers")
            left = threading.Event()
            await asyncio.to_thread(ours.do, lambda: ours._actions.put(lambda: left.wait(WITHIN_S)))
            async with asyncio.TaskGroup() as group:
                if what == "question":
                    asked = group.create_task(client.mmi("show_workers"))
                await eventually(lambda: client._channel.traffic.connections >= 2)
                left.set()
            if what == "question":
                assert len(asked.result()) == 4
            await eventually(lambda: client.is_connected)
            assert len(await client.mmi("show_workers")) == 4
        if job is not None:
            await eventually(lambda: ours.count("POST") >= 2)
            job.give_up()

    run(work, ours, limits=Limits(poll_s=60))
    if what == "subscription":
        assert sum(b"subscribe" in data and b"uns" not in data for *_, data in ours.seen) >= 2


async def eventually(true):
    while not true():
        await asyncio.sleep(0.02)
