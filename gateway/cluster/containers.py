"""The engines podman and docker: every member of a cluster is a container, started from a compose file.

``up`` writes the compose file of the shape into the state folder and hands it to ``docker compose``, ``podman compose``
or ``podman-compose``. All else asks the engine itself, about what carries our label with the name of the cluster, so
that it works whatever became of the file and touches no other project of that name. Keys are made by the service
``init`` in a volume, not in this machine's folder.

A partition takes containers off the network of the tree. They meet again in a network of their own, where they find
each other by the same names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.errors import ConfigError, HeadgateError
from gateway.cluster import compose, inspection, state
from gateway.cluster.engine import Access, Member, Unsupported
from gateway.cluster.shape import Shape

PROJECT: Final = "com.docker.compose.project"
"""Label that compose sets: the name of the project, ours is the cluster's. Networks and volumes have it as well."""
_LISTS: Final = {
    "container": ("ps", "--all", "--quiet", "--no-trunc"),
    "network": ("network", "ls", "--quiet"),
    "volume": ("volume", "ls", "--quiet"),
}
"""What there is of each kind, as far as it carries the label that is asked for: one, for podman 4.3 takes a volume that
has any of several."""
ISLAND: Final = "island"
"""The network of those who are cut off."""
RESTART_S: Final = 1.0
"""Until a killed rank is started again: engines leave alone what they were told to kill."""
ASK_S: Final = 60.0
UP_S: Final = 600.0
"""How long the engine may take for one thing, and compose to start everything."""
_LOOK_S: Final = 0.5


