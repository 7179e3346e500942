"""A balancer that cuts idle connections: pings keep handles alive, and one that is cut comes back without loss."""

import asyncio
import contextlib

import pytest

import broker.client
from broker.client import Reconnect
from broker.transport.link import Options
from tests.live.balancer import balancer
from tests.live.gateways import live, run
from tests.live.pair import place

pytestmark = pytest.mark.patient
IDLE_S = 0.6


@contextlib.asynccontextmanager
async def through_balancer(folder, limits):
    async with live(folder, limits) as gateway:
        with balancer([place(gateway.gateway)], IDLE_S) as port:
            options = Options(extra={"token": gateway.tokens["bob"]})
            uri, soon = f"ws://127.0.0.1:{port}", Reconnect(min_s=0.01, max_s=0.1)
            async with (
                broker.client.connect(uri, options=options, reconnect=soon) as through,
                broker.client.connect(
                    gateway.ws, options=Options(extra={"token": gateway.tokens["ada"]})
                ) as beside,
                through.subscribe("job.") as events,
            ):
                yield through, beside, events


def test_pings_keep_it_alive():
    async def work(folder):
        async with through_balancer(folder, "[limits]\nping_s = 0.1\n") as (through, beside, events):
            link = through.link
            await asyncio.sleep(3 * IDLE_S)
            await beside.publish("job.x", {"n": 1})
            assert (await anext(events)).json() == {"n": 1}
            assert through.link is link

    run(work)


def test_what_comes_while_it_is_cut_is_had_afterwards():
    async def work(folder):
        async with through_balancer(folder, "") as (through, beside, events):
            links = set()
            for number in range(3):
                links.add(through.link)
                while through.link.ended is None:
                    await asyncio.sleep(IDLE_S / 20)
                await beside.publish("job.x", {"n": number})
                assert (await anext(events)).json() == {"n": number}
            assert len(links) == 3

    run(work)
