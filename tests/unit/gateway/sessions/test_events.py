"""Subscriptions of web clients: the right to a prefix, denies below it, private events, and when they are live."""

import asyncio
import errno

import pytest

from broker.errors import ProtocolError, RpcError
from broker.identity import NOBODY
from broker.wire import message as wire
from gateway.access import Access
from gateway.closes import EXPIRED, INTERNAL, SLOW
from gateway.settings.schema import RuleEntry
from tests.unit.gateway.sessions.desk import principal, rule, run, until

NEWS = rule(["user"], ["news.", "gateway."], ["subscribe", "publish"])
SECRET = rule(["user"], ["news.secret."], ["subscribe"], allow=False)


async def published(desk, far, *topics, private=False):
    for topic in topics:
        await far.publish(topic, private=private)
    await desk.settled()


def test_a_subscription_is_live_when_it_is_answered():
    async def script(desk):
        async with desk.direct() as far:
            web = desk.client()
            began = await web.rpc("event.subscribe", {"topic": "news."})
            assert began == {"sequence": desk.delivery.history.last}
            await published(desk, far, "news.a", "other.b", "news.c")
            assert web.topics == ["news.a", "news.c"]
            numbers = [one.sequence for one in web.of(wire.EVENT)]
            assert numbers[1] == numbers[0] + 2
            await web.rpc("event.unsubscribe", {"topic": "news."})
            await published(desk, far, "news.d")
            assert web.topics == ["news.a", "news.c"]
            assert await web.refused("event.unsubscribe", {"topic": "news."}) == (errno.ENOENT, "")

    run(script, rules=[NEWS])


def test_it_is_never_subscribed_upstream_for_everybody():
    async def script(desk):
        web = desk.client()
        await web.rpc("event.subscribe", {"topic": "news."}, nodeid=0)
        await web.rpc("event.unsubscribe", {"topic": "news."}, nodeid=3)
        assert desk.spy.sent == []

    run(script, rules=[NEWS])


def test_a_pattern_needs_a_right_to_all_it_covers():
    async def script(desk):
        web = desk.client()
        for prefix in ("", "n", "news", "job."):
            errnum, text = await web.refused("event.subscribe", {"topic": prefix})
            assert errnum == errno.EPERM
            assert "owner or admin" in text
        assert (await web.ask("event.subscribe", {"topic": "news.a"})).errnum == 0
        assert (await web.refused("event.subscribe", {"topic": 5}))[0] == errno.EPROTO
        assert (await web.refused("event.subscribe"))[0] == errno.EPROTO

    run(script, rules=[NEWS])


def test_a_wide_prefix_never_overrides_a_deny_below_it():
    async def script(desk):
        async with desk.direct() as far:
            web = desk.client()
            await web.rpc("event.subscribe", {"topic": "news."})
            assert (await web.refused("event.subscribe", {"topic": "news.secret.x"}))[0] == errno.EPERM
            await published(desk, far, "news.a", "news.secret.b", "news.c")
            assert web.topics == ["news.a", "news.c"]

    run(script, rules=[NEWS, SECRET])


def test_private_events_reach_their_senders_user_and_the_owner_alone():
    async def script(desk):
        same, other = desk.client(), desk.client(principal("bob", 1002, credential="token:2"))
        nobody = desk.client(principal("all", NOBODY, credential="token:3"))
        shared = desk.client(principal("two", 1001, shared=True, credential="token:4"))
        owner, admin = desk.owner(), desk.client(principal("eve", 1003, ("admin",)))
        for client in (same, other, nobody, shared, owner, admin):
            await client.rpc("event.subscribe", {"topic": "news."})
        writer = desk.client()
        writer.say(wire.event("news.mine", flags=wire.PRIVATE))
        nobody.say(wire.event("news.guests", flags=wire.PRIVATE))
        await desk.settled()
        writer.say(wire.event("news.all"))
        await desk.settled()
        await until(lambda: admin.topics == ["news.all"])
        assert same.topics == ["news.mine", "news.all"]
        assert owner.topics == ["news.mine", "news.guests", "news.all"]
        assert other.topics == nobody.topics == shared.topics == ["news.all"]

    run(script, rules=[NEWS])


