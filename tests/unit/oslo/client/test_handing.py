"""Whoever takes messages is told of them once a turn of the thread of the sockets."""

from broker.oslo.client.delivery import Delivery
from broker.oslo.client.inbox import ClientInbox
from broker.oslo.frames import Kind, decode, encode, new_id
from broker.oslo.names import Pipeline
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters
from broker.oslo.records import Record

LISTENER = "l" * 24


def test_what_comes_in_one_turn_is_told_once_at_its_end():
    """Who is woken takes the interpreter's lock away from the thread that reads on."""
    reactor, told = Reactor(), []
    reactor.open()
    delivery = Delivery(reactor, Counters(reactor), lambda _pipeline, _frames: True)
    records = [Record("e", "t", "", LISTENER)]
    inbox = ClientInbox(lambda *_: True, None, LISTENER, records, None, (999, 10_000), rpc=True, body_max=9)
    delivery.enter(inbox)
    head = encode(Kind.CAST, "e", "t", listeners=(LISTENER,), id=new_id())

    def come(*numbers):
        for number in numbers:
            delivery.message(Pipeline.CALL, decode(head), [head, b"route", b"%d" % number])

    def taken():
        return [int(inbox.get(0).body) for _ in range(len(inbox._items))]

    come(0)
    inbox.notify(lambda: told.append(taken()))
    assert told == [[0]], "what was here before"
    reactor.turn()
    come(1, 2, 3)
    assert told[1:] == [[]]
    reactor.turn()
    assert told[2:] == [[1, 2, 3]]
    assert inbox.empty
    reactor.close()
