"""The authorisation hook as sessions meet it: order, refusals, and what is not asked for."""

import asyncio
import errno

import pytest

from broker.wire import message as wire
from broker.wire.payload import any_text, encode_json
from gateway.administration import service
from gateway.closes import BUSY, FLOOD, SLOW
from gateway.events.run import Run
from gateway.identity.hook import AWAY, Verdict
from gateway.sessions import answers, authorization
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import principal, rule, run, until

ALL = (rule(["user"], [""]), rule(["user"], ["secret."], allow=False))
YES = Verdict(True)
NO = Verdict(False, "not on Sundays")
GONE = Verdict(False, AWAY, errno.EHOSTUNREACH)


class Hook:
    """Says what the test wants, when it wants it."""

    def __init__(self, *denied, verdict=NO):
        self.denied = denied
        self.verdict = verdict
        self.asked = []
        self.cached = {}
        self.open = asyncio.Event()
        self.open.set()

    def known(self, mine, kind, topic):
        return self.cached.get((mine.name, kind, topic))

    async def ask(self, mine, kind, topic):
        self.asked.append((mine.name, kind, topic))
        await self.open.wait()
        found = self.verdict if topic.startswith(self.denied) else YES
        self.cached[mine.name, kind, topic] = found
        return found


class Hooked:
    """Nobody is asked."""

    asked = True


def with_hook(script, *denied, **options):
    async def hooked(desk):
        desk.sessions.hook = Hook(*(each.encode() for each in denied), verdict=options.get("verdict", NO))
        await script(desk, desk.sessions.hook)

    run(hooked, rules=ALL, limits=options.get("limits"), gateway=options.get("gateway"))


def test_what_it_allows_passes_and_is_asked_for_once():
    async def script(desk, hook):
        web = desk.client()
        for _ in range(3):
            await web.rpc("attr.get", {"name": "size"}, nodeid=0)
        assert hook.asked == [("ada", "call", b"attr.get")]
        assert not web.paused

    with_hook(script)


def test_what_it_denies_is_eperm_with_its_text_and_a_record():
    async def script(desk, hook):
        web = desk.client()
        said = await web.refused("attr.get", {"name": "size"})
        assert said == (errno.EPERM, "call 'attr.get': not on Sundays")
        assert desk.administration.denials.ring[-1]["topic"] == "attr.get"
        assert desk.spy.requests("attr.get") == []

    with_hook(script, "attr.")


def test_a_hook_that_is_away_refuses_and_says_so():
    async def script(desk, hook):
        web = desk.client()
        assert await web.refused("attr.get", {"name": "size"}) == (errno.EHOSTUNREACH, AWAY)
        assert not [each for each in desk.administration.denials.ring if each["topic"] == "attr.get"]

    with_hook(script, "attr.", verdict=GONE)


def test_what_the_rules_deny_is_not_asked_for():
    async def script(desk, hook):
        web = desk.client()
        errnum, text = await web.refused("secret.plan")
        assert errnum == errno.EPERM
        assert "needs the role" in text
        assert hook.asked == []

    with_hook(script)


def test_messages_stay_in_order_while_it_is_asked():
    async def script(desk, hook):
        web = desk.client()
        hook.cached["ada", "call", b"broker.ping"] = YES
        hook.open.clear()
        tags = [
            web.send("attr.get", {"name": "size"}, nodeid=0),
            web.send("broker.ping", {"seq": 1}),
            web.send("attr.get", {"name": "rank"}, nodeid=0),
        ]
        await until(lambda: web.paused)
        await desk.settled()
        assert [web.answers(tag) for tag in tags] == [[], [], []]
        assert len(hook.asked) == 1
        hook.open.set()
        for tag in tags:
            await web.answer(tag)
        sent = [each.topic for each in desk.spy.sent if each.type == wire.REQUEST]
        assert sent == ["attr.get", "broker.ping", "attr.get"]
        assert not web.paused

    with_hook(script)


def test_a_denial_comes_behind_what_was_sent_before_it():
    async def script(desk, hook):
        web = desk.client()
        tags = [
            web.send("broker.ping", {"seq": 1}),
            web.send("attr.get", {"name": "x"}),
            web.send("broker.ping"),
        ]
        await web.answer(tags[1])
        await web.answer(tags[2])
        assert [each.topic for each in desk.spy.sent if each.type == wire.REQUEST] == ["broker.ping"] * 2
        assert any_text(web.answers(tags[1])[0].payload) == "call 'attr.get': not on Sundays"

    with_hook(script, "attr.")


