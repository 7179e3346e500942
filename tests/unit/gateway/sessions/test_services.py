"""Web clients that provide services: names, requests delivered, answers accepted, and what their end means."""

import errno

from broker.client import LATER
from broker.errors import RpcError
from broker.identity import NOBODY, Role
from broker.wire import message as wire
from broker.wire.payload import any_text, decode_json, encode_json
from gateway.access import Access
from tests.unit.gateway.sessions.desk import principal, rule, run, until
from tests.unit.routing.operations import bytecodes

GUEST = rule(["user"], ["1001-", "calc"], ["register", "call"])
ALL = rule(["user"], [""], ["register", "call"])


def answer_to(request, payload=b"{}\0", **options):
    return wire.response(request, payload, **options)


async def provider(desk, name="1001-calc", who=None):
    web = desk.client(who)
    await web.rpc("service.add", {"service": name})
    return web


def test_others_call_the_service_of_a_web_client():
    async def script(desk):
        web = await provider(desk)
        async with desk.direct() as far:
            call = far.request(wire.request("1001-calc.add", encode_json({"a": 1})))
            asked = await web.request("1001-calc.add")
            assert asked.rolemask & Role.OWNER
            assert decode_json(asked.payload) == {"a": 1}
            web.say(answer_to(asked, b'{"sum":2}\0', userid=0, rolemask=1))
            answer = await call
            assert decode_json(answer.payload) == {"sum": 2}
            assert (answer.userid, answer.rolemask) == (1001, int(Role.USER))
            await web.rpc("service.remove", {"service": "1001-calc"})
            gone = await far.request(wire.request("1001-calc.add"))
            assert gone.errnum == errno.ENOSYS

    run(script, rules=[GUEST])


def test_one_web_client_calls_another():
    async def script(desk):
        web = await provider(desk)
        caller = desk.client()
        tag = caller.send("1001-calc.count", flags=wire.STREAMING)
        asked = await web.request("1001-calc.count")
        for n in range(2):
            web.say(answer_to(asked, encode_json({"n": n})))
        web.say(answer_to(asked, None, errnum=errno.ENODATA))
        web.say(answer_to(asked, b'{"n":9}\0'))
        await caller.answer(tag, 3)
        await desk.settled()
        assert [one.errnum for one in caller.answers(tag)] == [0, 0, errno.ENODATA]
        assert desk.sessions.counters.forged == 1

    run(script, rules=[GUEST])


def test_who_is_nobody_has_no_services():
    async def script(desk):
        guest = desk.client(principal("guest", NOBODY))
        errnum, text = await guest.refused("service.add", {"service": f"{NOBODY}-calc"})
        assert (errnum, "no userid to yourself" in text) == (errno.EPERM, True)

    run(script, rules=[rule(["user"], [""], ["register"])])


def test_names_need_the_right_and_a_guests_its_userid():
    async def script(desk):
        web = desk.client()
        refused = {
            "calc": errno.EPERM,
            "1002-calc": errno.EPERM,
            "other": errno.EPERM,
            "gateway": errno.EEXIST,
            "a.b": errno.EINVAL,
            "": errno.EINVAL,
            "x" * 300: errno.EINVAL,
        }
        for name, expected in refused.items():
            assert (await web.refused("service.add", {"service": name}))[0] == expected, name
        assert (await web.refused("service.add", {"service": "calc"}))[
            1
        ] == "your services are called 1001-NAME"
        assert (await web.refused("service.add", b"{}\0"))[0] == errno.EPROTO
        assert (await web.refused("service.remove", {"service": "1001-calc"}))[0] == errno.ENOENT
        assert desk.spy.sent == []
        owner = desk.owner()
        await owner.rpc("service.add", {"service": "calc"})
        assert owner.session.provider.names == {"calc"}

    run(script, rules=[GUEST])


def test_a_name_is_given_once_here_and_upstream():
    async def script(desk):
        await provider(desk)
        twin = desk.client()
        assert (await twin.refused("service.add", {"service": "1001-calc"}))[0] == errno.EEXIST
        async with desk.direct() as far, far.service("1001-taken"):
            assert (await twin.refused("service.add", {"service": "1001-taken"}))[0] == errno.EEXIST
            assert twin.session.provider.names == set()
        await twin.rpc("service.add", {"service": "1001-taken"})
        assert (await twin.refused("service.add", {"service": "1001-more"})) == (
            errno.ENOSPC,
            "1 services at most",
        )

    run(script, rules=[GUEST], limits={"services": 1})


def test_the_built_in_names_of_the_broker_are_its_own():
    async def script(desk):
        owner = desk.owner()
        assert (await owner.refused("service.add", {"service": "attr"}))[0] == errno.EEXIST

    run(script)


