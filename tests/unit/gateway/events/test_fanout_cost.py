"""What an event costs does not depend on what others subscribe to, nor on how often: bytecodes are counted."""

import pytest

from gateway.events.fanout import Fanout
from tests.tables import for_each
from tests.unit.gateway.events.audience import Subscriber, event
from tests.unit.routing.operations import bytecodes

FEW, MANY = 10, 10_000
SLACK = 1.1


def crowd(fanout, count, prefix="other.{:06}"):
    """So many sessions of other users, each with a prefix of its own unless ``prefix`` names one."""
    made = [Subscriber(userid=2000 + number) for number in range(count)]
    for number, one in enumerate(made):
        assert fanout.subscribe(one, prefix.format(number).encode()) == 0
    return made


def work(act):
    """The bytecodes of 16 times ``act(number)``."""
    return bytecodes(lambda: [act(number) for number in range(16)])


class World:
    """Ten receivers of one topic, and ``count`` sessions that wait for others."""

    def __init__(self, count):
        self.fanout = Fanout()
        self.mine = crowd(self.fanout, 10, "mine.")
        self.others = crowd(self.fanout, count)
        self.toggler = Subscriber(userid=7)
        self.fanout.publish([event(1, f"other.{number:06}") for number in range(count)])

    def toggle(self, prefix):
        self.fanout.subscribe(self.toggler, prefix)
        self.fanout.unsubscribe(self.toggler, prefix)

    def event(self, _number):
        self.fanout.publish([event(1, "mine.x")])

    def event_of_a_new_topic(self, number):
        self.fanout.publish([event(1, f"mine.{number}")])

    def event_after_a_toggle_elsewhere(self, _number):
        self.toggle(b"elsewhere.")
        self.event(0)

    def event_after_a_toggle_of_its_prefix(self, _number):
        self.toggle(b"mine.")
        self.event(0)

    def private_event(self, _number):
        self.fanout.publish([event(1, "mine.x", private=True, userid=2000)])

    def come_and_go(self, _number):
        one = Subscriber(userid=8)
        self.fanout.subscribe(one, b"mine.")
        self.fanout.forget(one)


ACTS = [name for name in vars(World) if name == "event" or name.startswith(("event_", "private", "come"))]


@pytest.fixture(scope="module")
def worlds():
    return World(FEW), World(MANY)


@for_each("name", ACTS)
def test_others_cost_nothing(worlds, name):
    few, many = worlds
    for world in worlds:
        getattr(world, name)(99)
    assert work(getattr(many, name)) <= SLACK * work(getattr(few, name))


def test_a_toggle_elsewhere_costs_an_event_nothing():
    world = World(FEW)
    both = work(world.event_after_a_toggle_elsewhere)
    apart = work(lambda _number: world.toggle(b"elsewhere.")) + work(world.event)
    assert both <= SLACK * apart


@for_each("prefix", [b"", b"mine.", b"mine.x", b"elsewhere."])
def test_who_toggles_costs_each_event_the_same_however_many_receive_it(prefix):
    """Receivers are moved in one piece, no code runs for each; it was 10 to 12 times the work of the event itself."""
    extra = []
    for count in (FEW, 1000):
        fanout, toggler = Fanout(), Subscriber(userid=7)
        crowd(fanout, count, "mine.")

        def publish(_number, fanout=fanout):
            fanout.publish([event(1, "mine.x")])

        def toggled(number, fanout=fanout, toggler=toggler, publish=publish):
            fanout.subscribe(toggler, prefix)
            fanout.unsubscribe(toggler, prefix)
            publish(number)

        publish(0)
        extra.append(work(toggled) - work(publish))
    assert extra[1] <= SLACK * extra[0]


def test_a_private_event_does_not_ask_those_whom_it_is_not_for():
    costs = []
    for count in (FEW, 1000):
        fanout = Fanout()
        crowd(fanout, count, "mine.")
        costs.append(work(lambda number, f=fanout: f.publish([event(1, private=True, userid=9)])))
    assert costs[1] <= SLACK * costs[0]


def test_prefixes_of_one_session_are_looked_up_by_the_lengths_they_have():
    costs = []
    for count in (1, 256):
        fanout, one = Fanout(), Subscriber()
        for number in range(count):
            fanout.subscribe(one, b"%04d" % number)
        costs.append(work(lambda number, f=fanout: f.publish([event(1, f"topic.{number}")])))
    assert costs[1] <= SLACK * costs[0]
