"""A broker of NFP with its bridge to a Flux broker, and one worker, as a person starts them: two processes."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.live.brokers import eventually
from tests.live.starter import NFP, Started, started

HEADGATE = (sys.executable, "-m", "broker.cli.main")
START_S = 20.0
TASKS = """
import os, time
from broker.nfp.worker import Worker

worker = Worker("lab", name="lab-1")

@worker.task
def copy(job, gate, done=4, total=10):
    job.progress(f"copying {done} of {total}", done=done, total=total)
    while not os.path.exists(gate):
        if job.cancelled:
            return "left"
        time.sleep(0.02)
    return "copied"

@worker.task
def ping(n=1):
    return n

@worker.task
def fail(device=""):
    raise ValueError(f"no such device {device}".strip())

@worker.task
def reboot():
    return "up again"

@worker.task
def asks(job):
    return job.ask("go on?")
"""
"""Tasks of the worker ``lab-1`` of the service ``lab``; ``copy`` runs until the file ``gate`` exists."""


def until_said(process: subprocess.Popen[bytes] | Started, word: str, log: Path) -> str:
    """What ``process`` printed, ``word`` included."""
    assert process.stdout is not None
    said, end = "", time.monotonic() + START_S
    while word not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        some = os.read(process.stdout.fileno(), 4096) if ready else b""
        assert some, f"no {word!r} in {said!r}: {log.read_text()[-2000:]}"
        said += some.decode()
    return said


class Attached:
    """``start`` both, ``close`` both; ``broker`` is the process of the NFP broker.

    Args:
        folder: state, tasks and log. uri: the Flux broker, "" for none.
        config: text of a file with ``[nfp]``.
    """

    def __init__(self, folder: Path, uri: str, config: str = "[nfp]\n") -> None:
        self.folder = folder
        self.log = folder / "attached.log"
        self.endpoint = ""
        self.processes: list[subprocess.Popen[bytes] | Started] = []
        self._uri = uri
        (folder / "tasks.py").write_text(TASKS)
        (folder / "nfp.toml").write_text(config)

    def start(self) -> None:
        words = ("--config", str(self.folder / "nfp.toml"), "--endpoint", "tcp://127.0.0.1:*")
        self.broker = self._process(
            "broker", *words, *(("--uri", self._uri) if self._uri else ("--no-flux",))
        )
        found = re.search(r"--broker (\S+)", until_said(self.broker, "Ctrl-C", self.log))
        assert found is not None
        self.endpoint = found[1]
        self.start_worker(self.endpoint)

    def start_worker(self, endpoint: str) -> None:
        self.log.touch()
        before = self.log.read_text().count("Ctrl-C ends it")
        self._process("worker", str(self.folder / "tasks.py"), "--broker", endpoint)
        # on stderr: its stdout is its tasks' own
        eventually(lambda: self.log.read_text().count("Ctrl-C ends it") > before)

    def _process(self, *words: str) -> subprocess.Popen[bytes] | Started:
        argv = [*HEADGATE, "nfp", *words, "--base-dir", str(self.folder / "state")]
        with self.log.open("ab") as log:
            self.processes.append(started(argv, loads=NFP, stdout=subprocess.PIPE, stderr=log))
        return self.processes[-1]

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextlib.contextmanager
def attached(folder: Path, uri: str, config: str = "[nfp]\n") -> Iterator[Attached]:
    """Both, running."""
    running = Attached(folder, uri, config)
    try:
        running.start()
        yield running
    finally:
        running.close()
