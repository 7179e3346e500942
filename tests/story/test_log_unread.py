"""Nobody reads the log: its pipe is full before the process starts, and traffic goes on all the same."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.manager import Manager
from tests.live.oslo import new_host
from tests.live.ports import free_endpoint
from tests.live.starter import BROKER, GATEWAY, NFP, NFP_BROKER, OSLO_PROXY, START, started

pytestmark = [pytest.mark.story, pytest.mark.smoke]
PIPE_BYTES = 4096
END_S = 15.0
"""Much longer than an end takes, and shorter than for ever."""
TASKS = """
from broker.nfp.worker import Worker
worker = Worker("demo", broker="{endpoint}", state_dir="{folder}", name="w1")
@worker.task
def nothing(): pass
"""


def full_pipe() -> tuple[int, int]:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    assert os.write(write, b"x" * PIPE_BYTES) == PIPE_BYTES
    return read, write


def commands(folder: Path) -> dict[str, tuple[list[str], tuple[str, ...]]]:
    """Every kind of process that runs for long: its words, and what it loads."""
    nfp, far = free_endpoint(), f"local://{folder}/nobody"
    (folder / "tasks.py").write_text(TASKS.format(endpoint=nfp, folder=folder / "nfp"))
    web = ["gateway", "--upstream", far, "--set", f"gateway.statedir={folder}/web", "--listen"]
    loud = ["--set", "broker.log_level=debug"]
    return {
        "broker": (["broker", "--set", f"broker.rundir={folder}/run", *loud], BROKER),
        "journal": (
            [
                "broker",
                "--set",
                f"broker.rundir={folder}/kept",
                "--set",
                f"journal.directory={folder}/journal",
                *loud,
            ],
            BROKER,
        ),
        "start": (["start", "--size", "2", "--wait", "--verbose", "--rundir", f"{folder}/tree"], START),
        "gateway": ([*web, f"unix://{folder}/web.sock"], GATEWAY),
        "workers": ([*web, f"unix://{folder}/workers.sock", "--workers", "2"], GATEWAY),
        "nfp": (
            ["nfp", "broker", "--endpoint", nfp, "--base-dir", f"{folder}/nfp", "--no-curve"],
            NFP_BROKER,
        ),
        "worker": (["nfp", "worker", f"{folder}/tasks.py"], NFP),
        "oslo": (["oslo", "proxy", "--host", new_host(), "--ipc-dir", f"{folder}/oslo"], OSLO_PROXY),
    }


def test_every_process_starts_and_leaves_while_nobody_reads_its_log(rundir):
    with contextlib.ExitStack() as stack:
        runs = {}
        for name, (words, loads) in commands(rundir).items():
            read, write = full_pipe()
            stack.callback(os.close, read)
            hears = stack.enter_context(Manager(rundir / f"notify-{name}"))
            with os.fdopen(write, "wb") as log:
                process = started(
                    [sys.executable, "-m", "broker.cli.main", *words],
                    loads=loads,
                    stdout=log,
                    stderr=log,
                    env=hears.environ,
                )
            stack.callback(process.kill)
            runs[name] = process, hears, read
        for name, (_process, hears, _read) in runs.items():
            if name != "start":
                assert hears.wait_line("READY=1"), name
        for process, _hears, _read in runs.values():
            process.send_signal(signal.SIGTERM)
        codes = {}
        for name, (process, _hears, _read) in runs.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                codes[name] = process.wait(END_S)
        assert codes == dict.fromkeys(runs, 0)