def test_prefixes_are_counted_and_bounded():
    async def script(desk):
        async with desk.direct() as far:
            web = desk.client()
            for _ in range(2):
                await web.rpc("event.subscribe", {"topic": "news.a"})
            await web.rpc("event.subscribe", {"topic": "news.b"})
            assert (await web.refused("event.subscribe", {"topic": "news.c"})) == (
                errno.ENOSPC,
                "2 prefixes at most",
            )
            assert (await web.refused("event.subscribe", {"topic": "news." + "x" * 1100}))[
                0
            ] == errno.ENAMETOOLONG
            await web.rpc("event.unsubscribe", {"topic": "news.a"})
            await published(desk, far, "news.a")
            assert web.topics == ["news.a"]

    run(script, rules=[NEWS], limits={"subscriptions": 2})


def test_link_requests_are_answered_even_when_no_answer_is_wanted():
    """As deployed brokers do, and with the flag cleared."""

    async def script(desk):
        web = desk.client()
        answer = await web.ask("event.subscribe", {"topic": "news."}, flags=wire.NORESPONSE)
        assert (answer.errnum, answer.flags & wire.NORESPONSE) == (0, 0)

    run(script, rules=[NEWS])


def test_a_subscription_while_the_upstream_is_away_is_answered_when_it_is_there():
    async def script(desk):
        web = desk.client()
        tag = web.send("event.subscribe", {"topic": "news."})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not web.answers(tag)
        await desk.join()
        assert (await web.answer(tag)).errnum == 0
        async with desk.direct() as far:
            await published(desk, far, "news.a")
            assert web.topics == ["news.a"]

    run(script, rules=[NEWS], join=False)


def test_what_a_subscription_keeps_while_it_waits_is_small():
    async def script(desk):
        web = desk.client()
        long, padded = {"topic": "news." + "x" * 100_000}, {"topic": "news.", "more": "x" * 100_000}
        tags = [web.send("event.subscribe", payload) for payload in (long, padded)]
        await until(lambda: web.session.received_msgs == 2)
        waiting = desk.delivery.deadlines._subscriptions[web.session]
        assert max(one.message.size + len(one.prefix) for one in waiting) < 2000
        await desk.join()
        assert [(await web.answer(tag)).errnum for tag in tags] == [errno.ENAMETOOLONG, 0]
        assert web.session.subscriptions == {b"news.": 1}

    run(script, rules=[NEWS], join=False)


def test_a_fault_with_one_waiting_subscription_keeps_no_other_from_being_live(caplog):
    async def script(desk):
        first, second = desk.client(), desk.client()
        first.send("event.subscribe", {"topic": "news."})
        await until(lambda: first.session.received_msgs == 1)
        tag = second.send("event.subscribe", {"topic": "news."})
        await until(lambda: second.session.received_msgs == 1)
        first.session.link.send = broken  # where the answer goes
        await desk.join()
        assert (await second.answer(tag)).errnum == 0
        assert (first.code, second.code) == (INTERNAL, None)

    def broken(_message):
        raise RuntimeError("a fault of ours")

    run(script, rules=[NEWS], join=False, faults=1)
    assert "a fault of ours" in caplog.text


def test_it_is_refused_when_the_upstream_does_not_come_in_time():
    async def script(desk):
        web = desk.client()
        tag = web.send("event.subscribe", {"topic": "news."})
        await until(lambda: web.session.received_msgs == 1)
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now + 6
        errnum = (await web.answer(tag)).errnum
        assert errnum == errno.EHOSTUNREACH
        assert web.session.subscriptions == {}

    run(script, rules=[NEWS], join=False)


