"""When an entry is paused because of what waits behind it, and how every pause ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.oslo.proxy.back_pressure import FULL, LOOK_S, PAUSE_MAX_S, ROOM, STILL_S, BackPressure
from broker.oslo.reactor.counters import Counters


class Queue:
    """What waits for somebody."""

    def __init__(self, filled: float = FULL) -> None:
        self.moves = 0
        self.filled = filled


class Hand:
    """A brake, two sockets, and a clock that the test moves; what is due is called on the way."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.sockets = [SimpleNamespace(closed=False, paused=False) for _ in range(2)]
        self.counters = Counters()
        reactor = SimpleNamespace(now=lambda: self.now_s, call_soon=self.soon, call_later=self.later)
        self.back_pressure = BackPressure(reactor, self, self.counters)  # type: ignore[arg-type]

    def pause(self, _why: str, *, on: bool) -> None:
        for socket in self.sockets:
            socket.paused = on

    def soon(self, call: Any, *args: Any) -> None:
        self.due.append((self.now_s, call, args))

    def later(self, delay_s: float, call: Any, *args: Any) -> Any:
        frontend = (self.now_s + delay_s, call, args)
        self.due.append(frontend)
        return SimpleNamespace(cancel=lambda: self.due.remove(frontend))

    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while ready := sorted(
            (frontend for frontend in self.due if frontend[0] <= until_s), key=lambda frontend: frontend[0]
        ):
            self.due.remove(ready[0])
            self.now_s = max(self.now_s, ready[0][0])
            ready[0][1](*ready[0][2])
        self.now_s = until_s

    @property
    def paused(self) -> bool:
        assert self.sockets[0].paused is self.sockets[1].paused is self.back_pressure.on
        return self.back_pressure.on


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_a_queue_that_moves_pauses_the_entry_until_it_has_room(hand: Hand) -> None:
    queue = Queue()
    assert hand.back_pressure.press(queue)
    assert hand.back_pressure.press(queue), "asking again changes nothing"
    assert hand.paused
    assert hand.back_pressure.status() == {"paused": True, "for": 1}
    queue.filled = ROOM
    hand.back_pressure.ease(queue)
    hand.wait(0)
    assert hand.paused, "that is not room yet"
    queue.filled = ROOM - 0.01
    hand.back_pressure.ease(queue)
    hand.wait(0)
    assert not hand.paused
    assert hand.counters.status() == {"pauses": 1}
    hand.wait(1)
    assert not hand.due, "no timer stays"


def test_room_that_nobody_tells_of_is_found(hand: Hand) -> None:
    queue = Queue()
    hand.back_pressure.press(queue)
    queue.filled = 0.0
    hand.wait(LOOK_S)
    assert not hand.paused


def test_a_proxy_that_stood_still_with_its_servers_judges_by_what_it_sees_afterwards(hand: Hand) -> None:
    queue = Queue()
    for _ in range(2):
        hand.now_s += 2 * STILL_S  # nothing ran
        assert hand.back_pressure.press(queue), "it had no time to move"
        hand.wait(0)
        assert hand.paused
    for _ in range(int(2 * STILL_S / LOOK_S)):
        queue.moves += 1
        hand.wait(LOOK_S)
    assert hand.paused
    hand.wait(STILL_S + 2 * LOOK_S)
    assert not hand.paused, "nothing comes any more"


def test_a_pause_ends_soon_after_its_queue_stands_still(hand: Hand) -> None:
    queue = Queue()
    hand.back_pressure.press(queue)
    hand.wait(STILL_S)
    assert hand.paused
    hand.wait(2 * LOOK_S)
    assert not hand.paused
    assert not hand.back_pressure.press(queue)
    assert hand.counters.status() == {"pauses": 1, "pauses_still": 1}
    queue.moves += 1
    assert hand.back_pressure.press(queue), "it moves again"


def test_one_that_is_too_slow_pauses_others_for_a_while_and_not_again_before_it_had_room(hand: Hand) -> None:
    queue = Queue()
    hand.back_pressure.press(queue)
    for _ in range(int(PAUSE_MAX_S / 0.25)):
        hand.wait(0.25)
        queue.moves += 1
        hand.back_pressure.ease(queue)
    assert hand.paused
    hand.wait(0.25)
    assert not hand.paused
    assert hand.counters.status()["pauses_slow"] == 1
    queue.moves += 1
    assert not hand.back_pressure.press(queue)
    queue.filled = ROOM - 0.01
    hand.back_pressure.ease(queue)
    queue.filled = FULL
    assert hand.back_pressure.press(queue)


def test_all_that_ask_for_it_have_to_be_content(hand: Hand) -> None:
    one, two = Queue(), Queue()
    hand.back_pressure.press(one)
    hand.back_pressure.press(two)
    hand.back_pressure.forget(one)
    hand.wait(0)
    assert hand.paused
    hand.back_pressure.forget(two)
    hand.back_pressure.forget(two)
    hand.wait(0)
    assert not hand.paused
    assert hand.counters.status() == {"pauses": 1}


def test_after_the_end_nothing_is_due(hand: Hand) -> None:
    hand.back_pressure.press(Queue())
    hand.back_pressure.close()
    hand.back_pressure.close()
    assert not hand.due
