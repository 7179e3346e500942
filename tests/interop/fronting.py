"""What must work through a gateway in front of a deployed flux-core: a real one, or a stand-in made of captures.

``Front`` is the gateway without its doors: sessions, upstream and web clients. ``Other`` is what the checks need of
somebody who is attached to the instance directly.
"""

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import Protocol

from broker.wire import message as wire
from broker.wire.payload import any_text, decode_json, encode_json
from tests.unit.gateway.sessions.desk import Desk, principal, rule, settings_of, until

LIMIT_S = 60
EVERYTHING = (rule(["user"], [""]),)
USERID = 1001


class Other(Protocol):
    """Somebody attached to the instance, by deployed means."""

    uri: str

    async def publish(self, topic: str, payload: dict) -> None: ...

    async def call(self, topic: str, payload: dict) -> dict: ...

    def provide(self, name: str) -> contextlib.AbstractAsyncContextManager[list[str]]:
        """Serve ``name`` by echo; the list grows by the topics that came."""

    async def change_group(self) -> None:
        """Make every stream of ``groups.get {"name": "checks"}`` tell something."""

    async def kill(self) -> None: ...

    async def restart(self) -> None: ...


class Front(Desk):
    """A gateway in front of the broker at ``uri``."""

    def __init__(self, uri, rules=EVERYTHING, gateway=None):
        super().__init__(Path("/nowhere"), settings_of(rules, gateway=gateway), uri=uri, rejoin_max_s=0.2)

    async def join(self):
        await self.start_upstream()
        assert await self.upstream.wait_joined(20), self.upstream.reason

    def user(self, name="ada", userid=USERID):
        return self.client(principal(name, userid))


@contextlib.asynccontextmanager
async def fronting(uri, **gateway):
    front = Front(uri, gateway=gateway)
    try:
        await front.join()
        yield front
        assert front.sessions.counters.faults == 0
    finally:
        await front.close()


# -- checks --------------------------------------------------------------------------------------


async def answers_and_errors(front, _other):
    ada = front.user()
    assert (await ada.rpc("attr.get", {"name": "rank"}))["value"] == "0"
    assert (await ada.ask("attr.get", {"name": "nosuchattr"})).errnum == errno.ENOENT
    assert (await ada.ask("attr.get")).errnum == errno.EPROTO
    answer = await ada.ask("nosuchsvc.ping", {"seq": 0})
    assert (answer.errnum, any_text(answer.payload)) == (
        errno.ENOSYS,
        "No service matching nosuchsvc.ping is registered",
    )
    denied = await ada.ask("attr.set", {"name": "log-level", "value": "7"})
    assert (denied.errnum, any_text(denied.payload)) == (errno.EPERM, "Request requires owner credentials")


async def stamps_are_the_gateway_s(front, _other):
    """Whatever a web user writes as credentials, the instance sees its own; LOCAL and OWNER never appear."""
    ada, owner = front.user(), front.owner()
    for lie in ({}, {"userid": 0, "rolemask": 1}, {"userid": 0xFFFFFFFF, "rolemask": 0}, {"userid": 5}):
        pong = await ada.rpc("broker.ping", {"seq": 1}, **lie)
        assert (pong["userid"], pong["rolemask"]) == (USERID, 2)
    pong = await owner.rpc("broker.ping", {"seq": 1})
    assert (pong["userid"], pong["rolemask"]) == (0, 1)
    assert ada.session.hop[1:9].decode() in (await ada.rpc("broker.ping", {"seq": 1}))["route"]


async def streams_stay_apart(front, other):
    """Two sessions with the same matchtag at the same service: the end of one is nothing to the other."""
    ada, bob = front.user(), front.user("bob", 1002)
    for client in (ada, bob):
        client.send("groups.get", {"name": "checks"}, nodeid=0, matchtag=9, flags=wire.STREAMING)
        assert (await client.answer(9)).errnum == 0
    await other.change_group()
    for client in (ada, bob):
        await client.answer(9, 2)
    ada.leave()
    seen = len(bob.answers(9))
    await other.change_group()
    await bob.answer(9, seen + 1)
    heard = len(ada.answers(9))
    late = front.sessions.counters.late
    await other.change_group()
    await bob.answer(9, seen + 2)
    assert len(ada.answers(9)) == heard
    assert front.sessions.counters.late == late, "the service still sends to the session that has left"


async def events_go_both_ways(front, other):
    ada, bob = front.user(), front.user("bob", 1002)
    for client in (ada, bob):
        await client.rpc("event.subscribe", {"topic": "checks."})
    await other.publish("checks.in", {"n": 1})
    await ada.rpc("event.publish", {"topic": "checks.out", "flags": 0, "payload": "e30A"})
    ada.say(wire.event("checks.raw", b"raw"))
    await ada.rpc("event.publish", {"topic": "checks.private", "flags": wire.PRIVATE})
    await ada.rpc("event.publish", {"topic": "checks.last", "flags": 0})
    for client, topics in (
        (ada, ["checks.in", "checks.out", "checks.raw", "checks.private", "checks.last"]),
        (bob, ["checks.in", "checks.out", "checks.raw", "checks.last"]),
    ):
        await until(lambda client=client: client.topics[-1:] == ["checks.last"])
        assert client.topics == topics
    first, *own = ada.of(wire.EVENT)
    assert decode_json(first.payload) == {"n": 1}
    assert {(one.userid, one.rolemask & ~4) for one in own} == {(USERID, 2)}
    numbers = [one.sequence for one in ada.of(wire.EVENT)]
    assert numbers == sorted(set(numbers))
    assert front.delivery.history.last >= numbers[-1]


