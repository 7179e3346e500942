"""Gateways for tests: one in this process over an in-process broker, or one as a process of its own."""

import asyncio
import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from broker.node.assembly import Node
from broker.settings import loads as broker_loads
from gateway.identity.tokens import TokenFile, token_path
from gateway.serve import Gateway
from gateway.settings import GatewaySettings, load, loads
from tests.live.starter import GATEWAY, started

START_S = 20.0
USERS = """
[access]
allow_owner = true
allow_admin = true
[[users]]
name = "ada"
userid = 1001
roles = ["owner"]
[[users]]
name = "bob"
userid = 1002
roles = ["user"]
[[users]]
name = "eve"
userid = 1003
roles = ["admin"]
[[rules]]
roles = ["user"]
prefixes = [""]
[[rules]]
roles = ["user"]
prefixes = ["secret."]
allow = false
"""
"""An owner, a user who may do everything but ``secret.*``, and an admin."""


class Live(NamedTuple):
    """A broker of this process and the gateway in front of it."""

    gateway: Gateway
    broker: Node | None
    tokens: dict[str, str]
    """User -> bearer token."""

    @property
    def url(self) -> str:
        """Of the first listener."""
        return self.gateway.urls[0]

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/ws"

    def bearer(self, user: str = "ada") -> dict[str, str]:
        """Headers of ``user``."""
        return {"Authorization": f"Bearer {self.tokens[user]}"}


def settings_in(folder: Path, extra: str = "", *, users: str = USERS) -> GatewaySettings:
    """Settings with a listener on a free port of the loopback, users, and state in ``folder``.

    ``extra`` goes before the users: further sections, or ``[[listen]]`` tables that replace the default one.
    """
    settings = loads(
        extra + users if "[access]" not in extra else extra + users.replace("[access]", "", 1), "test"
    )
    listen = tuple(
        msgspec.structs.replace(entry, url="http://127.0.0.1:0") if entry.url.endswith(":8280") else entry
        for entry in settings.listen
    )
    section = msgspec.structs.replace(settings.gateway, statedir=str(folder / "state"), drain_s=0.2)
    return msgspec.structs.replace(settings, listen=listen, gateway=section)


def make_tokens(settings: GatewaySettings) -> dict[str, str]:
    """A token for each user of the settings."""
    file = TokenFile(token_path(settings))
    file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {user.name: file.add(user.name, now=0.0)[1] for user in settings.users}


@contextlib.asynccontextmanager
async def node(folder: Path, uri: str = "inproc://broker") -> AsyncIterator[Node]:
    """A broker of this process, a tree of one, that also listens at ``uri``."""
    base = f'[broker]\nrundir = "{folder}/run"\nlog_level = "error"\ndrain_s = 0.1\n'
    running = Node(broker_loads(f'{base}[[listen]]\nuri = "{uri}"\n').at_rank(0))
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


@contextlib.asynccontextmanager
async def live(
    folder: Path, extra: str = "", *, users: str = USERS, upstream: str | None = None, doors: bool = True
) -> AsyncIterator[Live]:
    """A gateway of this process, joined; in front of a broker of this process unless ``upstream`` is given.

    Without ``doors`` it has its pages (``gateway.apps``) and listens nowhere.
    """
    settings = settings_in(folder, extra, users=users)
    tokens = make_tokens(settings)
    uri = upstream or f"inproc://{folder}"
    async with contextlib.AsyncExitStack() as stack:
        broker = None if upstream else await stack.enter_async_context(node(folder, uri))
        gateway = Gateway(settings, upstream=uri)
        stack.push_async_callback(gateway.stop)
        await (gateway.start() if doors else gateway.join())
        assert await gateway.upstream.wait_joined(START_S), gateway.upstream.reason
        yield Live(gateway, broker, tokens)


class GatewayProcess:
    """``headgate gateway`` as a process; ``urls`` as it printed them. ``files``: as many descriptors as it may open."""

    def __init__(
        self, config: Path, *words: str, env: dict[str, str] | None = None, files: int | None = None
    ) -> None:
        self.settings = load(config)
        self.tokens = make_tokens(self.settings)
        self.log = config.with_suffix(".gateway.log")
        argv = [sys.executable, "-m", "broker.cli.main", "gateway", "--config", str(config), *words]
        with self.log.open("ab") as log:
            limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))}
            self.process = started(
                argv,
                loads=GATEWAY,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(env or {})},
                **(limits if files else {}),
            )
        self.urls: list[str] = []

    def wait_ready(self, timeout: float = START_S) -> None:
        """Until it has printed where it listens."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], timeout)[0]:
            line = self.process.stdout.readline().decode().strip()
            if not line:
                break
            if line.startswith(("http://", "https://", "unix://")):
                self.urls.append(line)
            if len(self.urls) == len(self.settings.listen):
                return
        raise AssertionError(f"the gateway is not ready: {self.lines()[-5:]}")

    @property
    def ws(self) -> str:
        return self.urls[0].replace("http", "ws", 1) + "/v1/ws"

    def bearer(self, user: str = "ada") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[user]}"}

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self, timeout: float = START_S) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def config_in(folder: Path, upstream: str, extra: str = "", *, users: str = USERS) -> Path:
    """A configuration file of a gateway in ``folder`` with one listener on a free port."""
    file = folder / "gateway.toml"
    sections = f'[gateway]\nupstream = "{upstream}"\nstatedir = "{folder}/state"\ndrain_s = 0.5\n'
    listen = "" if "[[listen]]" in extra else '[[listen]]\nurl = "http://127.0.0.1:0"\n'
    file.write_text(sections + extra + listen + users)
    return file


@contextlib.contextmanager
def gateway_process(
    folder: Path, upstream: str, extra: str = "", *words: str, users: str = USERS
) -> Iterator[GatewayProcess]:
    """A running ``headgate gateway`` in front of ``upstream``. ``extra`` begins with further keys of ``[gateway]``."""
    running = GatewayProcess(config_in(folder, upstream, extra, users=users), *words)
    try:
        running.wait_ready()
        yield running
    finally:
        running.kill()


def run(work, timeout: float = 60.0):
    """Run an async test body with a deadline; ``work`` gets a short-lived folder whose path suits UNIX sockets."""

    async def bounded() -> None:
        with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as folder:
            async with asyncio.timeout(timeout):
                await work(Path(folder))

    asyncio.run(bounded())
