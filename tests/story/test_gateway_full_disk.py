"""The state directory of a gateway lies on a disk that fills up: workers go on with limits of their own, and say so."""

import asyncio
import contextlib
import os
import subprocess

import aiohttp
import pytest

import broker.client
from broker.transport.link import Options
from tests.live.brokers import one_broker
from tests.live.gateways import gateway_process

POLL_S = 0.2
pytestmark = [pytest.mark.story, pytest.mark.patient]


@pytest.fixture
def small(rundir):
    """A file system of one MiB in the place of the state directory."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to mount a small file system")
    place = rundir / "state"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("optional: needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place) -> None:
    with (place / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):  # full, for this size
                while file.write(bytes(size)) == size:
                    pass


async def away(web: aiohttp.ClientSession, url: str) -> float:
    """How many workers cannot write the store, as the metrics tell."""
    async with web.get(f"{url}/metrics") as answer:
        (line,) = [
            each
            for each in (await answer.text()).splitlines()
            if each.startswith("headgate_gateway_store_away ")
        ]
        return float(line.split()[1])


async def come_until_away(gateway, options: Options, web: aiohttp.ClientSession) -> None:
    """Connect again and again, which always works, until the metrics say that the file of counts has no page left."""
    while not await away(web, gateway.urls[0]):
        async with broker.client.connect(gateway.ws, options=options, retries=0) as one:
            assert await one.size() == 1


def test_a_disk_that_fills_up_under_a_gateway(rundir, small):
    async def story(gateway) -> None:
        options = Options(extra={"token": gateway.tokens["ada"]})
        async with (
            aiohttp.ClientSession(headers=gateway.bearer()) as web,
            broker.client.connect(gateway.ws, options=options) as inside,
            inside.subscribe("demo.") as events,
        ):
            fill(small)
            await come_until_away(gateway, options, web)
            assert await inside.size() == 1  # a session that is in goes on
            await inside.publish("demo.still")
            assert (await anext(events)).topic == "demo.still"
            async with web.post(f"{gateway.urls[0]}/v1/rpc/attr.get", json={"name": "size"}) as answer:
                assert answer.status == 200  # and calls over HTTP write nothing
            (small / "filler").unlink()
            while await away(web, gateway.urls[0]):
                await asyncio.sleep(POLL_S)
            async with broker.client.connect(gateway.ws, options=options) as back:
                assert await back.size() == 1

    with one_broker(rundir) as upstream, gateway_process(rundir, upstream.uri, "workers = 2\n") as gateway:
        asyncio.run(asyncio.wait_for(story(gateway), 40))
        assert gateway.stop() == 0


def test_a_single_process_needs_no_room(rundir, small):
    async def story(gateway) -> None:
        options = Options(extra={"token": gateway.tokens["ada"]})
        fill(small)
        for _ in range(20):
            async with broker.client.connect(gateway.ws, options=options) as one:
                assert await one.size() == 1

    with one_broker(rundir) as upstream, gateway_process(rundir, upstream.uri) as gateway:
        asyncio.run(asyncio.wait_for(story(gateway), 40))
        assert gateway.stop() == 0