async def services_of_sessions_are_called(front, other):
    owner = front.owner()
    await owner.rpc("service.add", {"service": "webecho"})
    calling = asyncio.get_running_loop().create_task(other.call("webecho.say", {"n": 7}), name="call")
    asked = await owner.request("webecho.say")
    assert decode_json(asked.payload) == {"n": 7}
    owner.say(wire.response(asked, encode_json({"n": 8})))
    assert await calling == {"n": 8}
    assert (await owner.ask("service.add", {"service": "attr"})).errnum == errno.EEXIST
    ada = front.user()
    assert (await ada.ask("service.add", {"service": "bare"})).errnum == errno.EPERM
    await ada.rpc("service.add", {"service": f"{USERID}-mine"})
    owner.send(f"{USERID}-mine.x", {"a": 1})
    delivered = await ada.request(f"{USERID}-mine.x")
    assert len(delivered.routes) >= 2
    owner.leave()
    await until(lambda: any(one.topic == f"{USERID}-mine.disconnect" for one in ada.of(wire.REQUEST)))
    with contextlib.suppress(OSError):
        assert await other.call("webecho.say", {}) == {}, "the service went with its session"
    for _ in range(2):  # the name is free again, each time
        again = front.owner()
        await again.rpc("service.add", {"service": "webecho"})
        again.leave()
        await until(lambda: "webecho" not in front.delivery.registrations.names())


async def services_learn_of_a_session_s_end(front, other):
    async with other.provide("pyecho") as seen:
        first, second = front.owner(), front.owner()
        assert await first.rpc("pyecho.one", {"a": 1}) == {"a": 1}
        assert await second.rpc("pyecho.two", {"a": 2}) == {"a": 2}
        first.leave()
        await until(lambda: "pyecho.disconnect" in seen)
        assert await second.rpc("pyecho.three", {"a": 3}) == {"a": 3}
        second.send("pyecho.four", {"a": 4}, flags=wire.STREAMING)
        await until(lambda: "pyecho.four" in seen)
        second.leave()
        await until(lambda: seen.count("pyecho.disconnect") >= 2)


async def a_killed_instance_comes_back(front, other):
    ada = front.user()
    await ada.rpc("event.subscribe", {"topic": "checks."})
    await ada.rpc("service.add", {"service": f"{USERID}-again"})
    before = front.upstream.epoch
    async with other.provide("pyecho"):
        stream = ada.send("groups.get", {"name": "checks"}, nodeid=0, flags=wire.STREAMING)
        assert (await ada.answer(stream)).errnum == 0
        hanging = ada.send("groups.get", {"name": "checks"}, nodeid=0, flags=wire.STREAMING)
        await ada.answer(hanging)
        await other.kill()
        for tag in (stream, hanging):
            await until(lambda tag=tag: ada.answers(tag)[-1].errnum == errno.EHOSTUNREACH)
    assert any_text(ada.answers(hanging)[-1].payload).startswith("upstream lost")
    assert ada.told("upstream")[-1]["joined"] is False
    assert (await ada.ask("attr.get", {"name": "rank"})).errnum == errno.EHOSTUNREACH
    await other.restart()
    assert await front.upstream.wait_joined(20), front.upstream.reason
    await until(lambda: ada.told("upstream")[-1]["joined"])
    assert ada.told("upstream")[-1]["epoch"] == front.upstream.epoch != before
    assert (await ada.rpc("attr.get", {"name": "rank"}))["value"] == "0"
    await other.publish("checks.again", {})
    await until(lambda: "checks.again" in ada.topics)
    calling = front.owner()
    calling.send(f"{USERID}-again.x", {"a": 1})
    await ada.request(f"{USERID}-again.x")


@contextlib.asynccontextmanager
async def collecting(front):
    """What a gateway knows of the brokers behind it, for a user."""
    trends = front.administration.trends
    task = asyncio.get_running_loop().create_task(trends.run(), name="collect")
    try:
        yield front.user()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def what_brokers_do_not_count_is_said(front, _other):
    """Their tree is known; calls by method flux-core does not count."""
    async with collecting(front) as ada:
        first = await ada.rpc("gateway.ranks")
        assert sorted(row["rank"] for row in first["ranks"]) == list(range(first["size"]))
        assert (first["headgate"], first["why"], first["total"]["drops"]) == (False, "", None)
        calls = await ada.rpc("gateway.calls")
        assert calls["rows"] == []
        assert calls["why"].startswith("These brokers do not count calls")


async def traffic_and_health_are_known(front, _other):
    """Of a flux-core that runs; captures have neither."""
    async with collecting(front) as ada:
        first = await ada.rpc("gateway.ranks")
        assert [(row["rank"], row["status"], row["error"]) for row in first["ranks"]] == [(0, "full", "")]
        while not (told := await ada.rpc("gateway.ranks"))["total"]["rx"]["request"]:
            for _ in range(10):  # what the gateway asks by itself does not count
                await ada.rpc("attr.get", {"name": "size"})
            await asyncio.sleep(0.1)
        assert told["ranks"][0]["ms"] > 0


CHECKS = (
    answers_and_errors,
    stamps_are_the_gateway_s,
    streams_stay_apart,
    events_go_both_ways,
    services_of_sessions_are_called,
    services_learn_of_a_session_s_end,
    what_brokers_do_not_count_is_said,
    a_killed_instance_comes_back,
)


def hold(check, other):
    """One check with a front of its own before ``other``, which is running."""

    async def main():
        async with asyncio.timeout(LIMIT_S), fronting(other.uri) as front:
            await check(front, other)

    asyncio.run(main())
