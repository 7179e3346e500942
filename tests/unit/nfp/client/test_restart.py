"""Jobs that survive the client that submitted them."""

import asyncio
import time

import pytest

from broker.errors import ConfigError, HeadgateError
from broker.nfp.client import JobCancelled, JobTimeout, Limits, NfpClient
from broker.nfp.peer.keys import default_base_dir
from tests.unit.nfp.client.running import WITHIN_S, client_of
from tests.unit.nfp.holder import holder


def lives(broker, folder, *works, **options):
    """Run each of `works(client)` with a client of its own, one after the other, all of one name."""

    async def one(work):
        async with asyncio.timeout(WITHIN_S):
            async with client_of(broker, state_dir=folder, **options) as client:
                return await work(client)

    return [asyncio.run(one(work)) for work in works]


def test_a_future_survives(broker, tmp_path):
    async def first(client):
        await client.submit("dummy", "never", kwargs={"n": 1}, uuid="u", timeout_s=30)
        await asyncio.to_thread(broker.wait_for, lambda b: "u" in b.jobs)

    async def second(client):
        (job,) = await client.unfinished()
        assert (job.uuid, job.service, job.task, job.target.kind) == ("u", "dummy", "never", "all")
        assert job.submission.timeout_s == 30

        def finish():
            for worker in ("w1", "w2"):
                broker.finish("u", worker, worker)

        broker.do(finish)
        return await job

    results = lives(broker, tmp_path, first, second)[1]
    assert {worker: result["result"] for worker, result in results.items()} == {"w1": "w1", "w2": "w2"}


def test_what_had_come_is_still_there(ours, tmp_path):
    async def first(client):
        job = await client.submit("dummy", "never", uuid="u")
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        ours.do(lambda: ours.finish("u", "w1", 1))
        while not job.results:
            await asyncio.sleep(0.005)

    async def second(client):
        (job,) = await client.unfinished()
        assert set(job.results) == {"w1"}
        ours.do(lambda: ours.finish("u", "w2", 2))
        return await job

    assert set(lives(ours, tmp_path, first, second)[1]) == {"w1", "w2"}


def test_a_job_that_was_never_sent_is_sent_later(ours, tmp_path):
    async def away():
        async with NfpClient("c", broker="tcp://127.0.0.1:1", state_dir=tmp_path) as client:
            await client.submit("dummy", "ping", uuid="u")

    async def later(client):
        (job,) = await client.unfinished()
        return await job

    asyncio.run(away())
    assert set(lives(ours, tmp_path, later)[0]) == {"w1", "w2"}


def test_a_finished_job_can_be_looked_at_later(ours, tmp_path):
    async def first(client):
        job = await client.submit("dummy", "ping", kwargs={"n": 7}, uuid="u")
        await job
        other = await client.submit("dummy", "never", uuid="gone")
        await asyncio.to_thread(ours.wait_for, lambda b: "gone" in b.jobs)
        await other.cancel()

    async def second(client):
        assert await client.unfinished() == []
        job, gone = await client.attach("u"), await client.attach("gone")
        with pytest.raises(JobCancelled):
            await gone
        return job.status, gone.status, await job

    status, gone, results = lives(ours, tmp_path, first, second)[1]
    assert (status, gone) == ("done", "cancelled")
    assert results["w1"]["result"] == 7
    assert ours.count("POST") == 2


def test_a_task_that_failed_is_a_job_that_failed_and_has_its_results(ours, tmp_path):
    """As the broker says; the results are there as those of any other job, in this life and in the next."""

    async def first(client):
        job = await client.submit("dummy", "fail", uuid="u")
        return (await job)["w1"]["failed"], job.status, job.error

    async def second(client):
        job = await client.attach("u")
        return (await job)["w1"]["failed"], job.status, job.error

    assert lives(ours, tmp_path, first, second) == [(True, "failed", None)] * 2


def test_a_deadline_goes_on_while_nobody_is_there(ours, tmp_path):
    async def first(client):
        await client.submit("dummy", "never", uuid="u", timeout_s=0.1)

    async def second(client):
        await asyncio.sleep(0.15)
        assert await client.unfinished() == []
        job = await client.attach("u")
        with pytest.raises(JobTimeout):
            await job
        return job.status

    assert lives(ours, tmp_path, first, second)[1] == "expired"


