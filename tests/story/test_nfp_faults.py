"""Workers that freeze, die at the wrong moment, or are cut off by the network: what becomes of their jobs."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.nfp.client import Limits, NfpClient
from broker.nfp.client.errors import JobFailed
from broker.transport import curve
from tests.conftest import OPTIONAL
from tests.live.nfp import nfp_process
from tests.netlab import NetLab

pytestmark = [pytest.mark.story, pytest.mark.timeout(120), pytest.mark.patient]

WITHIN_S = 40.0
QUICK = {"keepalive_ms": 300, "multiplier": 4, "grace_s": 0.5}
"""A worker counts as dead after 1.2 s of silence, so that tests need not wait the usual 15."""
EAGER = Limits(resend_s=1.0, answer_s=10.0)
PROGRAM = """
import asyncio, sys
from broker.nfp.worker import Worker

endpoint, key, name, folder = sys.argv[1:]
worker = Worker("lab", name=name, broker=endpoint, server_key=key, state_dir=folder + "/" + name)

async def work(job, seconds=0.0):
    with open(folder + "/ran", "a") as file:
        file.write(name + " " + job.uuid + "\\n")
    await asyncio.sleep(seconds)
    return name

worker.task(work, name="work")
worker.task(work, name="once", idempotent=False)

@worker.starting
def ready(_):
    print("ready", flush=True)

