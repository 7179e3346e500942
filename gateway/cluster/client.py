"""A cluster as the verbs see it: its supervisor, which outlives the verb that started it, is asked and waited for."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from broker.endpoints import too_long
from broker.errors import ConfigError, HeadgateError
from broker.interpreter import command
from gateway.cluster import control, files, relays, state, supervisor
from gateway.cluster.members import Member
from gateway.cluster.shape import Shape
from gateway.identity.login import add_link, link_url
from gateway.identity.store import Store

ANSWER_S: Final = 10.0
"""How long the supervisor may take for an answer."""
DOWN_S: Final = 30.0
"""How long it may take to end everything, before it is killed and its members with it."""
LOGIN_S: Final = 3600.0
SUPERVISOR: Final = "supervisor"
"""Name of its log."""
_FOLLOW_S: Final = 0.2
"""How often a log is looked at for more."""


@dataclass(frozen=True)
class Access:
    """How a person gets to a cluster that is up.

    Attributes:
        uri: FLUX_URI of rank 0.
        url: of the dashboard; "" without a gateway.
        login: a one-time login link; "" when there is none.
        token: a bearer token for the dashboard; "" when there is none.
        more: further lines for a person: where NFP and oslo.messaging listen.
    """

    uri: str
    url: str = ""
    login: str = ""
    token: str = ""
    more: tuple[str, ...] = ()


class Cluster:
    """A cluster that was made, up or not.

    All methods block. They raise HeadgateError when the machinery failed, TimeoutError when it took too long.

    Args:
        folder: its state folder.
        saved: what is known of it.
    """

    def __init__(self, folder: Path, saved: state.Saved) -> None:
        self.folder = folder
        self.saved = saved
        self._sockets = Path(saved.sockets)

    @property
    def shape(self) -> Shape:
        """Of its tree."""
        return self.saved.shape

    @property
    def uri(self) -> str:
        """FLUX_URI of rank 0."""
        return f"local://{self._sockets}/local-0"

    # -- up and down ---------------------------------------------------------------------------

    def up(self) -> None:
        """Start every member; returns when every rank has joined.

        Raises:
            HeadgateError: somebody has ended before. TimeoutError: not all ranks have joined in time. What was started
                goes on, see ``down``.
        """
        shape = self.shape
        check_paths(self._sockets, shape)
        written = files.write(
            dataclasses.replace(shape, client_port=0),  # one for each would not fit on one machine
            self.folder / state.KEYS,
            addresses=relays.addresses(shape, self._sockets),
            binds=relays.binds(shape, self._sockets),
        )
        self.saved = dataclasses.replace(self.saved, token=written.token)
        state.save(self.folder, self.saved)
        with open(self._log(SUPERVISOR), "ab") as log:
            process = subprocess.Popen(
                [*command("gateway.cluster.supervisor"), str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdout is not None
        try:
            with process.stdout as out:
                line = out.readline()
        except BaseException:
            process.terminate()  # it may not listen to verbs yet
            process.wait()
            raise
        if not line:
            process.wait()
            raise HeadgateError(f"the supervisor has ended: {supervisor.last_line(self._log(SUPERVISOR))}")
        process.returncode = 0  # it goes on, and nobody here waits for it
        control.checked(line)

    def down(self) -> None:
        """End every member, and remove what was made outside the state folder.

        Harmless twice, after a half of ``up``, and when everything has been killed behind our back.
        """
        path = self._sockets / control.SOCKET
        with contextlib.suppress(control.NotUp), control.connect(path, ANSWER_S) as sock:
            end_supervisor(sock)
        shutil.rmtree(self._sockets, ignore_errors=True)

    # -- looking, and faults -------------------------------------------------------------------

    def status(self) -> list[Member]:
        """All members, brokers by rank first. Empty when it is not up."""
        try:
            return [Member(**member) for member in self.ask("status")["members"]]
        except control.NotUp:
            return []

    def ask(self, verb: str, ranks: Sequence[int] = (), **more: bool) -> dict[str, Any]:
        """Have the supervisor do something, see ``supervisor.Supervisor.do``; returns what it answers.

        Raises:
            ConfigError: no such rank. control.NotUp: it is not up.
        """
        with control.connect(self._sockets / control.SOCKET, ANSWER_S) as sock:
            return control.ask(sock, do=verb, ranks=list(ranks), **more)

    def access(self, *, login: bool = False) -> Access:
        """How a person gets in; ``login`` has a login link made."""
        sockets = self._sockets
        url = next((member.uri for member in self.status() if member.name == supervisor.GATEWAY), "")
        more: list[str] = []
        if self.shape.nfp:
            nfp, base = shlex.quote(f"ipc://{sockets}/nfp"), shlex.quote(str(self.folder / "nfp"))
            broker = f"--broker {nfp} --base-dir {base}"
            more += [f"headgate nfp worker FILE.py {broker}", f"headgate nfp run SERVICE TASK {broker}"]
        if self.shape.oslo:
            folder = quote(f"{sockets}/oslo", safe="")
            more.append(f"transport_url = zmq:///?rpc_zmq_ipc_dir={folder}")
        link = self._login(url) if login and url else ""
        return Access(self.uri, url, link, self.saved.token, tuple(more))

    def _login(self, url: str) -> str:
        """A link for the owner, on this machine."""
        with contextlib.closing(Store(self.folder / supervisor.GATEWAY)) as store:
            return link_url(url, add_link(store, "owner", seconds=LOGIN_S, loopback_only=True))

    def logs(self, rank: int | None, follow: bool = False) -> Iterator[str]:
        """The lines that a rank (None: the gateway) has written, without line ends, oldest first.

        Args:
            rank: whose.
            follow: wait for more, until the cluster is down or the caller stops.

        Raises:
            ConfigError: there is no such rank, or no gateway.
        """
        if rank is None and not self.shape.gateway:
            raise ConfigError(f"cluster {self.shape.name} has no gateway")
        log = self._log("gateway" if rank is None else f"rank-{self.shape.check(rank)}")
        return lines_of(log, lambda: follow and control.listens(self._sockets / control.SOCKET))

    def _log(self, name: str) -> Path:
        return self.folder / state.LOGS / f"{name}.log"


# ---------------------------------------------------------------- parts of up and down


def check_paths(sockets: Path, shape: Shape) -> None:
    """Whether there is room for the sockets' paths.

    Raises:
        ConfigError: they would be too long.
    """
    paths = [f"{sockets}/local-{shape.size - 1}", f"{sockets}/{supervisor.READY_WEB}"]
    longest = max(paths, key=len)
    if shorter := too_long(longest):
        raise ConfigError(f"{longest}: expected {shorter}")


def end_supervisor(sock: socket.socket) -> None:
    """Have the supervisor end everything; it is killed when it does not, and its members die with it."""
    try:
        process = os.pidfd_open(control.peer_pid(sock))
    except ProcessLookupError:
        return  # it has just ended
    try:
        with contextlib.suppress(HeadgateError, TimeoutError):
            control.ask(sock, do="down")
        if not select.select([process], [], [], DOWN_S)[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], ANSWER_S)
    finally:
        os.close(process)


# ---------------------------------------------------------------- logs


def lines_of(path: Path, more: Callable[[], bool]) -> Iterator[str]:
    """The lines of ``path``, without line ends; an unfinished last line at the end, too. None without such a file.

    Args:
        path: of the file.
        more: asked at the end of the file: whether to wait for more of it.
    """
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below, by the generator
    except FileNotFoundError:
        return
    with file:
        part = ""
        while True:
            part += file.readline()
            if part.endswith("\n"):
                yield part[:-1]
                part = ""
            elif more():
                time.sleep(_FOLLOW_S)
            else:
                break
        if part:
            yield part