def test_what_nobody_takes_up_ends_with_its_deadline(ours, tmp_path):
    async def first(client):
        await client.submit("dummy", "never", uuid="u", timeout_s=0.1)
        await client.submit("dummy", "never", uuid="v", timeout_s=60)

    async def second(client):
        store = client._store
        return store.state("u"), store.state("v")

    lives(ours, tmp_path, first)
    time.sleep(0.1)  # the deadline passes while nobody is there
    assert lives(ours, tmp_path, second) == [("expired", "open")]


def test_a_name_is_used_once_at_a_time(ours, tmp_path):
    async def twice(client):
        with pytest.raises(ConfigError, match=rf"client name 'c' is in use .*{client.store_path}"):
            async with NfpClient("c", broker=ours.endpoint, state_dir=tmp_path):
                pass

    lives(ours, tmp_path, twice)


def test_a_name_that_another_process_uses_is_told_with_its_process(ours):
    async def life():
        async with client_of(ours) as client:
            return client.store_path

    path = asyncio.run(life())
    with (
        holder(path.with_name("c.db.lock")) as other,
        pytest.raises(ConfigError, match=rf"client name 'c' is in use .*process {other.pid} "),
    ):
        asyncio.run(life())
    asyncio.run(life())


def test_a_name_is_all_it_takes(ours, caplog):
    caplog.set_level("INFO", "headgate")

    async def first():
        async with client_of(ours) as client:
            assert client.store_path == default_base_dir() / "peers" / "c.db"
            assert f"c: jobs are kept in {client.store_path}" in caplog.text
            await client.submit("dummy", "never", uuid="u")

    async def second():
        async with client_of(ours) as client:
            return [job.uuid for job in await client.unfinished()]

    asyncio.run(first())
    assert asyncio.run(second()) == ["u"]


@pytest.mark.parametrize(("name", "options"), [("", {}), ("c", {"store": False})])
def test_nothing_is_kept(ours, name, options):
    async def first():
        async with client_of(ours, name, **options) as client:
            assert client.store_path is None
            await client.submit("dummy", "never", uuid="u")

    async def second():
        async with client_of(ours, name, **options) as client:
            return await client.unfinished()

    asyncio.run(first())
    assert asyncio.run(second()) == []
    assert not (default_base_dir() / "peers").exists()


def test_run_leaves_nothing_behind(broker, tmp_path):
    async def first(client):
        await client.run("dummy", "ping")
        return await client.unfinished(), client._store.state(next(iter(broker.jobs)))

    assert lives(broker, tmp_path, first) == [([], "")]


def test_who_works_on_a_job_is_remembered_where_the_broker_does_not(norfab, tmp_path):
    async def first(client):
        job = await client.submit("dummy", "never", uuid="u", target="any")
        while not job.workers:
            await asyncio.sleep(0.005)

    async def second(client):
        posts = norfab.count("POST")  # a slow machine's first life may have sent it again
        norfab.do(lambda: norfab.jobs["u"]["results"].update(w1={"w1": {"result": 1}}))
        (job,) = await client.unfinished()
        assert job.workers == ("w1",)
        return await job, norfab.count("POST") - posts

    assert lives(norfab, tmp_path, first, second)[1] == ({"w1": {"result": 1}}, 0)


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(ours, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="store=False keeps no jobs on disk"):
        client_of(ours, state_dir=tmp_path / "file" / "x")
    client_of(ours, state_dir=tmp_path / "file" / "x", store=False)


def test_whoever_submits_or_attaches_one_uuid_at_the_same_time_has_the_same_job(ours, tmp_path):
    async def first(client):
        jobs = await asyncio.gather(*[client.submit("dummy", "never", uuid="u") for _ in range(3)])
        await asyncio.to_thread(ours.wait_for, lambda b: "u" in b.jobs)
        return len(set(jobs))

    async def second(client):
        jobs = await asyncio.gather(*[client.attach("u") for _ in range(3)])
        ours.do(lambda: [ours.finish("u", worker, worker) for worker in ("w1", "w2")])
        return len(set(jobs)), set(await jobs[0])

    assert lives(ours, tmp_path, first, second) == [1, (1, {"w1", "w2"})]


def test_a_job_that_was_refused_or_not_waited_for_is_not_found_later(ours, tmp_path):
    async def first(client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await client.submit("dummy", "never", uuid="not waited for")
        await client.submit("dummy", "never", uuid="kept")
        with pytest.raises(HeadgateError, match="1 jobs are unfinished"):
            await client.submit("dummy", "never", uuid="refused")

    async def second(client):
        return [job.uuid for job in await client.unfinished()]

    one = Limits(jobs=1)
    assert lives(ours, tmp_path, first, limits=one) == [None]
    assert lives(ours, tmp_path, second) == [["kept"]]
