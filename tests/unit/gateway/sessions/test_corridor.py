"""Requests and responses through a session: stamped, routed by the connection's hop, bounded, always answered."""

import errno

from broker.client import LATER
from broker.identity import Role
from broker.wire import message as wire
from broker.wire.payload import any_text, decode_json
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import principal, rule, run, until

CALLS = (rule(["user"], ["broker.ping", "calc."], ["call"]),)


def test_a_call_reaches_the_broker_with_the_stamp_of_its_user():
    async def script(desk):
        web = desk.client()
        seen = await web.rpc("broker.ping", {"seq": 7})
        assert (seen["seq"], seen["userid"], seen["rolemask"]) == (7, 1001, int(Role.USER))

    run(script, rules=CALLS)


def test_a_clients_own_stamp_and_routes_are_not_believed():
    async def script(desk):
        web = desk.client()
        forged = wire.request(
            "broker.ping", b'{"seq":1}\0', matchtag=5, userid=0, rolemask=int(Role.OWNER | Role.LOCAL)
        )
        forged.push_route(b"f" * 36)
        forged.push_route(web.session.hop[1:])
        web.say(forged)
        seen = decode_json((await web.answer(5)).payload)
        assert (seen["userid"], seen["rolemask"]) == (1001, int(Role.USER))
        sent = desk.spy.requests("broker.ping")[0]
        assert sent.front == web.session.front
        assert web.answers(5)[0].front == wire.DELIMITER

    run(script, rules=CALLS)


def test_a_call_without_the_right_is_refused_with_the_role_it_needs():
    async def script(desk):
        web = desk.client()
        errnum, text = await web.refused("attr.get", {"name": "rank"})
        assert errnum == errno.EPERM
        assert text == "call 'attr.get': needs the role owner or admin, or a rule: preset = \"viewer\""
        web.send("attr.get", {"name": "rank"}, flags=wire.NORESPONSE)
        await web.settled()
        assert len(web.of(wire.RESPONSE)) == 1
        assert not desk.spy.requests("attr.get")
        assert [(one["user"], one["kind"], one["topic"]) for one in desk.administration.denials.ring] == [
            ("ada", "call", "attr.get")
        ] * 2

    run(script, rules=CALLS)


def test_the_upstreams_own_rules_still_apply_to_who_may_call_everything():
    async def script(desk):
        admin = desk.client(principal("eve", 1003, ("admin",)))
        errnum, _text = await admin.refused("config.get")
        assert errnum == errno.EPERM
        owner = desk.owner()
        assert (await owner.ask("config.get")).errnum == 0

    run(script)


def test_streams_stay_open_until_their_error():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:

            @calc.method("count", allow=Role.USER)
            async def count(request):
                for n in range(3):
                    yield {"n": n}

            web = desk.client()
            tag = web.send("calc.count", flags=wire.STREAMING)
            last = await web.answer(tag, 4)
            assert [decode_json(one.payload)["n"] for one in web.answers(tag)[:3]] == [0, 1, 2]
            assert last.errnum == errno.ENODATA
            assert web.session.calls.count == 0

    run(script, rules=CALLS)


def test_calls_beyond_the_limit_are_answered_again_later():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:
            kept = []
            calc.add("wait", lambda request: kept.append(request) or LATER, allow=Role.USER)
            web = desk.client()
            first, second = web.send("calc.wait"), web.send("calc.wait")
            errnum, text = await web.refused("calc.wait")
            assert (errnum, text) == (errno.EAGAIN, "2 calls wait already: retry in 1 s")
            await until(lambda: len(kept) == 2)
            kept[0].respond()
            await web.answer(first)
            web.send("calc.wait")
            await until(lambda: len(kept) == 3)
            kept[1].respond()
            await web.answer(second)

    run(script, rules=CALLS, limits={"in_flight": 2})