def test_nobody_answers_for_another_provider():
    """Forged answers between two provider sessions: the stack is known, the request was delivered elsewhere."""

    async def script(desk):
        web = await provider(desk, "1001-a")
        thief = await provider(desk, "1001-b")
        caller = desk.client()
        tag = caller.send("1001-a.run")
        asked = await web.request("1001-a.run")
        thief.say(answer_to(asked, b'{"forged":1}\0'))
        await desk.settled()
        assert not caller.answers(tag)
        assert desk.sessions.counters.forged == thief.session.provider.forged == 1
        web.say(answer_to(asked, b'{"forged":0}\0'))
        assert decode_json((await caller.answer(tag)).payload) == {"forged": 0}

    run(script, rules=[ALL])


def test_a_made_up_answer_completes_nothing():
    """A stack that names the gateway's own hop, another session's, none at all: deployed brokers would believe them."""

    async def script(desk):
        web = await provider(desk)
        victim = desk.client()
        sent = len(desk.spy.sent)
        for front in (wire.DELIMITER, b"", victim.session.front, desk.delivery.registrations.front):
            forged = answer_to(wire.request("broker.ping", matchtag=1), b'{"forged":1}\0')
            forged.front = front
            web.say(forged)
        await desk.settled()
        assert len(desk.spy.sent) == sent
        assert desk.sessions.counters.forged == 4

    run(script, rules=[GUEST])


def test_an_answer_passes_once_and_with_the_topic_that_was_asked():
    async def script(desk):
        web = await provider(desk)
        async with desk.direct() as far:
            call = far.request(wire.request("1001-calc.add"))
            asked = await web.request("1001-calc.add")
            lying = answer_to(asked, b'{"n":1}\0')
            lying.topic_part = b"\x05other"
            web.say(lying, answer_to(asked, b'{"n":2}\0'))
            answer = await call
            assert (answer.topic, decode_json(answer.payload)) == ("1001-calc.add", {"n": 1})
            await desk.settled()
            assert desk.sessions.counters.forged == 1

    run(script, rules=[GUEST])


def test_what_a_provider_owes_is_answered_when_it_goes():
    async def script(desk):
        web = await provider(desk)
        async with desk.direct() as far:
            calls = [far.request(wire.request("1001-calc.add")) for _ in range(2)]
            await until(lambda: web.session.provider.count == 2)
            web.leave()
            for call in calls:
                answer = await call
                assert (answer.errnum, any_text(answer.payload)) == (
                    errno.EHOSTUNREACH,
                    "the provider is gone",
                )
            assert (await far.request(wire.request("1001-calc.add"))).errnum == errno.ENOSYS
            again = await provider(desk)
            assert again.session.provider.names == {"1001-calc"}

    run(script, rules=[GUEST])


def test_a_name_asked_for_by_a_client_that_went_is_free_again():
    async def script(desk):
        web = desk.client()
        web.send("service.add", {"service": "1001-calc"})
        web.leave()
        await desk.settled()
        async with desk.direct() as far:
            assert (await far.request(wire.request("1001-calc.add"))).errnum == errno.ENOSYS
        await provider(desk)

    run(script, rules=[GUEST])


def test_a_client_that_goes_has_its_names_removed_by_requests_with_answers():
    """A deployed connector does not free a name for a request that wants no answer."""

    async def script(desk):
        web = await provider(desk)
        web.leave()
        await desk.settled()
        (removal,) = desk.spy.requests("service.remove")
        assert not removal.flags & wire.NORESPONSE
        assert desk.sessions.counters.late == 0

    run(script, rules=[GUEST])


def test_who_goes_costs_nothing_of_what_others_registered():
    costs = []

    async def script(desk):
        registrations, other = desk.delivery.registrations, desk.client().session
        for count in (10, 2000):
            for number in range(count):
                registrations.add(other, f"1001-{count}-{number}", lambda _errnum, _text: None)
            leaver = (await provider(desk)).session
            costs.append(bytecodes(lambda: registrations.remove_session(leaver)))  # noqa: B023 - called at once
            await desk.settled()

    run(script, rules=[GUEST])
    few, many = costs
    assert many <= 2 * few + 100


def test_a_caller_that_leaves_is_owed_nothing():
    async def script(desk):
        web = await provider(desk)
        caller = desk.client()
        caller.send("1001-calc.wait")
        caller.send("1001-calc.more")
        await web.request("1001-calc.more")
        caller.leave()
        notice = await web.request("1001-calc.disconnect")
        assert notice.flags & wire.NORESPONSE
        assert notice.front == web.of(wire.REQUEST)[0].front
        assert web.session.provider.count == 0

    run(script, rules=[GUEST])


def test_requests_for_a_client_that_reads_slowly_are_answered_at_once():
    async def script(desk):
        web = await provider(desk)
        web.session.link_choked(web.near, True)
        async with desk.direct() as far:
            answer = await far.request(wire.request("1001-calc.add"))
            assert (answer.errnum, any_text(answer.payload)) == (
                errno.EAGAIN,
                "the provider does not keep up with its requests: retry in 1 s",
            )
            web.session.link_choked(web.near, False)
            call = far.request(wire.request("1001-calc.add"))
            web.say(answer_to(await web.request("1001-calc.add")))
            assert (await call).errnum == 0

    run(script, rules=[GUEST])


