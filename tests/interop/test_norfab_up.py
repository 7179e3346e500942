"""``headgate nfp up --norfab``: NorFab's own workers of an inventory, a plugin and a built-in one, beside ours."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.nfp.client import BlockingClient
from tests.live.norfab import norfab_python
from tests.live.ports import free_endpoint

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]
PATIENCE_S = 90.0
INVENTORY = """\
broker: {endpoint: "{{ env.NFP_TEST_ENDPOINT }}"}
workers:
  theirs-*: [{service: plugged, greeting: hei}]
  ours-1: [{service: ours, worker: ours.py}]
topology:
  workers: [theirs-1, {ours-1: {depends_on: [theirs-1]}}]
plugins:
  plugged: {worker: "plugged:Plugged"}
"""
PLUGGED = """\
import os
from norfab.core.worker import NFPWorker, Task
from norfab.models import Result

class Plugged(NFPWorker):
    def __init__(self, inventory, broker, worker_name, exit_event=None, init_done_event=None, log_level=None):
        super().__init__(inventory, broker, "plugged", worker_name, exit_event, log_level)
        self.settings = self.load_inventory()
        init_done_event.set()

    @Task(fastapi=False)
    def greet(self, job, name: str = "world") -> Result:
        return Result(result=[f"{self.settings['greeting']} {name}", os.getpid()])
"""
OURS = """\
from broker.nfp.worker import Worker
worker = Worker("ours")

@worker.task
def how():
    return "well"
"""


def test_their_workers_and_ours(rundir: Path) -> None:
    lab = rundir / "lab"
    lab.mkdir()
    for name, text in (("inventory.yaml", INVENTORY), ("plugged.py", PLUGGED), ("ours.py", OURS)):
        (lab / name).write_text(text)
    endpoint = free_endpoint()
    log = rundir / "up.log"
    words = ["nfp", "up", str(lab / "inventory.yaml"), "--norfab", norfab_python(), "--json"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate", *words, "--base-dir", str(rundir / "state")],
            env={**os.environ, "NFP_TEST_ENDPOINT": endpoint},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + PATIENCE_S
        while not (said := told(log, "up")):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        assert said[0].endswith(": broker, theirs-1, ours-1")
        with BlockingClient(broker=endpoint, state_dir=rundir / "state") as nfp:
            assert nfp.run("ours", "how", target="any")["ours-1"]["result"] == "well"
            greeting, pid = nfp.run("plugged", "greet", kwargs={"name": "ada"}, target="any")["theirs-1"][
                "result"
            ]
            assert greeting == "hei ada"
            os.kill(pid, signal.SIGKILL)
            while pid == nfp.run("plugged", "greet", target="any")["theirs-1"]["result"][1]:
                assert time.monotonic() < end
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert sorted(told(log, "left")) == ["has left"] * 3, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE_S)


def told(log: Path, event: str) -> list[str]:
    said = [json.loads(line) for line in log.read_text().splitlines()]
    return [each["text"] for each in said if each["event"] == event]