def test_calls_that_share_a_matchtag_are_told_apart_by_topic():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:
            kept = {}
            for name in ("one", "two"):
                calc.add(
                    name, lambda request: kept.update({request.topic: request}) or LATER, allow=Role.USER
                )
            web = desk.client()
            web.send("calc.one", matchtag=0)
            web.send("calc.two", matchtag=0)
            await until(lambda: len(kept) == 2)
            kept["calc.two"].respond({"from": "two"})
            await web.answer(0)
            kept["calc.one"].respond({"from": "one"})
            await web.answer(0, 2)
            assert [one.topic for one in web.answers(0)] == ["calc.two", "calc.one"]
            assert web.session.calls.count == 0

    run(script, rules=CALLS)


def test_a_response_nobody_asked_for_never_reaches_a_client():
    async def script(desk):
        web = desk.client()
        await web.rpc("broker.ping", {"seq": 1})
        forged = wire.response(wire.request("broker.ping", matchtag=4711), b"{}\0")
        forged.front = web.session.front
        desk.delivery.answered(forged)
        assert not web.answers(4711)
        assert desk.sessions.counters.late == 1
        forged.front = b"\x20" + b"0" * 32 + wire.DELIMITER
        desk.delivery.answered(forged)
        assert desk.sessions.counters.late == 2

    run(script, rules=CALLS)


def test_a_topic_that_no_notice_could_be_made_from_is_answered():
    async def script(desk):
        owner = desk.owner()
        assert (await owner.refused("x" * 256))[0] == errno.EPROTO
        assert (await owner.refused(""))[0] == errno.ENOSYS
        nameless = wire.request("", matchtag=9)
        nameless.topic_part = b""
        nameless.set_flags(nameless.flags & ~wire.TOPIC)
        owner.say(nameless)
        assert (await owner.answer(9)).errnum == errno.ENOSYS

    run(script)


@for_each("topic", ["calc.add", "event.publish", "service.add"])
def test_the_pseudo_rank_upstream_is_refused(topic):
    """RFC 3, "Rank Assignment": it is never encoded."""

    async def script(desk):
        owner = desk.owner()
        asked = wire.request(topic, matchtag=9)
        asked.set_aux1(wire.NODEID_UPSTREAM)
        owner.say(asked)
        answer = await owner.answer(9)
        assert answer.errnum == errno.EPROTO
        assert any_text(answer.payload).startswith("nodeid 4294967294 is no rank")

    run(script)


def test_control_messages_of_clients_go_nowhere():
    async def script(desk):
        web = desk.client()
        web.say(wire.control(3, 1))
        await web.rpc("broker.ping", {"seq": 1})
        assert web.session.dropped == 1
        assert [one.type for one in desk.spy.sent] == [wire.REQUEST]

    run(script, rules=CALLS)


def test_above_the_rate_calls_are_refused_with_a_hint_and_owners_never():
    async def script(desk):
        now = [100.0]
        desk.sessions.clock = lambda: now[0]
        web, owner = desk.client(), desk.owner()
        tags = [web.send("broker.ping", {"seq": n}) for n in range(6)]
        texts = [any_text((await web.answer(tag)).payload) for tag in tags]
        assert [one.errnum for tag in tags for one in web.answers(tag)] == [0] * 4 + [errno.EAGAIN] * 2
        assert texts[-1] == "more than 10 messages a second: retry in 0.10 s"
        now[0] += 0.1
        assert (await web.ask("broker.ping", {"seq": 7})).errnum == 0
        for n in range(20):
            await owner.rpc("broker.ping", {"seq": n})

    run(script, rules=CALLS, limits={"msgs_per_s": 10, "msgs_burst": 4})


def test_what_came_while_the_gateway_was_stopped_closes_nobody():
    async def script(desk):
        now = [100.0]
        desk.sessions.clock = lambda: now[0]
        web = desk.client()
        desk.sessions.stopped(6.0)
        tags = [web.send("broker.ping", {"seq": 1}) for _ in range(60)]
        answers = [await web.answer(tag) for tag in tags]
        assert [each.errnum for each in answers] == [0] * 4 + [errno.EAGAIN] * 56
        assert web.code is None

    run(script, rules=CALLS, limits={"msgs_per_s": 10, "msgs_burst": 4})


