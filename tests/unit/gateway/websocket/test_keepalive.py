"""The wheel: who is pinged when, and what counts as a sign of life; with a clock of its own."""

import asyncio
import heapq

from gateway.closes import NO_PONG
from gateway.websocket.keepalive import Keepalive
from tests.tables import for_each
from tests.unit.gateway.websocket.house import masked


class Wheel:
    """A loop's clock that a test moves."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.timers: list = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        timer = Timer(self.now + delay, callback)
        heapq.heappush(self.timers, timer)
        return timer

    def run(self, seconds):
        until = self.now + seconds
        while self.timers and self.timers[0].when <= until:
            timer = heapq.heappop(self.timers)
            self.now = max(self.now, timer.when)
            if not timer.cancelled:
                timer.callback()
        self.now = until


class Timer:
    def __init__(self, when, callback):
        self.when, self.callback, self.cancelled = when, callback, False

    def __lt__(self, other):
        return self.when < other.when

    def cancel(self):
        self.cancelled = True


class Link:
    def __init__(self, clock, answers=True):
        self.clock, self.answers = clock, answers
        self.ended, self.life = None, 0
        self.pings: list[float] = []
        self.closed: list[tuple[float, int]] = []
        self.place = None

    def ping(self):
        self.pings.append(self.clock.now)
        self.life += self.answers

    def close_with(self, code, reason=""):
        self.closed.append((self.clock.now, code))
        self.ended = "closed"
        self.place.discard(self)


def test_a_link_that_answers_is_pinged_once_a_period(monkeypatch):
    clock = Wheel(monkeypatch)
    wheel = Keepalive(25, 15)
    link = Link(clock)
    link.place = wheel.add(link)
    clock.run(250.1)
    assert len(link.pings) in (10, 11)
    gaps = {round(after - before, 6) for before, after in zip(link.pings, link.pings[1:], strict=False)}
    assert gaps == {25.0}
    assert link.closed == []


@for_each(("ping_s", "pong_s"), [(25, 15), (10, 30), (0.1, 0.1), (360, 1)])
def test_a_silent_link_is_closed_in_time(monkeypatch, ping_s, pong_s):
    clock = Wheel(monkeypatch)
    wheel = Keepalive(ping_s, pong_s)
    link = Link(clock, answers=False)
    link.place = wheel.add(link)
    clock.run(3 * (ping_s + pong_s))
    ((when, code),) = link.closed
    assert code == NO_PONG
    assert pong_s <= when - link.pings[0] <= pong_s * 1.5 + 1e-6
    assert len(wheel) == 0


def test_a_process_that_was_stopped_gives_a_link_the_rest_of_its_time(monkeypatch):
    """Its client may have been stopped with it, and the pong is still to be read in any case."""
    clock = Wheel(monkeypatch)
    stopped = []
    wheel = Keepalive(25, 15, stopped=stopped.append)
    link = Link(clock, answers=False)
    link.place = wheel.add(link)
    while not link.pings:
        clock.run(0.5)
    clock.now += 60
    clock.run(13)
    assert link.closed == []
    assert [59 < each <= 60 for each in stopped] == [True]
    clock.run(3)
    assert link.closed, "a silence that we heard out"


def test_any_sign_of_life_counts(monkeypatch):
    clock = Wheel(monkeypatch)
    wheel = Keepalive(25, 15)
    link = Link(clock, answers=False)
    link.place = wheel.add(link)
    for _ in range(100):
        clock.run(14)
        link.life += 1
    assert link.closed == []


def test_pings_of_many_are_spread(monkeypatch):
    clock = Wheel(monkeypatch)
    wheel = Keepalive(25, 15)
    links = [Link(clock) for _ in range(5000)]
    for link in links:
        link.place = wheel.add(link)
    clock.run(25)
    at: dict[float, int] = {}
    for link in links:
        at[link.pings[0]] = at.get(link.pings[0], 0) + 1
    assert len(at) == 50
    assert max(at.values()) < 200, "a hundred on average"


def test_nobody_left_no_timer(monkeypatch):
    clock = Wheel(monkeypatch)
    wheel = Keepalive(25, 15)
    link = Link(clock)
    wheel.add(link).discard(link)
    clock.run(60)
    assert all(timer.cancelled for timer in clock.timers)
    link.place = wheel.add(link)
    clock.run(60)
    assert link.pings
    wheel.stop()
    seen = len(link.pings)
    clock.run(60)
    assert len(link.pings) == seen
    assert len(wheel) == 0


async def test_a_live_client_that_does_not_answer_is_told_before_it_goes(open_house):
    house = await open_house(ping_s=0.1, pong_s=0.6)
    silent = await house.connect()
    good = await house.connect()
    pings = 0
    while True:
        first, payload = await silent.frame()
        if first != 0x89:
            break
        pings += 1
        good_first, good_payload = await good.frame()
        assert good_first == 0x89
        good.write(masked(10, good_payload))
    assert pings
    assert b'"name":"no-pong"' in payload
    assert (await silent.closing())[1] == 4003
    await house.until(lambda: len(house.sessions.by_id) < 2)  # nobody answers for the good one any more