@for_each(
    ("topic", "payload", "question"),
    [
        ("event.subscribe", {"topic": "news."}, ("subscribe", b"news.")),
        ("event.publish", {"topic": "news.a", "flags": 0}, ("publish", b"news.a")),
        ("service.add", {"service": "1001-x"}, ("register", b"1001-x")),
        ("gateway.presence", {"topic": "news."}, ("subscribe", b"news.")),
    ],
)
def test_requests_that_name_what_they_want_inside(topic, payload, question):
    async def script(desk, hook):
        web = desk.client()
        errnum, text = await web.refused(topic, payload)
        assert errnum == errno.EPERM
        assert text.endswith(": not on Sundays")
        assert hook.asked == [("ada", *question)]
        assert web.session.subscriptions == {}

    with_hook(script, "news.", "secret.", "1001-")


def test_whoever_wants_no_answer_gets_none_whatever_is_said_of_it():
    """Requests about the link itself apart, which brokers answer in any case (event.subscribe and the like)."""
    inside = {"topic": "news.", "service": "1001-x"}
    topics = [f"{service.NAME}.{name}" for name in (*service.METHODS, "none")] + ["event.publish", "news.x"]

    async def script(desk, hook):
        web = desk.client()
        for topic in topics:
            web.send(topic, inside, flags=wire.NORESPONSE)
            web.send(topic, b"x", flags=wire.NORESPONSE)
            web.send(topic, inside, flags=wire.NORESPONSE | wire.STREAMING)
        for topic in sorted(each.decode() for each in answers.LINK_REQUESTS):
            await web.ask(topic, inside, flags=wire.NORESPONSE)
        assert len(web.of(wire.RESPONSE)) == 4
        assert hook.asked

    with_hook(script, "news.", "1001-")
    run(lambda desk: script(desk, Hooked), rules=ALL)
    run(lambda desk: script(desk, Hooked), rules=())


def test_events_of_clients():
    async def script(desk, hook):
        web = desk.client()
        web.say(wire.event("news.a", encode_json({})), wire.event("other.a", encode_json({})))
        await until(lambda: web.told("denied"))
        (said,) = web.told("denied")
        assert (said["topic"], said["errno"]) == ("news.a", errno.EPERM)
        await until(lambda: [each for each in desk.spy.sent if each.type == wire.EVENT])
        assert [each.topic for each in desk.spy.sent if each.type == wire.EVENT] == ["other.a"]

    with_hook(script, "news.")


@for_each(
    ("topic", "payload"),
    [
        ("gateway.session", {}),
        ("gateway.rules", {"topic": "x"}),
        ("event.unsubscribe", {"topic": "x"}),
        ("service.remove", {"service": "x"}),
    ],
)
def test_what_is_not_asked_for(topic, payload):
    async def script(desk, hook):
        web = desk.client()
        await web.ask(topic, payload)
        assert hook.asked == []

    with_hook(script, "", verdict=GONE)


@for_each(("topic", "payload"), [("event.subscribe", b"x"), ("event.publish", {}), ("service.add", None)])
def test_what_is_malformed_is_the_sessions_to_refuse(topic, payload):
    async def script(desk, hook):
        assert (await desk.client().refused(topic, payload))[0] in (errno.EPROTO, errno.EINVAL)
        assert hook.asked == []

    with_hook(script, "")


def test_a_client_that_comes_back_gets_what_it_still_may():
    async def script(desk, hook):
        web = desk.client()
        gate = web.near.receiver
        gate.control(
            {"type": "resume", "token": "", "epoch": "x", "sequence": 0, "subscriptions": ["news.", "open."]}
        )
        gate.control({"type": "ping"})
        await until(lambda: web.told("pong"))
        (lost,) = web.told("unsubscribed")
        assert lost["subscriptions"] == ["news."]
        await until(lambda: web.told("resumed"))
        assert list(web.session.subscriptions) == [b"open."]
        assert [each["type"] for each in web.log if isinstance(each, dict)][-1] in ("pong", "resumed")

    with_hook(script, "news.")


