"""Fairness: a batch ends at a count, the rest waits its turn, and nothing is lost or overtaken meanwhile."""

import asyncio

from broker.identity import PeerInfo
from broker.node.backlog import FEW_MSGS, MANY_LINKS, READS, SMALL_READ_BYTES, TURNS
from broker.node.broker import OWN_BYTE_LOAD, OWN_LOAD
from broker.routing.events import DELIVERY_BYTES
from broker.routing.port import CHILD
from broker.transport import inproc
from broker.transport.budget import Budget
from broker.transport.link import Options
from broker.transport.outbox import OutboxLimits
from broker.wire.message import event, response
from tests.unit.node.desk import Desk, Door, ask, run, ticks, until


def test_a_thousand_messages_of_one_link_do_not_starve_another():
    async def script():
        desk = Desk(batch_msgs=10)
        order = []
        desk.on_deliver = lambda message: order.append(message.topic)
        greedy, modest = desk.peer(), desk.peer()
        greedy.say(*(ask("probe.greedy", tag) for tag in range(1, 1001)))
        assert len(order) == 10
        assert not greedy.link.reading
        modest.say(ask("probe.modest"))
        assert len(order) == 11, "the other link is served at once"
        await ticks(200)
        assert order.count("probe.greedy") == 1000
        assert [m.matchtag for m in greedy.responses] == list(range(1, 1001))
        assert greedy.link.reading

    run(script())


def test_large_events_end_a_turn_by_their_bytes():
    """Found by overload: turns of 100 kB events took 20 ms."""

    async def script():
        desk = Desk(batch_msgs=256, batch_deliveries=100)
        ear, speaker = desk.peer(), desk.peer()
        ear.subscribe()
        payload = bytes(10 * DELIVERY_BYTES)
        speaker.say(*(event("e", payload) for _ in range(50)))
        assert len(ear.events) == 100 // 11 + 1
        await ticks(20)
        assert len(ear.events) == 50

    run(script())


def test_greedy_links_take_turns():
    async def script():
        desk = Desk(batch_msgs=10)
        order = []
        desk.on_deliver = lambda message: order.append(message.topic[-1])
        left, right = desk.peer(), desk.peer()
        left.say(*(ask("probe.l", tag) for tag in range(1, 41)))
        right.say(*(ask("probe.r", tag) for tag in range(1, 41)))
        await ticks(20)
        assert "".join(order) == ("l" * 10 + "r" * 10) * 4

    run(script())


def test_deliveries_end_a_turn_and_nothing_is_lost():
    """Found here: a read of few messages with many deliveries lost what came after the cap."""

    async def script():
        desk = Desk(batch_msgs=256, batch_deliveries=100)
        ears = [desk.peer() for _ in range(30)]
        for ear in ears:
            ear.subscribe()
        speaker = desk.peer()
        speaker.say(*(event(f"{n}") for n in range(50)), ask("probe.x"))
        assert len(ears[0].events) == 4
        assert not speaker.link.reading
        await ticks(60)
        for ear in ears:
            assert [m.topic for m in ear.events] == [str(n) for n in range(50)]
        assert speaker.errnums == [0]
        assert speaker.link.reading

    run(script())


