"""Windows on the links of the tree: what is under way is bounded, whoever is slow, and nobody waits for ever."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.routing.flow import TOLD_BYTES, WINDOW_BYTES, Window
from broker.wire.message import CONTROL, EVENT, OPEN, SHUT, event
from broker.wire.shares import cost
from tests.unit.routing.lanes import Lanes
from tests.unit.routing.sim import Tree

SMALL = cost(event("n"))
FULL = WINDOW_BYTES // SMALL
ALL = list(range(7))


def flow_of(tree, rank):
    return tree[rank].router.events.flow


def publish(tree, rank, most=10 * FULL, payload=None):
    """Publish at ``rank`` as one who waits when he has to; returns how many that were."""
    client = tree.client(rank)
    for number in range(most):
        if flow_of(tree, rank).blocked:
            return number
        client.publish("n", payload=payload)
    return most


def controls(tree, source, target):
    return [(m.aux1, m.aux2) for _, m in tree.lanes.get((source, target), ()) if m.type == CONTROL]


@pytest.mark.parametrize("rank", [1, 3])
def test_a_parent_that_does_not_read_stops_its_child_at_the_window(rank):
    tree = Lanes(7)
    above = tree.topology.parent(rank)
    sent = publish(tree, rank)
    assert sent == FULL + 1
    assert tree.under_way(rank, above) == sent * SMALL
    assert tree.blocked == [rank]
    tree.flow()
    assert tree.blocked == []


def test_one_event_of_any_size_fits_and_only_then_the_window_is_full():
    tree = Lanes(3)
    assert publish(tree, 1, payload=b"x" * (4 * WINDOW_BYTES)) == 1
    assert tree.blocked == [1]
    tree.flow()
    assert tree.blocked == []
    assert publish(tree, 1, payload=b"x" * (4 * WINDOW_BYTES)) == 1


@pytest.mark.parametrize(("slow", "told"), [((0, 2), [0, 1, 3, 4]), ((2, 5), [0, 1, 2, 3, 4, 6])])
def test_a_broker_that_does_not_read_stops_publishers_everywhere(slow, told):
    tree = Lanes(7)
    for _ in range(100):
        publish(tree, 3)
        tree.flow(slow)
    assert tree.blocked == told, "all but those behind it"
    assert tree.under_way(*slow) <= 4 * WINDOW_BYTES, "however often it is tried"
    tree.flow()
    assert tree.blocked == []


def test_a_client_that_asked_is_told_when_publishers_have_to_wait():
    tree = Lanes(3)
    early, late, silent = (tree.client(1) for _ in range(3))
    flow = flow_of(tree, 1)
    flow.attach_client(early.port)
    publish(tree, 1)
    flow.attach_client(late.port)
    tree.flow()
    flow.detach(late.port)
    publish(tree, 1)
    told = [[m.aux1 for m in client.of(CONTROL)] for client in (early, late, silent)]
    assert told[0] == [SHUT, OPEN] * (len(told[0]) // 2) + [SHUT], "as often as it changes"
    assert told[1] == told[0][: len(told[1])]
    assert told[1][-1] == OPEN
    assert told[2] == []


def test_who_was_behind_is_so_until_half_of_it_is_handled():
    tree = Lanes(3)
    publish(tree, 1)
    told = TOLD_BYTES // SMALL + 1
    opened = 0
    while tree.blocked:
        tree.step(1, 0)
        opened += 1
        tree.flow((1, 0))
    assert FULL // 2 <= opened <= FULL // 2 + told + 1


def test_whoever_joins_is_told_at_once_and_who_leaves_is_not_waited_for():
    tree = Lanes(7)
    tree.cut(6)
    publish(tree, 0)
    assert tree.blocked == [0]
    tree.join(6)
    tree.flow((0, 1))
    assert tree.blocked == [0, 2, 5, 6], "rank 1 has not read it yet"
    tree.cut(1)
    tree.lanes[0, 1].clear()
    tree.flow()
    assert tree.blocked == []


def test_a_parent_that_is_lost_is_not_waited_for_and_the_next_one_counts_anew():
    tree = Lanes(3)
    publish(tree, 1)
    tree.cut(1)
    tree.lanes.clear()
    assert tree.blocked == []
    tree.join(1)
    assert publish(tree, 1) == FULL + 1
    tree.flow()
    assert tree.blocked == []


def test_who_joins_while_a_subscriber_of_it_is_behind_says_so():
    tree = Lanes(3)
    tree.cut(1)
    ear = tree.client(1)
    flow_of(tree, 1).wait_for(ear.port, True)
    tree.join(1)
    tree.flow()
    assert tree.blocked == [0, 1, 2]
    ear.leave()
    tree.flow()
    assert tree.blocked == []


def test_a_neighbour_that_tells_nothing_is_behind_while_its_outbox_is_full():
    tree = Tree(3)
    up = tree.links[1][1]
    assert publish(tree, 1) == 10 * FULL
    flow_of(tree, 1).choked(up, True)
    assert flow_of(tree, 1).blocked
    flow_of(tree, 1).received_window(up, 0, False)
    assert flow_of(tree, 1).blocked, "who did not announce that it tells is not heard"
    flow_of(tree, 1).choked(up, False)
    assert not flow_of(tree, 1).blocked
    tree.settle()
    assert not any(message.type == CONTROL for _, _, message in tree.crossed)


def test_a_subscriber_that_is_behind_stops_publishers_everywhere():
    tree = Lanes(7)
    opened = []
    flow_of(tree, 6).on_open = lambda: opened.append(6)
    ear = tree.client(5)
    flow_of(tree, 5).wait_for(ear.port, True)
    tree.flow()
    assert tree.blocked == ALL
    flow_of(tree, 5).wait_for(ear.port, False)
    tree.flow()
    assert tree.blocked == []
    assert opened == [6]


def test_what_is_told_costs_little():
    tree = Lanes(7)
    for _ in range(20):
        publish(tree, 3, FULL // 2)
        tree.flow()
    events = 20 * (FULL // 2)
    links_up, links_down = 2, 6
    told = (links_up + links_down) * events * SMALL / TOLD_BYTES
    assert 0.8 * told <= tree.controls <= told


def test_counts_wrap():
    tree = Lanes(2)
    down, up = tree.links[1]
    for window in (down.window, up.window):
        window.received = window.handled = (1 << 32) - 5 * SMALL
        window.due = window.received + TOLD_BYTES
    flow_of(tree, 1).up = up.window.received
    flow_of(tree, 0).down = down.window.received
    flow_of(tree, 0).update()
    flow_of(tree, 1).update()
    for _ in range(3):
        assert publish(tree, 1) == FULL + 1
        tree.flow()
        assert tree.blocked == []


def test_an_event_that_comes_twice_counts_twice():
    tree = Lanes(3)
    down, up = tree.links[1]
    for sequence in (1, 1, 1):
        tree[1].router.events.receive(up, event("n", sequence=sequence))
    assert up.window.received == 3 * SMALL
    assert down.window is not None


def test_who_says_nonsense_harms_nobody_else():
    tree = Lanes(3)
    flow = flow_of(tree, 0)
    client = tree.client(0)
    flow.received_window(client.port, 77, True)
    assert tree.blocked == []
    flow.received_window(
        tree.links[1][0], 1, False
    )  # it has handled what it was never sent: then it is not behind
    assert tree.blocked == []


def test_a_window_that_does_not_speak_is_never_due():
    window = Window(reports=False, base=0)
    assert window.due > 1 << 60


def test_both_words_are_none_of_deployed_software():
    assert {OPEN, SHUT}.isdisjoint(range(64))


@given(st.integers(0, 1 << 32))
def test_whatever_is_slow_queues_are_bounded_nothing_is_lost_and_all_open_in_the_end(seed):
    """Links move at random while anybody publishes who may; what is under way stays within a few windows."""
    chance = random.Random(seed)
    tree = Lanes(7)
    ears = [tree.client(rank) for rank in (0, 3, 6)]
    for ear in ears:
        ear.router.events.subscribe(ear.port, b"")
    large = b"x" * (WINDOW_BYTES // 8)
    published = 0
    for _ in range(chance.randint(1, 40)):
        published += publish(tree, chance.randint(0, 6), chance.randint(1, 30), large)
        for _ in range(chance.randint(0, 60)):
            busy = [pair for pair, lane in tree.lanes.items() if lane]
            if busy:
                tree.step(*chance.choice(busy))
    assert tree.most <= (len(ALL) + 3) * (WINDOW_BYTES + 2 * cost(event("n", large)))
    tree.flow()
    assert tree.blocked == []
    for ear in ears:
        assert [message.sequence for message in ear.events] == list(range(1, published + 1))
    assert all(message.type == EVENT for ear in ears for message in ear.inbox)
