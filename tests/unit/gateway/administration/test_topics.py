"""The newest event of each topic, and who listens: what is told, to whom, and how much of it at most."""

import errno
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

import broker.client
from broker.wire import message as wire
from broker.wire.payload import encode_json
from gateway.administration import topics
from gateway.events.latest import Latest
from tests.live import gateways
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import Others, principal, rule, run, until

KEPT = {"latest": ["weather.", "secret."]}
RULES = [rule(["user"], ["", "gateway."]), rule(["user"], ["secret."], allow=False)]


async def publish(desk, topic, payload=None, flags=0):
    """Publish as the owner; returns the number, once the gateway has the event."""
    data = b64encode(encode_json(payload or {})).decode()
    owner = desk.owner()
    number = (await owner.rpc("event.publish", {"topic": topic, "flags": flags, "payload": data}))["seq"]
    await until(lambda: desk.delivery.history.last >= number)
    owner.leave()
    return number


def test_a_client_that_begins_is_told_the_newest_of_each_topic():
    async def script(desk):
        said = (("weather.rome", 1), ("weather.oslo", 2), ("weather.rome", 3), ("other", 4))
        numbers = [await publish(desk, topic, {"n": n}) for topic, n in said]
        web = desk.client()
        told = await web.rpc("gateway.latest", {"topic": "weather."})
        assert [(each["topic"], each["sequence"], each["payload"]) for each in told["events"]] == [
            ("weather.oslo", numbers[1], {"n": 2}),
            ("weather.rome", numbers[2], {"n": 3}),
        ]
        assert (told["sequence"], told["epoch"], told["more"]) == (numbers[3], desk.delivery.history.epoch, 0)
        assert (await web.refused("gateway.latest"))[0] == errno.EPROTO

    run(script, rules=RULES, gateway=KEPT)


def test_a_payload_that_is_no_object_is_told_in_base64():
    async def script(desk):
        kept = [wire.event("weather.a", b"\xff\0{", sequence=1), wire.event("weather.b", sequence=2)]
        desk.delivery.latest.update(kept)
        first, second = (await desk.owner().rpc("gateway.latest", {"topic": ""}))["events"]
        assert first["data"] == b64encode(b"\xff\0{").decode()
        assert second == {"topic": "weather.b", "sequence": 2, "userid": 0xFFFFFFFF}

    run(script, rules=RULES, gateway=KEPT, join=False)


@for_each(("changed", "missed", "left"), [(False, 0, 1), (False, 3, 0), (False, None, 0), (True, None, 0)])
def test_what_may_not_be_the_newest_any_more_is_not_told(changed, missed, left):
    async def script(desk):
        desk.delivery.latest.update([wire.event("weather.a", sequence=1)])
        desk.delivery.upstream_joined(changed, missed)
        assert len((await desk.owner().rpc("gateway.latest", {"topic": ""}))["events"]) == left

    run(script, rules=RULES, gateway=KEPT, join=False)


def test_who_asks_a_gateway_that_has_just_begun_is_told_what_was_published_before():
    async def main(folder):
        uri = f"inproc://{folder}"
        async with gateways.node(folder, uri), broker.client.connect(uri) as owner:
            numbers = [await owner.publish(topic) for topic in ("weather.a", "weather.b", "weather.a")]
            async with gateways.live(folder, '[gateway]\nlatest = ["weather."]\n', upstream=uri):
                told = (await owner.rpc("gateway.latest", {"topic": ""})).json()["events"]
                assert [each["sequence"] for each in told] == numbers[1:]

    gateways.run(main)


def test_nobody_is_told_what_it_may_not_see():
    async def script(desk):
        await publish(desk, "secret.plan")
        await publish(desk, "weather.mine", flags=wire.PRIVATE)
        await publish(desk, "weather.all")
        web = desk.client()
        assert [each["topic"] for each in (await web.rpc("gateway.latest", {"topic": ""}))["events"]] == [
            "weather.all"
        ]
        told = await desk.owner().rpc("gateway.latest", {"topic": ""})
        assert [each["topic"] for each in told["events"]] == ["secret.plan", "weather.mine", "weather.all"]

    run(script, rules=RULES, gateway=KEPT)


