"""Who is measured by WebSocket: the gateway in front of our broker, nats-server, Crossbar."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.request import urlopen

from gateway.identity.tokens import TokenFile
from tests.bench import builds, processes
from tests.bench.contenders import Contender, Pure, program

READY_S = 30.0
INSTALL_S = 600.0
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate" / "bench"
"""Where Crossbar's own environment is kept between runs; --cache or HEADGATE_BENCH_CACHE names another place."""


class WebContender(Contender):
    """A broker with a WebSocket listener on loopback, without TLS and without compression.

    Attributes:
        speak: the language the generator has to use. at: where WebSocket clients connect.
        beside: where a provider connects that is no WebSocket client. service: what such a provider calls itself.
        stalled_at: where the clients connect that will not read. token: what clients show; "" where nobody asks.
    """

    speak = ""
    service = "bench"
    stalled_at = ""
    token = ""

    def __init__(self) -> None:
        super().__init__()
        self.at = self.beside = ""
        self.log = self.rundir / "log"

    @staticmethod
    def missing() -> str:
        """Why it cannot run; "" when it can."""
        return ""

    @staticmethod
    def version() -> str:
        """What its program says about itself."""
        return ""

    def connected(self) -> bool:
        """Whether it listens; sets ``at`` and ``beside``."""
        raise LookupError(f"{type(self).__name__} listens nowhere")

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )
        try:
            self.await_ready(self.connected)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def await_ready(self, ready: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + READY_S
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def __exit__(self, *error: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        super().__exit__(None, None, None)

    @property
    def flags(self) -> list[str]:
        return []


class Nats(WebContender):
    """nats-server, which writes its own ports into a file."""

    name = "nats-server"
    speak = "nats"

    def argv(self) -> list[str]:
        config = self.rundir / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: "{self.rundir}"\n'
            'websocket { listen: "127.0.0.1:-1", no_tls: true, compression: false }\n'
        )
        return [found_nats() or "nats-server", "-c", str(config)]

    def connected(self) -> bool:
        for file in self.rundir.glob("*.ports"):
            with contextlib.suppress(ValueError):
                ports = json.loads(file.read_text())
                self.at, self.beside = ports["websocket"][0] + "/", "tcp://" + ports["nats"][0].split("//")[1]
        return bool(self.at)

    @staticmethod
    def missing() -> str:
        return "" if found_nats() else "nats-server is not installed (package nats-server)"

    @staticmethod
    def version() -> str:
        return said([found_nats() or "", "--version"])


class Crossbar(WebContender):
    """Crossbar in an environment of its own; its router is the only one of its processes that counts."""

    name = "crossbar"
    speak = "wamp"
    cache: ClassVar[Path] = Path(os.environ.get("HEADGATE_BENCH_CACHE") or CACHE)
    why_not: ClassVar[str | None] = None

    def argv(self) -> list[str]:
        port = free_port()
        self.at, self.beside = f"ws://127.0.0.1:{port}/", f"unix://{self.rundir}/raw"
        (self.rundir / "config.json").write_text(json.dumps(crossbar_config(port, f"{self.rundir}/raw")))
        return [str(self.program()), "start", "--cbdir", str(self.rundir), "--loglevel", "warn"]

    def connected(self) -> bool:
        host, port = self.at.removeprefix("ws://").strip("/").split(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return False
        return Path(self.beside.removeprefix("unix://")).exists()

    @property
    def pids(self) -> list[int]:
        return [pid for pid in super().pids if "crossbar-worker" in processes.command(pid)]

    @classmethod
    def program(cls) -> Path:
        return cls.cache / "crossbar" / "bin" / "crossbar"

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run; installs it at the first question."""
        if cls.why_not is None:
            cls.why_not = "" if cls.program().exists() else cls.install()
        return cls.why_not

    @classmethod
    def install(cls) -> str:
        """Make its environment; returns why that failed, "" when it did not."""
        place = cls.cache / "crossbar"
        print(f"installing Crossbar into {place} (once)", file=sys.stderr, flush=True)
        pip = [
            str(place / "bin" / "python"),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            for command in ([sys.executable, "-m", "venv", str(place)], [*pip, "crossbar"]):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(place, ignore_errors=True)
            lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            return f"Crossbar cannot be installed: {lines[-1] if lines else type(error).__name__}"
        return ""

    @classmethod
    def version(cls) -> str:
        command = "from importlib.metadata import version; print('crossbar', version('crossbar'))"
        return said([str(cls.program().with_name("python")), "-c", command])


class Gateway(WebContender):
    """Ours, as one command starts it: ``headgate up``, a broker and a gateway in one process.

    Clients have a bearer token and the role *user*. Limits on connections are raised as far as the work needs; the
    limit of messages a second stays on, higher than any client gets.
    """

    name = "headgate"
    speak = "flux"
    userid = 4711

    def __init__(self, ping_s: float = 25.0) -> None:
        super().__init__()
        self.ping_s = ping_s
        self.service = f"{self.userid}-bench"
        self.port = free_port()
        self.at = f"ws://127.0.0.1:{self.port}/v1/ws"
        self.stalled_at = f"{self.at}?overflow=drop"

    @staticmethod
    def missing() -> str:
        return "" if find_spec("gateway.cli.up") else "the gateway is not there"

    def configured(self) -> str:
        """Write the gateway's configuration and a token; returns the file's name."""
        self.token = TokenFile(self.rundir / "tokens.json").add("bench", now=time.time())[1]
        file = self.rundir / "gateway.toml"
        file.write_text(gateway_config(self))
        return str(file)

    def argv(self) -> list[str]:
        where = ["--config", self.configured(), "--rundir", f"{self.rundir}/run"]
        return [*program(), "up", "--no-login", *where]

    def connected(self) -> bool:
        """Whether the gateway serves and has its broker."""
        said_where = re.search(r"^FLUX_URI=(.+)$", self.log.read_text(), re.MULTILINE)
        if said_where is not None:
            self.beside = said_where[1]
        return said_where is not None and self.joined()

    def joined(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False


class PureGateway(Gateway):
    """Ours again, from the sources."""

    name = Pure.name

    def environment(self) -> dict[str, str]:
        return builds.pure()

    @staticmethod
    def missing() -> str:
        return Pure.missing()


class Apart(Gateway):
    """Ours as in front of any broker: ``headgate gateway`` and ``headgate broker``, two processes."""

    name = "two processes"

    def __init__(self, ping_s: float = 25.0) -> None:
        super().__init__(ping_s)
        self.gateway: subprocess.Popen[bytes] | None = None
        self.beside = f"local://{self.rundir}/run/local-0"

    def argv(self) -> list[str]:
        config = self.rundir / "broker.toml"
        config.write_text(f'[broker]\nrank = 0\nrundir = "{self.rundir}/run"\nlog_level = "warning"\n')
        return [*program(), "broker", "--config", str(config)]

    def connected(self) -> bool:
        return Path(self.beside.removeprefix("local://")).exists()

    def __enter__(self) -> Self:
        super().__enter__()
        command = [*program(), "gateway", "--config", self.configured()]
        try:
            with self.log.open("ab") as log:
                self.gateway = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.await_ready(self.joined)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.gateway is not None:
            self.gateway.terminate()
            processes.stop(self.gateway)
        super().__exit__()

    @property
    def pids(self) -> list[int]:
        assert self.gateway is not None
        return [self.gateway.pid, *super().pids]


def gateway_config(gateway: Gateway) -> str:
    """Enough room for the work, and a rule for what it does."""
    return f"""
[gateway]
{f'upstream = "{gateway.beside}"' if gateway.beside else ""}
statedir = "{gateway.rundir}"
log_level = "warning"
[[listen]]
url = "http://127.0.0.1:{gateway.port}"
[[users]]
name = "bench"
userid = {gateway.userid}
[[rules]]
roles = ["user"]
prefixes = ["bench.", "{gateway.service}"]
[limits]
connections_per_user = 16384
msgs_per_s = 1e7
ping_s = {gateway.ping_s}
"""


def crossbar_config(port: int, raw: str) -> dict[str, Any]:
    """One router, one realm, everybody may do everything; WebSocket and, for the provider, a raw socket."""
    everything = {"call": True, "register": True, "publish": True, "subscribe": True}
    permission = {"uri": "", "match": "prefix", "allow": everything, "cache": True}
    endpoint = {"type": "tcp", "interface": "127.0.0.1", "port": port, "backlog": 1024}
    return {
        "version": 2,
        "workers": [
            {
                "type": "router",
                "realms": [{"name": "bench", "roles": [{"name": "anonymous", "permissions": [permission]}]}],
                "transports": [
                    {"type": "websocket", "endpoint": endpoint, "serializers": ["json"]},
                    {"type": "rawsocket", "endpoint": {"type": "unix", "path": raw}, "serializers": ["json"]},
                ],
            }
        ],
    }


def found_nats() -> str | None:
    """The nats-server of this machine; Debian puts it where only root looks."""
    return shutil.which("nats-server", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A TCP port of loopback that nobody has, for programs that cannot take one themselves and tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def said(command: list[str]) -> str:
    """The first line of what a program prints; "" when it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter((done.stdout or done.stderr).splitlines()), "")
