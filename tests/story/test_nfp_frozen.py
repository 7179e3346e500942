"""Processes that are frozen while their kernel goes on: a broker as its clients see it, a worker that has to go."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker.nfp.client import NfpClient
from tests.live.nfp import NfpProcess, nfp_process
from tests.story.test_nfp_faults import EAGER, PROGRAM, QUICK, WITHIN_S, eventually, registered

pytestmark = [pytest.mark.story, pytest.mark.timeout(120), pytest.mark.patient]
HOLD_S = 1.2
"""With QUICK."""
LATE_S = 3.0
"""What a busy machine may add."""


@contextlib.contextmanager
def worker(live: NfpProcess, name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = folder / "worker.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), live.endpoint, live.server_key, name, str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def pair(rundir: Path) -> Iterator[list[NfpProcess]]:
    """Two brokers; ``w1`` works at the first, ``w2`` at the second."""
    with contextlib.ExitStack() as stack:
        folders = [rundir / "1", rundir / "2"]
        for folder in folders:
            folder.mkdir()
        brokers = [stack.enter_context(nfp_process(folder, **QUICK)) for folder in folders]
        for number, live in enumerate(brokers, 1):
            stack.enter_context(worker(live, f"w{number}", rundir))
        yield brokers
        os.kill(brokers[0].pid, signal.SIGCONT)  # it has to end in order


@contextlib.asynccontextmanager
async def ada(*brokers: NfpProcess) -> AsyncIterator[NfpClient]:
    keys = {live.endpoint: live.server_key for live in brokers}
    folder = brokers[0].base_dir / "ada"
    async with NfpClient(
        "ada", broker=list(keys), server_key=keys, limits=EAGER, state_dir=folder, failover_s=0.5
    ) as nfp:
        yield nfp


async def frozen(live: NfpProcess, nfp: NfpClient) -> None:
    """Freeze ``live``; returns when ``nfp`` has given it up, which has to be in time."""
    os.kill(live.pid, signal.SIGSTOP)
    began = time.monotonic()
    await eventually(lambda: not nfp.is_connected)
    assert HOLD_S / 2 < time.monotonic() - began < HOLD_S + LATE_S


def test_a_pending_job_goes_on_at_the_next_broker(pair: list[NfpProcess]) -> None:
    async def main() -> None:
        async with ada(pair[1]) as nfp:
            await registered(nfp, 1)
        async with ada(*pair) as nfp:
            await registered(nfp, 1)
            job = await nfp.submit("lab", "work", kwargs={"seconds": 5}, target="any", timeout_s=WITHIN_S)
            await eventually(lambda: job.status == "started" or job.workers)
            await asyncio.sleep(2 * HOLD_S)
            assert nfp.broker == pair[0].endpoint  # that a job takes long is no silence
            await frozen(pair[0], nfp)
            assert list(await job.result()) == ["w2"]
            assert nfp.broker == pair[1].endpoint

    asyncio.run(main())


@pytest.mark.slow
def test_a_subscription_goes_on_at_the_next_broker(pair: list[NfpProcess]) -> None:
    async def main() -> None:
        async with ada(*pair) as nfp, nfp.subscribe() as events:
            await asyncio.sleep(3 * HOLD_S)
            assert nfp._channel.traffic.connections == 1  # probes are answered
            await frozen(pair[0], nfp)
            await eventually(lambda: nfp.is_connected and nfp.broker == pair[1].endpoint)
            await registered(nfp, 1)
            assert list(await nfp.run("lab", "work", timeout_s=WITHIN_S)) == ["w2"]
            async with asyncio.timeout(WITHIN_S):
                async for news in events:
                    if news.worker == "w2":
                        break

    asyncio.run(main())


@pytest.mark.slow
def test_a_question_is_answered_by_the_next_broker(pair: list[NfpProcess]) -> None:
    async def main() -> None:
        async with ada(*pair) as nfp:
            await registered(nfp, 1)
            os.kill(pair[0].pid, signal.SIGSTOP)
            shown = await nfp.mmi("show_broker", timeout_s=WITHIN_S)
            assert shown["endpoints"] == [pair[1].endpoint]

    asyncio.run(main())


def test_a_client_that_was_frozen_itself_keeps_its_broker(pair: list[NfpProcess], rundir: Path) -> None:
    """It slept through three hold times with its eyes open: its loop stood still."""

    async def main() -> None:
        async with ada(*pair) as nfp, nfp.subscribe():
            await asyncio.sleep(HOLD_S)
            time.sleep(3 * HOLD_S)  # noqa: ASYNC251 - the point of it
            await asyncio.sleep(HOLD_S)
            assert nfp._channel.traffic.connections == 1
            assert nfp.broker == pair[0].endpoint

    asyncio.run(main())


def test_a_frozen_worker_that_an_operator_disconnects_loses_its_connection(rundir: Path) -> None:
    """Long before its silence would tell."""

    async def main(live: NfpProcess, process: subprocess.Popen[bytes]) -> None:
        async with NfpClient(
            "boss", broker=live.endpoint, server_key=live.server_key, key=live.owner()
        ) as nfp:
            await registered(nfp, 1)
            process.send_signal(signal.SIGSTOP)
            assert await nfp.mmi("disconnect", kwargs={"workers": ["w1"]}) == {"disconnected": ["w1"]}
            await eventually(
                lambda: any("still there after DISCONNECT" in line for line in live.lines()), 8.0
            )
            process.send_signal(signal.SIGCONT)
            await registered(nfp, 1)

    with nfp_process(rundir) as live, worker(live, "w1", rundir) as process:
        asyncio.run(main(live, process))


@pytest.mark.parametrize("task", ["once", "work"])
def test_a_frozen_broker_buries_nobody(rundir: Path, task: str) -> None:
    """Its own absence is not the silence of its workers: what they run goes on, and nobody else is given it."""

    async def main(live: NfpProcess) -> None:
        async with NfpClient("ada", broker=live.endpoint, server_key=live.server_key, limits=EAGER) as nfp:
            await registered(nfp, 2)
            seconds = 3 * HOLD_S
            job = await nfp.submit("lab", task, kwargs={"seconds": seconds}, target="any", timeout_s=WITHIN_S)
            await eventually(lambda: job.status == "started" or job.workers)
            os.kill(live.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(2 * HOLD_S)
            finally:
                os.kill(live.pid, signal.SIGCONT)
            (result,) = (await job.result()).values()
            assert result["result"] in ("w1", "w2")
            assert len((rundir / "ran").read_text().splitlines()) == 1

    with nfp_process(rundir, **QUICK) as live, worker(live, "w1", rundir), worker(live, "w2", rundir):
        asyncio.run(main(live))


def test_where_the_machine_stood_still_worker_and_broker_keep_each_other(rundir: Path) -> None:
    """Both are stopped, a client that waits as well: nobody was silent, and nobody begins anew."""

    async def connections(nfp: NfpClient) -> int:
        told = await nfp.mmi("show_broker", service="mmi.service.worker", target="w1")
        return int(told["w1"]["connections"])

    async def main(live: NfpProcess, process: subprocess.Popen[bytes]) -> None:
        async with NfpClient("ada", broker=live.endpoint, server_key=live.server_key, limits=EAGER) as nfp:
            await registered(nfp, 1)
            assert await connections(nfp) == 1
            for pid in (process.pid, live.pid):
                os.kill(pid, signal.SIGSTOP)
            time.sleep(3 * HOLD_S)  # noqa: ASYNC251 - we stand still, too
            for pid in (process.pid, live.pid):
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(HOLD_S)
            assert await connections(nfp) == 1
            assert list(await nfp.run("lab", "work", timeout_s=WITHIN_S)) == ["w1"]

    with nfp_process(rundir, **QUICK) as live, worker(live, "w1", rundir) as process:
        asyncio.run(main(live, process))
