"""Node proxies and applications of oslo.messaging as processes, each node on a loopback address of its own.

Applications run in an environment of their own, as deployed ones do: ``make oslo`` makes ``.venv-oslo`` and one for
each of ``OLDER``; ``OSLO_PYTHON`` names another interpreter that has oslo.messaging and this project.
"""

import contextlib
import itertools
import json
import os
import queue
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from broker.oslo import frames
from broker.oslo.names import DIRECTORY_SOCKET, Pipeline, control_file
from tests.live.oslo_wire import hear
from tests.live.starter import OSLO_NODE, Started, started

ROOT = Path(__file__).resolve().parents[2]
SIDE = Path(__file__).with_name("oslo_side.py")
OLDER = ("14.9", "16.1", "17.1", "17.3")
"""Minor versions of oslo.messaging, of the cycles of OpenStack before the newest: 2024.2, 2025.1, 2025.2, 2026.1."""
START_S = 30.0
ANSWER_S = 60.0
LEAVE_S = 25.0

PROGRAM = """
import json, sys
from broker import memory
from broker.errors import ConfigError
from broker.oslo.names import Pipeline
from broker.oslo.node import BacklogConfig, KeyEntry, NodeConfig, Rule
from broker.oslo.proxy.process import NodeProxy
from broker.secret import SecretUrl
told = json.loads(sys.argv[1])
for name in ("directories", "redis", "keepalive"):
    if name in told:
        told[name] = tuple(told[name])
if "redis" in told:
    told["redis"] = tuple(map(SecretUrl, told["redis"]))
if "backlog" in told:
    told["backlog"] = BacklogConfig(**{**told["backlog"], "topics": tuple(told["backlog"]["topics"])})
if "run" in told:
    told["run"] = frozenset(told["run"])
if "ports" in told:
    told["ports"] = {Pipeline(name): port for name, port in told["ports"].items()}
told["keys"] = tuple(KeyEntry(**each) for each in told.get("keys", ()))
told["rules"] = tuple(Rule(**{k: tuple(v) if isinstance(v, list) else v for k, v in each.items()})
                      for each in told.get("rules", ()))
config = NodeConfig(**told)
proxy = NodeProxy(config, reread=lambda: config)
try:
    proxy.open()
except ConfigError as error:
    sys.exit(f"headgate: {error}")
memory.freeze()  # as every process of a node does
print("ready", flush=True)
proxy.run()
"""


def oslo_python(version: str = "") -> str:
    """The interpreter that has oslo.messaging; without one the test is skipped, which CI does not accept."""
    name = f".venv-oslo-{version}" if version else ".venv-oslo"
    python = ("" if version else os.environ.get("OSLO_PYTHON", "")) or str(ROOT / name / "bin" / "python")
    if not Path(python).exists():
        pytest.skip(f"no oslo.messaging: `make interop` installs it into {name}")
    return python


_hosts = itertools.count(random.randrange(1 << 20))


def new_host() -> str:
    """A loopback address that nobody else uses: every node of a test has the usual ports."""
    number = (os.getpid() << 10 ^ next(_hosts)) & 0x3FFFFF
    return f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{1 + (number & 255) % 254}"


def until(true: Callable[[], Any], seconds: float = 40.0, what: str = "it") -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = true()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)


