"""`headgate trace --events`: what brokers and gateways tell becomes lines, one for each hop and each subscriber."""

from broker.cli.traced import TracedEvents
from broker.identity import USERID_UNKNOWN
from broker.wire.message import EVENT, PRIVATE, REQUEST


def of_broker(prefix="rx", name=None, rank=-1, **more):
    told = {"timestamp": 1.5, "prefix": prefix, "rank": rank, "name": name, "type": EVENT, "topic": "job.end"}
    return told | {"flags": 0, "userid": 1000, "sequence": 7} | more


def of_gateway(*rows, **more):
    told = {
        "at": 2.0,
        "gateway": "gateway-1",
        "topic": "job.end",
        "sequence": 7,
        "userid": 1000,
        "private": False,
    }
    subscribers = [
        {"session": f"s{n}", "user": "bob", "userid": 1, "address": "", "outcome": outcome, "why": why}
        for n, (outcome, why) in enumerate(rows)
    ]
    return told | {"subscribers": subscribers, "more": 0, "unsubscribed": 3} | more


def test_hops_of_brokers():
    events = TracedEvents(("job.",))
    hops = [
        *events.take(0, of_broker(name="local#1", sequence=0, userid=USERID_UNKNOWN)),
        *events.take(0, of_broker("tx", flags=PRIVATE)),
        *events.take(1, of_broker(rank=0)),
    ]
    assert [hop.text()[14:] for hop in hops] == [
        "job.end  #-  rank 0  received  from local#1",
        "job.end  #7  private  rank 0  sent  to its children",
        "job.end  #7  rank 1  received  from rank 0",
    ]
    assert [hop.userid for hop in hops] == [None, 1000, 1000]
    assert events.take(0, of_broker(topic="jobs")) == events.take(0, of_broker(type=REQUEST)) == []
    assert events.summary() == "received: 2, sent: 1"


def test_subscribers_of_gateways():
    events = TracedEvents(("",))
    hops = events.take_subscribers(of_gateway(("withheld", "deny rule: \x1b"), ("delivered", ""), more=4))
    assert [hop.lost for hop in hops] == [True, False, False]
    assert hops[0].text()[14:] == r"job.end  #7  gateway-1  withheld  bob (session s0): deny rule: \x1b"
    assert hops[1].value()["outcome"] == "delivered"
    assert hops[2].peer == "4 more subscribers"


def test_an_event_that_nobody_asked_for():
    (hop,) = TracedEvents(("",)).take_subscribers(of_gateway())
    assert (hop.outcome, hop.peer) == ("nobody", "")
    assert "none of its 3 sessions" in hop.text()
    assert TracedEvents(("",)).summary() == "no event"
