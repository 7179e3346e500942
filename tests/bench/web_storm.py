"""A gateway dies, and all its clients come to another one at once: how long are they away?"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from typing import Any

from tests.bench import processes
from tests.bench.contenders import program
from tests.bench.loadgen import LoadError, Result
from tests.bench.targets import Row
from tests.bench.web_contenders import Apart, Gateway
from tests.bench.works import DESCRIPTORS_SPARE, Bench, say

CLIENTS = 10_000


class Twin(Gateway):
    """Another gateway in front of the same broker, with the same tokens."""

    name = "twin"

    def __init__(self, of: Apart) -> None:
        super().__init__()
        self._of = of
        self.beside = of.beside

    def argv(self) -> list[str]:
        config = self.configured()
        shutil.copy(self._of.rundir / "tokens.json", self.rundir / "tokens.json")
        return [*program(), "gateway", "--config", config]

    connected = Gateway.joined


def web_storm(bench: Bench) -> list[Row]:
    """10 000 clients of a gateway that is killed, back at another one: the figure is p99 of the time until live."""
    row = Row("web_storm", note=Apart.missing())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_SPARE
    if most < CLIENTS:
        row.note = f"only {most} descriptors may be open here"
    elif not row.note:
        with Apart() as first, Twin(first) as second:
            row.raw = storm(first, second)
        row.settle([row.raw["p99"]])
        row.figures[Gateway.name] = "{p50:.1f} / {p99:.1f} s, {cpu_ms:.2f} ms CPU each".format(**row.raw)
    return [row]


def storm(first: Apart, second: Twin) -> Result:
    """One storm.

    Raises:
        LoadError: not all came back.
    """
    command = [sys.executable, "-m", "tests.bench.storm_clients", first.at, second.at, str(CLIENTS)]
    environment = dict(os.environ, WSLOAD_TOKEN=first.token)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as clients:
        try:
            said(clients)
            used = processes.cpu_s(second.pids)
            assert first.gateway is not None
            first.gateway.send_signal(signal.SIGKILL)
            result = said(clients)
        finally:
            processes.stop(clients)
    result["cpu_ms"] = 1e3 * (processes.cpu_s(second.pids) - used) / CLIENTS
    say(
        "{p50:.1f} / {p99:.1f} s, the last after {last:.1f} s; {attempts} pauses, refused: {refused}".format(
            **result
        )
    )
    if result["missing"]:
        raise LoadError(f"{result['missing']} of {CLIENTS} did not come back: {result}")
    return result


def said(clients: "subprocess.Popen[str]") -> dict[str, Any]:
    assert clients.stdout is not None
    line = clients.stdout.readline()
    if not line:
        raise LoadError("the clients ended")
    found: dict[str, Any] = json.loads(line)
    return found