class Containers:
    """See ``engine.Engine``.

    Args:
        program: ``podman`` or ``docker``.
        folder: the state folder of the cluster, whose name is that of the project.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.folder = Path(folder)
        self.name = self.folder.name

    # -- up and down ---------------------------------------------------------------------------

    def up(self, shape: Shape, folder: Path) -> None:
        """As ``Engine.up``; ``folder`` stays empty: the keys are made where the members read them.

        Raises:
            ConfigError: there is no compose for this engine, or another project has this name. HeadgateError: it
                failed. TimeoutError: ranks are missing.
        """
        command = compose_command(self.program)
        self._check_name()
        file = self._write(shape)
        environ = os.environ | {"HEADGATE_IMAGE": shape.image, "HEADGATE_PORT": str(self._port())}
        words = [*command, "--project-name", self.name, "--file", str(file), "up", "--detach"]
        _output(words, UP_S, environ)
        self._wait_joined(shape, 60.0 + 2.0 * shape.size)

    def down(self) -> None:
        """As ``Engine.down``."""
        with contextlib.suppress(HeadgateError):  # none of these containers, or none paused
            self._ask(
                "unpause", *(seen["Id"] for seen in self._inspected() if inspection.status(seen) == "paused")
            )
        if ids := self._ids():
            with contextlib.suppress(HeadgateError):  # nothing of theirs is kept, so no time to drain
                self._ask("kill", "--signal", "KILL", *ids)
            self._ask("rm", "--force", "--volumes", *ids)
        if self.program == "podman":  # podman-compose puts them into a pod
            self._remove_pod(f"pod_{self.name}")
        for kind in ("network", "volume"):
            if found := self._labelled(kind, compose.LABEL):
                self._ask(kind, "rm", *found)

    def _remove_pod(self, pod: str) -> None:
        """Only an empty one: with others podman removes the containers in it that have ended."""
        with contextlib.suppress(HeadgateError):
            if not self._ask("ps", "--all", "--quiet", "--filter", f"pod={pod}").split():
                self._ask("pod", "rm", pod)

    def _check_name(self) -> None:
        """Compose would take over what another project of our name has.

        Raises:
            ConfigError: there is one.
        """
        for kind in _LISTS:
            ours = self._labelled(kind, compose.LABEL)
            if others := [each for each in self._labelled(kind, PROJECT) if each not in ours]:
                raise ConfigError(
                    f"{self.program} has a {kind} ({others[0][:40]}) of another project {self.name}, which `headgate "
                    "cluster up` has not made; another --name is needed"
                )

    def _write(self, shape: Shape) -> Path:
        """The compose file and what it mounts."""
        file, tasks = self.folder / compose.FILE, self.folder / compose.TASKS
        try:
            tasks.parent.mkdir(exist_ok=True)
            for path, text in ((file, compose.render(shape, labelled=True)), (tasks, compose.TASKS_PY)):
                path.write_text(text, encoding="utf-8")
                path.chmod(0o644)  # the workers' user is not ours
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}", error.errno) from error
        return file

    def _port(self) -> int:
        """Where the dashboard is published: where it is already, the usual port, or a free one."""
        for seen in self._inspected():
            if published := inspection.published(seen):
                return published
        for port in (compose.GATEWAY_PORT, 0):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
        raise HeadgateError("no free port on 127.0.0.1 for the dashboard")

    def _wait_joined(self, shape: Shape, timeout_s: float) -> None:
        """Until rank 0 says that everybody below it is there."""
        end = time.monotonic() + timeout_s
        said = "rank 0 does not run"
        while time.monotonic() < end:
            try:
                tree = msgspec.json.decode(
                    self._ask("exec", self._id("broker-0"), "headgate", "status", "--json")
                )["tree"]
                if tree["status"] == "full":
                    return
                said = f"rank 0 says {tree['status']}"
            except (HeadgateError, msgspec.MsgspecError, KeyError, TypeError) as error:
                said = str(error)
            time.sleep(_LOOK_S)
        raise TimeoutError(f"not all of {shape.size} ranks joined within {timeout_s:.0f} s: {said}")

    # -- what there is -------------------------------------------------------------------------

    def status(self) -> list[Member]:
        """As ``Engine.status``; without ``init``, which ends once it has done its work."""
        members = [
            inspection.member_of(seen, self.name)
            for seen in self._inspected()
            if inspection.service(seen) != "init"
        ]
        return sorted(members, key=lambda member: (member.rank is None, member.rank or 0, member.name))

    def access(self, *, login: bool = False) -> Access:
        """As ``Engine.access``: the token that ``init`` printed when it made the keys, so no login link is needed."""
        found = {inspection.service(seen): seen for seen in self._inspected()}
        root = found.get("broker-0")
        if root is None:
            raise HeadgateError(f"{self.name}: no container of rank 0")
        port = inspection.published(found["gateway"]) if "gateway" in found else 0
        token = inspection.token_in(self._ask("logs", found["init"]["Id"])) if "init" in found else ""
        return Access(
            url=f"http://127.0.0.1:{port}" if port else "",
            token=token,
            run=(self.program, "exec", str(root["Name"]).lstrip("/")),
        )

    def logs(self, rank: int | None, follow: bool = False) -> Iterator[str]:
        """As ``Engine.logs``."""
        container = self._id("gateway" if rank is None else self._named(rank))
        words = [_path(self.program), "logs", *(["--follow"] if follow else []), container]
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as running:
            assert running.stdout is not None
            try:
                for line in running.stdout:
                    yield line.rstrip("\n")
            finally:
                running.terminate()

    # -- faults --------------------------------------------------------------------------------

    def kill(self, rank: int, *, stay: bool = False) -> None:
        """As ``Engine.kill``; blocks until it is started again."""
        container = self._id(self._named(rank))
        self._ask("kill", "--signal", "KILL", container)
        if not stay:
            time.sleep(RESTART_S)
            self._ask("start", container)

    def start(self, rank: int) -> None:
        """As ``Engine.start``."""
        self._ask("start", self._id(self._named(rank)))

    def pause(self, rank: int) -> None:
        """As ``Engine.pause``; harmless when it is paused."""
        seen = self._seen(self._named(rank))
        if inspection.status(seen) != "paused":
            self._ask("pause", seen["Id"])

    def resume(self, rank: int) -> None:
        """As ``Engine.resume``."""
        seen = self._seen(self._named(rank))
        if inspection.status(seen) == "paused":
            self._ask("unpause", seen["Id"])

    def partition(self, ranks: Sequence[int]) -> None:
        """As ``Engine.partition``. Addresses change with the network, so that links inside are made anew."""
        wanted = {self._named(rank) for rank in ranks}
        there = {name: seen for name, seen in self._brokers().items() if name in wanted}
        if paused := sorted(name for name, seen in there.items() if inspection.status(seen) == "paused"):
            raise Unsupported(f"{', '.join(paused)}: networks of a paused container cannot be changed")
        self._join(
            {name: seen for name, seen in self._brokers().items() if name not in wanted},
            inspection.TREE,
            ISLAND,
        )
        if there:
            self._make_island()
        self._join(there, ISLAND, inspection.TREE)

    def heal(self) -> None:
        """As ``Engine.heal``."""
        self._join(self._brokers(), inspection.TREE, ISLAND)

    def _join(self, containers: Mapping[str, Mapping[str, Any]], to: str, away: str) -> None:
        """Put containers into one network under their host names, and out of the other."""
        for seen in containers.values():
            networks = inspection.networks(seen)
            if self._network(to) not in networks:
                alias = str(seen["Config"]["Hostname"])
                self._ask("network", "connect", "--alias", alias, self._network(to), seen["Id"])
            if self._network(away) in networks:
                self._ask("network", "disconnect", self._network(away), seen["Id"])

    def _make_island(self) -> None:
        name = self._network(ISLAND)
        if name not in self._ask("network", "ls", "--format", "{{.Name}}").split():
            self._ask("network", "create", "--label", f"{compose.LABEL}={self.name}", name)

    def _network(self, name: str) -> str:
        return f"{self.name}_{name}"

    # -- the engine ----------------------------------------------------------------------------

    def _named(self, rank: int) -> str:
        return f"broker-{state.load(self.folder).shape.check(rank)}"

    def _ids(self) -> list[str]:
        return self._labelled("container", compose.LABEL)

    def _labelled(self, kind: str, label: str) -> list[str]:
        """Ids or names of what has this label with our name."""
        return self._ask(*_LISTS[kind], "--filter", f"label={label}={self.name}").split()

    def _inspected(self) -> list[dict[str, Any]]:
        ids = self._ids()
        if not ids:
            return []
        return msgspec.json.decode(
            self._ask("inspect", "--type", "container", *ids), type=list[dict[str, Any]]
        )

    def _brokers(self) -> dict[str, dict[str, Any]]:
        found = {inspection.service(seen): seen for seen in self._inspected()}
        return {name: seen for name, seen in found.items() if inspection.rank_of(name) is not None}

    def _seen(self, service: str) -> dict[str, Any]:
        for seen in self._inspected():
            if inspection.service(seen) == service:
                return seen
        raise HeadgateError(f"{self.name}: no container of {service}; `headgate cluster up` makes it")

    def _id(self, service: str) -> str:
        return str(self._seen(service)["Id"])

    def _ask(self, *words: str) -> str:
        """What the engine answers."""
        return _output([_path(self.program), *words], ASK_S)


# ---------------------------------------------------------------- programs


def compose_command(program: str) -> list[str]:
    """The words that run compose for an engine: its own plugin, or the program podman-compose.

    Raises:
        ConfigError: there is none.
    """
    engine = _path(program)
    if program == "podman":  # its plugin is a wrapper around one of two others
        if found := shutil.which("podman-compose"):
            return [found]
        if importlib.util.find_spec("podman_compose") is not None:
            return [sys.executable, "-m", "podman_compose"]
    with contextlib.suppress(HeadgateError):
        _output([engine, "compose", "version"], ASK_S)
        return [engine, "compose"]
    hint = "pip install podman-compose" if program == "podman" else "docker's plugin compose"
    raise ConfigError(f"{program}: no compose for it, expected {hint}")


def _path(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ConfigError(f"{program}: the program is not there")
    return path


def _output(words: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """What a command writes to its output.

    Raises:
        HeadgateError: it failed; with the end of what it said.
    """
    name = f"{Path(words[0]).name} {words[1]}"
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, env=environ, check=False
        )
    except OSError as error:
        raise HeadgateError(f"{words[0]}: {error.strerror}", error.errno) from error
    except subprocess.TimeoutExpired:
        raise HeadgateError(f"{name}: no answer within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        said = " / ".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])
        raise HeadgateError(f"{name}: {said or f'exit code {done.returncode}'}")
    return done.stdout.decode(errors="replace")