def test_an_answer_has_some_and_says_how_many_more(monkeypatch):
    monkeypatch.setattr(topics, "EVENTS_MAX", 2)

    async def script(desk):
        for number in range(5):
            await publish(desk, f"weather.{number}")
        told = await desk.client().rpc("gateway.latest", {"topic": "weather."})
        assert ([each["topic"] for each in told["events"]], told["more"]) == (["weather.3", "weather.4"], 3)

    run(script, rules=RULES, gateway=KEPT)


def test_without_the_setting_nothing_is_kept():
    async def script(desk):
        errnum, text = await desk.client().refused("gateway.latest", {"topic": "x"})
        assert (errnum, text) == (
            errno.ENOSYS,
            "gateway.latest names no topics whose newest event is kept",
        )

    run(script, rules=RULES, join=False)


def test_an_event_above_the_bound_takes_nothing_but_its_own_topic_with_it():
    kept = Latest(["a", "b"], 9, 200)
    kept.update([wire.event("a", b"1", sequence=1), wire.event("b", b"2", sequence=2)])
    kept.update([wire.event("a", bytes(300), sequence=3)])
    assert [(topic, message.sequence) for topic, message in kept.under(b"")] == [(b"b", 2)]
    assert kept.bytes == sum(message.size for _topic, message in kept.under(b""))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40)), max_size=60), st.integers(1, 5))
def test_it_has_the_newest_of_those_that_spoke_last_within_its_bounds(said, most):
    kept = Latest(["a", "b", "c", "d"], most, 200)
    model = {}
    for number, (topic, size) in enumerate(said, 1):
        kept.update([wire.event(topic, bytes(size), sequence=number)])
        if topic in "abcd":
            model.pop(topic, None)
            model[topic] = number
    there = [(topic.decode(), message.sequence) for topic, message in kept.under(b"")]
    assert there == list(reversed(model.items()))[: len(there)]
    assert len(there) <= most
    assert kept.bytes == sum(message.size for _topic, message in kept.under(b"")) <= 200
    kept.clear()
    assert (len(kept), kept.bytes) == (0, 0)


def test_who_listens_to_a_topic():
    async def script(desk):
        ada, again, bob = desk.client(), desk.client(), desk.client(principal("bob", 1002))
        for web in (ada, again, bob):
            await web.rpc("event.subscribe", {"topic": "weather."})
        await bob.rpc("event.subscribe", {"topic": "weather.r"})
        told = await ada.rpc("gateway.presence", {"topic": "weather.rome"})
        assert told == {
            "users": [
                {"user": "ada", "userid": 1001, "sessions": 2},
                {"user": "bob", "userid": 1002, "sessions": 1},
            ],
            "more": 0,
        }
        assert (await ada.rpc("gateway.presence", {"topic": "else"}))["users"] == []
        assert (await ada.refused("gateway.presence", {"topic": "secret.plan"}))[0] == errno.EPERM
        assert (await ada.refused("gateway.presence"))[0] == errno.EPROTO
        bob.leave()
        await until(lambda: bob.session.id not in desk.sessions.by_id)
        assert [
            each["user"] for each in (await ada.rpc("gateway.presence", {"topic": "weather.x"}))["users"]
        ] == ["ada"]

    run(script, rules=RULES, gateway={"presence": True})


@for_each("who", ["owner", "admin"])
def test_who_is_connected_is_for_owner_and_admin(who):
    async def script(desk):
        web = desk.client()
        errnum, text = await web.refused("gateway.presence", {"topic": "x"})
        assert (errnum, text) == (errno.EPERM, "who listens is shown to owner and admin here")
        trusted = desk.client(principal("eve", 1003, (who,)))

        async def others(question):
            return [desk.administration.answered(question), b""]

        assert len((await trusted.rpc("gateway.presence"))["users"]) == 2
        desk.sessions.peers = Others(others)
        told = await trusted.rpc("gateway.presence")
        assert [(each["user"], each["sessions"]) for each in told["users"]] == [("ada", 2), ("eve", 2)]
        assert told["silent"] == 1, "of the worker processes"

    run(script, rules=RULES, join=False)
