"""Calls without a place: tried again in order, not more of them than makes sense."""

from types import SimpleNamespace

from broker.oslo.client.pending_calls import PendingCall
from broker.oslo.client.retry_queue import PAUSE_S, ROUND_MAX, RetryQueue
from broker.oslo.contract import Address
from broker.oslo.frames import new_id


class Clock:
    """A reactor's clock and timers, by hand."""

    def __init__(self):
        self.now_s = 0.0
        self.timers = []

    def now(self):
        return self.now_s

    def call_later(self, delay_s, call):
        self.timers.append((self.now_s + delay_s, call))
        return SimpleNamespace(cancel=lambda: None)

    def ring(self):
        self.now_s += PAUSE_S
        timers, self.timers = self.timers, []
        for _due_s, call in timers:
            call()


class Stage:
    """``room``: calls that find a place; the others are added again."""

    def __init__(self, n, room):
        self.clock = Clock()
        self.room = room
        self.tried = []
        self.placed = []
        replica = SimpleNamespace(servers=lambda _exchange, _topic: ("somebody",))
        self.routes = SimpleNamespace(synced=True, replica=replica)
        self.retries = RetryQueue(self.clock, self.routes, self.place)
        self.calls = [PendingCall(Address("x", "t"), b"", new_id(), lambda _answer: None) for _ in range(n)]
        self.retries._was_synced = True
        for call in self.calls:
            self.retries.add(call)

    def place(self, call):
        self.tried.append(call)
        if len(self.placed) < self.room:
            call.link = "a link"
            self.placed.append(call)
        else:
            self.retries.add(call)


def test_a_round_ends_where_there_is_no_place():
    stage = Stage(1_000, 3)
    stage.retries.retry()
    assert stage.placed == stage.calls[:3]
    assert len(stage.tried) == 4
    stage.clock.ring()
    assert len(stage.tried) == 5


def test_a_pause_tries_so_many_at_once_and_news_all_of_them():
    stage = Stage(2 * ROUND_MAX + 10, 10_000)
    stage.clock.ring()
    assert stage.placed == stage.calls[:ROUND_MAX]
    stage.retries.retry()
    assert stage.placed == stage.calls


def test_who_has_given_up_is_not_tried():
    stage = Stage(10, 10_000)
    for call in stage.calls[::2]:
        call.over = True
    stage.retries.retry()
    assert stage.placed == stage.calls[1::2]
    assert not stage.retries._waiting


def test_where_nobody_listens_nobody_is_tried():
    stage = Stage(10, 10_000)
    stage.routes.replica.servers = lambda _exchange, _topic: ()
    stage.clock.ring()
    assert stage.tried == []
    stage.routes.synced = False
    stage.clock.ring()
    assert len(stage.tried) == 10, "what is known has changed: each has to be looked at"


def test_who_waits_longest_has_the_place_of_a_call_that_was_answered():
    stage = Stage(4, 2)
    stage.calls[0].over = True
    stage.calls[1].tried = {"a listener"}
    stage.retries.retry_after_answer(Address("x", "u"))
    assert stage.tried == []
    stage.retries.retry_after_answer(Address("x", "t", "s"))
    assert (stage.placed, stage.calls[1].tried) == ([stage.calls[1]], None)
    stage.retries.retry_after_answer(Address("x", "t"))
    assert stage.placed == stage.calls[1:3]
    stage.retries.retry_after_answer(Address("x", "t"))
    assert stage.tried == stage.calls[1:]
    stage.calls[3].over = True
    for _ in range(2):
        stage.retries.retry_after_answer(Address("x", "t"))
    assert stage.retries._waiting == {}
    assert stage.tried == stage.calls[1:]


def test_whose_tries_are_counted_has_one_after_each_pause_however_many_calls_are_answered():
    stage = Stage(3, 0)
    stage.calls[0].over = True
    stage.calls[1].tries = 2
    for _ in range(10):
        stage.retries.retry_after_answer(Address("x", "t"))
    assert stage.tried == []
    stage.clock.ring()
    assert stage.tried[0] is stage.calls[1]