def test_a_provider_answers_above_its_rate():
    async def script(desk):
        web = await provider(desk)
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now
        async with desk.direct() as far:
            calls = [far.request(wire.request("1001-calc.add")) for _ in range(8)]
            await until(lambda: len(web.of(wire.REQUEST)) == 8)
            web.say(*[answer_to(one) for one in web.of(wire.REQUEST)])
            assert [(await call).errnum for call in calls] == [0] * 8

    run(script, rules=[GUEST], limits={"msgs_per_s": 1, "msgs_burst": 4})


def test_requests_with_equal_stack_and_matchtag_are_each_answered():
    async def script(desk):
        web = await provider(desk)
        caller = desk.client()
        caller.send("1001-calc.one", matchtag=0)
        caller.send("1001-calc.two", matchtag=0)
        await web.request("1001-calc.two")
        one, two = web.of(wire.REQUEST)
        web.say(answer_to(two, b'{"n":2}\0'), answer_to(one, b'{"n":1}\0'), answer_to(one, b'{"n":3}\0'))
        await caller.answer(0, 2)
        await desk.settled()
        assert [(each.topic, decode_json(each.payload)["n"]) for each in caller.answers(0)] == [
            ("1001-calc.two", 2),
            ("1001-calc.one", 1),
        ]
        assert desk.sessions.counters.forged == 1

    run(script, rules=[GUEST])


def test_other_roles_take_a_service_away():
    async def script(desk):
        who = principal("ada", 1001, ("owner",))
        web = await provider(desk, "calc", who)
        web.session.set_principal(principal("ada", 1001, ("user",)))
        await desk.settled()
        assert web.told("service") == [
            {"type": "service", "service": "calc", "registered": False, "errno": errno.EPERM}
        ]
        async with desk.direct() as far:
            assert (await far.request(wire.request("calc.add"))).errnum == errno.ENOSYS

    run(script, rules=[GUEST])


def test_services_are_registered_again_with_a_new_upstream():
    async def script(desk):
        web = await provider(desk)
        old = desk.node
        await old.stop()
        await until(lambda: not desk.upstream.joined)
        await desk.start_broker()
        assert await desk.upstream.wait_joined(10)
        async with desk.direct() as far:
            await until(lambda: web.session.delivery.registrations.names())
            call = far.request(wire.request("1001-calc.add"))
            web.say(answer_to(await web.request("1001-calc.add")))
            assert (await call).errnum == 0

    run(script, rules=[GUEST])


def test_a_right_that_goes_while_services_are_registered_again_is_gone():
    async def script(desk):
        web = await provider(desk)
        await desk.node.stop()
        await until(lambda: not desk.upstream.joined)
        restore, desk.delivery.registrations.restore = desk.delivery.registrations.restore, lambda: None
        await desk.start_broker()
        assert await desk.upstream.wait_joined(10)
        restore()
        desk.administration.set_access(Access())
        await desk.settled()
        assert web.session.provider.names == set()
        assert desk.delivery.registrations.names() == {}
        async with desk.direct() as far, far.service("1001-calc"):
            assert web.told("service")[0]["errno"] == errno.EPERM

    run(script, rules=[GUEST])


def test_a_right_that_goes_while_a_service_is_registered_is_gone():
    async def script(desk):
        web, send = desk.client(), desk.spy.send

        def sent_and_forbidden(message):
            try:
                return send(message)
            finally:
                if message.topic == "service.add":
                    desk.administration.set_access(Access())

        desk.spy.send = sent_and_forbidden
        await web.rpc("service.add", {"service": "1001-calc"})
        await desk.settled()
        assert web.told("service")[0]["registered"] is False
        assert web.session.provider.names == set()

    run(script, rules=[GUEST])


def test_a_service_that_somebody_else_took_meanwhile_is_reported_lost():
    async def script(desk):
        web = await provider(desk)
        await desk.node.stop()
        await until(lambda: not desk.upstream.joined)
        restore, desk.delivery.registrations.restore = desk.delivery.registrations.restore, lambda: None
        await desk.start_broker()
        assert await desk.upstream.wait_joined(10)
        async with desk.direct() as far, far.service("1001-calc"):
            restore()
            await until(lambda: web.told("service"))
            assert web.told("service")[0]["errno"] == errno.EEXIST
            assert web.session.provider.names == set()

    run(script, rules=[GUEST])


def test_a_handler_of_the_broker_side_sees_the_users_stamp():
    async def script(desk):
        async with desk.direct() as far, far.service("calc") as calc:
            seen = []

            def who(request):
                seen.append((request.userid, request.rolemask))
                raise RpcError(errno.EDOM, "seen")

            calc.add("who", who, allow=Role.USER)
            calc.add("late", lambda _request: LATER, allow=Role.USER)
            web = desk.client()
            assert await web.refused("calc.who") == (errno.EDOM, "seen")
            assert seen == [(1001, int(Role.USER))]

    run(script, rules=[GUEST])
