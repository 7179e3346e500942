"""Files that arguments name: each content has a path of its own, and several fetch it at once."""

import asyncio
import functools
import hashlib
import os
import threading
import time

import pytest

from broker.nfp.client import NfpClient
from broker.nfp.client.fetch import MARK_CHARS
from broker.nfp.worker import Worker, fetched
from tests.live.nfp import running, section
from tests.unit.nfp.client.fake_broker import FakeBroker
from tests.unit.nfp.client.running import SOON, WITHIN_S
from tests.unit.nfp.peer.raw_broker import until
from tests.unit.nfp.worker.test_house import at_work

URL = "nf://images/a.bin"


@pytest.fixture
def broker():
    with FakeBroker() as fake:
        fake.files[URL] = os.urandom(700_000)
        yield fake


def mark(data):
    return hashlib.sha256(data).hexdigest()[:MARK_CHARS]


def test_a_path_keeps_its_content(broker, tmp_path):
    async def main():
        async with asyncio.timeout(WITHIN_S), NfpClient("c", broker=broker.endpoint, limits=SOON) as client:
            fetch = functools.partial(fetched.fetch, client, tmp_path)
            old = broker.files[URL]
            before = await fetch(URL)
            assert before == tmp_path / "images" / "a.bin" / mark(old) / "a.bin"
            broker.files[URL] = b"new"
            after = await fetch(URL)
            assert (before.read_bytes(), after.read_bytes()) == (old, b"new")

    asyncio.run(main())


def test_contents_that_nobody_asks_for_go_when_another_comes(broker, tmp_path):
    async def main():
        async with asyncio.timeout(WITHIN_S), NfpClient("c", broker=broker.endpoint, limits=SOON) as client:
            fetch = functools.partial(fetched.fetch, client, tmp_path)
            paths = []
            for data in (b"forgotten", b"used"):
                broker.files[URL] = data
                paths.append(await fetch(URL))
            stranger = tmp_path / "images" / "a.bin" / "below" / "x"
            stranger.parent.mkdir()
            stranger.touch()
            long_ago = time.time() - fetched.KEPT_S - 60
            for path in (*paths, stranger):
                os.utime(path, (long_ago, long_ago))
                os.utime(path.parent, (long_ago, long_ago))
            await fetch(URL)
            broker.files[URL] = b"new"
            fresh = await fetch(URL)
            assert [path.exists() for path in (*paths, stranger, fresh)] == [False, True, True, True]

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
                begun.append(path)
                if held:
                    assert go_on.wait(WITHIN_S)
                with open(path, "rb") as file:
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
