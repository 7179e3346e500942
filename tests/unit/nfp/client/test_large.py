"""What is larger than the broker takes is told to whoever made it, and costs nobody the connection."""

import asyncio

import pytest

from broker.nfp.client import JobFailed, NfpClient, RequestFailed
from broker.nfp.worker import Worker
from tests.live.nfp import nfp_broker, workers_of
from tests.unit.nfp.client.running import WITHIN_S

MOST = 100_000


@pytest.fixture
def live(rundir):
    with nfp_broker(rundir, message_bytes_max=MOST, files="") as live:
        yield live


def tried(live, rundir, work):
    """What ``work(client)`` came to, and how often the worker has connected."""

    async def main():
        place = {"broker": live.endpoint, "server_key": live.server_key}
        worker = Worker("lab", name="w1", state_dir=rundir / "w1", **place)
        worker.task(name="big")(lambda n: "x" * n)

        @worker.task
        async def streams(job, n):
            await job.stream(bytes(n))

        running = asyncio.get_running_loop().create_task(worker.run(), name="worker")
        async with asyncio.timeout(WITHIN_S), NfpClient(**place) as client:
            while "w1" not in {view.name for view in workers_of(live.broker)}:
                await asyncio.sleep(0.01)
            came = await work(client)
            assert (await client.run("lab", "big", kwargs={"n": 3}))["w1"]["result"] == "xxx"
            connections = worker._session.channel.traffic.connections, client._channel.traffic.connections
        worker.stop()
        await running
        return came, connections

    return asyncio.run(main())


def test_a_result(live, rundir):
    said, connections = tried(live, rundir, lambda client: client.run("lab", "big", kwargs={"n": MOST}))
    result = said["w1"]
    assert result["failed"] is True
    assert f"bytes, the broker takes {MOST} (nfp.message_bytes_max): return less" in result["errors"][0]
    assert connections == (1, 1)


def test_a_chunk_of_a_stream(live, rundir):
    said, connections = tried(
        live, rundir, lambda client: client.run("lab", "streams", kwargs={"n": MOST + 1})
    )
    assert f"a chunk of {MOST + 1} bytes, the broker takes {MOST}" in said["w1"]["errors"][0]
    assert connections == (1, 1)


def test_a_request(live, rundir):
    async def work(client):
        with pytest.raises(JobFailed, match=rf"the request has \d+ bytes, the broker takes {MOST}"):
            await client.run("lab", "big", kwargs={"n": 1, "more": "x" * MOST})
        with pytest.raises(RequestFailed, match=rf"the request has \d+ bytes, the broker takes {MOST}"):
            await client.mmi("show_workers", kwargs={"service": "x" * MOST})

    _, connections = tried(live, rundir, work)
    assert connections == (1, 1)
