"""`headgate gateway` in front of a real flux-core, asked over HTTP only. Needs FLUX_PREFIX."""

import asyncio
import contextlib
import json
import subprocess

import aiohttp
import pytest

from tests.live.gateways import gateway_process

pytestmark = pytest.mark.interop
LIMIT_S = 40


@contextlib.contextmanager
def flux(prefix):
    """A real instance of two brokers; its URI."""
    words = [
        "start",
        "--test-size=2",
        "-Sbroker.rc1_path=",
        "-Sbroker.rc3_path=",
        "sh",
        "-c",
        "echo $FLUX_URI; cat",
    ]
    process = subprocess.Popen(
        [str(prefix / "bin" / "flux"), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(LIMIT_S)
        process.stdout.close()


def test_calls_streams_and_events(rundir, flux_prefix):
    async def work(running):
        url = running.urls[0]
        async with aiohttp.ClientSession(url, headers=running.bearer()) as http:
            for rank in (0, 1):
                async with http.post(f"/v1/rpc/attr.get?nodeid={rank}", json={"name": "rank"}) as answer:
                    assert (await answer.json())["value"] == str(rank)
            async with http.post("/v1/rpc/nosuch.thing") as answer:
                assert (answer.status, (await answer.json())["name"]) == (404, "ENOSYS")
            async with http.post("/v1/rpc/log.dmesg?stream=1", json={"follow": False}) as answer:
                found = [json.loads(line) for line in (await answer.read()).splitlines()]
                assert found[-1] == {"end": True}
                assert any("quorum" in each.get("text", "") for each in found)
            async with http.get("/v1/events?prefix=checks.") as events:
                while not (await events.content.readline()).startswith(b"data:"):
                    pass
                async with http.post("/v1/events/checks.one", json={"n": 1}) as answer:
                    published = await answer.json()
                while not (line := await events.content.readline()).startswith(b"data:"):
                    pass
                event = json.loads(line.removeprefix(b"data:"))
                assert (event["topic"], event["payload"]) == ("checks.one", {"n": 1})
                assert event["sequence"] == published["sequence"]
                assert event["userid"] == 1001

    async def bounded(running):
        async with asyncio.timeout(LIMIT_S):
            await work(running)

    with flux(flux_prefix) as uri, gateway_process(rundir, uri) as running:
        asyncio.run(bounded(running))
        assert running.stop() == 0
