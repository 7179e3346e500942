"""What ``broker/nfp/MANAGEMENT.md`` tells people to type works as written, and a restart is done once."""

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker.nfp
from tests.live.ports import free_endpoint
from tests.live.starter import NFP_SERVICES, ran
from tests.story.test_readme_nfp import program, run, until

pytestmark = [pytest.mark.story, pytest.mark.patient]
PAGE = (Path(broker.nfp.__file__).parent / "MANAGEMENT.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TASKS = """\
from broker.nfp.worker import Worker
worker = Worker("lab", name="lab-1")

@worker.task
def ping(job):
    return "pong"
"""
HEADGATE = [sys.executable, "-m", "broker.cli.main"]


@pytest.fixture
def lab(rundir: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """A broker and a worker of it; yields the environment of the commands and the broker's log."""
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(rundir / "state"),
        "HEADGATE_NFP": free_endpoint(),
    }
    (rundir / "tasks.py").write_text(TASKS)
    words = [*HEADGATE, "nfp", "broker", "--no-flux", "--endpoint", env["HEADGATE_NFP"]]
    with program(words, env, rundir / "broker.log") as log:
        until(log, "Ctrl-C ends it")
        with program([*HEADGATE, "nfp", "worker", "tasks.py"], env, rundir / "worker.log") as worker:
            until(worker, "talks to the broker")
            yield env, log


def blocks(kind: str) -> list[str]:
    return [text for language, text in BLOCKS if language == kind]


def shell(env: dict[str, str], script: str) -> str:
    return run(env, "bash", "-c", f"set -e\n{script}")


def wait_for_worker(env: dict[str, str]) -> None:
    words = [*HEADGATE, "nfp", "services", "lab", "--json"]
    while '"state":"alive"' not in ran(words, loads=NFP_SERVICES, env=env).stdout:
        time.sleep(0.2)


def test_the_page_works_as_written(lab: tuple[dict[str, str], Path]) -> None:
    env, log = lab
    looks, workers, ends, by_run, searches = blocks("sh")
    wait_for_worker(env)
    shown = shell(env, looks)
    assert re.search(r"^status +active$", shown, re.MULTILINE)
    assert re.search(r"^lab-1 +lab +alive", shown, re.MULTILINE)
    assert '"epoch"' in shell(env, by_run)
    shell(env, searches)
    (python,) = blocks("python")
    assert run(env, sys.executable, "-c", python).splitlines()[0] == "active"
    assert 'lab-1: {"status":"disconnecting"}' in shell(env, workers)
    wait_for_worker(env)
    told = shell(env, ends)
    assert told.splitlines() == ["lab-1", "restarting", "shutting down"]
    until(log, r"shutting down as \S+ asked")
    assert len(re.findall(r"restarting as \S+ asked", log.read_text())) == 1


def test_a_restart_that_is_submitted_happens_once(lab: tuple[dict[str, str], Path]) -> None:
    env, log = lab
    told = run(env, *HEADGATE, "nfp", "run", "mmi.service.broker", "restart")
    assert told == 'broker: {"status":"restarting"}\n'
    wait_for_worker(env)
    run(env, *HEADGATE, "nfp", "manage", "shutdown")
    until(log, r"shutting down as \S+ asked")
    assert len(re.findall(r"restarting as \S+ asked", log.read_text())) == 1
