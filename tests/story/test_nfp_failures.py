"""A task that raises, one that says failed, ones that take too long, are cancelled, die: every place says the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.ports import free_endpoint
from tests.story.test_readme_nfp import program, until

pytestmark = [pytest.mark.story, pytest.mark.patient]
TASKS = """
import asyncio, os
from broker.nfp.worker import Result, Worker

worker = Worker("lab", name="lab-1")

@worker.task
def ok(n=1):
    return n

@worker.task
def raises(device="r1"):
    raise ValueError(f"no such device {device}")

@worker.task
def says_failed():
    return Result(result={"r1": "down", "log": "x" * 50_000}, failed=True, errors=["r1 is down"])

@worker.task
async def slow(seconds=30):
    await asyncio.sleep(seconds)

@worker.task(idempotent=False)
def dies():
    os._exit(1)
"""
ENDS = {"ok": "done", "raises": "failed", "says_failed": "failed", "slow": "expired", "dies": "failed"}
"""Task -> how its job ends; ``slow`` with an argument is cancelled."""
TOTALS = {"done": 1, "failed": 3, "expired": 1, "cancelled": 1}
HEADGATE = (sys.executable, "-m", "broker.cli.main")


class Lab:
    """An instance with six jobs that are over."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self.folder = folder

    def run(self, *words: str, code: int | None = 0) -> str:
        argv = [*HEADGATE, *words]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=50, check=False)
        assert code is None or done.returncode == code, done.stderr + done.stdout
        return done.stdout

    def json(self, *words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("failures")
    endpoint = free_endpoint()
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "HEADGATE_NFP": endpoint}
    (folder / "tasks.py").write_text(TASKS)
    place = ["--listen", "http://127.0.0.1:0", "--journal", str(folder / "journal")]
    place += ["--broker-set", f"nfp.endpoint={endpoint}"]
    with program([*HEADGATE, "up", "--nfp", *place], env, folder / "up.log") as up:
        env["FLUX_URI"] = until(up, r"FLUX_URI=(\S+)")[1]
        until(up, "NFP broker at")
        running = Lab(env, folder)
        worker = [*HEADGATE, "nfp", "worker", "tasks.py"]
        with program(worker, env, folder / "worker.log") as log:
            until(log, "Ctrl-C")
            for task in ("ok", "raises", "says_failed"):
                running.run("nfp", "run", "lab", task, code=None)
            running.run("nfp", "run", "lab", "slow", "--timeout", "1", code=None)
            running.run("nfp", "run", "lab", "slow", "-k", "seconds=40", "--uuid", "stopped", "--detach")
            running.run("nfp", "jobs", "cancel", "stopped")
            running.run("nfp", "run", "lab", "dies", "--timeout", "20", code=None)
        with program(worker, env, folder / "again.log") as log:
            until(log, "Ctrl-C")
            yield running


def test_the_list_and_one_job(lab: Lab) -> None:
    jobs = lab.json("nfp", "jobs")
    states = {str(job["task"]): job["state"] for job in jobs if job["uuid"] != "stopped"}
    assert states == ENDS
    assert Counter(job["state"] for job in jobs) == TOTALS
    (found,) = lab.json("nfp", "jobs", "--text", "NO SUCH device r1", "--state", "failed,expired")
    assert (found["task"], found["error"]) == ("raises", "ValueError: no such device r1")
    shown = lab.run("nfp", "jobs", "show", str(found["uuid"]))
    assert "Traceback (most recent call last)" in shown
    assert 'raise ValueError(f"no such device {device}")' in shown
    (cancelled,) = lab.json("nfp", "jobs", "--state", "cancelled")
    assert cancelled["arguments"] == {"args": [], "kwargs": {"seconds": 40}}


def test_services_and_management(lab: Lab) -> None:
    (services,) = lab.json("nfp", "services", "lab")
    (worker,) = services["workers"]  # type: ignore[misc]
    assert {state: worker[state] for state in TOTALS} == TOTALS  # type: ignore[index]
    (count,) = lab.json("nfp", "run", "jobs.service.broker", "count")
    assert count["result"]["states"] == TOTALS  # type: ignore[index]
    shown = lab.run("nfp", "manage", "show")
    assert {state: int(re.search(rf"jobs_{state} +(\d+)", shown)[1]) for state in TOTALS} == TOTALS  # type: ignore[index]


def test_topics(lab: Lab) -> None:
    count = json.loads(lab.run("rpc", "nfp.jobs.count", "{}"))
    assert {state: count[state] for state in TOTALS} == TOTALS
    told = json.loads(lab.run("rpc", "nfp.jobs.list", '{"state": "failed", "task": "raises"}'))
    assert ([job["error"] for job in told["jobs"]], told["total"]) == (["ValueError: no such device r1"], 1)
    (worker,) = json.loads(lab.run("rpc", "nfp.workers.list", '{"service": "lab"}'))["workers"]
    assert {state: worker[state] for state in TOTALS} == TOTALS


def test_metrics(lab: Lab) -> None:
    text = json.loads(lab.run("rpc", "broker.stats-get", '{"format": "prometheus"}'))["text"]
    found = dict(re.findall(r'headgate_nfp_ended_jobs_total\{state="(\w+)"\} (\d+)', text))
    assert {state: int(found[state]) for state in TOTALS} == TOTALS


def test_the_journal(lab: Lab) -> None:
    said = lab.run("journal", "show", str(lab.folder / "journal"), "--topic", "nfp.lab.JOB", "--json")
    statuses = Counter(re.findall(r'\\?"status\\?": ?\\?"(\w+)', said))
    assert statuses == {"COMPLETED": 1, "FAILED": 3, "EXPIRED": 1, "CANCELLED": 1}
