"""Events as they are recorded: numbered, once, with the number of their deliveries."""

from broker.wire.message import DELIMITER, EVENT, Message, event
from tests.live.chunks import IN, OUT
from tests.unit.routing.recorded import Recorded
from tests.unit.routing.sim import OWNER

NOBODY = 0xFFFFFFFF


def test_an_event_goes_out_once_with_its_deliveries():
    here = Recorded()
    ears = [here.client() for _ in range(3)]
    for ear in ears:
        here.router.events.subscribe(ear.port, b"news")
    ears[0].publish("news.today", payload=b"x", userid=55)
    ears[1].publish("news.today")
    ears[0].publish("weather")
    records = here.records
    assert here.seen() == [
        (IN, ears[0].port.peer, 0, 0),
        (OUT, 0, 3, 0),
        (IN, ears[1].port.peer, 0, 0),
        (OUT, 0, 3, 0),
        (IN, ears[0].port.peer, 0, 0),
        (OUT, 0, 0, 0),
    ]
    assert [r.message.sequence for r in records] == [1, 1, 2, 2, 3, 3]
    assert records[0].claimed == 55
    assert records[0].frame == records[1].frame == ears[2].events[0].framed()


def test_the_brokers_own_events_keep_the_numbers_whole():
    here = Recorded(capture="in")
    here.client().publish("a.b")
    here.router.events.publish(event("own.news", userid=OWNER.userid, rolemask=1))
    assert [(r.peer, r.message.sequence) for r in here.records][1] == (here.router.own.peer, 2)


def test_an_event_below_the_root_goes_up_unnumbered_and_comes_back():
    here = Recorded(size=3, rank=1)
    ear = here.client(rank=1)
    here.router.events.subscribe(ear.port, b"")
    ear.publish("news.today")
    parent = here.router.parent.peer
    assert here.seen() == [(IN, ear.port.peer, 0, 0), (OUT, parent, 1, 0), (IN, parent, 0, 0), (OUT, 0, 1, 0)]
    assert [r.message.sequence for r in here.records] == [0, 0, 1, 1]
    assert all(r.message.front == DELIMITER for r in here.records)


def test_a_duplicate_of_the_parent_is_evidence():
    here = Recorded(size=3, rank=1)
    up = here.router.parent
    for sequence in (4, 4, 6):
        here.router.events.receive(up, event("news", sequence=sequence, userid=1, rolemask=1))
    assert [(r.direction, r.message.sequence) for r in here.records] == [
        (IN, 4),
        (OUT, 4),
        (IN, 4),
        (IN, 6),
        (OUT, 6),
    ]


def test_an_event_that_waits_for_a_parent_came_when_it_came_and_left_when_it_left():
    here = Recorded(size=3, rank=1)
    client = here.client(rank=1)
    here.tree.cut(1)
    client.publish("kept")
    assert [(r.direction, r.peer) for r in here.records] == [(IN, client.port.peer)]
    here.tree.join(1)
    _down, up = here.tree.links[1]
    here.number(up)
    _came, left, back, *_ = here.records
    assert (left.direction, left.message.sequence, left.via) == (OUT, 0, 1)
    assert (back.direction, back.peer, back.message.sequence) == (IN, up.peer, 1)


def test_an_event_without_topic_is_none():
    here = Recorded(size=3, rank=1)
    client = here.client(rank=1)
    here.router.events.receive(client.port, Message(DELIMITER, b"", b"", event("x").head, b"\0\0\0\0"))
    assert not [r for r in here.records if r.message.type == EVENT]