def test_whoever_ignores_the_hints_for_long_is_closed():
    async def script(desk):
        now = [100.0]
        desk.sessions.clock = lambda: now[0]
        web = desk.client()
        for _ in range(60):
            web.send("broker.ping", {"seq": 1})
        await until(lambda: web.ended is not None)
        assert web.code == 4507
        assert web.reason.endswith("retry in 0.10 s")

    run(script, rules=CALLS, limits={"msgs_per_s": 10, "msgs_burst": 4})


def test_events_are_published_stamped_and_without_a_number_of_their_own():
    async def script(desk):
        async with desk.direct() as far, far.subscribe("news.") as events:
            web = desk.client()
            event = wire.event("news.a", b"1\0", sequence=99, flags=wire.PRIVATE | wire.STREAMING, rolemask=1)
            event.tag = b"abcd"
            web.say(event)
            seen = await anext(events)
            assert (seen.topic, seen.userid, seen.rolemask) == ("news.a", 1001, int(Role.USER))
            sent = desk.spy.sent[-1]
            assert (sent.sequence, sent.aux2, sent.front) == (0, 0, wire.DELIMITER)
            assert sent.flags == wire.PRIVATE | wire.TOPIC | wire.PAYLOAD | wire.ROUTE

    run(script, rules=[rule(["user"], ["news."], ["publish"])])


def test_a_refused_event_is_told_because_it_has_no_answer():
    async def script(desk):
        web = desk.client()
        web.say(wire.event("job.end"), wire.event(""), wire.event("x" * 2000))
        await web.settled()
        assert not desk.spy.sent
        assert [one["errno"] for one in web.told("denied")] == [errno.EPERM, errno.EPROTO, errno.EPROTO]
        assert web.told("denied")[0]["text"] == (
            "publish 'job.end': needs the role owner, "
            'or a rule: kinds = ["publish"], prefixes = ["job.end"]'
        )

    run(script)


def test_events_of_before_are_had_by_resume_alone():
    async def script(desk):
        for web, errnum in ((desk.owner(), errno.ENOSYS), (desk.client(), errno.EPERM)):
            assert (await web.refused("event.since", {"sequence": 0}, nodeid=0))[0] == errnum

    run(script)


def test_publishing_by_call_checks_the_topic_inside():
    async def script(desk):
        web = desk.client()
        done = await web.rpc("event.publish", {"topic": "news.a", "flags": 0, "payload": "MQA="}, nodeid=0)
        assert done["seq"] > 0
        assert (await web.refused("event.publish", {"topic": "job.a", "flags": 0}))[0] == errno.EPERM
        assert (await web.refused("event.publish", {"topic": "news.a", "flags": 64}))[0] == errno.EPROTO
        assert (await web.refused("event.publish", {"topic": "news.a", "flags": True}))[0] == errno.EPROTO
        assert (await web.refused("event.publish", {"topic": "", "flags": 0}))[0] == errno.EPROTO
        assert (await web.refused("event.publish", b"[]\0"))[0] == errno.EPROTO

    run(script, rules=[rule(["user"], ["news."], ["publish"])])


def test_what_was_checked_is_what_the_broker_sees():
    """Two objects in one payload, a doubled key: the upstream must not read another topic than we did."""

    async def script(desk):
        web = desk.client()
        text = b'{"topic":"job.a","topic":"news.a","flags":0,"more":1}\0{"topic":"job.a"}\0'
        await web.ask("event.publish", text, nodeid=0)
        sent = desk.spy.requests("event.publish")[0]
        assert sent.payload == b'{"topic":"news.a","flags":0}\0'

    run(script, rules=[rule(["user"], ["news."], ["publish"])])


def test_a_fault_while_handling_costs_its_connection_only():
    async def script(desk):
        web, other = desk.client(), desk.client()
        rules, desk.sessions.access = desk.sessions.access, None
        web.send("broker.ping", {"seq": 1})
        await until(lambda: web.ended is not None)
        desk.sessions.access = rules
        assert web.code == 4001
        assert desk.sessions.counters.faults == 1
        assert (await other.rpc("broker.ping", {"seq": 1}))["seq"] == 1

    run(script, rules=CALLS, faults=1)
