"""Files that arguments name: the newest is kept, whole, and several fetch it at once."""

import asyncio
import hashlib
import os
import threading

import pytest

from broker.nfp.client import NfpClient
from broker.nfp.worker import Worker
from tests.live.nfp import running, section
from tests.unit.nfp.client.fake_broker import FakeBroker
from tests.unit.nfp.client.running import WITHIN_S, client_of
from tests.unit.nfp.peer.raw_broker import until
from tests.unit.nfp.worker.test_house import at_work

URL = "nf://images/a.bin"


@pytest.fixture
def broker():
    with FakeBroker() as fake:
        fake.files[URL] = os.urandom(700_000)
        yield fake


def test_a_file_is_replaced_as_a_whole(broker, tmp_path):
    old = broker.files[URL]

    async def main():
        async with asyncio.timeout(WITHIN_S), client_of(broker, state_dir=tmp_path) as client:
            before = (await client.fetch(URL)).path
            assert before == tmp_path / "fetched" / "images" / "a.bin"
            with open(before, "rb") as opened:  # noqa: ASYNC230
                broker.files[URL] = b"new"
                after = (await client.fetch(URL)).path
                assert (after, after.read_bytes(), opened.read()) == (before, b"new", old)
            assert os.listdir(after.parent) == ["a.bin"]

    asyncio.run(main())


def test_jobs_of_several_workers_and_slots_fetch_a_file_at_once(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    data = os.urandom(3_000_000)
    (shared / "big").write_bytes(data)

    async def main():
        async with running(section(tmp_path, files=str(shared), credits=4)) as broker:
            place = {"broker": broker.endpoints[0], "server_key": broker.server_key}
            first = Worker("s", name="w1", state_dir=tmp_path / "state", jobs_at_a_time=4, **place)
            second = Worker("s", name="w2", state_dir=tmp_path / "state", **place)
            go_on, begun = threading.Event(), []

            def digest(path, held=False):
                with open(path, "rb") as file:
                    begun.append(path)
                    if held:
                        assert go_on.wait(WITHIN_S)
                    return hashlib.sha256(file.read()).hexdigest()

            for worker in (first, second):
                worker.task(digest)
            async with at_work(first), at_work(second), NfpClient("", **place) as nfp:
                options = {"args": ["nf://big"], "kwargs": {"held": True}}
                jobs = [await nfp.submit("s", "digest", target="w1", **options) for _ in range(3)]
                jobs.append(await nfp.submit("s", "digest", target="w2", **options))
                await until(lambda: len(begun) == 4)
                (shared / "big").write_bytes(b"another")
                newer = await nfp.run("s", "digest", args=["nf://big"], target="w1")
                assert newer["w1"]["result"] == hashlib.sha256(b"another").hexdigest(), newer
                go_on.set()
                for job in jobs:
                    (result,) = (await job).values()
                    assert (result["errors"], result["result"]) == ([], hashlib.sha256(data).hexdigest())
                parts = [
                    name for _, _, names in os.walk(tmp_path / "state") for name in names if "part" in name
                ]
                assert parts == []

    asyncio.run(main())
