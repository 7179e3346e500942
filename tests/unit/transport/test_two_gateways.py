"""Two gateways that share nothing, behind a plain TCP balancer; one is killed under load, and no handle notices."""

import asyncio
import contextlib
import errno

import pytest

import broker.client
from broker.client import Reconnect
from broker.errors import LinkError
from broker.transport.link import Options
from tests.live.brokers import tree
from tests.live.gateways import run
from tests.live.pair import pair, token

pytestmark = pytest.mark.patient
CLIENTS = 8
EVENTS = 400
PAUSE_S = 0.01
SOON = Reconnect(min_s=0.05, max_s=0.5)


async def publish(uri):
    async with broker.client.connect(uri) as h:
        for number in range(EVENTS):
            await h.publish("open.number", {"n": number})
            await asyncio.sleep(PAUSE_S)


async def watch(events, heard):
    async for event in events:
        heard.append(event.json()["n"])
        if len(heard) == EVENTS:
            return


async def call(h, failed):
    """Calls one after another, until cancelled; each has an answer, or an error that says that the link was lost."""
    while True:
        try:
            await h.rpc("attr.get", {"name": "size"})
        except LinkError as error:
            failed.append(error.errno)
        await asyncio.sleep(PAUSE_S)


def test_handles_go_on_at_the_other_gateway_and_miss_nothing():
    async def work(folder):
        async with contextlib.AsyncExitStack() as stack:
            uri = stack.enter_context(tree(folder, 2, "")).ranks[0].uri
            both = stack.enter_context(pair(folder, uri))
            options = [Options(extra={"token": token("ada")}) for _ in range(CLIENTS)]
            handles = [
                await stack.enter_async_context(broker.client.connect(both.ws, options=each, reconnect=SOON))
                for each in options
            ]
            caller = await stack.enter_async_context(broker.client.connect(uri))
            for number, h in enumerate(handles[:2]):
                await h.serve(f"twin{number}", {"add": lambda request: {"sum": 3}})
            watched = [await stack.enter_async_context(h.subscribe("open.")) for h in handles]
            heard, failed = [[] for _ in handles], []
            links = [h.link for h in handles]
            async with asyncio.TaskGroup() as group:
                calling = [group.create_task(call(h, failed)) for h in handles]
                watching = [group.create_task(watch(*each)) for each in zip(watched, heard, strict=True)]
                publishing = group.create_task(publish(uri))
                while min(map(len, heard)) < EVENTS // 4:
                    await asyncio.sleep(PAUSE_S)
                both.first.kill()
                await publishing
                await asyncio.gather(*watching)
                for each in calling:
                    each.cancel()
            assert heard == [list(range(EVENTS))] * CLIENTS, "each once, in order"
            moved = sum(h.link is not link for h, link in zip(handles, links, strict=True))
            assert 1 <= moved < CLIENTS, "some were at the gateway that was killed, and not all"
            assert set(failed) <= {errno.ECONNRESET}
            for number in range(2):
                assert (await caller.rpc(f"twin{number}.add", timeout_s=20)).json() == {"sum": 3}

    run(work)
