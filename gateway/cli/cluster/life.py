"""``headgate cluster init|up|down|ls``: from nothing to a cluster, and back."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen, duration
from broker.errors import ConfigError, print_error
from gateway.cli.cluster import telling
from gateway.cli.cluster.which import NAME, Cluster, Name, find
from gateway.cluster import files, state
from gateway.cluster.engine import choose, make
from gateway.cluster.shape import Shape
from gateway.cluster.state import KEYS

DEFAULT: Final = Shape(NAME, 7)
CONTAINERS: Final = ("podman", "docker")
"""Engines that know their members by the name of the cluster alone."""
HELD_S: Final = 30.0
"""How long `down` waits for an `up` of the same cluster to give up."""

Size = Annotated[int, typer.Option("--size", "-s", metavar="N", help="How many brokers.")]
Fanout = Annotated[int, typer.Option("--fanout", metavar="K", help="Children a broker may have (kary:K).")]
Nfp = Annotated[bool, typer.Option("--nfp", help="And a broker of NFP.")]
Oslo = Annotated[bool, typer.Option("--oslo", help="And a node proxy for oslo.messaging.")]
Bare = Annotated[bool, typer.Option("--no-gateway", help="Brokers only: no gateway, no dashboard.")]


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where keys and settings go (mode 0700).")],
    size: Size = DEFAULT.size,
    fanout: Fanout = DEFAULT.fanout,
    host_pattern: Annotated[
        str,
        typer.Option(
            "--host-pattern", metavar="P", help="Host name of a rank; {rank} stands for its number."
        ),
    ] = DEFAULT.host_pattern,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="Where brokers listen for their children.")
    ] = DEFAULT.port,
    client_port: Annotated[
        int,
        typer.Option("--client-port", metavar="PORT", help="And for clients with CURVE keys; 0: not at all."),
    ] = DEFAULT.client_port,
    userid: Annotated[
        int | None,
        typer.Option(
            "--userid", metavar="UID", help="Of gateway and operator. Default: that of this process."
        ),
    ] = None,
    nfp: Nfp = False,
    oslo: Oslo = False,
    bare: Bare = False,
    renew: Annotated[bool, typer.Option("--renew", help="Replace every key and file that is there.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Write keys and settings of a cluster into a folder, for members that run elsewhere: containers, machines.

    What is there stays, so that it may run at every start; a larger --size adds ranks. All ranks read the same
    broker.toml; settings above the mark in it are yours. The bearer token of the user operator is printed once: the
    folder keeps its hash.
    """
    shape = Shape(NAME, size, fanout, port, client_port, not bare, nfp, oslo, host_pattern=host_pattern)
    written = files.write(shape, folder, renew=renew, userid=userid)
    value = {
        "folder": str(written.folder),
        "made": list(written.made),
        "kept": list(written.kept),
        "token": written.token or None,
        "keys": dict(written.keys),
    }
    screen = Screen(as_json)
    screen.record(value, f"{written.folder}: {len(written.made)} files made, {len(written.kept)} kept")
    if written.token and not as_json:
        screen.line(f"token of the operator, shown this once: {written.token}")
    return OK


def up(
    size: Size = DEFAULT.size,
    fanout: Fanout = DEFAULT.fanout,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            "-e",
            metavar="ENGINE",
            help="podman, docker, namespaces or processes. Default: the first of these that can be used here.",
        ),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", metavar="IMAGE", help="Of the containers.")
    ] = DEFAULT.image,
    nfp: Nfp = False,
    oslo: Oslo = False,
    bare: Bare = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Stay until Ctrl-C, then take everything down.")
    ] = False,
    name: Name = NAME,
    as_json: options.AsJson = False,
) -> int:
    """Start a cluster; returns when every broker has joined the tree.

    Prints the tree, FLUX_URI for the client verbs, and a link to the dashboard.
    """
    shape = Shape(name, size, fanout, gateway=not bare, nfp=nfp, oslo=oslo, image=image)
    chosen = choose(engine, image, print_error)
    began = time.monotonic()
    with state.held(name):
        cluster = _fresh(shape, chosen)
        try:
            cluster.engine.up(shape, cluster.folder / KEYS)
            _told(cluster, time.monotonic() - began, as_json)
        except BaseException:
            _end(cluster)
            raise
    if wait:
        try:
            _until_told()
        finally:
            _taken_down(cluster)
    return OK


