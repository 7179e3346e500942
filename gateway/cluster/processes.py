"""The engines of bare processes: ``Processes``, whose links pass relays, and ``Namespaces``, a network for each rank.

Both leave the work to a supervisor, which outlives the verb that started it: the methods here ask it, by its control
socket, and wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from broker.client import blocking
from broker.errors import ConfigError, HeadgateError
from broker.interpreter import command
from broker.schemes import UNIX_PATH_BYTES
from gateway.cluster import control, files, links, state, supervisor
from gateway.cluster.engine import Access, Member, Unsupported
from gateway.cluster.lines import last_of, lines_of
from gateway.cluster.shape import Shape
from gateway.identity.login import add_link, link_url
from gateway.identity.store import Store

UP_S: Final = 60.0
"""How long all may take to be there."""
UP_EACH_S: Final = 2.0
"""And for each rank more."""
ANSWER_S: Final = 10.0
"""How long the supervisor may take for an answer."""
DOWN_S: Final = 30.0
"""How long it may take to end everything, before it is killed and its members with it."""
LOGIN_S: Final = 3600.0
PORTS: Final = 20
"""Ports that are tried for the gateway, from its usual one on."""
TOKEN: Final = "token"  # noqa: S105 - a name
"""File in the state folder: a bearer token for the gateway."""
IN_USE: Final = os.strerror(errno.EADDRINUSE)
SUPERVISOR: Final = "supervisor"
"""Name of its log."""
_STEP_S: Final = 0.1


class Processes:
    """A cluster of processes (``engine.Engine``).

    Args:
        folder: the state folder of the cluster.
    """

    name = "processes"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # -- up and down ---------------------------------------------------------------------------

    def up(self, shape: Shape, folder: Path) -> None:
        """See ``Engine.up``."""
        sockets = _short(Path(state.load(self.folder).sockets), shape)
        addresses, binds = links.places(self.name, shape, sockets)
        # everybody but the ranks comes by a UNIX socket: a client port for each would not fit on one machine
        written = files.write(
            dataclasses.replace(shape, client_port=0), folder, addresses=addresses, binds=binds
        )
        if written.token:
            _keep(self.folder / TOKEN, written.token)
        if shape.gateway:
            _keep(self.folder / supervisor.URL, _free_url())
        self._begin(shape.size)
        self._await_joined(shape, sockets)

    def _begin(self, size: int) -> None:
        """Start the supervisor; it goes on by itself once it listens."""
        log = self._log(SUPERVISOR)
        with open(log, "ab") as out:
            try:
                began = subprocess.run(
                    [*command("gateway.cluster.supervisor"), str(self.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    timeout=UP_S + UP_EACH_S * size,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"the supervisor is not ready: {last_of(log)}") from None
        if began.returncode:
            raise HeadgateError(f"the supervisor could not start: {last_of(log)}")

    def _await_joined(self, shape: Shape, sockets: Path) -> None:
        until = time.monotonic() + UP_S + UP_EACH_S * shape.size
        missing = ""
        while time.monotonic() < until:
            members = self.status()
            if not members:
                raise HeadgateError(f"the supervisor has ended: {last_of(self._log(SUPERVISOR))}")
            if self._moved(members):
                continue
            self._check_failed(members)
            waits = [member.name for member in members if member.state != "running"]
            missing = ", ".join(waits[:8]) or _missing(f"local://{sockets}/local-0", shape.size)
            if not missing:
                return
            time.sleep(_STEP_S)
        raise TimeoutError(f"not there yet: {missing}; `headgate cluster logs RANK` may tell why")

    def _moved(self, members: Sequence[Member]) -> bool:
        """Give the gateway another port when somebody was faster to take the one that was free."""
        ended = any(member.name == "gateway" and member.state == "exited" for member in members)
        if not ended or IN_USE not in last_of(self._log("gateway")):
            return False
        _keep(self.folder / supervisor.URL, _free_url())
        self._ask("move")
        return True

    def _check_failed(self, members: Sequence[Member]) -> None:
        """Raises HeadgateError when somebody has ended before all were there."""
        for member in members:
            if member.state == "exited":
                said = last_of(self._log(member.name))
                raise HeadgateError(
                    f"{member.name}: {member.why or 'has ended'}" + (f": {said}" if said else "")
                )

    def down(self) -> None:
        """See ``Engine.down``."""
        sockets = Path(state.load(self.folder).sockets)
        with contextlib.suppress(control.NotUp), control.connect(sockets / control.SOCKET, ANSWER_S) as sock:
            _end(sock)
        shutil.rmtree(sockets, ignore_errors=True)

    # -- looking -------------------------------------------------------------------------------

    def status(self) -> list[Member]:
        """See ``Engine.status``."""
        try:
            members = self._ask("status")["members"]
        except control.NotUp:
            return []
        return [Member(**member) for member in members]

    def access(self, *, login: bool = False) -> Access:
        """See ``Engine.access``."""
        saved = state.load(self.folder)
        url = _kept(self.folder / supervisor.URL)
        more: list[str] = []
        if saved.shape.nfp:
            nfp, base = shlex.quote(f"ipc://{saved.sockets}/nfp"), shlex.quote(str(self.folder / "nfp"))
            broker = f"--broker {nfp} --base-dir {base}"
            more += [f"headgate nfp worker FILE.py {broker}", f"headgate nfp run SERVICE TASK {broker}"]
        if saved.shape.oslo:
            folder = quote(f"{saved.sockets}/oslo", safe="")
            more.append(f"transport_url = zmq:///?rpc_zmq_ipc_dir={folder}")
        return Access(
            uri=f"local://{saved.sockets}/local-0",
            url=url,
            login=self._login(url) if login and url else "",
            token=_kept(self.folder / TOKEN),
            more=tuple(more),
        )

    def _login(self, url: str) -> str:
        """A link for the owner, on this machine."""
        with contextlib.closing(Store(self.folder / supervisor.GATEWAY)) as store:
            return link_url(url, add_link(store, "owner", seconds=LOGIN_S, loopback_only=True))

    def logs(self, rank: int | None, follow: bool = False) -> Iterator[str]:
        """See ``Engine.logs``."""
        saved = state.load(self.folder)
        shape, path = saved.shape, Path(saved.sockets) / control.SOCKET
        if rank is None and not shape.gateway:
            raise Unsupported(f"cluster {shape.name} has no gateway")
        log = self._log("gateway" if rank is None else f"rank-{shape.check(rank)}")
        return lines_of(log, lambda: follow and control.listens(path))

    def _log(self, name: str) -> Path:
        return self.folder / state.LOGS / f"{name}.log"

    # -- faults --------------------------------------------------------------------------------

    def kill(self, rank: int, *, stay: bool = False) -> None:
        """See ``Engine.kill``."""
        self._ask("kill", rank=rank, stay=stay)

    def start(self, rank: int) -> None:
        """See ``Engine.start``."""
        self._ask("start", rank=rank)

    def pause(self, rank: int) -> None:
        """See ``Engine.pause``."""
        self._ask("pause", rank=rank)

    def resume(self, rank: int) -> None:
        """See ``Engine.resume``."""
        self._ask("resume", rank=rank)

    def partition(self, ranks: Sequence[int]) -> None:
        """See ``Engine.partition``."""
        self._ask("partition", ranks=list(ranks))

    def heal(self) -> None:
        """See ``Engine.heal``."""
        self._ask("heal")

    def _ask(self, verb: str, **words: Any) -> dict[str, Any]:
        path = Path(state.load(self.folder).sockets) / control.SOCKET
        with control.connect(path, ANSWER_S) as sock:
            return control.ask(sock, do=verb, **words)


class Namespaces(Processes):
    """The same with a network namespace for each rank, whose links the kernel cuts; for root."""

    name = "namespaces"


# ---------------------------------------------------------------- parts of it


def _short(sockets: Path, shape: Shape) -> Path:
    """``sockets`` itself.

    Raises:
        ConfigError: the paths of sockets in it would be too long.
    """
    paths = [f"{sockets}/local-{shape.size - 1}", f"{sockets}/{supervisor.READY_WEB}"]
    longest = max(paths, key=len)
    if len(os.fsencode(longest)) > UNIX_PATH_BYTES:
        raise ConfigError(
            f"{longest}: more than {UNIX_PATH_BYTES} bytes, too long for a socket; a shorter $XDG_RUNTIME_DIR helps"
        )
    return sockets


def _missing(uri: str, size: int) -> str:
    """What rank 0 still waits for; "" when the whole tree has joined."""
    try:
        with blocking.connect(uri, retries=0) as handle:
            online = handle.rpc("groups.get", {"name": "broker.online"}, timeout_s=ANSWER_S).json()["members"]
            now = handle.rpc("state-machine.get", timeout_s=ANSWER_S).json()["state"]
    except (HeadgateError, TimeoutError) as error:
        return f"rank 0 ({error})"
    everybody = "0" if size == 1 else f"0-{size - 1}"
    if online != everybody:
        return f"ranks {everybody} without {online or 'any'}"
    return "" if now == "run" else f"rank 0 (state {now})"


def _end(sock: socket.socket) -> None:
    """Have the supervisor end everything; it is killed when it does not, and its members die with it."""
    try:
        gone = os.pidfd_open(control.peer_pid(sock))
    except ProcessLookupError:
        return  # it has just ended
    try:
        with contextlib.suppress(HeadgateError, TimeoutError):
            control.ask(sock, do="down")
        if not select.select([gone], [], [], DOWN_S)[0]:
            signal.pidfd_send_signal(gone, signal.SIGKILL)
            select.select([gone], [], [], ANSWER_S)
    finally:
        os.close(gone)


def _free_url() -> str:
    """The first of the gateway's usual ports on the loopback that nobody listens on, else any."""
    for port in (*range(files.GATEWAY_PORT, files.GATEWAY_PORT + PORTS), 0):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            return f"http://127.0.0.1:{sock.getsockname()[1]}"
    raise HeadgateError("no free port for the gateway on 127.0.0.1")


def _keep(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _kept(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    return ""
