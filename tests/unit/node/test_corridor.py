"""The corridor: order, one flush per batch, no recursion, and what an exception or a lost link costs."""

import asyncio
import errno

import pytest

from broker.errors import LinkBroken, LinkEnded
from broker.node.broker import FLUSH_MSGS, Broker
from broker.routing.port import PARENT
from broker.wire.message import EVENT, NORESPONSE, REQUEST, RESPONSE, control, event, response
from tests.unit.node.desk import GUEST, Desk, ask, run, ticks


def test_subscribe_then_publish_in_one_read():
    async def script():
        desk = Desk()
        peer = desk.peer()
        peer.say(ask("event.subscribe", 1, b"new"), event("news"), ask("probe.x", 2))
        assert [(m.type, m.matchtag if m.type == RESPONSE else 0) for m in peer.link.flushed] == [
            (RESPONSE, 1),
            (EVENT, 0),
            (RESPONSE, 2),
        ]
        assert peer.link.log == [3], "one flush for all of it"

    run(script())


def test_an_event_precedes_the_response_to_its_publication():
    async def script():
        desk = Desk()
        peer, ear = desk.peer(), desk.peer()
        peer.subscribe()
        ear.subscribe()
        peer.say(*(ask("event.publish", tag, b"%d" % tag) for tag in range(1, 51)))
        kinds = [(m.type, m.sequence if m.type == EVENT else m.matchtag) for m in peer.link.flushed]
        assert kinds == [pair for tag in range(1, 51) for pair in ((EVENT, tag), (RESPONSE, tag))]
        assert [m.payload for m in ear.events] == [b"%d" % tag for tag in range(1, 51)]

    run(script())


def test_what_waited_for_a_parent_is_the_first_that_it_gets():
    async def script():
        desk = Desk(size=3, rank=1)
        peer = desk.peer()
        peer.say(event("a"), ask("probe.x", 1), event("b"))
        assert peer.errnums == [0], "nobody is held up"
        first, second = desk.peer(kind=PARENT), desk.peer()
        second.say(event("c"))
        await ticks()
        assert [m.topic for m in first.events] == ["a", "b", "c"]
        first.end()
        await ticks()
        peer.say(event("d"), ask("event.publish", 2, nodeid=0))
        assert peer.errnums == [0, errno.EHOSTUNREACH], "a request has an answer"
        again = desk.peer(kind=PARENT)
        await ticks()
        assert [m.topic for m in again.events] == ["d"]

    run(script())


def test_each_touched_link_is_flushed_once_per_batch():
    async def script():
        desk = Desk()
        service, caller, ears = desk.peer(services=["echo"]), desk.peer(), [desk.peer() for _ in range(5)]
        for ear in ears:
            ear.subscribe()
        caller.say(*[m for tag in range(1, 31) for m in (ask("echo.x", tag), event("e"))])
        assert service.link.log == [30]
        assert [ear.link.log for ear in ears] == [[30]] * 5
        service.say(*(response(asked) for asked in service.requests))
        assert caller.link.log == [30]

    run(script())


def test_a_long_batch_is_flushed_on_its_way():
    """The next process begins with the first messages while the rest is handled; the order stays."""

    async def script():
        desk = Desk(batch_msgs=3 * FLUSH_MSGS)
        service, caller = desk.peer(services=["echo"]), desk.peer()
        count = 2 * FLUSH_MSGS + 10
        caller.say(*(ask("echo.x", tag) for tag in range(1, count + 1)))
        assert service.link.log == [FLUSH_MSGS, FLUSH_MSGS, 10]
        assert [asked.matchtag for asked in service.requests] == list(range(1, count + 1))

    run(script())


def test_work_is_done_after_its_message_and_before_the_next():
    async def script():
        desk = Desk()
        order = []
        desk.on_deliver = lambda message: order.append(message.topic)
        peer, ear = desk.peer(), desk.peer()
        ear.subscribe()
        ear.port.send = lambda message: order.append(message.topic)
        peer.say(ask("probe.a"), event("one"), ask("probe.b"), event("two"))
        assert order == ["probe.a", "one", "probe.b", "two"]

    run(script())