def test_a_client_that_comes_back_has_one_question_under_way_and_no_more_than_it_may_subscribe_to():
    async def script(desk, hook):
        gate = desk.client().near.receiver
        hook.open.clear()
        wanted = ["a.", "news.", "a.", "b.", "c.", "d."]
        gate.control({"type": "resume", "token": "", "epoch": "x", "sequence": 0, "subscriptions": wanted})
        await desk.settled()
        assert [topic for _name, _kind, topic in hook.asked] == [b"a."]
        hook.open.set()
        web = gate._session
        await until(lambda: web.subscriptions)
        assert [topic for _name, _kind, topic in hook.asked] == [b"a.", b"news.", b"b."]
        assert list(web.subscriptions) == [b"a.", b"b."]

    with_hook(script, "news.", limits={"subscriptions": 3})


def test_whoever_leaves_while_it_is_asked_is_gone():
    async def script(desk, hook):
        web = desk.client()
        hook.open.clear()
        web.send("attr.get", {"name": "size"})
        await until(lambda: hook.asked)
        web.leave()
        await until(lambda: web.session.ended)
        hook.open.set()
        await desk.settled()
        assert desk.spy.requests("attr.get") == []

    with_hook(script)


def test_what_it_denies_is_charged_to_the_rate():
    async def script(desk, hook):
        web = desk.client()
        tags = [web.send("attr.get", {"name": "size"}) for _ in range(6)]
        found = [(await web.answer(tag)).errnum for tag in tags]
        assert found == [errno.EPERM] * 3 + [errno.EAGAIN] * 3

    with_hook(script, "attr.", limits={"msgs_per_s": 0.001, "msgs_burst": 3})


def test_roles_that_changed_while_it_was_asked_are_asked_for_again():
    async def script(desk, hook):
        web = desk.client()
        hook.open.clear()
        tag = web.send("attr.get", {"name": "size"}, nodeid=0)
        await until(lambda: hook.asked)
        web.session.set_principal(principal(roles=("user", "admin")))
        hook.cached.clear()
        hook.open.set()
        await web.answer(tag)
        assert len(hook.asked) == 1 or hook.asked[0] == hook.asked[1]

    with_hook(script)


def request(tag, size=2):
    return wire.request("attr.get", b"x" * size, matchtag=tag)


async def held_and_refused(desk, hook, *messages):
    """What the gate does with ``messages`` of one read while the hook thinks: the tags it answers at once, and a
    client.
    """
    web = desk.client()
    hook.open.clear()
    web.near.receiver.received(web.near, list(messages))
    await until(lambda: hook.asked)
    found = [one.matchtag for one in web.of(wire.RESPONSE)]
    for tag in found:
        (answer,) = web.answers(tag)
        assert answer.errnum == errno.EAGAIN
        assert any_text(answer.payload).endswith("wait for the authorisation hook: retry in 1 s")
    return web, found


def test_what_waits_for_the_hook_is_bounded_in_number(monkeypatch):
    monkeypatch.setattr(authorization, "WAITING_MSGS", 3)

    async def script(desk, hook):
        web, refused = await held_and_refused(desk, hook, *map(request, range(1, 5)))
        web.near.receiver.received(web.near, [request(5), wire.event("news.a", b"")])
        assert refused + [one.matchtag for one in web.of(wire.RESPONSE)][1:] == [4, 5]
        (said,) = web.told("denied")
        assert (said["topic"], said["errno"]) == ("news.a", errno.EAGAIN)
        web.near.receiver.control({"type": "ping"})
        assert web.session.dropped == 1
        hook.open.set()
        assert [(await web.answer(tag)).errnum for tag in (1, 2, 3)] != [errno.EAGAIN] * 3
        assert web.told("pong")
        await web.rpc("attr.get", {"name": "size"}, nodeid=0)

    with_hook(script)


def test_what_waits_for_the_hook_is_bounded_in_bytes_besides_one_message():
    async def script(desk, hook):
        big = request(1, 5000), request(2, 100), request(3, 100)
        _, refused = await held_and_refused(desk, hook, *big)
        assert refused == [2, 3]

    with_hook(script, limits={"message_bytes": 4096})


