"""``headgate cluster up|down``: from nothing to a cluster, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from broker.errors import ConfigError, HeadgateError
from gateway.cli.cluster import drawing
from gateway.cli.cluster.shared_options import DEFAULT, NAME, Bare, Fanout, Name, Nfp, Oslo, Size, find
from gateway.cluster import state
from gateway.cluster.client import Cluster
from gateway.cluster.shape import Shape

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Each takes down a cluster that is waited for."""
HELD_S: Final = 30.0
"""How long `down` waits for an `up` of the same cluster to give up."""


def up(
    size: Size = DEFAULT.size,
    fanout: Fanout = DEFAULT.fanout,
    nfp: Nfp = False,
    oslo: Oslo = False,
    bare: Bare = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Stay until Ctrl-C, then take everything down; at once when it comes twice."
        ),
    ] = False,
    name: Name = NAME,
    as_json: options.AsJson = False,
) -> int:
    """Start a cluster of processes; returns when every broker has joined the tree.

    Prints the tree, FLUX_URI for the client verbs, and a link to the dashboard. For containers see `compose`.
    """
    shape = Shape(name, size, fanout, gateway=not bare, nfp=nfp, oslo=oslo)
    began = time.monotonic()
    with state.held(name):
        cluster = _new(shape)
        try:
            cluster.up()
            _show(cluster, time.monotonic() - began, as_json)
        except BaseException:
            _end(cluster)
            raise
    if wait:
        try:
            _wait_for_signal()
        finally:
            with _at_once_on_signals(cluster):
                _take_down(cluster)
    return OK


def _new(shape: Shape) -> Cluster:
    """A cluster that is about to come up; what is left of one that is not up any more is removed.

    Raises:
        ConfigError: it is up.
    """
    if shape.name in state.names():
        old = find(shape.name)
        if old.status():
            raise ConfigError(
                f"cluster {shape.name} is up already; `headgate cluster down --name {shape.name}` ends it, "
                "another --name starts a second one"
            )
        _end(old)
    folder, saved = state.folder_of(shape.name), state.new(shape)
    state.save(folder, saved)
    return Cluster(folder, saved)


def _show(cluster: Cluster, seconds: float, as_json: bool) -> None:
    shape, members, access = cluster.shape, cluster.status(), cluster.access(login=True)
    screen = Screen(as_json)
    if as_json:
        screen.value(
            {
                "name": shape.name,
                "seconds": round(seconds, 3),
                "members": [dataclasses.asdict(member) for member in members],
                "access": dataclasses.asdict(access),
            }
        )
        return
    brokers = f"{shape.size} brokers" if shape.size > 1 else "one broker"
    screen.line(f"{shape.name}: {brokers} up after {seconds:.1f} s", "bold")
    for line in [*drawing.branches(shape, members), *drawing.ways_in(access)]:
        screen.line(line)


def _wait_for_signal() -> None:
    """Until SIGINT, SIGTERM or SIGHUP."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    print("Ctrl-C takes it down", flush=True)
    signal.sigwait(SIGNALS)


@contextlib.contextmanager
def _at_once_on_signals(cluster: Cluster) -> Iterator[None]:
    """In the block a signal has ``cluster`` leave without drain."""

    def hurry(*_: object) -> None:
        with contextlib.suppress(HeadgateError, TimeoutError):  # it has just ended
            cluster.ask("down", at_once=True)

    before = {number: signal.signal(number, hurry) for number in SIGNALS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def down(
    name: Name = NAME,
    every: Annotated[bool, typer.Option("--all", help="Every cluster of this user.")] = False,
) -> int:
    """End a cluster and remove everything that belongs to it."""
    for each in state.names() if every else [name]:
        _take_down(find(each))
    return OK


def _take_down(cluster: Cluster) -> None:
    """End a cluster, be it still on its way up: whoever waits for it there is told, and makes room.

    Harmless when somebody else has ended it, and to another one that has its name by now.
    """
    name = cluster.shape.name
    try:
        with state.held(name):
            _end_if_there(cluster)
    except state.Held:
        if _is_there(cluster):
            cluster.down()
        with state.held(name, wait_s=HELD_S):
            _end_if_there(cluster)


def _end_if_there(cluster: Cluster) -> None:
    if _is_there(cluster):
        _end(cluster)


def _is_there(cluster: Cluster) -> bool:
    name = cluster.shape.name
    return name in state.names() and find(name).saved.made == cluster.saved.made


def _end(cluster: Cluster) -> None:
    cluster.down()
    state.remove(cluster.folder)


VERBS: Final[dict[str, Callable[..., int]]] = {"up": up, "down": down}
"""Verb -> what does it."""
