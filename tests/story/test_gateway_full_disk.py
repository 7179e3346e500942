"""The state directory of a gateway lies on a disk that fills up: who is in stays in, who comes is told to come back."""

import asyncio
import contextlib
import os
import subprocess

import aiohttp
import pytest

import broker.client
from broker.errors import LinkError, LinkRefused
from broker.transport.link import Options
from tests.live.brokers import one_broker
from tests.live.gateways import gateway_process

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


async def until_refused(uri: str, options: Options) -> LinkError:
    """Connect until the file of counts has no page left."""
    for _ in range(200):
        try:
            async with broker.client.connect(uri, options=options, retries=0) as one:
                await one.size()
        except LinkError as error:
            return error
    raise AssertionError("the disk never was full")


def test_a_disk_that_fills_up_under_a_gateway(rundir, small):
    async def story(gateway) -> None:
        options = Options(extra={"token": gateway.tokens["ada"]})
        async with (
            aiohttp.ClientSession(headers=gateway.bearer()) as web,
            broker.client.connect(gateway.ws, options=options) as inside,
            inside.subscribe("demo.") as events,
        ):
            fill(small)
            refused = await until_refused(gateway.ws, options)
            assert isinstance(refused, LinkRefused)
            assert "try again" in str(refused)
            assert await inside.size() == 1  # a session that is in goes on
            await inside.publish("demo.still")
            assert (await anext(events)).topic == "demo.still"
            async with web.post(f"{gateway.urls[0]}/v1/rpc/attr.get", json={"name": "size"}) as answer:
                assert answer.status == 200  # and calls over HTTP write nothing
            (small / "filler").unlink()
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
