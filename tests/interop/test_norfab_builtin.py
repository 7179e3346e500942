"""What users of NorFab ask of every worker, asked of ours by NorFab's unmodified client."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.nfp import NfpProcess, nfp_process
from tests.live.norfab import norfab

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]
TASKS = """
import logging, sys
import msgspec
from broker.nfp.worker import Worker, task

endpoint, key, folder = sys.argv[1:]

class Port(msgspec.Struct):
    device: str
    vlan: int = 1

class Lab(Worker):
    @task(input=Port)
    def port(self, job, device, vlan):
        return f"{device} {vlan}"

worker = Lab("lab", name="lab-1", broker=endpoint, server_key=key, state_dir=folder, inventory=True)

@worker.starting
def begin(_worker):
    logging.getLogger("app").warning("begun")
    print("ready", flush=True)

@worker.stopping
def end(_worker):
    print("stopped", flush=True)

raise SystemExit(worker.main())
"""
INVENTORY = """
broker: {}
workers:
  lab-1:
    - {watchdog_interval: 7, memory_threshold_mbyte: 900}
"""


@contextlib.contextmanager
def lab(folder: Path, broker: NfpProcess) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", TASKS, broker.endpoint, broker.server_key, str(folder / "lab")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_what_norfabs_users_look_for(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "ntp.j2").write_text("ntp {{ server }}")
    settings: dict[str, Any] = {"inventory": str(tmp_path / "inventory.yaml"), "files": str(shared)}
    with (
        norfab(tmp_path) as nf,
        nfp_process(tmp_path, **settings) as broker,
        lab(tmp_path, broker) as process,
    ):
        client = nf.client(broker.endpoint, broker.server_key, "ada")

        def run(task: str, **kwargs: Any) -> dict[str, Any]:
            found = client.ask(do="run", service="lab", task=task, workers="lab-1", kwargs=kwargs, timeout=30)
            said: dict[str, Any] = found["lab-1"]
            return said

        assert run("port", device="r1", vlan=7)["result"] == "r1 7"
        bad = run("port", device="r1", vlan="seven")
        assert (bad["failed"], bad["status"]) == (True, "error")
        assert bad["errors"] == ["Expected `int`, got `str` - at `vlan`"]
        records = run("get_logs", last=50, level="WARNING", logger="app")["result"]
        assert [(each["message"], each["role"], each["name"]) for each in records] == [
            ("begun", "worker", "lab-1")
        ]
        assert run("get_watchdog_configuration")["result"] == {
            "watchdog_interval": 7,
            "memory_threshold_mbyte": 900,
            "memory_threshold_action": "log",
        }
        variables = {"server": "10.0.0.1", "name": "r1"}
        rendered = run(
            "jinja2_render_templates", templates=["hostname {{ name }}", "nf://ntp.j2"], context=variables
        )
        assert rendered["result"] == "hostname r1\nntp 10.0.0.1"
        gone = run("delete_fetched_files", filepath="*.j2")["result"]
        assert ([Path(each).name for each in gone["deleted"]], gone["errors"]) == (["ntp.j2"], [])
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(20) == 0