raise SystemExit(worker.main())
"""


class Stage:
    """A broker, and workers ``w1``, ``w2`` as processes."""

    def __init__(self, endpoint: str, key: str, folder: Path, start: Callable[..., Any]) -> None:
        self.endpoint, self.key, self.folder = endpoint, key, folder
        self._start = start
        self.workers: dict[str, Any] = {}

    def worker(self, name: str, *where: Any) -> None:
        program = self.folder / "worker.py"
        program.write_text(textwrap.dedent(PROGRAM))
        words = [sys.executable, str(program), self.endpoint, self.key, name, str(self.folder)]
        self.workers[name] = self._start(*where, words)

    def client(self) -> NfpClient:
        return NfpClient(
            "ada", broker=self.endpoint, server_key=self.key, limits=EAGER, state_dir=self.folder / "ada"
        )

    def ran(self, uuid: str) -> list[str]:
        """Names of the workers that began a job, in order."""
        path = self.folder / "ran"
        lines = path.read_text().splitlines() if path.exists() else []
        return [name for name, each in map(str.split, lines) if each == uuid]


async def eventually(true: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
    end = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < end, f"not within {within_s} s"
        await asyncio.sleep(0.02)
    return found


async def registered(nfp: NfpClient, count: int) -> None:
    end = time.monotonic() + WITHIN_S
    while len(await nfp.workers("lab")) < count:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


@pytest.fixture
def stage(rundir: Path) -> Iterator[Stage]:
    def start(words: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2])

    with nfp_process(rundir, **QUICK) as broker:
        stage = Stage(broker.endpoint, broker.server_key, rundir, start)
        try:
            for name in ("w1", "w2"):
                stage.worker(name)
            yield stage
        finally:
            for worker in stage.workers.values():
                worker.kill()
                worker.wait()


def test_the_job_of_a_frozen_worker_moves_on_and_has_one_result(stage: Stage) -> None:
    async def main() -> None:
        async with stage.client() as nfp:
            await registered(nfp, 2)
            job = await nfp.submit("lab", "work", kwargs={"seconds": 3.0}, target="any", timeout_s=WITHIN_S)
            (frozen,) = await eventually(lambda: stage.ran(job.uuid))
            stage.workers[frozen].send_signal(signal.SIGSTOP)
            results = await job.result()
            stage.workers[frozen].send_signal(signal.SIGCONT)
            (other,) = {"w1", "w2"} - {frozen}
            assert {name: each["result"] for name, each in results.items()} == {other: other}
            assert stage.ran(job.uuid) == [frozen, other]
            await registered(nfp, 2)  # it is back, and what it brings late changes nothing
            again = await nfp.run("lab", "work", target="all", timeout_s=WITHIN_S)
            assert set(again) == {"w1", "w2"}
            (shown,) = [each for each in await nfp.jobs() if each["uuid"] == job.uuid]
            assert shown["state"] == "done"

    asyncio.run(main())


@pytest.mark.parametrize("target", ["any", "named"])
def test_a_task_that_must_not_run_twice_ends_with_408_when_its_worker_dies(stage: Stage, target: str) -> None:
    async def main() -> None:
        async with stage.client() as nfp:
            await registered(nfp, 2)
            job = await nfp.submit(
                "lab",
                "once",
                kwargs={"seconds": 30},
                target="w1" if target == "named" else target,
                timeout_s=WITHIN_S,
            )
            (killed,) = await eventually(lambda: stage.ran(job.uuid))
            stage.workers[killed].kill()
            with pytest.raises(JobFailed) as failed:
                await job.result()
            assert failed.value.status == 408
            assert len(stage.ran(job.uuid)) == 1

    asyncio.run(main())


def test_a_task_that_may_run_twice_does_when_its_worker_dies(stage: Stage) -> None:
    async def main() -> None:
        async with stage.client() as nfp:
            await registered(nfp, 2)
            jobs = [
                await nfp.submit("lab", "work", kwargs={"seconds": 0.3}, target="any", timeout_s=WITHIN_S)
                for _ in range(10)
            ]
            await eventually(lambda: stage.ran(jobs[0].uuid))
            stage.workers["w1"].kill()
            results = [await job.result() for job in jobs]
            assert [len(each) for each in results] == [1] * 10
            assert "w2" in {name for each in results for name in each}

    asyncio.run(main())


# -- the network ---------------------------------------------------------------------------------------

BROKER = """
import sys, asyncio, msgspec
from broker.nfp.server.process import run
from broker.settings.nfp import NfpSection
print("starts", flush=True)
sys.exit(run(msgspec.json.decode(sys.argv[1], type=NfpSection)))
"""


@pytest.fixture
def lab() -> Iterator[NetLab]:
    network = NetLab(4)
    try:
        network.__enter__()
    except (OSError, ValueError) as error:
        pytest.skip(f"{OPTIONAL} needs root or user namespaces, and iproute2: {error}")
    yield network
    network.close()


@pytest.fixture
def hosts(rundir: Path, lab: NetLab) -> Iterator[Stage]:
    """The broker on host 0, a worker each on hosts 1 and 2; host 3 is for clients."""
    import msgspec

    settings = {"endpoint": f"tcp://{lab.ip(0)}:5555", "base_dir": str(rundir / "nfp"), **QUICK}
    log = (rundir / "broker.log").open("wb")
    words = [sys.executable, "-c", BROKER, msgspec.json.encode(settings).decode()]
    broker = lab.popen(0, words, stdout=log, stderr=log)
    try:
        key = rundir / "nfp" / "broker.key"
        end = time.monotonic() + WITHIN_S
        while not key.exists():
            alive = broker.poll() is None and time.monotonic() < end
            assert alive, (rundir / "broker.log").read_text()
            time.sleep(0.02)

        def start(host: int, words: list[str]) -> subprocess.Popen[bytes]:
            return lab.popen(host, words, stdout=subprocess.DEVNULL)

        stage = Stage(settings["endpoint"], curve.load_public(key).public_key, rundir, start)
        stage.worker("w1", 1)
        stage.worker("w2", 2)
        yield stage
    finally:
        log.close()


def asked(lab: NetLab, stage: Stage, *words: str) -> subprocess.Popen[str]:
    """``headgate nfp`` on host 3."""
    place = ["--broker", stage.endpoint, "--server-key", stage.key, "--base-dir", str(stage.folder), "--json"]
    command = [sys.executable, "-m", "broker.cli.main", "nfp", *words, *place]
    return lab.popen(3, command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + WITHIN_S
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def answer_of(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, out
    return out


def both_there(lab: NetLab, stage: Stage) -> bool:
    out = answer_of(asked(lab, stage, "services"))
    return '"w1"' in out and '"w2"' in out


def job_of(stage: Stage) -> str:
    """The only job that has begun so far."""
    path = stage.folder / "ran"
    words = path.read_text().split() if path.exists() else []
    return words[1] if len(words) > 1 else ""


def test_a_worker_cut_off_without_a_word(lab: NetLab, hosts: Stage) -> None:
    """Nothing is refused and nothing closed: only silence tells that it is gone."""
    until(lambda: both_there(lab, hosts))
    client = asked(lab, hosts, "run", "lab", "work", "-t", "any", "-k", "seconds=2", "--uuid", "cut-off")
    until(lambda: job_of(hosts))
    (away,) = hosts.ran("cut-off")
    (other,) = {"w1", "w2"} - {away}
    lab.cut(int(away[1]))
    out = answer_of(client)
    assert f'"{other}"' in out
    assert hosts.ran("cut-off") == [away, other]
    lab.heal()
    until(lambda: both_there(lab, hosts))
    shown = answer_of(asked(lab, hosts, "run", "lab", "work", "-t", "all"))
    assert '"w1"' in shown
    assert '"w2"' in shown


def test_a_client_cut_off_for_a_while_gets_its_result(lab: NetLab, hosts: Stage) -> None:
    until(lambda: both_there(lab, hosts))
    client = asked(lab, hosts, "run", "lab", "work", "-t", "any", "-k", "seconds=1", "--uuid", "patient")
    until(lambda: job_of(hosts))
    lab.cut(3)
    time.sleep(2.0)  # the job ends meanwhile
    lab.heal()
    assert '"result": "w' in answer_of(client).replace('":"', '": "')
    assert len(hosts.ran("patient")) == 1
