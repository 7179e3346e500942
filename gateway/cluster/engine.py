"""What runs the members of a cluster, and which of the ways to do so this machine has.

``processes``   every member is a process of this user; links pass relays that can be cut
``namespaces``  every broker has a network namespace of its own (root only)
``podman``, ``docker``  every member is a container
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from broker.errors import ConfigError, HeadgateError
from gateway.cluster.shape import Shape

ENGINES: Final = ("processes", "namespaces", "podman", "docker")
"""Names of the engines."""
ASK_S: Final = 10.0
"""How long a container engine may take to say whether it has an image."""

State = Literal["running", "paused", "partitioned", "exited", "starting"]
"""``starting``: it runs, and does not answer yet. ``paused`` goes before ``partitioned``."""


@dataclass(frozen=True)
class Member:
    """One process or container of a cluster.

    Attributes:
        name: ``rank-3``, ``gateway``, or what the engine calls others (``nfp``, ``redis``).
        rank: of a broker; None of anything else.
        state: see ``State``. It is the engine's view; what the tree thinks of a rank is for the tree to say.
        id: process id or container id as text; "" while there is none.
        uri: how clients on this machine reach it (``local:///...``, ``http://...``); "" when they cannot.
        since: seconds since 1970 of its last change of state, as the engine knows it.
        why: why it is in this state where that is not plain: ``exit code 78``, ``killed by SIGKILL``.
        restarts: how often it was started again by itself.
        said: what it last said of itself (STATUS of sd_notify(3)): ``rank 3 of 7, state run, ...``; "" nothing.
    """

    name: str
    rank: int | None
    state: State
    id: str
    uri: str
    since: float
    why: str = ""
    restarts: int = 0
    said: str = ""


@dataclass(frozen=True)
class Access:
    """How a person gets to a cluster that is up.

    Attributes:
        uri: FLUX_URI of rank 0; "" when it cannot be reached from this machine but through ``run``.
        url: of the dashboard; "" without a gateway.
        login: a one-time login link; "" when there is none.
        token: a bearer token for the dashboard; "" when there is none.
        run: words in front of ``headgate ...`` that run it where the brokers are (``podman exec NAME``); () is here.
        more: further lines for a person: where NFP and oslo.messaging listen.
    """

    uri: str = ""
    url: str = ""
    login: str = ""
    token: str = ""
    run: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


class Unsupported(HeadgateError):
    """This engine cannot do what was asked; the text says what and why."""

    fault = "operator"


class Engine(Protocol):
    """Runs the members of one cluster. Made with the cluster's state folder, in which it finds again what it needs:
    each verb of the command line is a process of its own, and makes its own object.

    All methods block. They raise ConfigError for a rank that is not there, `Unsupported` for what the engine cannot do,
    HeadgateError when the machinery failed, TimeoutError when it took too long.
    """

    def up(self, shape: Shape, folder: Path) -> None:
        """Start every member; returns when every rank has joined.

        Args:
            shape: of the cluster.
            folder: an existing private folder below the state folder; the engine has
                ``files.write`` put keys and settings into it, with the addresses that it needs.

        Raises:
            TimeoutError: not all ranks have joined in time; what was started goes on, see ``down``.
        """

    def down(self) -> None:
        """End every member, paused and partitioned ones, too, and remove what was made outside the state folder.

        Harmless twice, after a half of ``up``, and when everything has been killed behind our back.
        """

    def status(self) -> list[Member]:
        """All members, brokers by rank first. Empty when nothing is up."""

    def access(self, *, login: bool = False) -> Access:
        """How a person gets in; ``login`` has a login link made, where the engine can, so that each is asked for."""

    def kill(self, rank: int, *, stay: bool = False) -> None:
        """Kill a rank by SIGKILL. It is started again after a second unless ``stay``: then by ``start`` only."""

    def start(self, rank: int) -> None:
        """Start a rank that has exited; harmless when it runs."""

    def pause(self, rank: int) -> None:
        """Freeze a rank: its connections stay open, and nothing answers."""

    def resume(self, rank: int) -> None:
        """Let a paused rank go on; harmless when it is not paused."""

    def partition(self, ranks: Sequence[int]) -> None:
        """Cut ``ranks`` off from all others, silently: nothing is refused, nothing arrives.

        They are one side, everybody else is the other: within a side messages pass. Because of the tree, whoever is
        below a cut link is away from rank 0, too: ``partition([1])`` in a binary tree of 7 takes 1, 3 and 4 away.
        A second call replaces the first.
        """

    def heal(self) -> None:
        """End every partition; what was held back goes on where it can. Harmless without one."""

    def logs(self, rank: int | None, follow: bool = False) -> Iterator[str]:
        """The lines that a rank (None: the gateway) has written, without line ends, oldest first.

        Args:
            rank: whose.
            follow: wait for more, until the cluster is down or the caller stops.
        """


# ---------------------------------------------------------------- which one


def choose(
    name: str | None, image: str = "headgate", say: Callable[[str], object] = lambda _line: None
) -> str:
    """The engine to use: ``name``, or the first of podman, docker, namespaces, processes that can be used here.

    Args:
        name: one of ``ENGINES``, or None.
        image: containers are chosen only when the engine has it already.
        say: called once with which one it is and why.

    Raises:
        ConfigError: ``name`` is none, or cannot be used here; the text says why.
    """
    if name is not None:
        if name not in ENGINES:
            raise ConfigError(f"engine: saw {name[:32]!r}, expected one of {', '.join(ENGINES)}")
        if reason := missing(name, image):
            raise ConfigError(f"engine {name}: {reason}")
        say(f"engine: {name}, as asked")
        return name
    reasons: list[str] = []
    for candidate in ("podman", "docker", "namespaces"):
        reason = missing(candidate, image)
        if not reason:
            say(f"engine: {candidate}" + (f" ({'; '.join(reasons)})" if reasons else ""))
            return candidate
        reasons.append(f"no {candidate}: {reason}")
    say(f"engine: processes ({'; '.join(reasons)})")
    return "processes"


def missing(name: str, image: str) -> str:
    """Why the engine ``name`` cannot be used here; "" when it can."""
    if name in ("podman", "docker"):
        return _no_containers(name, image)
    return _no_namespaces() if name == "namespaces" else ""


def _no_namespaces() -> str:
    if os.geteuid() != 0:
        return "needs root"
    return "" if shutil.which("ip") else "the program ip (iproute2) is not there"


def _no_containers(program: str, image: str) -> str:
    found = shutil.which(program)
    if found is None:
        return "the program is not there"
    try:
        seen = subprocess.run(
            [found, "image", "inspect", "--format", "{{.Id}}", image],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not answer ({type(error).__name__})"
    if seen.returncode == 0:
        return _no_compose(program)
    said = seen.stderr.decode(errors="replace").strip().splitlines()
    return f"no image {image} ({said[-1][:120] if said else f'exit code {seen.returncode}'})"


def _no_compose(program: str) -> str:
    from gateway.cluster.containers import compose_command

    try:
        compose_command(program)
    except ConfigError as error:
        return str(error).removeprefix(f"{program}: ")
    return ""


def make(name: str, folder: Path) -> Engine:
    """The engine ``name`` for the cluster with this state folder.

    Raises:
        ConfigError: no such engine.
    """
    if name in ("podman", "docker"):
        from gateway.cluster.containers import Containers

        return Containers(name, folder)
    from gateway.cluster.processes import Namespaces, Processes

    engines = {engine.name: engine for engine in (Processes, Namespaces)}
    if name not in engines:
        raise ConfigError(f"engine: saw {name[:32]!r}, expected one of {', '.join(ENGINES)}")
    return engines[name](folder)
