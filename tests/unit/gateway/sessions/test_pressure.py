"""Events have to wait: who publishes more than its share is not read meanwhile, and nobody else notices."""

import asyncio
import errno

from broker.wire import message as wire
from broker.wire.payload import encode_json
from broker.wire.shares import RENEW_S, SHARE_BYTES
from gateway.closes import REVOKED
from tests.unit.gateway.sessions.desk import principal, rule, run, until

MAY = [rule(["user"], ["broker.", "load.", "event."])]
LARGE = bytes(SHARE_BYTES // 2)


def test_who_publishes_much_is_held_until_events_move_on_and_loses_nothing():
    async def script(desk):
        greedy, same, modest = desk.client(), desk.client(), desk.client(principal("bob", 1002))
        desk.delivery.upstream_shut(True)
        greedy.say(wire.event("load.a", LARGE))
        same.say(wire.event("load.b", b"x"))
        await desk.settled()
        assert not greedy.paused
        assert not same.paused
        greedy.say(wire.event("load.c", LARGE))
        await until(lambda: greedy.paused)
        same.send("event.publish", encode_json({"topic": "load.d", "flags": 0, "payload": "eA=="}))
        same.say(wire.event("load.e", LARGE))
        await until(lambda: same.paused)  # a share is a user's, whatever its connections
        modest.say(wire.event("load.f", b"x"))
        assert (await modest.rpc("broker.ping", {"seq": 1}))["seq"] == 1
        assert not modest.paused
        desk.delivery.upstream_shut(False)
        assert not greedy.paused
        assert not same.paused
        greedy.say(*(wire.event("load.g", LARGE) for _ in range(4)))
        await until(lambda: desk.sessions.counters.published == 9)
        assert not greedy.paused, "nobody waits"

    run(script, rules=MAY, limits={"event_bytes": SHARE_BYTES})


def test_shares_grow_while_events_wait():
    async def script(desk):
        web = desk.client()
        desk.delivery.upstream_shut(True)
        web.say(wire.event("load.a", bytes(SHARE_BYTES - (1 << 14))), wire.event("load.b", LARGE))
        await until(lambda: web.paused)
        await asyncio.sleep(RENEW_S)
        await until(lambda: not web.paused)
        assert desk.delivery.pressure.shut

    run(script, rules=MAY, limits={"event_bytes": SHARE_BYTES})


def test_calls_that_publish_are_events_too():
    async def script(desk):
        web = desk.client()
        desk.delivery.upstream_shut(True)
        payload = "A" * (SHARE_BYTES // 4 * 3)
        for _ in range(2):
            web.send("event.publish", encode_json({"topic": "load.a", "flags": 0, "payload": payload}))
        await until(lambda: web.paused)

    run(script, rules=MAY, limits={"event_bytes": SHARE_BYTES})


def test_a_session_held_for_two_reasons_waits_for_both():
    async def script(desk):
        web = desk.client()
        desk.delivery.upstream_shut(True)
        desk.upstream._choked(True)
        web.say(wire.event("load.a", LARGE), wire.event("load.b", LARGE), wire.event("load.c", LARGE))
        await desk.settled()
        desk.upstream._choked(False)
        assert web.paused
        desk.delivery.upstream_shut(False)
        assert not web.paused

    run(script, rules=MAY, limits={"event_bytes": SHARE_BYTES})


def test_a_lost_upstream_and_the_end_of_a_session_let_go():
    async def script(desk):
        web, gone = desk.client(), desk.client()
        desk.delivery.upstream_shut(True)
        for one in (web, gone):
            one.say(wire.event("load.a", LARGE), wire.event("load.b", LARGE))
            await until(lambda one=one: one.paused)
        gone.session.close(REVOKED, "that is all")
        desk.delivery.upstream_lost("cut")
        assert not web.paused

    run(script, rules=MAY, limits={"event_bytes": SHARE_BYTES})


def test_an_event_beyond_the_limit_is_refused_unless_an_owner_publishes_it():
    async def script(desk):
        web, owner = desk.client(), desk.owner()
        for one in (web, owner):
            one.say(wire.event("load.a", bytes(2000)), wire.event("load.b", bytes(100)))
        await until(lambda: desk.sessions.counters.published == 3)
        (denied,) = web.told("denied")
        assert (denied["errno"], denied["topic"]) == (errno.EMSGSIZE, "load.a")
        assert "limits.event_bytes" in denied["text"]
        assert not owner.told("denied")

    run(script, rules=MAY, limits={"event_bytes": 1024})