def test_who_ends_while_others_are_refused_takes_nobodys_deadline_along():
    """As the longest outbox does when there is no room for an answer."""

    async def script(desk):
        webs = [desk.client() for _ in range(3)]
        late = desk.client(principal(expires=desk.sessions.wall() + 1))
        tags = [web.send("event.subscribe", {"topic": "news."}) for web in webs]
        await until(lambda: all(web.session.received_msgs for web in webs))
        first, second, third = webs
        send = first.session.link.send
        first.session.link.send = lambda message: (second.session.close(SLOW, "no room"), send(message))
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now + 6
        assert (await first.answer(tags[0])).errnum == errno.EHOSTUNREACH
        assert (await third.answer(tags[2])).errnum == errno.EHOSTUNREACH
        await until(lambda: late.code == EXPIRED)
        assert not second.answers(tags[1])
        assert not desk.delivery.deadlines._subscriptions

    run(script, rules=[NEWS], join=False)


def test_other_rules_take_subscriptions_away_and_say_so():
    async def script(desk):
        async with desk.direct() as far:
            web = desk.client()
            for prefix in ("news.", "news.", "news.a"):
                await web.rpc("event.subscribe", {"topic": prefix})
            narrow = RuleEntry(roles=("user",), kinds=("subscribe",), prefixes=("news.a",))
            desk.administration.set_access(Access([narrow]))
            assert web.told("unsubscribed") == [{"type": "unsubscribed", "subscriptions": ["news."]}]
            await published(desk, far, "news.a", "news.b")
            assert web.topics == ["news.a"]

    run(script, rules=[NEWS])


class Request:
    """What asks for a trace."""

    def __init__(self, payload=b""):
        self.payload = payload


async def watching(desk, payload=b""):
    trace = desk.delivery.event_traces.follow(Request(payload))
    assert await anext(trace) == {}
    return trace


def outcomes(record):
    return {row["userid"]: (row["outcome"], row["why"]) for row in record["subscribers"]}


def test_a_trace_says_what_becomes_of_an_event_at_each_subscriber():
    async def script(desk):
        async with desk.direct() as far:
            web, owner, idle = desk.client(), desk.owner(), desk.client(principal("eve", 1003))
            await web.rpc("event.subscribe", {"topic": "news."})
            await owner.rpc("event.subscribe", {"topic": ""})
            trace = await watching(desk, b'{"topics":["news."]}\0')
            await published(desk, far, "other", "news.secret.a", "news.b")
            kept, seen = await anext(trace), await anext(trace)
            rule_said = 'deny rule: roles = ["user"], kinds = ["subscribe"], prefixes = ["news.secret."]'
            assert outcomes(kept)[1001] == ("withheld", rule_said)
            assert [row["outcome"] for row in kept["subscribers"]] == ["withheld", "delivered"]
            assert {said for said, _why in outcomes(seen).values()} == {"delivered"}
            assert (kept["topic"], kept["sequence"] + 1) == ("news.secret.a", seen["sequence"])
            assert (kept["unsubscribed"], kept["more"], idle.topics) == (1, 0, [])
            await published(desk, far, "news.c", private=True)
            assert outcomes(await anext(trace))[1001] == (
                "withheld",
                "private: for owners and its sender's userid",
            )
            assert web.topics == ["news.b"]
            await trace.aclose()
            assert not desk.delivery.event_traces.watchers
            stats = await owner.rpc("gateway.stats")
            assert stats["events"]["withheld"] == {"news.secret.a": 1}

    run(script, rules=[NEWS, SECRET])


def test_a_trace_that_is_not_read_misses_records_and_says_how_many(monkeypatch):
    async def script(desk):
        async with desk.direct() as far:
            trace = await watching(desk)
            await published(desk, far, "a", "b", "c", "d")
            assert [(await anext(trace))["topic"] for _ in range(2)] == ["a", "b"]
            await published(desk, far, "e")
            told = await anext(trace)
            assert (told["topic"], told["dropped"], told["subscribers"]) == ("e", 2, [])
            await trace.aclose()

    monkeypatch.setattr("gateway.sessions.event_traces.WAITING_MAX", 2)
    run(script, rules=[NEWS])


def test_traces_are_bounded_and_topics_are_texts(monkeypatch):
    async def script(desk):
        trace = await watching(desk)
        with pytest.raises(RpcError):
            await watching(desk)
        with pytest.raises(ProtocolError):
            await watching(desk, b'{"topics":"news."}\0')
        await trace.aclose()

    monkeypatch.setattr("gateway.sessions.event_traces.WATCHERS_MAX", 1)
    run(script)