def test_what_waits_for_the_hook_is_bounded_for_all_clients_together():
    """A quarter of a megabyte of each of ten thousand clients was counted nowhere."""

    async def script(desk, hook):
        sessions = desk.sessions
        sessions.options.budget.limit_bytes = 4000
        first, refused = await held_and_refused(desk, hook, request(1, 1000))
        assert refused == []
        assert sessions.waiting_bytes == request(1, 1000).size
        hook.asked.clear()
        hook.cached.clear()
        _, refused = await held_and_refused(desk, hook, request(2, 1000), request(3, 100))
        assert refused == [2]
        assert sessions.waiting_bytes == request(1, 1000).size + request(3, 100).size
        first.leave()
        await until(lambda: sessions.waiting_bytes == request(3, 100).size)
        hook.open.set()
        await until(lambda: not sessions.waiting_bytes)
        await desk.settled()
        assert not sessions.waiting_bytes

    with_hook(script)


def test_what_waits_for_slow_readers_and_for_the_hook_is_counted_apart():
    """Slow readers made every question an EAGAIN, and what waited for the hook ended links."""

    async def script(desk, hook):
        budget = desk.sessions.options.budget
        budget.used_bytes = budget.limit_bytes = 4000
        _, refused = await held_and_refused(desk, hook, request(1, 1000), request(2, 100))
        assert refused == []
        assert budget.used_bytes == 4000

    with_hook(script)


def test_a_client_comes_back_whatever_waits_already():
    """Its ``resume`` was dropped: it stayed without events, and nothing said so."""

    async def script(desk, hook):
        desk.sessions.options.budget.limit_bytes = 1000
        await held_and_refused(desk, hook, request(1, 1000))
        web = desk.client()
        web.near.receiver.control(
            {"type": "resume", "token": "", "epoch": "x", "sequence": 0, "subscriptions": ["news."]}
        )
        hook.open.set()
        await until(lambda: web.told("resumed"))
        assert list(web.session.subscriptions) == [b"news."]

    with_hook(script)


def test_a_response_of_a_provider_waits_whatever_waits_already(monkeypatch):
    monkeypatch.setattr(authorization, "WAITING_MSGS", 1)

    async def script(desk, hook):
        web = desk.client()
        await web.rpc("service.add", {"service": "1001-x"})
        caller = desk.client(principal("bob", 1002))
        tag = caller.send("1001-x.y")
        asked = await web.request("1001-x.y")
        hook.open.clear()
        answer = wire.response(asked, b"{}\0", userid=0, rolemask=0)
        web.near.receiver.received(web.near, [request(1), request(2), answer])
        hook.open.set()
        assert (await caller.answer(tag)).payload == b"{}\0"

    with_hook(script)


@pytest.mark.parametrize("method", ["cancel", "disconnect"])
def test_the_end_of_a_stream_waits_whatever_waits_already(monkeypatch, method):
    monkeypatch.setattr(authorization, "WAITING_MSGS", 1)

    async def script(desk, hook):
        provider = desk.client(principal("bob", 1002))
        await provider.rpc("service.add", {"service": "1002-x"})
        web = desk.client()
        tag = web.send("1002-x.y", flags=wire.STREAMING)
        await provider.request("1002-x.y")
        hook.open.clear()
        payload = encode_json({"matchtag": tag})
        end = wire.request(f"1002-x.{method}", payload, matchtag=0, flags=wire.NORESPONSE)
        web.near.receiver.received(web.near, [request(1), end])
        hook.open.set()
        await provider.request(f"1002-x.{method}")

    with_hook(script)


@pytest.mark.parametrize("reads", [1, 2])
def test_who_floods_while_it_waits_is_closed_and_nothing_of_it_stays(monkeypatch, reads):
    monkeypatch.setattr(authorization, "WAITING_MSGS", 1)

    async def script(desk, hook):
        web = desk.client()
        receiver = web.near.receiver
        hook.open.clear()
        for _ in range(reads):
            receiver.received(web.near, [*map(request, range(1, 5000))])
        assert web.code == FLOOD
        hook.open.set()
        await desk.settled()
        assert not desk.sessions.waiting_bytes

    with_hook(script, limits={"msgs_per_s": 0.001, "msgs_burst": 3})


# ---------------------------------------------------------------- what is delivered


async def published(desk, *topics):
    async with desk.direct() as far:
        for topic in topics:
            await far.publish(topic)
    await desk.settled()


