"""Our client at the real broker of deployed NorFab, with its real workers."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.nfp.client import JobFailed, JobTimeout, Limits, NfpClient, RequestFailed
from broker.nfp.opening import BrokerOpen
from broker.nfp.peer import liveness
from tests.live.norfab import NorFab, Side, norfab
from tests.live.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]
WITHIN_S = 40.0
EAGER = Limits(resend_s=2.0, poll_s=0.5, answer_s=10.0)
BLOB = os.urandom(3_000_001)


class Place:
    """A NorFab broker, two workers of the service dummy, one that shares files."""

    def __init__(self, side: NorFab, folder: Path, port: int) -> None:
        self.side = side
        self.shared = folder / "shared"
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.broker = self._start()
        self.key = self.broker.ready["key"]
        (self.shared / "deep").mkdir(parents=True)
        (self.shared / "deep" / "blob.bin").write_bytes(BLOB)
        (self.shared / "note.txt").write_text("hello")
        self.workers = {name: side.worker(self.endpoint, self.key, name) for name in ("w1", "w2")}
        self.files = side.files(self.endpoint, self.key, "files-1", self.shared)

    def _start(self) -> Side:
        files = {"files-1": [{"service": "filesharing", "base_dir": str(self.shared)}]}
        return self.side.broker(self.endpoint, workers=files)

    def restart(self) -> None:
        self.broker = self._start()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("norfab")
    with norfab(folder) as side:
        found = Place(side, folder, free_port())
        asyncio.run(_all_there(found))
        yield found


async def _all_there(place: Place) -> None:
    async with asyncio.timeout(WITHIN_S), client(place) as nfp:
        while {worker["name"] for worker in await nfp.workers()} < {"w1", "w2", "files-1"}:
            await asyncio.sleep(0.1)


def client(place: Place, name: str = "ours", **options) -> NfpClient:
    return NfpClient(name, broker=place.endpoint, server_key=place.key, limits=EAGER, **options)


def ask(place: Place, work, **options):
    """Run `work(client)`."""

    async def main():
        async with asyncio.timeout(WITHIN_S), client(place, **options) as nfp:
            return await work(nfp)

    return asyncio.run(main())


def test_the_broker_answers_no_open(place):
    async def work(nfp):
        await nfp.wait_connected()
        return nfp.opened

    assert ask(place, work) is None


@pytest.mark.parametrize(
    ("target", "workers"),
    [("all", {"w1", "w2"}), ("w2", {"w2"}), (["w1"], {"w1"}), (["w1", "w2"], {"w1", "w2"})],
)
def test_run(place, target, workers):
    results = ask(place, lambda nfp: nfp.run("dummy", "ping", kwargs={"n": 5}, target=target))
    assert {worker: result["result"]["n"] for worker, result in results.items()} == dict.fromkeys(workers, 5)


def test_run_anywhere(place):
    (result,) = ask(place, lambda nfp: nfp.run("dummy", "ping", target="any")).values()
    assert not result["failed"]


def test_many_at_once(place):
    async def work(nfp):
        jobs = [await nfp.submit("dummy", "ping", kwargs={"n": n}, target="any") for n in range(60)]
        return [next(iter((await job).values()))["result"]["n"] for job in jobs]

    assert ask(place, work) == list(range(60))


def test_it_answers_the_probe_of_a_client_that_waits_long(place, monkeypatch):
    monkeypatch.setattr(liveness, "broker_of", lambda said: BrokerOpen(keepalive_ms=250, multiplier=4))
    patient = Limits(poll_s=60)

    async def main():
        async with (
            asyncio.timeout(WITHIN_S),
            NfpClient("patient", broker=place.endpoint, server_key=place.key, limits=patient) as nfp,
        ):
            job = await nfp.submit("dummy", "slow", kwargs={"seconds": 4, "steps": 1}, target="w1")
            return await job, nfp._channel.traffic, nfp.unknown

    results, traffic, unknown = asyncio.run(main())
    assert not results["w1"]["failed"]
    assert (traffic.connections, unknown) == (1, 0)
    assert traffic.sent >= 5  # OPEN, POST, GET, and a probe for each second of silence


def test_a_large_result(place):
    results = ask(place, lambda nfp: nfp.run("dummy", "blob", kwargs={"size": 2_000_000}, target="w1"))
    assert len(results["w1"]["result"]) == 2_000_000


def test_events_come_while_a_job_runs(place):
    async def work(nfp):
        job = await nfp.submit("dummy", "slow", kwargs={"seconds": 0.4, "steps": 4}, target="w1")
        return [news.message async for news in job.events() if news.kind == "progress"], job.status

    messages, status = ask(place, work)
    assert [message for message in messages if message.startswith("step")] == [f"step {n}" for n in range(4)]
    assert status == "done"


def test_a_task_that_raises_is_a_failed_result(place):
    results = ask(place, lambda nfp: nfp.run("dummy", "fail", target="w1"))
    assert results["w1"]["failed"]
    assert "this task fails" in str(results["w1"]["errors"])


def test_an_input_request(place):
    async def work(nfp):
        job = await nfp.submit("dummy", "ask", kwargs={"question": "who?"}, target="all")
        async for news in job.events():
            if news.input_id:
                await job.answer(news.input_id, f"I, {news.worker}")
        return {worker: result["result"]["answer"] for worker, result in (await job).items()}

    assert ask(place, work) == {"w1": "I, w1", "w2": "I, w2"}


def test_nobody_offers_the_service(place):
    with pytest.raises(JobFailed, match="failed to target workers") as caught:
        ask(place, lambda nfp: nfp.run("nowhere", "ping"))
    assert caught.value.status == 400


def test_the_deadline(place):
    with pytest.raises(JobTimeout):
        ask(place, lambda nfp: nfp.run("dummy", "slow", kwargs={"seconds": 3}, target="w1", timeout_s=1))


def test_cancelling_is_not_confirmed(place):
    async def work(nfp):
        job = await nfp.submit("dummy", "slow", kwargs={"seconds": 2}, target="w2")
        while not job.workers:
            await asyncio.sleep(0.01)
        return await job.cancel(), job.status

    async def main():
        async with (
            asyncio.timeout(WITHIN_S),
            NfpClient(
                "impatient", broker=place.endpoint, server_key=place.key, limits=Limits(answer_s=0.5)
            ) as nfp,
        ):
            return await work(nfp)

    assert asyncio.run(main()) == (False, "cancelled")


def test_management_and_inventory(place):
    async def work(nfp):
        services = {service["name"]: set(service["workers"]) for service in await nfp.services()}
        version = await nfp.mmi("show_broker_version")
        return services, version, await nfp.inventory("nobody")

    services, version, inventory = ask(place, work)
    assert services["dummy"] == {"w1", "w2"}
    assert services["filesharing"] == {"files-1"}
    assert version["norfab"]
    assert inventory is None


def test_what_it_does_not_have_is_said(place):
    async def work(nfp):
        async with nfp.subscribe():
            pass

    with pytest.raises(RequestFailed):
        ask(place, work)
    with pytest.raises(RequestFailed):
        ask(place, lambda nfp: nfp.jobs())


def test_fetching(place, tmp_path):
    steps = []

    async def work(nfp):
        first = await nfp.fetch(
            "nf://deep/blob.bin", tmp_path / "a", progress=lambda have, _all: steps.append(have)
        )
        return first, await nfp.fetch("nf://deep/blob.bin", tmp_path / "a"), await nfp.list_files("nf://")

    first, again, names = ask(place, work)
    assert first.path.read_bytes() == BLOB
    assert (first.worker, first.cached, again.cached) == ("files-1", False, True)
    assert steps[-1] == len(BLOB)
    assert {"deep", "note.txt"} <= set(names)


def test_fetching_goes_on_where_it_stopped(place, tmp_path):
    class Enough(Exception):
        pass

    async def half(nfp):
        def progress(have, total):
            if have > total // 2:
                raise Enough

        with pytest.raises(Enough):
            await nfp.fetch("nf://deep/blob.bin", tmp_path / "a", progress=progress, timeout_s=10)

    async def rest(nfp):
        began = []
        found = await nfp.fetch(
            "nf://deep/blob.bin", tmp_path / "a", progress=lambda have, _all: began.append(have)
        )
        return found.path.read_bytes(), began[0]

    ask(place, half)
    data, began = ask(place, rest)
    assert data == BLOB
    assert began > len(BLOB) // 2


def test_a_client_that_comes_back_finds_its_job(place, tmp_path):
    async def first(nfp):
        job = await nfp.submit(
            "dummy", "slow", kwargs={"seconds": 1.0, "marker": str(tmp_path / "runs")}, target="any"
        )
        while not job.workers:
            await asyncio.sleep(0.01)

    async def second(nfp):
        (job,) = await nfp.unfinished()
        return await job

    ask(place, first, name="returning", state_dir=tmp_path)
    (result,) = ask(place, second, name="returning", state_dir=tmp_path).values()
    assert result["result"] == 4
    assert len((tmp_path / "runs").read_text().splitlines()) == 1


def test_a_restarted_broker_costs_no_job(place, tmp_path):
    async def work(nfp):
        job = await nfp.submit(
            "dummy",
            "slow",
            kwargs={"seconds": 1.5, "marker": str(tmp_path / "runs")},
            target="all",
            timeout_s=35,
        )
        while job.status != "started":
            await asyncio.sleep(0.01)
        await asyncio.to_thread(place.broker.kill)
        await asyncio.to_thread(place.restart)
        return await job

    results = ask(place, work, name="patient")
    assert {worker: result["result"] for worker, result in results.items()} == {"w1": 4, "w2": 4}
    assert len((tmp_path / "runs").read_text().splitlines()) == 2
    asyncio.run(_all_there(place))
