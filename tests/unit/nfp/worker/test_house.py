"""Worker, client and broker of ours together, in one loop over loopback with CURVE."""

import asyncio
import contextlib

import pytest

from broker.nfp.client import JobCancelled, NfpClient
from broker.nfp.peer.keys import own_certificate
from broker.nfp.worker import Worker
from tests.live.nfp import nfp_process, running, section
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, until


@contextlib.asynccontextmanager
async def at_work(worker):
    task = asyncio.get_running_loop().create_task(worker.run())
    try:
        await until(lambda: worker.connected or task.done())
        yield task
    finally:
        worker.stop()
        await asyncio.wait([task], timeout=PATIENCE_S)
        task.result()


@contextlib.asynccontextmanager
async def house(tmp_path, *, name="w1", settings=None, **options):
    """Yields (broker, worker, client); the worker is not running yet."""
    async with running(section(tmp_path, **(settings or {}))) as broker:
        place = {"broker": broker.endpoints[0], "server_key": broker.server_key}
        worker = Worker(
            "dummy", name=name, state_dir=tmp_path / "peers", drain_s=PATIENCE_S, **place, **options
        )
        async with NfpClient("ada", **place, key=own_certificate(tmp_path / "peers", "ada")) as nfp:
            yield broker, worker, nfp


def test_a_job_costs_one_message_each_way_and_is_recorded(tmp_path):
    async def main():
        async with house(tmp_path) as (_broker, worker, nfp):
            worker.task(name="ping")(lambda n=1: n)
            async with at_work(worker):
                shift = worker._session
                before = shift.channel.traffic.sent
                for n in range(20):
                    assert (await nfp.run("dummy", "ping", args=[n]))["w1"]["result"] == n
                assert shift.channel.traffic.sent - before == 20
                await until(lambda: len(shift.jobs) == 0)

    asyncio.run(main())


def test_progress_questions_and_cancellation(tmp_path):
    async def main():
        async with house(tmp_path) as (_broker, worker, nfp):
            ended = asyncio.Event()

            @worker.task
            def talk(job):
                job.progress("half", resource="r1")
                return job.ask("who?", timeout_s=PATIENCE_S)

            @worker.task
            async def forever(job):
                job.progress("here")
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()

            async with at_work(worker):
                job = await nfp.submit("dummy", "talk", target="any")
                said = []
                async for event in job.events():
                    said.append(event.kind)
                    if event.kind == "input_request":
                        await job.answer(event.body["extras"]["input_request"]["id"], "grace")
                assert "input_request" in said
                assert (await job.result())["w1"]["result"] == "grace"
                job = await nfp.submit("dummy", "forever")
                async for event in job.events():
                    if event.message == "here":
                        await job.cancel()
                with pytest.raises(JobCancelled):
                    await job.result()
                await asyncio.wait_for(ended.wait(), PATIENCE_S)
                # the slot is free again
                assert (await nfp.run("dummy", "echo"))["w1"]["failed"] is False

    asyncio.run(main())


def test_a_listed_worker_at_an_address_of_its_own_has_inventory_and_files(tmp_path):
    """Its own client asks where the worker is, with the worker's key: who lists that has listed both."""
    (tmp_path / "inventory.yaml").write_text('workers:\n  "w*":\n    - {site: oslo}\n')
    (tmp_path / "nfp" / "files").mkdir(parents=True)
    (tmp_path / "nfp" / "files" / "note.txt").write_text("hello")
    own = own_certificate(tmp_path / "peers", "w1")
    settings = {
        "inventory": str(tmp_path / "inventory.yaml"),
        "worker_endpoint": "tcp://127.0.0.1:*",
        "offer_unlisted": False,
        "keys": [{"key": own.public_key, "name": "w1", "services": ["dummy"]}],
    }

    async def main():
        async with house(tmp_path, settings=settings, inventory=True) as (broker, worker, nfp):
            worker.brokers = [broker.endpoints[1]]

            @worker.task
            def site(job, note):
                with open(note, encoding="utf-8") as file:
                    return [job.inventory["site"], file.read()]

            async with at_work(worker):
                found = (await nfp.run("dummy", "site", args=["nf://note.txt"]))["w1"]
                assert (found["errors"], found["result"]) == ([], ["oslo", "hello"])
                assert broker.ingress.invalid.total() == broker.name_owners.violations == 0

    asyncio.run(main())


