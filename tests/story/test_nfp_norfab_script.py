"""A script written for NorFab, as it is: its topology is started, it asks the worker, all ends with it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.errors import LinkBroken
from broker.nfp.client import BlockingClient
from tests.live.ports import free_endpoint

pytestmark = [pytest.mark.story, pytest.mark.timeout(120)]

INVENTORY = """\
broker: {endpoint: "{{ env.NFP_TEST_ENDPOINT }}"}
workers:
  greet-*: [{service: greet, worker: greet.py, greeting: hello}]
topology:
  broker: true
  workers: [greet-1, greet-2]
"""
PATIENCE_S = 40.0
GREET = """\
from broker.nfp.worker import Worker

worker = Worker("greet")

@worker.task
def hello(who="world"):
    return f"{worker.inventory['greeting']} {who}"
"""
SCRIPT = """\
import json
from norfab.core.nfapi import NorFab

nf = NorFab(inventory="lab/inventory.yaml")
nf.start()
client = nf.make_client()
found = client.run_job("greet", "hello", kwargs={"who": "grace"}, timeout=30)
print(json.dumps({worker: result["result"] for worker, result in found.items()}))
nf.destroy()
"""


def run(folder: Path, endpoint: str, script: str) -> Any:
    (folder / "script.py").write_text(script)
    paths = os.pathsep.join(filter(None, sys.path))
    environ = {
        **os.environ,
        "PYTHONPATH": paths,
        "NFP_TEST_ENDPOINT": endpoint,
        "XDG_STATE_HOME": str(folder / "state"),
    }
    command = [sys.executable, "-m", "broker.nfp.norfab", "script.py"]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=90, check=False
    )


@pytest.fixture
def folder(rundir: Path) -> Path:
    (rundir / "lab").mkdir()
    (rundir / "lab" / "inventory.yaml").write_text(INVENTORY)
    (rundir / "lab" / "greet.py").write_text(GREET)
    return rundir


@pytest.mark.patient
def test_a_script_starts_its_topology_and_ends_it(folder: Path) -> None:
    endpoint = free_endpoint()
    done = run(folder, endpoint, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"greet-1": "hello grace", "greet-2": "hello grace"}
    with BlockingClient(broker=endpoint, server_key="") as client, pytest.raises(LinkBroken):
        client.wait_connected(0.5)


@pytest.mark.patient
def test_a_script_that_forgets_to_end_it_ends_it_all_the_same(folder: Path) -> None:
    endpoint = free_endpoint()
    done = run(folder, endpoint, SCRIPT.replace("nf.destroy()", "raise SystemExit(3)"))
    assert (done.returncode, done.stderr) == (3, "")
    with BlockingClient(broker=endpoint, server_key="") as client, pytest.raises(LinkBroken):
        client.wait_connected(0.5)


@pytest.mark.patient
def test_a_script_that_is_killed_leaves_nothing_behind(folder: Path) -> None:
    endpoint = free_endpoint()
    done = run(folder, endpoint, SCRIPT.replace("nf.destroy()", "import os; os.kill(os.getpid(), 9)"))
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + PATIENCE_S
    while is_open(endpoint):
        assert time.monotonic() < end, "the broker is still there"
        time.sleep(0.1)


def is_open(endpoint: str) -> bool:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0


@pytest.mark.patient
def test_a_worker_of_norfabs_own_is_told_with_what_to_do(folder: Path) -> None:
    inventory = folder / "lab" / "inventory.yaml"
    inventory.write_text(INVENTORY.replace("worker: greet.py, ", ""))
    done = run(folder, free_endpoint(), SCRIPT)
    assert done.returncode == 1
    assert "could not be started" in done.stderr
    assert "(NORFAB_PYTHON in the environment is --norfab)" in done.stderr
