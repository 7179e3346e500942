"""The file service and management inside a running broker, asked by our client over its socket."""

import asyncio
import os
from pathlib import Path

import pytest

from broker.nfp.client import FetchFailed, NfpClient
from broker.nfp.names import FILESHARING, FSS
from broker.transport import curve
from tests.live.nfp import running, section

DATA = os.urandom(2_000_003)


def asking(tmp_path: Path, scenario, **settings) -> None:
    async def run():
        shared = tmp_path / "shared"
        (shared / "sub").mkdir(parents=True)
        (shared / "sub" / "big.bin").write_bytes(DATA)
        (shared / "w1.key_secret").write_text("secret")
        given = section(tmp_path, files=str(shared), **settings)
        async with asyncio.timeout(40), running(given) as broker:
            means = {"broker": [broker.endpoints[0]], "server_key": broker.server_key}
            async with NfpClient("c1", key=curve.generate(), state_dir=tmp_path / "c1", **means) as nfp:
                await scenario(broker, nfp, shared)

    asyncio.run(run())


async def registered(nfp, *services):
    while True:
        found = {one["service"] for one in await nfp.mmi("show_workers")}
        if set(services) <= found:
            return
        await asyncio.sleep(0.02)


def test_a_file_is_fetched_with_its_digest_and_both_services_answer(tmp_path):
    async def scenario(broker, nfp, shared):
        await registered(nfp, FILESHARING, FSS)
        fetched = await nfp.fetch("nf://sub/big.bin", to=tmp_path / "got.bin")
        assert fetched.path.read_bytes() == DATA
        assert len(fetched.digest) == 64
        for service in (FILESHARING, FSS):
            (told,) = (await nfp.run(service, "list_files", kwargs={"url": "nf://"})).values()
            assert told["result"] == ["sub"]
        for url in ("nf://w1.key_secret", "nf://sub/../w1.key_secret", "nf://none"):
            with pytest.raises(FetchFailed):
                await nfp.fetch(url, to=tmp_path / "never")

    asking(tmp_path, scenario)


def test_state_of_the_broker_is_not_served_when_its_folder_is_shared(tmp_path):
    async def run():
        base = tmp_path / "nfp"
        given = section(tmp_path, files=str(base))  # as deployed NorFab shares its own
        async with asyncio.timeout(40), running(given) as broker:
            (base / "mine.txt").write_text("shared")
            means = {"broker": [broker.endpoints[0]], "server_key": broker.server_key}
            async with NfpClient("c1", key=curve.generate(), state_dir=tmp_path / "c1", **means) as nfp:
                await registered(nfp, FILESHARING)
                (told,) = (await nfp.run(FILESHARING, "walk", kwargs={"url": "nf://"})).values()
                assert told["result"] == ["nf://mine.txt"]
                on_disk = set(os.listdir(base))
                assert {"broker.key_secret", "nfp.db", "nfp.db-wal"} <= on_disk  # there, and not told
                for name in on_disk - {"mine.txt"}:
                    kwargs = {"url": f"nf://{name}"}
                    (told,) = (await nfp.run(FILESHARING, "file_details", kwargs=kwargs)).values()
                    assert told["failed"] is True, name

    asyncio.run(run())


def test_events_of_a_fetch_come_in_order(tmp_path):
    async def scenario(broker, nfp, shared):
        await registered(nfp, FILESHARING)
        async with nfp.subscribe() as events:
            await nfp.fetch("nf://sub/big.bin", to=tmp_path / "got.bin")
            kinds, numbers = [], []
            async for news in events:
                kinds.append(news.kind)
                numbers.append(news.sequence)
                if news.kind == "closed" and news.body["task"] == "fetch_file":
                    break
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert kinds.count("submitted") == kinds.count("closed") == 2
        assert kinds.count("stream") == -(-len(DATA) // 256_000)

    asking(tmp_path, scenario)


def test_jobs_are_listed_to_whose_they_are(tmp_path):
    async def scenario(broker, nfp, shared):
        await registered(nfp, FILESHARING)
        await nfp.run(FILESHARING, "list_files", kwargs={"url": "nf://"})
        jobs = await nfp.mmi("list", service="jobs.service.broker")
        (job,) = jobs["jobs"]
        assert (job["task"], job["state"], job["workers"]) == ("list_files", "done", ["broker-files"])
        shown = await nfp.mmi("show", service="jobs.service.broker", kwargs={"uuid": job["uuid"]})
        assert shown["parts"][0]["result"] == ["sub"]
        means = {"broker": [broker.endpoints[0]], "server_key": broker.server_key}
        async with NfpClient("c2", key=curve.generate(), state_dir=tmp_path / "c2", **means) as other:
            assert (await other.mmi("list", service="jobs.service.broker"))["jobs"] == []

    asking(tmp_path, scenario)