def test_a_link_that_ended_and_its_port_do_not_hold_each_other():
    """Found here: what a link still held, 64 MiB of a CURVE client, waited for the collector of circles."""

    async def script():
        desk = Desk()
        peer = desk.peer()
        assert peer.link.data is peer.port
        peer.end()
        await ticks()
        assert peer.link.data is None
        assert peer.port not in desk.broker.router.ports

    run(script())


def test_deep_chains_do_not_recurse():
    """A service that asks itself 5 000 times: what handling produces is queued, not called."""

    async def script():
        desk = Desk()
        peer = desk.peer()
        left = [5_000]

        def again(_message):
            if left[0]:
                left[0] -= 1
                desk.broker.calls.call("probe.again", None, again, nodeid=0xFFFFFFFF)

        again(None)
        await ticks()
        assert left == [0]
        peer.say(ask("probe.x"))
        await ticks(2)  # so much work was done in this turn of the loop that it waits for the next
        assert peer.errnums == [0]

    run(script())


def bug(desk, **more):
    """A peer to which the first message cannot even be queued: whoever sent it runs into a bug of ours."""
    peer = desk.peer(**more)
    send = peer.port.send

    def fails(message):
        peer.port.send = send
        raise RuntimeError("a bug")

    peer.port.send = fails
    return peer


@pytest.mark.parametrize("kind", [REQUEST, RESPONSE, EVENT])
def test_an_exception_costs_its_link_only(kind, caplog):
    async def script():
        desk = Desk()
        bad, good, buggy = desk.peer(services=["answers"]), desk.peer(), bug(desk, services=["buggy"])
        good.subscribe()
        router = desk.broker.router
        first = event("before")
        if kind == REQUEST:
            message = ask("buggy.x")
        elif kind == RESPONSE:
            buggy.say(ask("answers.x"))
            message = response(bad.requests[0])
        else:
            buggy.subscribe()
            first, message = ask("probe.before"), event("x")
        bad.say(first, message, ask("probe.never") if kind == EVENT else event("never"))
        await ticks()
        assert isinstance(bad.link.ended, LinkBroken)
        assert "RuntimeError" in str(bad.link.ended)
        assert bad.port not in router.ports
        assert good.link.ended is None
        if kind == EVENT:
            assert [m.topic for m in desk.delivered] == ["probe.before", "probe.disconnect"]
        else:
            assert [m.topic for m in good.events] == ["before"]
        assert "a bug" in caplog.text

    run(script())


def test_an_exception_ends_the_whole_backlog_of_its_link():
    async def script():
        desk = Desk(batch_msgs=4)
        peer, ear = desk.peer(), desk.peer()
        bug(desk, services=["buggy"])
        ear.subscribe()
        peer.say(event("a"), ask("buggy.x"), *(event("b") for _ in range(20)))
        await ticks(20)
        assert [m.topic for m in ear.events] == ["a"]
        assert peer.port not in desk.broker.router.ports
        assert peer.port not in desk.broker.backlog

    run(script())


def test_work_that_fails_costs_nobody_else(caplog):
    async def script():
        desk = Desk()
        desk.on_deliver = lambda message: 1 / 0 if message.matchtag == 1 else None
        peer = desk.peer()
        peer.say(ask("probe.x", 1), ask("probe.x", 2))
        assert [m.matchtag for m in peer.responses] == [2]
        assert "internal work failed" in caplog.text

    run(script())


def test_a_link_that_cannot_be_flushed_costs_nobody_else():
    """Found here: the links behind it in the round were never flushed again."""

    async def script():
        desk = Desk()
        bad, good = desk.peer(), desk.peer()
        bad.subscribe()
        good.subscribe()

        class Bad(type(bad.link)):
            __slots__ = ()

            def flush(self):
                raise MemoryError

        bad.link.__class__ = Bad
        speaker = desk.peer()
        speaker.say(event("a"))
        speaker.say(event("b"))
        await ticks()
        assert [m.topic for m in good.events] == ["a", "b"]
        assert isinstance(bad.link.ended, LinkBroken)
        assert bad.port not in desk.broker.router.ports

    run(script())


