"""Two gateways behind one instance that share a Redis server: one limit of a user, and an admin sees and ends all."""

import asyncio
import contextlib
import os
import signal

import aiohttp
import pytest

from tests.live.gateways import gateway_process
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


def test_a_limit_counts_over_both_and_an_admin_ends_sessions_at_either(rundir, broker):
    async def work():
        async with asyncio.timeout(50), aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as stack:
            first = await connected(http, one, stack)
            (session,) = await until_known(http, other, 1)
            with contextlib.suppress(aiohttp.WSServerHandshakeError):
                assert await connected(http, other, stack) is None
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