def test_events_published_by_request_count_as_deliveries():
    """Found here: 256 requests with 500 subscribers were one turn of 128 000 deliveries."""

    async def script():
        desk = Desk(batch_deliveries=80 + 2 * OWN_LOAD // DELIVERY_BYTES)
        ears = [desk.peer() for _ in range(30)]
        for ear in ears:
            ear.subscribe()
        speaker = desk.peer()
        speaker.say(*(ask("event.publish", tag, b"p") for tag in range(1, 51)))
        assert len(ears[0].events) == 3
        await ticks(60)
        assert [m.matchtag for m in speaker.responses] == list(range(1, 51))
        assert len(ears[-1].events) == 50

    run(script())


def test_a_request_for_a_built_in_service_weighs_more_than_one_that_is_passed_on():
    async def script():
        desk = Desk(batch_msgs=100, batch_deliveries=10 * OWN_LOAD // DELIVERY_BYTES)
        service, caller = desk.peer(services=["echo"]), desk.peer()
        caller.say(*(ask("probe.x", tag) for tag in range(1, 90)))
        assert len(caller.responses) == 11
        await ticks(20)
        assert len(caller.responses) == 89
        caller.say(*(ask("echo.x", tag) for tag in range(1, 90)))
        assert len(service.requests) == 89

    run(script())


def test_large_requests_for_a_built_in_service_are_few_in_a_turn():
    """Found here: of a link that had been held back, 8 of 1 MiB each were one turn of 20 ms."""

    async def script():
        large = b"x" * 100_000
        desk = Desk(batch_msgs=100, batch_deliveries=5 * OWN_BYTE_LOAD * len(large) // DELIVERY_BYTES)
        service, caller = desk.peer(services=["echo"]), desk.peer()
        caller.say(*(ask("probe.x", tag, large) for tag in range(1, 31)))
        assert len(caller.responses) == 5
        await ticks(20)
        assert len(caller.responses) == 30
        caller.say(*(ask("echo.x", tag, large) for tag in range(1, 31)))
        assert len(service.requests) == 30

    run(script())


def test_what_arrives_while_a_backlog_waits_keeps_its_place():
    """Found here: a small read overtook the backlog of its own link (a transport may have more in hand)."""

    async def script():
        desk = Desk(batch_msgs=4)
        ear, speaker = desk.peer(), desk.peer()
        ear.subscribe()
        speaker.say(*(event(str(n)) for n in range(10)))
        speaker.say(event("10"), event("11"))
        speaker.say(*(event(str(n)) for n in range(12, 30)))
        await ticks(30)
        assert [m.topic for m in ear.events] == [str(n) for n in range(30)]

    run(script())


def test_a_link_that_ends_with_a_backlog_is_heard_to_its_end():
    """Found here: the departure failed when the link was lost during its own turn, and nobody was told."""

    async def script():
        desk = Desk(batch_msgs=4)
        told = []
        desk.broker.on_departed.append(lambda port, error: told.append(port))
        ear, service, speaker = desk.peer(), desk.peer(services=["echo"]), desk.peer()
        ear.subscribe()
        desk.on_deliver = lambda message: speaker.end()
        messages = [event(str(n)) for n in range(20)]
        speaker.say(ask("echo.x", 7), ask("probe.die", 8), *messages)
        assert told == []
        await ticks(30)
        assert [m.topic for m in ear.events] == [str(n) for n in range(20)], "once each"
        assert told == [speaker.port]
        assert [m.topic for m in service.requests] == ["echo.x", "echo.disconnect"]
        assert speaker.link.resumes == 1, "only at its start"

    run(script())


def test_an_in_process_peer_that_closes_is_heard_to_its_end():
    async def script():
        desk = Desk(batch_msgs=4)
        ear, model = desk.peer(), desk.peer()
        ear.subscribe()
        options = Options(flusher=desk.broker.flusher)
        mine, theirs = inproc.pair(PeerInfo("broker"), PeerInfo("client"), Options(), options)
        port = model.port
        port.link, port.send, theirs.data = theirs, theirs.send, port
        mine.resume()
        theirs.start(desk.broker)
        for n in range(10):
            mine.send(event(str(n)))
        mine.flush()
        await asyncio.sleep(0)
        for n in range(10, 25):
            mine.send(event(str(n)))
        mine.close()
        await ticks(40)
        assert [m.topic for m in ear.events] == [str(n) for n in range(25)]
        assert port not in desk.broker.router.ports

    run(script())


def test_a_paused_caller_is_not_read_again_because_its_backlog_is_done():
    async def script():
        desk = Desk(batch_msgs=4)
        service, caller = desk.peer(services=["echo"]), desk.peer()
        service.link.full = True
        desk.broker.link_choked(service.link, True)
        caller.say(*(ask("echo.x", tag) for tag in range(1, 13)))
        await ticks(20)
        assert not caller.link.reading
        assert len(service.link.outbox.queue) == 4, "nor is the rest of what was read of it handled"
        service.link.full = False
        desk.broker.link_choked(service.link, False)
        await ticks(4)
        assert caller.link.reading
        service.link.drain()
        assert [m.matchtag for m in service.requests] == list(range(1, 13))

    run(script())


def test_release_leaves_a_link_with_a_backlog_paused():
    async def script():
        desk = Desk(batch_msgs=4)
        service, caller = desk.peer(services=["echo"]), desk.peer()
        desk.broker.link_choked(service.link, True)
        caller.say(*(ask("echo.x", tag) for tag in range(1, 13)))
        desk.broker.link_choked(service.link, False)
        assert not caller.link.reading
        await ticks(20)
        assert caller.link.reading
        assert len(service.requests) == 12

    run(script())


def test_an_in_process_link_that_overflows_while_flushed_leaves_nothing_in_the_budget():
    """Found here: what came after the message that was one too many stayed in the budget for ever."""

    async def script():
        budget = Budget()
        options = Options(limits=OutboxLimits(cap_bytes=3000), budget=budget)
        mine, theirs = inproc.pair(PeerInfo("a"), PeerInfo("b"), options, Options())
        for n in range(1200):
            mine.send(response(ask("probe.x", n), b"x" * 20))
        mine.flush()
        assert "the cap is 3000" in str(mine.ended)
        assert budget.used_bytes == 0
        assert not budget.accounts
        assert mine.outbox.discarded + mine.outbox.sent == 1200
        theirs.abort(mine.ended)
        await ticks()

    run(script())


# -- the bound of one iteration of the loop ---------------------------------------------------------


async def most_in_one_tick(count, wanted):
    """Run the loop until ``count()`` is ``wanted``; returns by how much it rose at most between two of its turns."""
    most = 0
    while (before := count()) < wanted:
        await asyncio.sleep(0)
        most = max(most, count() - before)
    return most


def test_a_link_that_ends_in_its_own_last_turn_keeps_nobody_from_theirs():
    """It was queued a second time, and whoever stood behind it was never read again."""

    async def script():
        desk, errors = Desk(batch_msgs=10), []
        leaver, other = desk.peer(), desk.peer()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))

        def leave(message):
            if message.topic == "probe.last":
                leaver.end()

        desk.on_deliver = leave
        leaver.say(*(ask("probe.x", tag) for tag in range(1, 12)), ask("probe.last", 12))
        other.say(*(ask("probe.y", tag) for tag in range(1, 101)))
        await ticks(200)
        assert [m.matchtag for m in other.responses] == list(range(1, 101))
        assert other.link.reading
        assert not leaver.port.live
        assert errors == []

    run(script())


def test_however_many_links_wait_one_iteration_handles_a_few_batches():
    """Found here: every link that waited had its batch before anything was read again."""

    async def script():
        desk = Desk(batch_msgs=10)
        links = [desk.peer() for _ in range(300)]
        for link in links:
            link.say(*(ask("probe.x", tag) for tag in range(1, 41)))
        assert len(desk.delivered) <= (TURNS + 1) * 10, "all of them were read in one iteration"
        most = await most_in_one_tick(lambda: len(desk.delivered), 300 * 40)
        assert most <= (TURNS + 1) * 10
        await ticks()
        for link in links:
            assert [m.matchtag for m in link.responses] == list(range(1, 41))
            assert link.link.reading

    run(script())


def test_every_second_turn_is_for_the_tree():
    """Found here: a link of the tree, and all who spoke through it, waited for each greedy client's turn."""

    async def script():
        desk = Desk(batch_msgs=10, size=2)
        order = []
        desk.on_deliver = lambda message: order.append(message.topic[-1])
        greedy = [desk.peer() for _ in range(100)]
        for peer in greedy:
            peer.say(*(ask("probe.c", tag) for tag in range(1, 101)))
        tree = desk.peer(kind=CHILD)
        tree.say(*(ask("probe.t", tag, nodeid=0) for tag in range(1, 201)))
        begin = len(order)
        await most_in_one_tick(lambda: order.count("t"), 200)
        assert order[begin:].count("c") <= 210
        await most_in_one_tick(lambda: len(order), 100 * 100 + 200)
        assert [m.matchtag for m in tree.responses] == list(range(1, 201))

    run(script())


def test_deliveries_bound_an_iteration_like_messages():
    async def script():
        desk = Desk(batch_msgs=100, batch_deliveries=100)
        ears = [desk.peer() for _ in range(50)]
        for ear in ears:
            ear.subscribe()
        for _ in range(100):
            desk.peer().say(*(event("e") for _ in range(20)))
        got = ears[-1].events
        delivered = len(got)
        most = await most_in_one_tick(lambda: len(ears[-1].events), 2000)
        assert max(most, delivered) <= (TURNS + 1) * 100 // 50 + TURNS + 1

    run(script())


def test_a_large_event_weighs_more_than_a_small_one():
    async def script():
        desk = Desk(batch_deliveries=256)
        ears = [desk.peer() for _ in range(64)]
        for ear in ears:
            ear.subscribe()
        desk.peer().say(*(event("e", b"x" * 60_000) for _ in range(5)), *(event("e") for _ in range(5)))
        assert len(ears[0].events) == 1
        await ticks(10)
        assert len(ears[0].events) == 10

    run(script())


def test_who_says_little_is_served_at_once_up_to_a_bound_and_then_in_turn():
    async def script():
        desk = Desk(batch_msgs=FEW_MSGS, batch_deliveries=1 << 20)
        for _ in range(100):
            desk.peer().say(*(ask("probe.x", tag) for tag in range(1, 41)))
        greedy = len(desk.delivered)
        modest = [desk.peer() for _ in range(300)]
        for link in modest:
            link.say(ask("probe.y", 1))
        at_once = len(desk.delivered) - greedy
        assert greedy <= (TURNS + 1) * FEW_MSGS
        assert (READS - TURNS - 1) * FEW_MSGS <= at_once <= READS * FEW_MSGS
        await most_in_one_tick(lambda: len(desk.delivered), 4300)
        await ticks()
        assert all(link.errnums == [0] and link.link.reading for link in modest)

    run(script())


def test_a_stream_is_read_in_smaller_pieces_while_many_links_wait():
    async def script():
        desk = Desk(batch_msgs=10)
        flusher = desk.broker.flusher
        links = [desk.peer() for _ in range(3 * MANY_LINKS)]
        for link in links:
            link.say(*(ask("probe.x", tag) for tag in range(1, 41)))
        await ticks(2)
        assert flusher.read_bytes == SMALL_READ_BYTES
        await most_in_one_tick(lambda: len(desk.delivered), 40 * len(links))
        await ticks()
        assert flusher.read_bytes == 0

    run(script())


def test_small_reads_of_a_real_socket_lose_nothing(rundir):
    async def script():
        desk = Desk()
        async with Door(desk, rundir / "s") as door:
            far = await door.dial()
            desk.broker.flusher.read_bytes = 100
            far.say(*(ask("probe.x", tag, b"x" * 1000) for tag in range(1, 31)))
            await until(lambda: len(far.of(2)) == 30)
            assert [m.matchtag for m in far.of(2)] == list(range(1, 31))

    run(script())