def test_each_event_is_asked_for_by_its_own_topic_and_all_stay_in_order():
    async def script(desk, hook):
        web = desk.client()
        await web.rpc("event.subscribe", {"topic": "news."})
        hook.open.clear()
        await published(desk, "news.a", "news.private.x", "news.b", "secret.c", "news.a")
        assert web.topics == [], "none overtakes one that is asked for"
        hook.open.set()
        await until(lambda: len(web.topics) == 3)
        assert web.topics == ["news.a", "news.b", "news.a"]
        asked = [topic for _user, kind, topic in hook.asked if kind == "subscribe"]
        assert {*asked} == {b"news.", b"news.a", b"news.private.x", b"news.b"}
        assert not desk.sessions.waiting_bytes

    with_hook(script, "news.private")


def test_a_live_subscription_is_asked_for_again_once_the_answer_has_aged():
    async def script(desk, hook):
        web = desk.client()
        await web.rpc("event.subscribe", {"topic": "news.a"})
        await published(desk, "news.a")
        await until(lambda: web.topics == ["news.a"])
        hook.denied = (b"news.",)
        await published(desk, "news.a")
        await until(lambda: web.topics == ["news.a"] * 2)
        hook.cached.clear()
        hook.asked.clear()
        await published(desk, "news.a", "news.a")
        await until(lambda: hook.asked)
        await desk.settled()
        assert web.topics == ["news.a"] * 2

    with_hook(script)


def test_of_events_that_nobody_answers_for_the_client_is_told():
    async def script(desk, hook):
        web = desk.client()
        hook.cached["ada", "subscribe", b"news."] = YES
        await web.rpc("event.subscribe", {"topic": "news."})
        await published(desk, "news.a", "news.b")
        await until(lambda: web.told("gap"))
        last = desk.delivery.history.last
        await until(lambda: web.told("gap")[-1]["to"] == last)
        assert sum(each["lost"] for each in web.told("gap")) == 2
        assert web.topics == []

    with_hook(script, "news.", verdict=GONE)


def test_more_events_than_may_wait_end_the_connection():
    async def script(desk, hook):
        web = desk.client()
        await web.rpc("event.subscribe", {"topic": "news."})
        hook.open.clear()
        await published(desk, *["news.a"] * 100)
        await until(lambda: web.code == BUSY)
        assert not desk.sessions.waiting_bytes
        hook.open.set()

    with_hook(script, limits={"outbox_bytes": 1024})


def test_nothing_waits_for_a_client_whose_link_has_taken_no_more():
    async def script(desk, hook):
        web = desk.client()
        hook.cached["ada", "subscribe", b"news.a"] = YES
        web.near.send = lambda _message: web.session.close(SLOW, "too slow")
        web.session.send_run(Run([wire.event("news.a"), wire.event("news.b")]))
        assert web.code == SLOW
        assert not desk.sessions.waiting_bytes

    with_hook(script)


def test_what_was_missed_is_asked_for_by_topic_before_the_client_is_live():
    async def script(desk, hook):
        old = desk.client()
        token, where = (
            old.session.welcome()["resume"],
            (desk.delivery.history.epoch, desk.delivery.history.last),
        )
        old.leave()
        await published(desk, "news.a", "news.private.x", "news.b")
        web = desk.client()
        hook.cached["ada", "subscribe", b"news."] = YES
        hook.open.clear()
        said = {"type": "resume", "token": token, "epoch": where[0], "sequence": where[1]}
        web.session.control(said | {"subscriptions": ["news."]})
        await until(lambda: len(hook.asked) == 3)
        assert not web.told("resumed")
        hook.open.set()
        await until(lambda: web.told("resumed"))
        assert web.topics == ["news.a", "news.b"]
        assert [web.told("resumed")[0][each] for each in ("recovered", "replayed")] == [True, 2]

    with_hook(script, "news.private")


def test_the_newest_events_are_asked_for_by_topic_whatever_prefix_is_named():
    async def script(desk, hook):
        await published(desk, "news.a", "news.private.x", "secret.b")
        for prefix in ("", "n", "news."):
            told = await desk.client().rpc("gateway.latest", {"topic": prefix})
            assert [each["topic"] for each in told["events"]] == ["news.a"], prefix
            assert told["more"] == 0
        assert {topic for _user, _kind, topic in hook.asked} == {b"news.a", b"news.private.x"}
        hook.cached.clear()
        hook.verdict = GONE
        assert await desk.client().refused("gateway.latest", {"topic": "n"}) == (errno.EHOSTUNREACH, AWAY)

    with_hook(script, "news.private", gateway={"latest": [""]})