def test_a_link_lost_inside_a_batch_is_settled_after_what_it_sent():
    async def script():
        desk = Desk()
        service, peer = desk.peer(services=["echo"]), desk.peer()
        desk.on_deliver = lambda message: peer.end() if message.matchtag == 2 else None
        peer.say(ask("echo.a", 1), ask("probe.die", 2), ask("echo.b", 3), ask("other.c", 4))
        await ticks()
        assert [(m.topic, m.matchtag) for m in service.requests] == [
            ("echo.a", 1),
            ("echo.b", 3),
            ("echo.disconnect", 1),
        ]
        assert peer.port not in desk.broker.router.ports
        assert not peer.port.notices
        assert not peer.port.pending

    run(script())


def test_a_link_that_another_message_ends_is_settled_before_the_next_one():
    async def script():
        desk = Desk()
        service, peer = desk.peer(services=["echo"]), desk.peer()
        desk.on_deliver = lambda message: service.end()
        peer.say(ask("echo.a", 1), ask("probe.kill", 2), ask("echo.b", 3))
        assert {m.matchtag: m.errnum for m in peer.responses} == {
            1: errno.EHOSTUNREACH,
            2: 0,
            3: errno.ENOSYS,
        }

    run(script())


def test_a_link_ends_once_for_those_who_watch():
    async def script():
        desk = Desk()
        told = []
        desk.broker.on_departed.append(lambda port, error: told.append((port, str(error))))
        peer = desk.peer()
        desk.broker.link_ended(peer.link, LinkEnded("first"))
        desk.broker.link_ended(peer.link, LinkEnded("second"))
        await ticks()
        assert told == [(peer.port, "first")]

    run(script())


def test_many_links_lost_at_once_do_not_recurse():
    """Found here: each departure with a backlog ran the next one inside itself, until the stack was full."""

    async def script():
        desk = Desk(batch_msgs=2)
        ear = desk.peer()
        ear.subscribe()
        peers = [desk.peer() for _ in range(600)]
        for number, peer in enumerate(peers):
            peer.say(*(event(f"{number}.{n}") for n in range(6)))
        for peer in peers:
            peer.end()
        await ticks(1500)
        assert len(ear.events) == 3600
        assert len(desk.broker.router.ports) == 2
        heard = {}
        for message in ear.events:
            peer, _, number = message.topic.partition(".")
            assert int(number) == heard.get(peer, -1) + 1, "order of one sender"
            heard[peer] = int(number)

    run(script())


def test_control_messages_reach_who_is_interested():
    async def script():
        desk = Desk()
        peer = desk.peer()
        peer.say(control(1, 2))
        seen = []
        desk.broker.on_control = lambda port, message: seen.append((port, message.aux1, message.aux2))
        peer.say(control(1, 2))
        assert seen == [(peer.port, 1, 2)]
        assert desk.broker.router.counters.controls == 2
        assert peer.link.flushed == []

    run(script())


def test_what_timers_send_shares_one_flush():
    async def script():
        desk = Desk()
        peer = desk.peer(services=["echo"])
        for _ in range(10):
            desk.broker.calls.call("echo.x", None, lambda message: None, nodeid=0xFFFFFFFF)
        assert peer.link.flushes == 0
        await ticks(2)
        assert peer.link.log == [10]

    run(script())


def test_before_there_are_services_everything_is_unknown():
    async def script():
        desk = Desk()
        desk.broker.deliver = Broker._without_services.__get__(desk.broker)
        peer = desk.peer(GUEST)
        peer.say(ask("probe.x"), ask("probe.y", flags=NORESPONSE))
        await asyncio.sleep(0)
        assert desk.broker.router.counters.requests == 2
        assert all(m.errnum == errno.ENOSYS for m in peer.responses)

    run(script())
