"""A private RabbitMQ (Debian's ``rabbitmq-server``) with everything of its own: ports, names, folders, epmd.

::

    with Rabbit() as rabbit:
        transport_url = rabbit.url               # rabbit://guest:guest@127.0.0.1:PORT/

It is started without the packaged wrapper, which insists on changing the user, so any user may run it, root as well.
Its name server (epmd) is a child of ours: the one that Erlang would start by itself outlives everything.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S = 90.0
STOP_S = 15.0
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
GREETING = b"AMQP\x00\x00\x09\x01"


def missing() -> str:
    """Why there is no RabbitMQ here; "" when there is one."""
    if not SCRIPT.exists() or shutil.which("epmd") is None:
        return "no RabbitMQ (Debian: apt install rabbitmq-server)"
    return ""


def version() -> str:
    """As Debian's folder says; "" when there is none."""
    found = re.search(r"rabbitmq_server-([\d.]+)", str(SCRIPT.resolve()))
    return f"RabbitMQ {found[1]}" if found else ""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class Rabbit:
    """One broker; ``url`` is what oslo.messaging takes, ``pids`` are its processes."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hgr-", dir="/tmp"))
        self.port, self._distribution, self._names = free_ports(3)
        self.node = f"bench-{os.getpid()}-{self.port}@localhost"
        self._children: list[subprocess.Popen[Any]] = []

    @property
    def url(self) -> str:
        return f"rabbit://guest:guest@127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        """Erlang's virtual machine: the script becomes it."""
        return self._children[-1].pid

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """What keeps it apart from an installed one; it reads nothing below ``/etc``."""
        here = {
            "HOME": self.folder,  # Erlang's cookie
            "RABBITMQ_MNESIA_BASE": self.folder / "mnesia",
            "RABBITMQ_LOG_BASE": self.folder / "log",
            "RABBITMQ_PID_FILE": self.folder / "pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self.folder / "advanced",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._distribution,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": self._names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script execs Erlang instead of waiting for it
        }
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_", "NOTIFY_"))
        }
        return inherited | {name: str(value) for name, value in here.items()}

    def start(self) -> None:
        """Start epmd, then the broker, and wait until it speaks AMQP.

        Raises:
            RuntimeError: it ended, or did not speak within ``START_S``; with the end of its log.
        """
        environment = self.environment()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        epmd = ["epmd", "-port", str(self._names), "-address", "127.0.0.1"]
        with open(self.folder / "out", "ab") as out:
            for argv in (epmd, [str(SCRIPT)]):
                child = subprocess.Popen(
                    argv,
                    env=environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
                self._children.append(child)
                if len(self._children) == 1:
                    self._wait(lambda: _connects(self._names))
        self._wait(lambda: _speaks_amqp(self.port))

    def _wait(self, ready: Any) -> None:
        end = time.monotonic() + START_S
        while not ready():
            if self._children[-1].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"RabbitMQ did not start within {START_S:.0f} s: {self.last_words()}")
            time.sleep(0.05)

    def last_words(self) -> str:
        """The end of what it printed."""
        text = (self.folder / "out").read_text(errors="replace")
        return re.sub(r"\s+", " ", text)[-600:]

    def stop(self) -> None:
        """In order, or by force after ``STOP_S``; then the folder goes. Harmless twice."""
        for child in reversed(self._children):
            child.terminate()
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # with its helpers: it leads the session that we gave it
                child.wait()
        self._children = []
        shutil.rmtree(self.folder, ignore_errors=True)


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _speaks_amqp(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.settimeout(2)
            probe.sendall(GREETING)
            return probe.recv(1) == b"\x01"  # a method frame: Connection.Start
    except OSError:
        return False
