"""Two gateways of one instance that share a Redis server: one limit of a user, one login, an admin who ends all."""

import asyncio
import contextlib
import os
import signal

import aiohttp
import pytest

from tests.live.gateways import gateway_process
from tests.live.pair import pair, token
from tests.live.ports import free_port
from tests.live.redis_server import redis_server

pytestmark = pytest.mark.story
JSON = ("flux.v1.json",)


async def ask(http, running, method, arguments):
    url = f"{running.urls[0]}/v1/rpc/gateway.{method}"
    async with http.post(url, json=arguments, headers=running.bearer()) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def until_known(http, running, count):
    """Wait until a gateway lists so many sessions of bob."""
    while True:
        rows = (await ask(http, running, "sessions", {}))["sessions"]
        found = [row["session"] for row in rows if row["user"] == "bob"]
        if len(found) == count:
            return found
        await asyncio.sleep(0.05)


async def connected(http, running, stack):
    """A connection of bob; None when there are too many already."""
    sock = await stack.enter_async_context(
        http.ws_connect(running.ws, protocols=JSON, headers=running.bearer("bob"))
    )
    first = await sock.receive_json()
    return sock if first["type"] == "welcome" else None


async def until_refused(http, running):
    """Connect as bob until there are too many: what another gateway has counts here within a tick."""
    while True:
        async with contextlib.AsyncExitStack() as stack:
            try:
                if await connected(http, running, stack) is None:
                    return
            except aiohttp.WSServerHandshakeError:
                return
        await asyncio.sleep(0.05)


@pytest.mark.patient
def test_a_limit_counts_over_both_and_an_admin_ends_sessions_at_either(rundir, broker):
    async def work():
        async with asyncio.timeout(50), aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as stack:
            first = await connected(http, one, stack)
            (session,) = await until_known(http, other, 1)
            await until_refused(http, other)
            who = await ask(http, other, "presence", {})
            assert {row["user"]: row["sessions"] for row in who["users"]}["bob"] == 1
            told = await ask(http, other, "stats", {})
            assert (len(told["gateways"]), told["all"]["by_kind"]["flux.v1.json"], told["silent"]) == (
                2,
                1,
                [],
            )
            assert sum(row["sessions"] for row in told["gateways"]) == told["all"]["sessions"]
            await ask(http, other, "end", {"session": session})
            assert (await first.receive_json())["type"] == "error"
            await until_known(http, other, 0)
            while await connected(http, other, stack) is None:  # the count follows within a tick
                await asyncio.sleep(0.05)
            async with http.get(f"{other.urls[0]}/metrics", headers=other.bearer()) as answer:
                text = await answer.text()
                assert "headgate_gateway_fleet_others 1" in text
                assert "headgate_gateway_fleet_away 0" in text
            one.process.send_signal(signal.SIGSTOP)
            try:
                told = await ask(http, other, "stats", {})
                (name,) = told["silent"]
                assert name.startswith(f"{os.uname().nodename}/")
                assert name != told["gateway"]
                assert [row["gateway"] for row in told["gateways"]] == [told["gateway"]]
            finally:
                one.process.send_signal(signal.SIGCONT)

    for name in "ab":
        (rundir / name).mkdir()
    with redis_server(rundir) as (_process, port):
        extra = f'redis = "redis://127.0.0.1:{port}/0"\n[limits]\nconnections_per_user = 1\n'
        started = (gateway_process(rundir / name, broker.uri, extra) for name in "ab")
        with next(started) as one, next(started) as other:
            asyncio.run(work())


class Browser:
    """A cookie, and the gateways that are shown it."""

    def __init__(self, http):
        self.http = http
        self.cookie = ""

    async def post(self, running, path, body=None):
        """What a page of the gateway asks for."""
        headers = {"Origin": running.urls[0], "Cookie": self.cookie}
        async with self.http.post(f"{running.urls[0]}{path}", json=body or {}, headers=headers) as answer:
            return answer.status, answer.cookies

    async def log_in(self, running):
        status, cookies = await self.post(running, "/v1/login", {"token": token("bob")})
        assert status == 200
        self.cookie = f"headgate={cookies['headgate'].value}"

    async def who(self, running):
        url = f"{running.urls[0]}/v1/session"
        async with self.http.get(url, headers={"Cookie": self.cookie}) as answer:
            return (await answer.json())["user"] if answer.status == 200 else answer.status

    async def becomes(self, running, who):
        while await self.who(running) != who:
            await asyncio.sleep(0.05)


async def away(http, both, count):
    """Wait until so many gateways do not reach Redis."""
    while True:
        texts = []
        for each in both:
            async with http.get(f"{each.urls[0]}/metrics", headers=each.bearer()) as answer:
                texts.append(await answer.text())
        if sum("headgate_gateway_fleet_away 1" in text for text in texts) == count:
            return
        await asyncio.sleep(0.05)


@pytest.mark.patient
def test_a_login_counts_at_both_and_ends_at_both_and_redis_may_come_and_go(rundir, broker):
    async def work():
        async with (
            asyncio.timeout(50),
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
        ):
            await away(http, both, 0)
            first, second, third = (Browser(http) for _ in range(3))
            for each in (first, second):
                await each.log_in(both[0])
                assert await each.who(both[1]) == "bob", "at once"
            headers = {"Origin": both[0].urls[0], "Cookie": first.cookie}
            async with http.ws_connect(both[0].ws, protocols=JSON, headers=headers) as live:
                assert (await live.receive_json())["type"] == "welcome"
                assert (await first.post(both[1], "/v1/logout"))[0] == 204
                assert await first.who(both[1]) == 401
                await first.becomes(both[0], 401)
                assert (await live.receive_json())["type"] == "error", "its session ends, too"

            process.kill()
            await away(http, both, 2)
            await third.log_in(both[0])
            assert [await third.who(each) for each in both] == ["bob", 401]
            assert [await second.who(each) for each in both] == ["bob", "bob"]
            assert (await second.post(both[0], "/v1/logout"))[0] == 204
            assert [await second.who(each) for each in both] == [401, "bob"]
            with redis_server(rundir, port):
                await third.becomes(both[1], "bob")
                await second.becomes(both[1], 401)
                await away(http, both, 0)
                for each in both:
                    assert [await one.who(each) for one in (first, second, third)] == [401, 401, "bob"]

    port = free_port()
    with (
        redis_server(rundir, port) as (process, _),
        pair(rundir, broker.uri, extra=f'redis = "redis://127.0.0.1:{port}/0"\n') as running,
    ):
        both = (running.first, running.second)
        asyncio.run(work())
