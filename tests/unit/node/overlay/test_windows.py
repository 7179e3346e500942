"""Brokers of ours tell each other how much of their events they have handled; to others nothing is said of it."""

import asyncio

from broker.node.overlay.hello import HeadgateHello
from broker.routing.flow import LATE_MSGS, TOLD_BYTES, TOLD_MSGS, WINDOW_BYTES
from broker.transport.outbox import WINDOW_BYTES as LARGE_BYTES
from broker.transport.outbox import WINDOW_MSGS
from broker.wire.message import CONTROL, HANDLED, MARK, MARKED, OPEN, SHUT, control, event, request
from broker.wire.shares import cost
from tests.tables import for_each
from tests.unit.node.overlay.downward import HELLO, say
from tests.unit.node.overlay.downward import run as run_parent
from tests.unit.node.overlay.trees import QUICK, Tree, shared_certificate, tcp_place, until
from tests.unit.node.overlay.upward import run as run_child

LARGE = b"x" * 60_000
OURS = HeadgateHello(True, windows=True)


def words(client):
    return [m.aux1 for m in client.inbox if m.type == CONTROL and m.aux1 in (OPEN, SHUT)]


@for_each("windows", [True, False], ids=["ours", "another"])
def test_a_child_is_heeded_and_told_if_it_said_that_it_does_the_same(windows):
    async def story(parent):
        child = await parent.join(HELLO._replace(ours=HeadgateHello(True, windows=windows)))
        flow = parent.broker.router.events.flow
        for _ in range(2 * TOLD_BYTES // len(LARGE)):
            say(child, event("news", LARGE))
        say(child, control(SHUT))
        await until(lambda: parent.broker.router.counters.controls == 1)
        assert flow.blocked is windows
        await asyncio.sleep(0)
        assert bool(words(child)) is windows
        child.link.close()
        await until(lambda: not parent.overlay.online_children())
        assert not flow.blocked

    run_parent(story)


def handled(client):
    return [m.aux2 for m in client.inbox if m.type == CONTROL and m.aux1 == HANDLED]


@for_each("windows", [True, False], ids=["ours", "another"])
def test_a_child_is_told_how_many_of_its_messages_are_handled(windows):
    async def story(parent):
        child = await parent.join(HELLO._replace(ours=HeadgateHello(True, windows=windows)))
        for _ in range(LATE_MSGS):
            say(child, control(0))
        await until(lambda: parent.broker.router.counters.controls == LATE_MSGS)
        await asyncio.sleep(0)
        assert handled(child) == ([LATE_MSGS] if windows else [])
        for _ in range(TOLD_MSGS):
            say(child, request("groups.info", nodeid=0, matchtag=1))
        await until(lambda: len(child.inbox) > TOLD_MSGS + windows)
        assert handled(child) == ([LATE_MSGS, LATE_MSGS + TOLD_MSGS] if windows else []), (
            "beside what it is sent"
        )

    run_parent(story)


@for_each("windows", [True, False], ids=["ours", "another"])
def test_a_mark_comes_back_and_is_taken_from_those_who_said_that_they_do_the_same(windows):
    async def story(parent):
        child = await parent.join(HELLO._replace(ours=HeadgateHello(True, windows=windows)))
        in_flight = parent.broker.router.children[1].link.outbox.in_flight
        end = in_flight.end
        for word in (control(MARK, 7), control(MARKED, 0xFFFFFFFF), control(HANDLED, 0x7FFFFFFF)):
            say(child, word)
        await until(lambda: parent.broker.router.counters.controls == 3)
        await until(lambda: (MARKED, 7) in [(m.aux1, m.aux2) for m in child.inbox if m.type == CONTROL])
        assert in_flight.large_bytes == 0
        if not windows:
            assert in_flight.end == end, "whoever does not count is never behind"

    run_parent(story)


def test_calls_across_a_real_tree_leave_little_under_way():
    """Ten windows of calls at once, from rank 0 to rank 3, all of which are answered."""

    async def story():
        async with Tree(4) as tree:
            client = tree.ranks[0].client()
            count = 10 * WINDOW_MSGS
            for tag in range(1, count + 1):
                client.link.send(request("groups.info", nodeid=3, matchtag=tag))
            client.link.flush()
            down = tree.ranks[0].broker.router.children[1].link.outbox
            most = 0
            while len(client.inbox) < count:
                await asyncio.sleep(0)
                most = max(most, down.sent - down.in_flight.end)
            assert down.in_flight.end < 1 << 60, "it says what it has handled"
            assert most <= 2 * WINDOW_MSGS, "and that is heeded"
            assert not down.choked

    asyncio.run(story())


class Spy:
    """The receiver of a link, and the large requests under way whenever the link became choked."""

    def __init__(self, link):
        self.link, self.receiver, self.choked = link, link.receiver, []
        link.receiver = self
        self.received, self.link_ended = self.receiver.received, self.receiver.link_ended

    def link_choked(self, link, choked):
        if choked:
            self.choked.append(link.outbox.in_flight.large_bytes)
        self.receiver.link_choked(link, choked)


def test_large_calls_across_a_real_tree_leave_little_under_way():
    """What a window of messages would let pass would be 128 MiB."""

    async def story():
        async with Tree(4, config=shared_certificate(QUICK), address=tcp_place) as tree:
            client = tree.ranks[0].client()
            call = request("groups.info", bytes(512 << 10), nodeid=3, matchtag=1)
            spy = Spy(tree.ranks[0].broker.router.children[1].link)
            for total, count in ((2, 2), (16, 14)):
                for _ in range(count):
                    client.link.send(call)
                client.link.flush()
                await until(lambda total=total: len(client.inbox) == total)
            down = spy.link.outbox
            await until(lambda: not down.choked)
            assert 1 << 20 < spy.choked[0] < 3 << 19
            assert down.in_flight.large_bytes <= LARGE_BYTES

    asyncio.run(story())


@for_each("ours", [OURS, HeadgateHello(), HeadgateHello(True)], ids=["ours", "deployed", "older"])
def test_a_parent_is_heeded_and_told_if_it_said_that_it_does_the_same(ours):
    async def tell(story):
        flow = story.child.broker.router.events.flow
        for number in range(2 * TOLD_BYTES // len(LARGE)):
            story.link.say(event("news", LARGE, sequence=number + 1))
        story.link.say(control(SHUT))
        await until(lambda: story.child.broker.router.counters.controls == 1)
        assert flow.blocked is ours.windows
        await asyncio.sleep(0)
        assert bool(words(story.link)) is ours.windows

    run_child(tell, ours=ours)


def test_a_flood_through_a_real_tree_arrives_whole_and_in_order():
    async def story():
        async with Tree(4) as tree:
            count = 4 * WINDOW_BYTES // cost(event("flood", LARGE))
            clients = [tree.ranks[3].client() for _ in range(3)]
            for number in range(count):
                for client in clients:
                    client.link.send(event("flood", LARGE[: 100 * number] or None))
            for client in clients:
                client.link.flush()
            heard = [
                lambda rank=rank: [m.sequence for m in rank.events if m.topic == "flood"]
                for rank in tree.ranks
            ]
            await until(lambda: all(len(sequences()) == 3 * count for sequences in heard))
            assert all(sequences() == list(range(1, 3 * count + 1)) for sequences in heard)
            await until(lambda: not any(rank.broker.router.events.flow.blocked for rank in tree.ranks))
            assert all(rank.broker.router.counters.sent_controls for rank in tree.ranks)

    asyncio.run(story())
