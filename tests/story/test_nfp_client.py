"""Jobs survive the client, the broker, and the loss of a broker with everything it knew."""

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from broker.nfp.client import Limits, NfpClient
from broker.nfp.worker import Worker
from tests.live.nfp import Live, NfpProcess, nfp_process

pytestmark = [pytest.mark.story, pytest.mark.patient]
JOBS = 200
WITHIN_S = 50.0
EAGER = Limits(resend_s=1.0, answer_s=10.0)


@contextlib.asynccontextmanager
async def workers(
    count: int, brokers: list[str], keys: dict[str, str], runs: Counter, folder
) -> AsyncIterator[None]:
    """Workers w0, w1, ... of the service dummy; ``runs`` counts how often each job's task was begun."""

    def made(number: int) -> Worker:
        worker = Worker(
            "dummy",
            name=f"w{number}",
            broker=brokers,
            server_key=keys,
            state_dir=folder / "workers",
            failover_s=1.0,
        )

        @worker.task
        async def work(job, n, seconds=0.02):
            runs[job.uuid] += 1
            await asyncio.sleep(seconds)
            return n

        return worker

    tasks = [asyncio.get_running_loop().create_task(made(number).run()) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def keys_of(*brokers: Live) -> dict[str, str]:
    return {broker.endpoint: broker.server_key for broker in brokers}


async def submitted(client: NfpClient, count: int = JOBS, **options) -> list:
    return [
        await client.submit("dummy", "work", kwargs={"n": n, **options}, target="any", timeout_s=WITHIN_S)
        for n in range(count)
    ]


async def values_of(jobs: list) -> list:
    """The number that each job brought, whoever ran it."""
    return [next(iter((await job).values()))["result"] for job in jobs]


def test_a_killed_broker_loses_no_job(rundir):
    runs: Counter = Counter()

    async def story(live: NfpProcess) -> list:
        keys = keys_of(live)
        async with (
            asyncio.timeout(WITHIN_S),
            workers(4, [live.endpoint], keys, runs, rundir),
            NfpClient("c", broker=live.endpoint, server_key=keys, limits=EAGER) as client,
        ):
            jobs = await submitted(client)
            while sum(job.done for job in jobs) < JOBS // 4:
                await asyncio.sleep(0.005)
            live.kill()
            await asyncio.to_thread(live.start)
            return await values_of(jobs)

    with nfp_process(rundir) as live:
        assert asyncio.run(story(live)) == list(range(JOBS))
    assert len(runs) == JOBS


def test_a_broker_killed_again_and_again_loses_no_job(rundir):
    runs: Counter = Counter()

    async def story(live: NfpProcess) -> list:
        keys = keys_of(live)
        async with (
            asyncio.timeout(WITHIN_S),
            workers(4, [live.endpoint], keys, runs, rundir),
            NfpClient("c", broker=live.endpoint, server_key=keys, limits=EAGER) as client,
        ):
            jobs = await submitted(client)
            for part in (10, 50, 120):
                while sum(job.done for job in jobs) < part:
                    await asyncio.sleep(0.005)
                live.kill()
                await asyncio.to_thread(live.start)
            return await values_of(jobs)

    with nfp_process(rundir) as live:
        assert asyncio.run(story(live)) == list(range(JOBS))


def test_the_second_broker_takes_over_with_an_empty_store(rundir):
    runs: Counter = Counter()

    async def story(first: NfpProcess, second: NfpProcess) -> tuple[list, str]:
        keys = keys_of(first, second)
        brokers = list(keys)
        async with (
            asyncio.timeout(WITHIN_S),
            workers(4, brokers, keys, runs, rundir),
            NfpClient("c", broker=brokers, server_key=keys, limits=EAGER, failover_s=1.0) as client,
        ):
            jobs = await submitted(client)
            while sum(job.done for job in jobs) < JOBS // 4:
                await asyncio.sleep(0.005)
            assert client.broker == first.endpoint
            first.kill()
            return await values_of(jobs), client.broker

    for name in ("one", "two"):
        (rundir / name).mkdir()
    with nfp_process(rundir / "one") as first, nfp_process(rundir / "two") as second:
        results, broker = asyncio.run(story(first, second))
        assert broker == second.endpoint
    assert results == list(range(JOBS))


CLIENT = """
import asyncio, sys
from broker.nfp.client import NfpClient

async def main(endpoint, key, folder):
    async with NfpClient("c", broker=endpoint, server_key=key, state_dir=folder) as client:
        for n in range(20):
            await client.submit("dummy", "work", kwargs={"n": n, "seconds": 0.2}, target="any", timeout_s=50)
        print("submitted", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_killed_client_finds_its_jobs_again(rundir):
    runs: Counter = Counter()

    def submit_and_die(live: NfpProcess) -> None:
        program = [
            sys.executable,
            "-c",
            textwrap.dedent(CLIENT),
            live.endpoint,
            live.server_key,
            str(rundir / "c"),
        ]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "submitted\n"
            process.kill()

    async def story(live: NfpProcess) -> list:
        keys = keys_of(live)
        async with asyncio.timeout(WITHIN_S), workers(2, [live.endpoint], keys, runs, rundir):
            await asyncio.to_thread(submit_and_die, live)
            async with NfpClient(
                "c", broker=live.endpoint, server_key=keys, state_dir=rundir / "c"
            ) as client:
                jobs = await client.unfinished()
                assert len(jobs) == 20
                found = await values_of(jobs)
                assert await client.unfinished() == []
                return found

    with nfp_process(rundir) as live:
        assert asyncio.run(story(live)) == list(range(20))
    assert set(runs.values()) == {1}


def test_an_interrupted_fetch_goes_on_at_a_restarted_broker(rundir):
    data = bytes(range(256)) * 40_000
    (rundir / "nfp" / "files").mkdir(parents=True, mode=0o700)
    (rundir / "nfp" / "files" / "a.bin").write_bytes(data)
    steps: list[int] = []

    async def story(live: NfpProcess) -> tuple[bytes, bool]:
        keys = keys_of(live)

        def progress(have: int, total: int) -> None:
            steps.append(have)
            if have >= total // 2 and len(kills) == 0:
                kills.append(live.kill())

        kills: list[None] = []
        async with asyncio.timeout(WITHIN_S), NfpClient("c", broker=live.endpoint, server_key=keys) as client:
            fetching = asyncio.get_running_loop().create_task(
                client.fetch("nf://a.bin", rundir / "a.bin", progress=progress, timeout_s=WITHIN_S)
            )
            while not kills:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(live.start)
            found = await fetching
            return found.path.read_bytes(), found.cached

    with nfp_process(rundir) as live:
        found, cached = asyncio.run(story(live))
    assert found == data
    assert not cached
    assert steps == sorted(steps), "what had come was not fetched again"


WORKER = """
from broker.nfp.worker import Worker
worker = Worker("dummy", name="w1")
@worker.task
def ping(n=0):
    return n
@worker.task
def slow(job, steps=600):
    import time
    for step in range(steps):
        job.progress(f"step {step}")
        if job.cancelled:
            return step
        time.sleep(0.1)
"""


def test_the_verbs_from_the_first_key_to_a_result(rundir):
    """A broker, a worker and a person, with nothing but addresses and a folder in common."""
    (rundir / "tasks.py").write_text(WORKER)

    def nfp(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "broker.cli.main", "nfp", *words, *where]
        return subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)

    with nfp_process(rundir) as live:
        where = ["--broker", live.endpoint, "--base-dir", str(live.base_dir)]
        program = [
            sys.executable,
            "-m",
            "broker.cli.main",
            "nfp",
            "worker",
            f"{rundir}/tasks.py",
            "-q",
            *where,
        ]
        with subprocess.Popen(program) as worker:
            try:
                assert nfp("run", "dummy", "ping", "-k", "n=4").stdout == "w1: 4\n"
                uuid = nfp("run", "dummy", "slow", "--detach").stdout.strip()
                assert f"{uuid}  dummy" in nfp("jobs", "--state", "open").stdout
                assert nfp("jobs", "cancel", uuid).stdout == f"{uuid} cancelled\n"
                assert nfp("jobs", "result", uuid).returncode == 1
                assert "w1" in nfp("services", "dummy").stdout
                told = nfp("events", "--since", "0", "--count", "1", "--kind", "finished").stdout
                assert "dummy.ping finished 200 w1" in told
                (live.base_dir / "files" / "a.txt").write_text("hello")
                assert nfp("fetch", "nf://a.txt", "-o", f"{rundir}/b.txt").stdout == f"{rundir}/b.txt\n"
            finally:
                worker.terminate()
        wrong = nfp("services", "--server-key", live.certificate("another broker").public_key)
        assert wrong.returncode == 3
        assert "its key is probably not" in wrong.stderr
    assert (rundir / "b.txt").read_text() == "hello"
