"""A node of oslo.messaging as a person starts it: its proxy, and servers that say what came to them."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.live.attached import HEADGATE, until_said
from tests.live.starter import OSLO_PROXY, OSLO_SERVER, started
from tests.live.verbs import headgate

ANSWER_S = 20.0
FREE_PORTS = tuple(
    word for room in ("directory", "call", "fanout", "notify", "cast") for word in (f"--{room}-port", "0")
)
SERVER = """
import json, sys
from broker.oslo.contract import Address, Settings
from broker.oslo.client import open_session

folder, exchange, topic, name = sys.argv[1:]
port = open_session(Settings(ipc_dir=folder))
intake = port.listen(Address(exchange, topic, name))
print("listening", flush=True)
while (item := intake.get(None)) is not None:
    body = json.loads(item.body)
    method, args = body["message"]["method"], body["message"]["args"]
    print(json.dumps({"method": method, "args": args, "ctxt": body["ctxt"]}), flush=True)
    if method == "fail":
        said = {"class": "NotFound", "module": "lab.errors", "message": "no such host", "tb": ["secret"]}
        item.reply(json.dumps({"failure": json.dumps(said)}).encode())
    elif method != "never":
        item.reply(json.dumps({"result": {"server": name, **args}}).encode())
"""
"""Answers with its name and the arguments; ``fail`` raises, ``never`` says nothing."""


class OsloServer:
    """An rpc-server as a process; ``took`` waits for what comes next."""

    def __init__(self, ipc_dir: Path, log: Path, exchange: str, topic: str, name: str) -> None:
        argv = [sys.executable, "-c", SERVER, str(ipc_dir), exchange, topic, name]
        with log.open("ab") as errors:
            self.process = started(argv, loads=OSLO_SERVER, stdout=subprocess.PIPE, stderr=errors)
        self._log = log
        until_said(self.process, "listening\n", log)

    def took(self) -> dict[str, Any]:
        """The next message that it was given."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], ANSWER_S)[0], self._log.read_text()[-2000:]
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class OsloNode:
    """``headgate oslo proxy`` with free ports in ``folder``; ``said`` is what it printed."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.ipc_dir = folder / "ipc"
        self.log = folder / "oslo.log"
        argv = [*HEADGATE, "oslo", "proxy", *FREE_PORTS, "--ipc-dir", str(self.ipc_dir), *words]
        with self.log.open("ab") as errors:
            self.process = started(argv, loads=OSLO_PROXY, stdout=subprocess.PIPE, stderr=errors)
        self.said = until_said(self.process, "Ctrl-C ends it\n", self.log)
        self._servers: list[OsloServer] = []

    def server(self, topic: str, name: str, exchange: str = "openstack") -> OsloServer:
        """A server of this node, registered."""
        self._servers.append(OsloServer(self.ipc_dir, self.log, exchange, topic, name))
        return self._servers[-1]

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A verb of ``headgate oslo`` on this node."""
        return headgate("oslo", *words, "--ipc-dir", str(self.ipc_dir))

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self.process.terminate()
        try:
            self.process.wait(ANSWER_S)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()


@contextlib.contextmanager
def oslo_node(folder: Path, *words: str) -> Iterator[OsloNode]:
    """A node, running."""
    running = OsloNode(folder, *words)
    try:
        yield running
    finally:
        running.close()
