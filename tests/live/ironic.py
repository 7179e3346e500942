"""OpenStack's Ironic as it is installed from its registry, unmodified: an API and a conductor that speak ``zmq://``.

SQLite, no keystone, and the driver ``fake-hardware``, whose machines do at once what they are told. The API asks the
conductor by calls, and the conductor notifies of what becomes of a machine.
"""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OPTIONAL
from tests.live.oslo import ROOT, new_host, until

BIN = ROOT / ".venv-ironic" / "bin"
EXCHANGE = "ironic"
EVENTS = "ironic_versioned_notifications"
PORT = 6385
START_S = 90.0
STATE_S = 30.0
LEAVE_S = 30.0
FAKE = (
    *("bios", "boot", "console", "deploy", "firmware", "inspect"),
    *("management", "power", "raid", "rescue", "vendor"),
)
NONE = ("network", "storage")
CONFIGURATION = """\
[DEFAULT]
transport_url = zmq://
host = lab
my_ip = {host}
auth_strategy = noauth
rpc_transport = oslo
notification_level = info
enabled_hardware_types = fake-hardware
{interfaces}
[oslo_messaging_zmq]
rpc_zmq_ipc_dir = {ipc_dir}
[oslo_messaging_notifications]
driver = messagingv2
driver = log
[api]
host_ip = {host}
port = {port}
api_workers = 1
[conductor]
automated_clean = false
[database]
connection = sqlite:///{folder}/ironic.sqlite
[oslo_concurrency]
lock_path = {folder}/locks
[deploy]
http_root = {folder}/http
[pxe]
tftp_root = {folder}/tftp
"""


class Ironic:
    """The two processes on a loopback address of their own; they are up once ``wait`` returns.

    Args:
        folder: takes the database, configuration and logs.
        ipc_dir: of this node's proxy.
    """

    def __init__(self, folder: Path, ipc_dir: Path) -> None:
        if not (BIN / "ironic-api").exists():
            pytest.skip(
                f"{OPTIONAL} no Ironic: `make oslo` installs it into .venv-ironic where a registry has it"
            )
        folder.mkdir()
        self.folder = folder
        self.host = new_host()
        self.file = folder / "ironic.conf"
        self.file.write_text(
            CONFIGURATION.format(
                host=self.host, port=PORT, folder=folder, ipc_dir=ipc_dir, interfaces=_interfaces()
            )
        )
        assert self._begin("ironic-dbsync", "create_schema").wait(START_S) == 0, self.said("ironic-dbsync")
        self.processes = {name: self._begin(name) for name in ("ironic-conductor", "ironic-api")}

    def _begin(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [BIN / name, "--config-file", self.file, *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
            )

    def said(self, name: str) -> str:
        """The end of a process's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def wait(self) -> None:
        """Wait until the API answers and has learnt from the database that the conductor is there."""
        until(self._drivers, START_S, "Ironic's start")

    def _drivers(self) -> list[Any]:
        for name, process in self.processes.items():
            assert process.poll() is None, self.said(name)
        try:
            found: list[Any] = self.ask("GET", "/v1/drivers")["drivers"]
        except (urllib.error.URLError, ConnectionError):
            return []
        return found

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request to the API, and what it answers; None where that is nothing.

        Raises:
            urllib.error.HTTPError: it refused.
            urllib.error.URLError: it does not listen.
        """
        request = urllib.request.Request(
            f"http://{self.host}:{PORT}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "X-OpenStack-Ironic-API-Version": "1.78"},
        )
        with urllib.request.urlopen(request, timeout=STATE_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def node(self, name: str) -> dict[str, Any]:
        """A machine as the API describes it."""
        found: dict[str, Any] = self.ask("GET", f"/v1/nodes/{name}")
        return found

    def provision(self, name: str, target: str, state: str) -> None:
        """Tell the conductor to bring a machine somewhere, and wait until it is there."""
        self.ask("PUT", f"/v1/nodes/{name}/states/provision", {"target": target})
        until(lambda: self.node(name)["provision_state"] == state, STATE_S, f"{name}: {state}")

    def power(self, name: str, target: str) -> None:
        """Tell the conductor to switch a machine, and wait until it is so."""
        self.ask("PUT", f"/v1/nodes/{name}/states/power", {"target": target})
        until(lambda: self.node(name)["power_state"] == target, STATE_S, f"{name}: {target}")

    def told(self) -> Counter[str]:
        """The events that both say in their logs that they notified of."""
        logs = "".join((self.folder / f"{name}.log").read_text(errors="replace") for name in self.processes)
        return Counter(re.findall(r" oslo\.messaging\.notification\.(\S+) ", logs))

    def stop(self) -> dict[str, int]:
        """Tell both to leave; their exit codes."""
        for process in self.processes.values():
            process.terminate()
        return {name: process.wait(LEAVE_S) for name, process in self.processes.items()}

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _interfaces() -> str:
    """The options that give every machine interfaces that only say they did what they were told."""
    pairs = [*((kind, "fake") for kind in FAKE), *((kind, "noop") for kind in NONE)]
    return "\n".join(
        f"enabled_{kind}_interfaces = {name}\ndefault_{kind}_interface = {name}" for kind, name in pairs
    )
