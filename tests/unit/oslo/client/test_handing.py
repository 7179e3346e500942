"""Messages that are handed over in the thread of the sockets, and the end of that."""

import queue
import threading

import pytest

from broker.oslo.client.counters import ClientCounters
from broker.oslo.client.delivery import Delivery
from broker.oslo.client.inbox import ClientInbox, ReceivedMessage
from broker.oslo.frames import Kind, decode, encode, new_id
from broker.oslo.names import Pipeline
from broker.oslo.reactor import Reactor
from broker.oslo.records import Record
from tests.unit.oslo.client.nodes import settings_at

PATIENCE_S = 10.0


class Sockets:
    """A thread that calls what it is asked to."""

    def __init__(self):
        self.asked = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while (asked := self.asked.get()) is not None:
            call, args = asked
            call(*args)

    def post(self, call, *args):
        self.asked.put((call, args))
        return True


@pytest.fixture
def sockets():
    running = Sockets()
    yield running
    running.asked.put(None)
    running.thread.join(PATIENCE_S)


def message(inbox):
    head = encode(Kind.CAST, "e", "t", listeners=(inbox.listener,), id=new_id())
    return ReceivedMessage(inbox, decode(head), head, b"", b"body", 0.0)


def test_nothing_is_handed_over_any_more_when_that_has_been_ended(sockets):
    """oslo.messaging shuts its executor down next, which keeps whoever comes then waiting for all of its work."""
    inbox = ClientInbox(sockets.post, None, "l" * 24, [], None, (10, 10_000), rpc=True, body_max=10)
    taken, begun, go_on = [], threading.Event(), threading.Event()

    def take(item):
        begun.set()
        assert go_on.wait(PATIENCE_S)
        taken.append(item)

    inbox.hand_to(take, lambda: True)
    for _ in range(2):
        sockets.post(inbox.put, message(inbox), 0.0)
    sockets.post(inbox.tell)
    assert begun.wait(PATIENCE_S)
    ended = threading.Thread(target=lambda: (inbox.hand_to(None, bool), taken.append("ended")))
    ended.start()
    ended.join(0.1)
    assert taken == []
    go_on.set()
    ended.join(PATIENCE_S)
    assert taken[1:] == ["ended"]
    assert inbox.get(0) is not None
    assert taken[1:] == ["ended"]


def test_what_comes_in_one_turn_is_handed_over_at_its_end_and_at_once_when_that_makes_room(rundir):
    """Who is woken takes the interpreter's lock away from the thread that reads on."""
    reactor, taken = Reactor(), []
    reactor.open()
    delivery = Delivery(
        reactor, settings_at(rundir), ClientCounters(reactor), lambda _pipeline, _frames: True
    )
    listener = "l" * 24
    inbox = ClientInbox(
        lambda *_: True,
        None,
        listener,
        [Record("e", "t", "", listener)],
        None,
        (4, 1000),
        rpc=True,
        body_max=9,
    )
    delivery.enter(inbox)
    inbox.hand_to(lambda item: taken.append(int(item.body)), lambda: True)
    head = encode(Kind.CAST, "e", "t", listeners=(listener,), id=new_id())

    def come(*numbers):
        for number in numbers:
            delivery.message(Pipeline.CALL, decode(head), [head, b"route", b"%d" % number])

    come(1, 2, 3)
    assert taken == []
    reactor.turn()
    assert taken == [1, 2, 3]
    come(4, 5, 6, 7)
    assert taken == [1, 2, 3, 4, 5, 6, 7]
    reactor.close()
