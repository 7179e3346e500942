"""``headgate nfp up``: an inventory's broker and workers as processes; one dies, one cannot be, all end in order."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.nfp.client import BlockingClient
from tests.live.ports import free_endpoint
from tests.live.verbs import headgate

pytestmark = [pytest.mark.story, pytest.mark.timeout(120)]
PATIENCE_S = 40.0

INVENTORY = """\
broker:
  endpoint: {{ env.NFP_TEST_ENDPOINT }}
workers:
  greet-*:
    - greet.yaml
  greet-2: [{greeting: hei, max_concurrent_jobs: 2}]
  torn: [{service: torn, worker: torn.py}]
topology:
  workers:
    - greet-1
    - greet-2: {depends_on: [greet-1]}
    - torn
"""
COMMON = "service: greetings\nworker: greet.py\ngreeting: hello\n"
GREET = """\
import os, time
from broker.nfp.worker import Worker

worker = Worker("greet")

@worker.task
def hello(who="world"):
    print("greets", who)
    return f"{worker.inventory['greeting']} {who}"

@worker.task
def pid():
    return os.getpid()

@worker.task
def slow(seconds, mark):
    open(mark, "w").close()
    time.sleep(seconds)
    return "done"
"""


class Up:
    """The verb as a process, and what it has told so far."""

    def __init__(self, folder: Path, endpoint: str, *words: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self._log = folder / "up.log"
        environ = {**os.environ, "NFP_TEST_ENDPOINT": endpoint}
        command = [sys.executable, "-m", "headgate", "nfp", "up", str(folder / "lab" / "inventory.yaml")]
        command += ["--base-dir", str(folder / "state"), "--json", *words]
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT)

    def told(self, event: str, name: str = "") -> list[str]:
        said = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [each["text"] for each in said if each["event"] == event and name in ("", each["name"])]

    def until(self, true: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE_S
        while not (found := true()):
            assert time.monotonic() < end, self._log.read_text()
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        return found

    def client(self) -> BlockingClient:
        return BlockingClient(broker=self.endpoint, state_dir=self.folder / "state")

    def leave(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def up(rundir: Path) -> Iterator[Up]:
    lab = rundir / "lab"
    lab.mkdir()
    for name, text in (("inventory.yaml", INVENTORY), ("greet.yaml", COMMON), ("greet.py", GREET)):
        (lab / name).write_text(text)
    (lab / "torn.py").write_text("import no_such_module")
    started = Up(rundir, free_endpoint())
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait(PATIENCE_S)


@pytest.mark.patient
def test_up(up: Up) -> None:
    (said,) = up.until(lambda: up.told("up"))
    assert said.endswith(": broker, greet-1, greet-2; not there: torn")
    assert up.told("line", "torn")[0].endswith("No module named 'no_such_module'")
    assert "code 78 (" in up.told("left", "torn")[0]
    with up.client() as nfp:
        results = nfp.run("greetings", "hello", target="all")
        assert {name: each["result"] for name, each in results.items()} == {
            "greet-1": "hello world",
            "greet-2": "hei world",
        }
        up.until(lambda: "greets world" in up.told("line", "greet-2"))

        killed = nfp.run("greetings", "pid", target="greet-1")["greet-1"]["result"]
        os.kill(killed, signal.SIGKILL)
        up.until(lambda: up.told("ended", "greet-1"))
        assert nfp.run("greetings", "pid", target="greet-1")["greet-1"]["result"] != killed

        mark = up.folder / "mark"
        job = nfp.submit("greetings", "slow", args=[1.0, str(mark)], target="greet-2")
        up.until(mark.exists)
        up.process.send_signal(signal.SIGTERM)
        assert job.result()["greet-2"]["result"] == "done"
    assert up.process.wait(PATIENCE_S) == 0
    assert up.told("left")[-1] == "has left"
    ends = [name for name in ("greet-1", "greet-2", "broker") if up.told("left", name) == ["has left"]]
    assert ends == ["greet-1", "greet-2", "broker"]
    logs = up.folder / "state" / "logs"
    assert up.told("logs") == [f"logs in {logs}"]
    assert sorted(path.name for path in logs.iterdir()) == [
        "broker.log",
        "greet-1.log",
        "greet-2.log",
        "torn.log",
    ]
    assert "greets world" in (logs / "greet-2.log").read_text()


def test_an_interpreter_without_norfab(rundir: Path) -> None:
    path = rundir / "inventory.yaml"
    path.write_text("workers: {w: [{service: nornir}]}\ntopology: {workers: [w]}")
    words = ["nfp", "up", str(path), "--no-broker", "--no-curve", "--base-dir", str(rundir / "state")]
    done = headgate(*words, "--norfab", sys.executable)
    assert done.returncode == 78
    assert "has no NorFab: No module named 'norfab'" in done.stdout
