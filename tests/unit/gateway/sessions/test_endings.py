"""Ends: of a session (notices), of the upstream (answers), and a reader that is too slow on either side (pauses)."""

import asyncio
import errno

from broker.client import LATER
from broker.errors import LinkBroken
from broker.identity import Role
from broker.wire import message as wire
from broker.wire.message import request
from broker.wire.payload import any_text
from gateway.sessions.calls import NOTICES_MAX, OpenCalls
from tests.unit.gateway.sessions.desk import rule, run, until

CALLS = rule(["user"], ["calc.", "other.", "broker.ping", "1001-"], ["call", "register"])


def recording(service, name, seen):
    """A method that is never answered, and the notices about it."""
    service.add(name, lambda request: seen.append(request) or LATER, allow=Role.USER)


def test_whoever_was_asked_hears_once_of_the_sessions_end():
    async def script(desk):
        web, other = desk.client(), desk.client()
        for topic in ("calc.a", "calc.b", "calc.a", "other.c"):
            web.send(topic)
        web.send("calc.deep.d", nodeid=0)
        web.send("other.quiet.x", flags=wire.NORESPONSE)
        other.send("calc.a")
        await web.settled()
        desk.spy.sent.clear()
        web.leave()
        await until(lambda: web.session.ended)
        notices = {(one.topic, one.nodeid) for one in desk.spy.sent}
        assert notices == {
            ("calc.disconnect", wire.NODEID_ANY),
            ("other.disconnect", wire.NODEID_ANY),
            ("calc.deep.disconnect", 0),
        }
        assert len(desk.spy.sent) == 3
        for one in desk.spy.sent:
            assert one.flags & wire.NORESPONSE
            assert one.front == web.session.front
            assert (one.userid, one.rolemask) == (1001, int(Role.USER))

    run(script, rules=[CALLS])


def test_the_provider_behind_the_broker_ends_what_the_session_started():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:
            ended = asyncio.Event()

            async def forever(_request):
                try:
                    await asyncio.sleep(60)
                finally:
                    ended.set()

            calc.add("wait", forever, allow=Role.USER)
            web = desk.client()
            web.send("calc.wait")
            await until(lambda: calc._tasks)
            web.leave()
            await asyncio.wait_for(ended.wait(), 10)

    run(script, rules=[CALLS])


def test_a_client_may_take_leave_itself():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc, far.service("other") as other:
            seen = []
            for service, name in ((calc, "a"), (calc, "b"), (other, "c")):
                recording(service, name, seen)
            web = desk.client()
            web.send("calc.a")
            web.send("calc.b", flags=wire.STREAMING)
            web.send("other.c")
            await until(lambda: len(seen) == 3)
            web.send("calc.disconnect", flags=wire.NORESPONSE, matchtag=0)
            await until(lambda: web.session.received_msgs == 4)
            assert web.session.calls.count == 1
            desk.spy.sent.clear()
            web.leave()
            await until(lambda: web.session.ended)
            assert [one.topic for one in desk.spy.sent] == ["other.disconnect"]

    run(script, rules=[CALLS])


def test_whoever_could_not_be_asked_is_owed_no_notice():
    async def script(desk):
        web = desk.client()
        assert (await web.refused("calc.a"))[0] == errno.EHOSTUNREACH
        await desk.join()
        web.leave()
        await until(lambda: web.session.ended)
        assert desk.spy.sent == []

    run(script, rules=[CALLS], join=False)


def test_whoever_called_a_service_may_cancel_there_and_nobody_else():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:

            @calc.method("count", allow=Role.USER)
            async def count(_request):
                yield {"n": 1}
                await asyncio.sleep(60)

            web, other = desk.client(), desk.client()
            tag = web.send("calc.count", flags=wire.STREAMING)
            await web.answer(tag)
            other.send("calc.cancel", {"matchtag": tag}, flags=wire.NORESPONSE)
            web.send("calc.cancel", {"matchtag": tag}, flags=wire.NORESPONSE)
            assert (await web.answer(tag, 2)).errnum == errno.ENODATA
            assert [one["topic"] for one in desk.administration.denials.ring] == ["calc.cancel"]
            assert desk.sessions.counters.late == 0

    run(script, rules=[rule(["user"], ["calc.count"], ["call"])])


def test_cancel_and_disconnect_are_no_open_calls_even_without_noresponse():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:
            calc.add("a", lambda request: LATER, allow=Role.USER)
            web = desk.client()
            web.send("calc.a")
            for number in range(5):
                web.send("calc.cancel", {"matchtag": number})
            await web.settled()
            assert web.session.calls.count == 1
            assert (await web.refused("secret.cancel"))[0] == errno.EPERM
            web.send("calc.disconnect")
            await web.settled()
            assert web.session.calls.count == 0
            sent = desk.spy.requests("calc.cancel") + desk.spy.requests("calc.disconnect")
            assert [bool(one.flags & wire.NORESPONSE) for one in sent] == [True] * 6
            assert len(web.of(wire.RESPONSE)) == 1

    run(script, rules=[CALLS], limits={"in_flight": 2})


