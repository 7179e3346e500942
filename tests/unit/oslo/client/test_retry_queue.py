"""Calls without a place: tried again in order, not more of them than makes sense."""

import pytest

from broker.oslo.client.calls import PAUSE_S, ROUND_MAX, PendingCall, RetryQueue
from broker.oslo.client.links import TrustedFolder
from broker.oslo.client.routing import RoutingTable
from broker.oslo.contract import Address
from broker.oslo.frames import new_id
from tests.unit.oslo.client.nodes import settings_at
from tests.unit.oslo.directory.clouds import rpc, state, states, welcome
from tests.unit.oslo.reactor.turns import by_hand

LISTENED, UNHEARD = Address("nova", "compute"), Address("nova", "nobody")


class Stage:
    """``room``: calls that find a place; the others are added again."""

    def __init__(self, hand, n, room, address=LISTENED):
        self.hand, self.now_s = hand, 0.0
        hand.reactor.now = lambda: self.now_s
        self.room = room
        self.tried = []
        self.placed = []
        folder = TrustedFolder("/nowhere", lambda *_: None)
        self.routes = RoutingTable(hand.reactor, settings_at("/nowhere"), folder, lambda _nodes: None)
        self.routes.synced = True
        self.routes.replica.feed("a", welcome(1), 0.0)
        known = state("n1", "call", records=[rpc("l1", server="s")])
        self.routes.replica.feed("a", states(known, complete=True), 0.0)
        self.retries = RetryQueue(hand.reactor, self.routes, self.place)
        self.calls = [PendingCall(address, b"", new_id(), lambda _answer: None) for _ in range(n)]
        for call in self.calls:
            self.retries.add(call)

    def pause(self):
        self.now_s += PAUSE_S
        self.hand.reactor.turn()

    def place(self, call):
        self.tried.append(call)
        if len(self.placed) < self.room:
            call.link = "a link"
            self.placed.append(call)
        else:
            self.retries.add(call)


@pytest.fixture
def stage_of():
    with by_hand() as hand:
        yield lambda *args: Stage(hand, *args)


def test_a_round_ends_where_there_is_no_place(stage_of):
    stage = stage_of(1_000, 3)
    stage.retries.retry()
    assert stage.placed == stage.calls[:3]
    assert len(stage.tried) == 4
    stage.pause()
    assert len(stage.tried) == 5


def test_a_pause_tries_so_many_at_once_and_news_all_of_them(stage_of):
    stage = stage_of(2 * ROUND_MAX + 10, 10_000)
    stage.pause()
    assert stage.placed == stage.calls[:ROUND_MAX]
    stage.retries.retry()
    assert stage.placed == stage.calls


def test_who_has_given_up_is_not_tried(stage_of):
    stage = stage_of(10, 10_000)
    for call in stage.calls[::2]:
        call.over = True
    stage.retries.retry()
    assert stage.placed == stage.calls[1::2]
    assert not stage.retries.waiting


def test_where_nobody_listens_nobody_is_tried(stage_of):
    stage = stage_of(10, 10_000, UNHEARD)
    stage.pause()
    assert stage.tried == []
    for call in stage.calls[::2]:
        call.mandatory = True
    stage.pause()
    assert stage.tried == stage.calls[::2], "whoever does not wait for a listener is told that there is none"


def test_who_waits_longest_has_the_place_of_a_call_that_was_answered(stage_of):
    stage = stage_of(4, 2)
    stage.calls[0].over = True
    stage.calls[1].tried = {"a listener"}
    stage.retries.retry_after_answer(UNHEARD)
    assert stage.tried == []
    stage.retries.retry_after_answer(Address("nova", "compute", "s"))
    assert (stage.placed, stage.calls[1].tried) == ([stage.calls[1]], None)
    stage.retries.retry_after_answer(LISTENED)
    assert stage.placed == stage.calls[1:3]
    stage.retries.retry_after_answer(LISTENED)
    assert stage.tried == stage.calls[1:]
    stage.calls[3].over = True
    for _ in range(2):
        stage.retries.retry_after_answer(LISTENED)
    assert stage.retries.waiting == {}
    assert stage.tried == stage.calls[1:]


def test_whose_tries_are_counted_has_one_after_each_pause_however_many_calls_are_answered(stage_of):
    stage = stage_of(3, 0)
    stage.calls[0].over = True
    stage.calls[1].tries = 2
    for _ in range(10):
        stage.retries.retry_after_answer(LISTENED)
    assert stage.tried == []
    stage.pause()
    assert stage.tried[0] is stage.calls[1]