def _fresh(shape: Shape, engine: str) -> Cluster:
    """A cluster that is about to come up; what is left of one that is not up any more is removed.

    Raises:
        ConfigError: it is up, or there is one of this name that another state folder knows.
    """
    folder = state.folder_of(shape.name)
    if shape.name in state.names():
        old = find(shape.name)
        if old.engine.status():
            raise ConfigError(
                f"cluster {shape.name} is up already; `headgate cluster down --name {shape.name}` ends it, "
                "another --name starts a second one"
            )
        _end(old)
    made = make(engine, folder)
    if engine in CONTAINERS and made.status():  # a failed start would remove all of it
        raise ConfigError(
            f"{engine} has containers of a cluster {shape.name} that is not in {folder.parent}; "
            "another --name is needed"
        )
    saved = state.new(shape, engine)
    state.save(folder, saved)
    return Cluster(folder, saved, made)


def _told(cluster: Cluster, seconds: float, as_json: bool) -> None:
    shape = cluster.saved.shape
    members = cluster.engine.status()
    access = cluster.engine.access(login=True)
    screen = Screen(as_json)
    if as_json:
        screen.value(
            {
                "name": shape.name,
                "engine": cluster.saved.engine,
                "seconds": round(seconds, 3),
                "members": [dataclasses.asdict(member) for member in members],
                "access": dataclasses.asdict(access),
            }
        )
        return
    brokers = f"{shape.size} brokers" if shape.size > 1 else "one broker"
    screen.line(f"{shape.name}: {brokers} up after {seconds:.1f} s ({cluster.saved.engine})", "bold")
    for line in [*telling.drawn(shape, members), *telling.lines_of(access)]:
        screen.line(line)


def _until_told() -> None:
    """Until SIGINT, SIGTERM or SIGHUP."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    print("Ctrl-C takes it down", flush=True)
    signal.sigwait(wanted)


def down(
    name: Name = NAME,
    every: Annotated[bool, typer.Option("--all", help="Every cluster of this user.")] = False,
) -> int:
    """End a cluster and remove everything that belongs to it."""
    for each in state.names() if every else [name]:
        _taken_down(find(each))
    return OK


def _taken_down(cluster: Cluster) -> None:
    """End a cluster, be it still on its way up: whoever waits for it there is told, and makes room.

    Harmless when somebody else has ended it, and to another one that has its name by now.
    """
    name = cluster.saved.shape.name
    try:
        with state.held(name):
            _end_if_there(cluster)
    except state.Held:
        if _is_there(cluster):
            cluster.engine.down()
        with state.held(name, wait_s=HELD_S):
            _end_if_there(cluster)


def _end_if_there(cluster: Cluster) -> None:
    if _is_there(cluster):
        _end(cluster)


def _is_there(cluster: Cluster) -> bool:
    name = cluster.saved.shape.name
    return name in state.names() and find(name).saved == cluster.saved


def _end(cluster: Cluster) -> None:
    cluster.engine.down()
    state.remove(cluster.folder)


def ls(as_json: options.AsJson = False) -> int:
    """List the clusters of this user."""
    values = []
    for each in state.names():
        cluster = find(each)
        members = cluster.engine.status()
        values.append(
            {
                "name": each,
                "engine": cluster.saved.engine,
                "size": cluster.saved.shape.size,
                "members": len(members),
                "running": sum(member.state == "running" for member in members),
                "made": cluster.saved.made,
            }
        )
    screen = Screen(as_json)
    if not values and not as_json:
        screen.line("no clusters; `headgate cluster up` makes one")
        return OK
    rows = [
        (
            str(value["name"]),
            str(value["engine"]),
            str(value["size"]),
            f"{value['running']} of {value['members']}" if value["members"] else "none",
            duration(max(0.0, time.time() - float(str(value["made"])))),
        )
        for value in values
    ]
    screen.records(("name", "engine", "size", "running", "for"), values, rows)
    return OK


VERBS: Final[dict[str, Callable[..., int]]] = {"init": init, "up": up, "down": down, "ls": ls}
"""Verb -> what does it."""
