"""What comes and goes by the link to the upstream, and in which order."""

import asyncio
import logging

from broker.wire import message as wire
from tests.unit.gateway.upstream.recorder import hop, session_request, until
from tests.unit.gateway.upstream.standin import joined, run


def test_messages_find_their_owner():
    async def script():
        async with joined() as (_, centre, upstream):
            assert upstream.send(session_request(hop("a"), "attr.get", b'{"name":"rank"}\0', matchtag=7))
            assert await upstream.handle.attr("size") == "2"
            await until(lambda: centre.answers, "the answer")
            answer = centre.answers[0]
            assert (answer.front, answer.matchtag, answer.errnum) == (hop("a") + wire.DELIMITER, 7, 0)
            centre.provides.add(upstream.name)
            await asyncio.sleep(0)
            upstream.send(session_request(hop("b"), f"{upstream.name}.x", matchtag=8))
            await until(lambda: centre.requests, "the request")
            assert centre.requests[0].routes[-1] == b"b".ljust(32, b"0")

    run(script)


def test_own_subscriptions_work_beside_the_sessions():
    async def script():
        async with joined() as (standin, centre, upstream):
            async with upstream.handle.subscribe("mine") as events:
                standin.event("mine.1")
                standin.event("other")
                assert (await anext(events)).topic == "mine.1"
            await until(lambda: centre.topics()[-1] == "other", "the other event")
            assert centre.topics() == ["gateway.online", "mine.1", "other"]

    run(script)


def test_a_run_of_events_is_handed_over_before_what_follows_it():
    async def script():
        async with joined() as (standin, centre, upstream):
            centre.told.clear()
            trunk = upstream.handle
            response = wire.response(session_request(hop("a"), "s.m", matchtag=1))
            numbers = iter(range(standin.number + 1, 100))
            burst = [wire.event("t", sequence=next(numbers)) for _ in range(2)]
            burst += [response, wire.event("t", sequence=next(numbers))]
            trunk.received(trunk.link, burst)
            assert centre.kinds() == ["published", "answered", "published"]

    run(script)


def test_a_fault_in_the_centre_costs_one_message(caplog):
    async def script():
        async with joined() as (_, centre, upstream):
            answered = centre.answered
            centre.answered = lambda message: 1 // 0
            trunk = upstream.handle
            bad = wire.response(session_request(hop("a"), "s.m"))
            trunk.received(trunk.link, [bad])
            centre.answered = answered
            trunk.received(trunk.link, [wire.response(session_request(hop("b"), "s.m"))])
            assert (trunk.faults, len(centre.answers)) == (1, 1)
            assert upstream.joined

    with caplog.at_level(logging.CRITICAL, "headgate"):
        run(script)


def test_hops_that_a_deployed_broker_leaves_in_events_are_removed():
    async def script():
        async with joined() as (standin, centre, upstream):
            message = wire.event("t", sequence=standin.number + 1)
            message.push_route(b"some-broker")
            upstream.handle.received(upstream.handle.link, [message])
            assert centre.events[-1].front == wire.DELIMITER

    run(script)