class Proxy:
    """One node's proxy, or one room of it. ``config`` are fields of ``NodeConfig``."""

    def __init__(self, folder: Path, *, prefix: tuple[str, ...] = (), **config: Any) -> None:
        self.host = config.setdefault("host", new_host())
        config.setdefault("node", self.host)
        config.setdefault("ipc_dir", str(folder))
        config["ipc_dir"] = str(config["ipc_dir"])
        self.config = config
        self.folder = Path(config["ipc_dir"])
        self.prefix = prefix
        self.log = Path(f"{folder}.log")
        self.process: subprocess.Popen[bytes] | Started | None = None
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            argv = [*self.prefix, sys.executable, "-c", PROGRAM, json.dumps(self.config)]
            self.process = started(argv, loads=OSLO_NODE, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if ready else b""
        assert line == b"ready\n", f"the proxy is not ready: {self.log.read_text()[-2000:]}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def url(self) -> str:
        """The transport URL of applications on this node."""
        return f"zmq://?rpc_zmq_ipc_dir={self.folder}&rpc_zmq_host={self.host}"

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def rss_kib(self) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            return int(next(line for line in status if line.startswith("VmRSS:")).split()[1])

    def status(self, room: str) -> dict[str, Any]:
        """What a room counts."""
        file = DIRECTORY_SOCKET if room == "directory" else control_file(Pipeline(room))
        return ask_status(self.folder / file)

    def kill(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(LEAVE_S)
        finally:
            self.kill()


def ask_status(file: Path, seconds: float = 5.0) -> dict[str, Any]:
    """A STATUS question to one control socket.

    Raises:
        AssertionError: no answer.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.set(zmq.LINGER, 0)
        sock.connect(f"ipc://{file}")
        sock.send_multipart([frames.encode(frames.Kind.STATUS, id=frames.new_id()), b""])
        assert sock.poll(int(seconds * 1000)), f"{file.name} does not answer"
        return json.loads(hear(sock)[1])


def counted(told: Any, name: str) -> int:
    """The sum of all numbers called ``name``, wherever they stand in a status."""
    if isinstance(told, dict):
        here = told.get(name, 0)
        rest = sum(counted(value, name) for key, value in told.items() if key != name)
        return rest + (here if isinstance(here, int) else counted(here, name))
    if isinstance(told, list):
        return sum(counted(value, name) for value in told)
    return 0


@contextlib.contextmanager
def nodes(folder: Path, count: int, **config: Any) -> Iterator[list[Proxy]]:
    """Some nodes that know each other by a static list of all of them."""
    hosts = [new_host() for _ in range(count)]
    config.setdefault("directories", [f"tcp://{host}:9500" for host in hosts] if count > 1 else [])
    started: list[Proxy] = []
    try:
        for number, host in enumerate(hosts):
            started.append(Proxy(folder / f"n{number}", host=host, **config))
        yield started
    finally:
        for proxy in started:
            proxy.kill()


class Side:
    """One process of an application, see ``oslo_side.py``; ``ready`` is what it said when it was."""

    def __init__(
        self,
        role: str,
        url: str,
        *,
        errors: Path,
        version: str = "",
        green: bool = False,
        prefix: tuple[str, ...] = (),
        **words: Any,
    ) -> None:
        self.log = errors
        words = {"url": url, "green": green, **words}
        with open(errors, "ab") as output:
            self.process = subprocess.Popen(
                [*prefix, oslo_python(version), "-P", str(SIDE), role, json.dumps(words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = self.next(START_S)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def next(self, seconds: float = ANSWER_S) -> dict[str, Any]:
        """The next line it says."""
        while True:
            line = self._lines.get(timeout=seconds)
            if line is None:
                raise AssertionError(f"it ended: {self.log.read_text()[-3000:]}")
            if line.startswith("{"):
                return json.loads(line)

    def tell(self, **words: Any) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def ask(self, do: str, seconds: float = ANSWER_S, **words: Any) -> dict[str, Any]:
        """Give a command; its answer, ``{"result": ...}`` or ``{"error": class, "text": ...}``."""
        self.tell(do=do, **words)
        return self.next(seconds)

    def result(self, do: str, **words: Any) -> Any:
        """As ``ask``; an error fails the test."""
        answer = self.ask(do, **words)
        assert "error" not in answer, answer
        return answer.get("result")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def close(self, seconds: float = LEAVE_S) -> int:
        """Tell it to leave; its exit code. It is killed, and the test fails, when it does not."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            # Python sees a signal that comes just before the main thread waits for its input when the wait is over
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(min(seconds, 3.0))
            self.signal(signal.SIGTERM)
            return self.process.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


Sides = Callable[..., Side]
"""Starts a side that has left in order when the test ends (fixture ``sides``)."""


def executions(file: Path) -> list[str]:
    """What the endpoints of a side wrote: a line each time one ran."""
    return file.read_text().splitlines() if file.exists() else []
