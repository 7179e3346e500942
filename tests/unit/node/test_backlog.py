"""Fairness: a batch ends at a count, the rest waits its turn, and nothing is lost or overtaken meanwhile."""

import asyncio

from broker.identity import PeerInfo
from broker.transport import inproc
from broker.transport.link import Options
from broker.transport.outbox import Budget, OutboxLimits
from broker.wire.message import event, response
from tests.unit.node.desk import Desk, ask, run, ticks


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
        desk = Desk(batch_deliveries=100)
        ears = [desk.peer() for _ in range(30)]
        for ear in ears:
            ear.subscribe()
        speaker = desk.peer()
        speaker.say(*(ask("event.publish", tag, b"p") for tag in range(1, 51)))
        assert len(ears[0].events) == 4
        await ticks(60)
        assert [m.matchtag for m in speaker.responses] == list(range(1, 51))
        assert len(ears[-1].events) == 50

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
        assert len(service.link.outbox.parked) == 12
        desk.broker.link_choked(service.link, False)
        assert caller.link.reading

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
        assert not budget.parked
        assert mine.outbox.discarded + mine.outbox.sent == 1200
        theirs.abort(mine.ended)
        await ticks()

    run(script())
