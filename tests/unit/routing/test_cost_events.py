"""What an event costs does not depend on what others subscribe to, nor on how often: bytecodes are counted."""

import pytest

from broker.identity import Credentials, Role
from broker.wire.message import PRIVATE
from tests.tables import for_each
from tests.unit.routing.operations import bytecodes
from tests.unit.routing.sim import Tree

FEW, MANY = 10, 10_000
SLACK = 1.1


class World:
    """Receivers of one topic, ``count`` prefixes of others, one who toggles, and a guest who publishes."""

    def __init__(self, count, receivers=10):
        self.tree = Tree(1)
        self.events = self.tree[0].router.events
        for number in range(receivers):
            self.ear(3000 + number, b"mine.")
        for first in range(0, count, 4000):
            some = range(first, min(first + 4000, count))
            self.ear(2001, *(b"other.%06d" % number for number in some))
        self.toggler, self.mouth = self.ear(7), self.ear(2000)

    def ear(self, userid, *prefixes):
        """A client that does not look at what it gets."""
        client = self.tree.client(0, Credentials(userid, int(Role.USER)))
        client.port.send = lambda _message: None
        for prefix in prefixes:
            assert self.events.subscribe(client.port, prefix) == 0
        return client

    def toggle(self, prefix):
        self.events.subscribe(self.toggler.port, prefix)
        self.events.unsubscribe(self.toggler.port, prefix)

    def event(self, _number):
        self.mouth.publish("mine.x")

    def event_of_a_new_topic(self, number):
        self.mouth.publish(f"mine.{number}")

    def event_after_a_toggle_elsewhere(self, _number):
        self.toggle(b"elsewhere.")
        self.mouth.publish("mine.x")

    def event_after_a_toggle_of_its_prefix(self, _number):
        self.toggle(b"mine.")
        self.mouth.publish("mine.x")

    def private_event(self, _number):
        self.mouth.publish("mine.x", PRIVATE)

    def come_and_go(self, _number):
        client = self.ear(8, b"mine.", b"mine.x")
        self.events.detach(client.port)


ACTS = [name for name in vars(World) if name == "event" or name.startswith(("event_", "private", "come"))]


def work(act):
    """The bytecodes of 16 times ``act(number)``."""
    return bytecodes(lambda: [act(number) for number in range(16)])


@pytest.fixture(scope="module")
def worlds():
    return World(FEW), World(MANY)


@for_each("name", ACTS)
def test_others_cost_nothing(worlds, name):
    few, many = worlds
    for world in worlds:
        getattr(world, name)(99)
    assert work(getattr(many, name)) <= SLACK * work(getattr(few, name))


@for_each("prefix", [b"", b"mine.", b"mine.x", b"elsewhere."])
def test_who_toggles_costs_each_event_the_same_however_many_receive_it(prefix):
    """Receivers are moved in one piece, no code runs for each."""
    extra = []
    for count in (10, 1000):
        world = World(0, count)

        def toggled(number, world=world):
            world.toggle(prefix)
            world.event(number)

        world.event(0)
        extra.append(work(toggled) - work(world.event))
    assert extra[1] <= SLACK * extra[0]


def test_a_private_event_does_not_ask_those_whom_it_is_not_for():
    few, many = World(0, 10), World(0, 1000)
    assert work(many.private_event) <= SLACK * work(few.private_event)


def test_a_toggle_elsewhere_costs_an_event_nothing():
    world = World(FEW)
    both = work(world.event_after_a_toggle_elsewhere)
    apart = work(lambda _number: world.toggle(b"elsewhere.")) + work(world.event)
    assert both <= SLACK * apart


def test_a_long_topic_costs_the_lengths_that_prefixes_have():
    world = World(FEW)
    costs = [work(lambda n, w=width: world.mouth.publish("x" * w + str(n))) for width in (20, 900)]
    assert costs[1] <= SLACK * costs[0]