def test_an_ended_session_gets_nothing_and_sends_nothing():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:
            seen = []
            recording(calc, "wait", seen)
            web = desk.client()
            web.send("calc.wait")
            await until(lambda: seen)
            web.session.close(4006, "enough")
            web.session.close(4000, "twice")
            assert (web.code, web.reason) == (4006, "enough")
            seen[0].respond()
            await desk.settled()
            assert not web.of(wire.RESPONSE)
            web.session.received(web.near, [wire.request("broker.ping", b"{}\0")])
            assert not desk.spy.requests("broker.ping")
            assert desk.sessions.by_id == {}
            assert desk.sessions.by_route == {}

    run(script, rules=[CALLS])


def test_every_open_call_is_answered_when_the_upstream_is_lost():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:
            seen = []
            recording(calc, "wait", seen)
            web = desk.client()
            tags = [
                web.send("calc.wait"),
                web.send("calc.wait", flags=wire.STREAMING),
                web.send("calc.wait", matchtag=0),
            ]
            twin = web.send("calc.wait", matchtag=0)
            await until(lambda: len(seen) == 4)
            desk.upstream.handle.link.abort(LinkBroken("cut"))
            for tag in tags:
                answer = await web.answer(tag)
                assert answer.errnum == errno.EHOSTUNREACH
                assert any_text(answer.payload).startswith("upstream lost: ")
            assert len(web.answers(twin)) == 2
            assert web.session.calls.count == 0
            assert web.told("upstream")[-1]["joined"] is False
            assert (await web.refused("broker.ping", {"seq": 1}))[0] == errno.EHOSTUNREACH
            assert await desk.upstream.wait_joined(10)
            await until(lambda: web.told("upstream")[-1]["joined"])
            assert (await web.rpc("broker.ping", {"seq": 2}))["seq"] == 2

    run(script, rules=[CALLS])


def test_subscriptions_outlive_the_upstream():
    async def script(desk):
        web = desk.client()
        await web.rpc("event.subscribe", {"topic": "news."})
        epoch = desk.delivery.history.epoch
        await desk.node.stop()
        await until(lambda: web.told("upstream"))
        await desk.start_broker()
        assert await desk.upstream.wait_joined(10)
        said = web.told("upstream")[-1]
        assert said["joined"] is True
        assert said["epoch"] not in (None, epoch)
        assert said["lost"] is None
        async with desk.direct() as far:
            await far.publish("news.b")
            await until(lambda: web.topics == ["news.b"])

    run(script, rules=[rule(["user"], ["news."])])


def test_a_pure_caller_is_not_read_while_the_upstream_is_slow():
    async def script(desk):
        web, provider = desk.client(), desk.client()
        await provider.rpc("service.add", {"service": "1001-calc"})
        desk.upstream._choked(True)
        assert (await web.rpc("broker.ping", {"seq": 1}))["seq"] == 1
        assert web.paused
        web.send("broker.ping", {"seq": 2})
        errnum, text = await provider.refused("broker.ping", {"seq": 3})
        assert (errnum, text) == (errno.EAGAIN, "the upstream does not keep up; retry in 0.1 s")
        provider.say(wire.event("1001-calc.e"))
        await desk.settled()
        assert not provider.paused
        assert len(web.of(wire.RESPONSE)) == 1
        desk.upstream._choked(False)
        assert not web.paused
        await until(lambda: len(web.of(wire.RESPONSE)) == 2)

    run(script, rules=[CALLS])


def test_a_paused_client_is_read_again_once_it_provides_a_service():
    """Others wait for its answers: a provider is never paused."""

    async def script(desk):
        web = desk.client()
        await web.settled()
        web.send("service.add", {"service": "1001-calc"})
        web.session.received(web.near, [])
        desk.delivery.pressure.hold(web.session)
        web.near.resume()
        await until(lambda: web.session.provider.names)
        assert not web.paused
        desk.delivery.pressure.hold(web.session)
        assert not web.paused

    run(script, rules=[CALLS])


def test_a_paused_client_is_read_again_when_the_upstream_is_lost():
    async def script(desk):
        web = desk.client()
        desk.delivery.pressure.hold(web.session)
        assert web.paused
        desk.delivery.upstream_lost("gone")
        assert not web.paused

    run(script, rules=[CALLS])


def test_more_notices_than_are_kept_are_not_owed():
    calls = OpenCalls(1)
    for rank in range(NOTICES_MAX + 5):
        head = request("a.b", nodeid=rank).head
        calls.owe_notice(b"a.b", head, b"\0\0\0\1")
    assert len(calls.notices(b"\x01h\x00")) == NOTICES_MAX


def test_an_end_is_counted_once_with_its_code_whether_the_session_or_its_link_makes_it():
    async def script(desk):
        by_link, by_session, by_client = (desk.client() for _ in range(3))
        by_link.near.code = 4002
        by_link.near.abort(LinkBroken("it does not read"))
        by_session.near.code = 4006
        by_session.session.close(4006, "enough")
        by_client.leave()
        await until(lambda: not desk.sessions.by_id)
        assert dict(desk.sessions.counters.ended) == {4002: 1, 4006: 1}

    run(script, join=False)


def test_events_that_a_client_missed_stay_counted_when_it_is_gone():
    async def script(desk):
        for missed in (3, 4):
            web = desk.client()
            web.near.outbox.dropped_events = missed
            web.leave()
        await until(lambda: not desk.sessions.by_id)
        assert desk.sessions.counters.events_dropped == 7

    run(script, join=False)
