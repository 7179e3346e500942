"""``event.publish`` and what is asked next, between random endpoints of random trees whose links are handed on in any
order: who has the answer is behind the event everywhere.
"""

import errno
from collections import deque
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from broker.identity import Role
from broker.routing.topology import Topology
from broker.services.dispatch import Dispatcher
from broker.services.event import Event
from broker.services.service import Services
from broker.wire.message import EVENT, REQUEST, response
from broker.wire.payload import decode_json, encode_json
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, OWNER, Tree
from tests.unit.services.desk import HandLoop

SIZE_MAX = 7


class Publishing:
    """What ``Event`` asks of its broker, for a router without one (``broker.services.context.Context``)."""

    def __init__(self, rank):
        self.rank, self.at = rank.rank, rank

    def publish(self, message):
        return self.at.router.events.publish(message)

    def respond(self, asked, payload, errnum, always):
        cred = self.at.own.cred
        answer = response(asked, payload, errnum=errnum, userid=cred.userid, rolemask=cred.rolemask)
        self.at.router.response(self.at.own, answer)


class Lanes(Tree):
    """A tree whose every link is a queue of its own; which one moves next is drawn."""

    def __init__(self, parents, draw):
        self.lanes = {}
        self.draw = draw
        super().__init__(len(parents), parents=parents)
        context = Publishing(self[0])
        dispatcher = Dispatcher(context, Services(context, [Event]))
        self[0].own.send = partial(HandLoop().run, dispatcher.deliver)
        self[0].router.services.add(b"event", self[0].own)

    def _cross(self, source, target, message, port_there):
        super()._cross(source, target, message, port_there)
        self.lanes.setdefault((source, target), deque()).append(self.wire.pop())

    def step(self):
        """Hand on the first message of one link; False when nothing is under way."""
        busy = [way for way, lane in self.lanes.items() if lane]
        if busy:
            handle, where, message = self.lanes[self.draw(busy)].popleft()
            handle(where, message)
        return bool(busy)

    def until(self, condition):
        while not condition():
            assert self.step(), "it never comes"

    def listener(self, rank, services=()):
        client = self.client(rank, GUEST if not services else OWNER, services)
        client.router.events.subscribe(client.port, b"")
        return client


def publish(client, topic, tag):
    client.ask("event.publish", nodeid=0, tag=tag, payload=encode_json({"topic": topic, "flags": 0}))


def answers(client, tag):
    return [message for message in client.responses if message.matchtag == tag]


@st.composite
def trees(draw):
    """Parents of each rank: any tree of up to seven, numbered from the root outward."""
    return [0, *(draw(st.integers(0, rank - 1)) for rank in range(1, draw(st.integers(1, SIZE_MAX))))]


@given(trees(), st.randoms(use_true_random=False), st.data())
def test_what_is_asked_after_a_delivered_event_comes_after_it_at_every_broker(parents, random, data):
    tree = Lanes(parents, random.choice)
    ranks = st.integers(0, len(parents) - 1)
    ears = [tree.listener(rank) for rank in range(len(parents))]
    providers = [tree.listener(rank, [f"svc{rank}"]) for rank in range(len(parents))]
    for turn in range(3):
        for _ in range(data.draw(st.integers(0, 4))):
            tree.client(data.draw(ranks)).publish("noise")
        mine, asked = tree.client(data.draw(ranks)), data.draw(ranks)
        publish(mine, f"news.{turn}", tag=turn + 1)
        tree.until(lambda: answers(mine, turn + 1))  # noqa: B023 - called at once
        number = decode_json(answers(mine, turn + 1)[0].payload)["seq"]
        here = ears[mine.rank.rank].events
        assert [m.sequence for m in here if m.topic == f"news.{turn}"] == [number]
        assert mine.rank.router.events.sequence >= number
        mine.ask(f"svc{asked}.go", nodeid=asked, tag=100 + turn)
        provider = providers[asked]
        tree.until(lambda: len(provider.requests) and provider.requests[-1].matchtag == 100 + turn)  # noqa: B023
        came = [m.topic if m.type == EVENT else m.matchtag for m in provider.inbox]
        assert came.index(f"news.{turn}") < came.index(100 + turn)


@for_each("rank", range(1, SIZE_MAX))
def test_an_event_message_is_overtaken_by_the_next_call_of_the_own_broker(rank):
    """Why there is an answer to wait for."""
    tree = Tree(SIZE_MAX)
    provider, mine = tree.client(rank, services=["svc"]), tree.client(rank)
    provider.router.events.subscribe(provider.port, b"")
    mine.publish("news")
    mine.ask("svc.go")
    tree.settle()
    assert [m.type for m in provider.inbox] == [REQUEST, EVENT]


@given(trees().filter(lambda parents: len(parents) > 1), st.randoms(use_true_random=False), st.data())
def test_whoever_waits_when_a_way_breaks_is_told_once(parents, random, data):
    tree = Lanes(parents, random.choice)
    mine = tree.client(data.draw(st.integers(1, len(parents) - 1)))
    publish(mine, "news", tag=1)
    for _ in range(data.draw(st.integers(0, 12))):
        tree.step()
    broken, topology = mine.rank.rank, Topology(len(parents), parents=parents)
    while topology.parent(broken) and data.draw(st.booleans()):
        broken = topology.parent(broken)
    tree.cut(broken)
    while tree.step():
        pass
    assert mine.errnums in ([0], [errno.EHOSTUNREACH])
    publish(mine, "more", tag=2)
    while tree.step():
        pass
    assert [m.errnum for m in answers(mine, 2)] == [errno.EHOSTUNREACH], "nobody waits for a parent"
    assert tree.pending == 0


def test_a_guest_publishes_as_itself():
    tree = Lanes([0, 0, 1], lambda busy: busy[0])
    ear, mine = tree.listener(2), tree.client(2, GUEST)
    publish(mine, "news", tag=1)
    tree.until(lambda: answers(mine, 1))
    assert [(m.userid, m.rolemask) for m in ear.events] == [(GUEST.userid, int(Role.USER))]