def test_inventory_files_and_management(tmp_path):
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text('workers:\n  "w*":\n    - {site: oslo}\n')
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "note.txt").write_text("hello")
    settings = {"inventory": str(inventory), "files": str(shared)}

    async def main():
        async with house(tmp_path, settings=settings, inventory=True) as (broker, worker, nfp):
            begun = []
            worker.starting(lambda each: begun.append(dict(each.inventory)))

            @worker.task
            def site(job, note):
                with open(note, encoding="utf-8") as file:
                    return [job.inventory["site"], file.read()]

            @worker.task(nf_text=["note"])
            async def text(note):
                return note

            async with at_work(worker) as task:
                assert begun == [{"site": "oslo"}]
                found = (await nfp.run("dummy", "site", args=["nf://note.txt"]))["w1"]
                assert (found["errors"], found["result"]) == ([], ["oslo", "hello"])
                found = (await nfp.run("dummy", "text", kwargs={"note": "nf://note.txt"}))["w1"]
                assert (found["errors"], found["result"]) == ([], "hello")
                found = (await nfp.run("dummy", "text", kwargs={"note": "nf://absent"}))["w1"]
                assert found["failed"]
                assert found["errors"] == ["nf://absent: file not found"]
                from broker.transport import curve

                owner = curve.load(f"{broker.settings.base_dir}/owner.key_secret")
                place = {"broker": broker.endpoints[0], "server_key": broker.server_key}
                async with NfpClient("boss", key=owner, **place) as boss:
                    told = await boss.mmi("show_broker", service="mmi.service.worker", target="w1")
                    assert "keepalive_ms" in str(told)
                    before = worker._session.channel.traffic.connections
                    await boss.mmi("disconnect", service="mmi.service.worker", target="w1")
                    await until(
                        lambda: worker._session.channel.traffic.connections > before and worker.connected
                    )
                    assert (await nfp.run("dummy", "text", kwargs={"note": "x"}))["w1"]["result"] == "x"
                    await boss.mmi("shutdown", service="mmi.service.worker", target="w1")
                assert await asyncio.wait_for(task, PATIENCE_S) == "shutdown"

    asyncio.run(main())


@pytest.mark.patient
def test_a_broker_killed_with_jobs_in_flight_loses_none_of_them(tmp_path):
    async def main():
        with nfp_process(tmp_path) as broker:
            place = {"broker": broker.endpoint, "server_key": broker.server_key}
            ran = []

            async def work(n):
                ran.append(n)
                await asyncio.sleep(0.01)
                return n

            workers = [
                Worker("dummy", name=f"w{each}", state_dir=tmp_path / "peers", jobs_at_a_time=2, **place)
                for each in range(3)
            ]
            async with contextlib.AsyncExitStack() as stack:
                for worker in workers:
                    worker.task(name="work")(work)
                    await stack.enter_async_context(at_work(worker))
                nfp = await stack.enter_async_context(
                    NfpClient("ada", state_dir=tmp_path / "client", **place)
                )
                jobs = [await nfp.submit("dummy", "work", args=[n], target="any") for n in range(120)]
                await until(lambda: len(ran) > 30)
                broker.kill()
                broker.start()
                async with asyncio.timeout(4 * PATIENCE_S):
                    results = [await job.result() for job in jobs]
                assert [next(iter(each.values()))["result"] for each in results] == list(range(120))
                assert set(ran) == set(range(120))

    asyncio.run(main())


def test_a_second_worker_of_the_same_name_and_another_key_is_refused_and_told(tmp_path):
    async def main():
        async with house(tmp_path) as (broker, worker, nfp):
            worker.task(name="ping")(lambda: "first")
            async with at_work(worker):
                thief = Worker(
                    "dummy",
                    name="w1",
                    broker=broker.endpoints[0],
                    server_key=broker.server_key,
                    state_dir=tmp_path / "thief",
                    open_timeout_s=0.1,
                )
                thief.task(name="ping")(lambda: "thief")
                stealing = asyncio.get_running_loop().create_task(thief.run())
                await until(lambda: thief._session is not None and thief._session.channel.traffic.sent)
                for _ in range(10):
                    assert (await nfp.run("dummy", "ping"))["w1"]["result"] == "first"
                stealing.cancel()
                await asyncio.wait([stealing])

    asyncio.run(main())
