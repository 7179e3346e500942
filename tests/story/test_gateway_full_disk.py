"""The state directory of a gateway lies on a disk that fills up: its workers go on, and share limits all the same."""

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

LIMIT = 16
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


async def welcomed(gateway) -> int:
    """How many connections bob can have at a time."""
    async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as stack:
        said = []
        for _ in range(LIMIT + 4):
            opened = http.ws_connect(gateway.ws, protocols=("flux.v1.json",), headers=gateway.bearer("bob"))
            sock = await stack.enter_async_context(opened)
            said.append((await sock.receive_json())["type"])
        return said.count("welcome")


def test_a_disk_that_fills_up_under_a_gateway(rundir, small):
    async def story(gateway) -> None:
        options = Options(extra={"token": gateway.tokens["ada"]})
        async with (
            aiohttp.ClientSession(headers=gateway.bearer()) as web,
            broker.client.connect(gateway.ws, options=options) as inside,
            inside.subscribe("demo.") as events,
        ):
            fill(small)
            for _ in range(20):
                async with broker.client.connect(gateway.ws, options=options, retries=0) as one:
                    assert await one.size() == 1
            assert (await welcomed(gateway), await welcomed(gateway)) == (LIMIT, LIMIT)
            assert await inside.size() == 1  # a session that is in goes on
            await inside.publish("demo.still")
            assert (await anext(events)).topic == "demo.still"
            async with web.post(f"{gateway.urls[0]}/v1/rpc/attr.get", json={"name": "size"}) as answer:
                assert answer.status == 200  # and calls over HTTP write nothing
            (small / "filler").unlink()
            async with broker.client.connect(gateway.ws, options=options) as back:
                assert await back.size() == 1

    extra = f"workers = 2\n[limits]\nconnections_per_user = {LIMIT}\n"
    with one_broker(rundir) as upstream, gateway_process(rundir, upstream.uri, extra) as gateway:
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
