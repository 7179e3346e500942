"""``headgate cluster ls|status|logs``: which clusters there are, what their members do, and what they say."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer

from broker.cli import options
from broker.cli.exits import NO_CONNECTION, OK, UsageError
from broker.cli.screen import Screen, duration
from gateway.cli.cluster import drawing
from gateway.cli.cluster.shared_options import NAME, Name, check, find
from gateway.cluster import state

GATEWAY: Final = "gateway"


def ls(as_json: options.AsJson = False) -> int:
    """List the clusters of this user."""
    values, rows = [], []
    for each in state.names():
        cluster = find(each)
        members, made = cluster.status(), cluster.saved.made
        size, running = cluster.shape.size, sum(member.state == "running" for member in members)
        values.append({"name": each, "size": size, "members": len(members), "running": running, "made": made})
        told = f"{running} of {len(members)}" if members else "none"
        rows.append((each, str(size), told, duration(max(0.0, time.time() - made))))
    screen = Screen(as_json)
    if not values and not as_json:
        screen.line("no clusters; `headgate cluster up` makes one")
        return OK
    screen.records(("name", "size", "running", "for"), values, rows)
    return OK


def status(name: Name = NAME, as_json: options.AsJson = False) -> int:
    """List the members of a cluster, and what the tree thinks of each broker.

    The state is what the supervisor knows: running, starting, paused, partitioned, exited. The column tree is what
    rank 0 and those below it tell, as `headgate status` draws it; - when they cannot be asked.
    """
    cluster = find(name)
    members = cluster.status()
    screen = Screen(as_json)
    if not members:
        screen.record(
            {"name": name, "members": []},
            f"cluster {name} is not up; `headgate cluster down --name {name}` removes what is left of it",
        )
        return NO_CONNECTION
    health = drawing.health(cluster.uri)
    if as_json:
        values = [{**dataclasses.asdict(member), "tree": health.get(member.rank)} for member in members]
        screen.value({"name": name, "members": values})
    else:
        drawing.table(screen, members, health)
    return OK


def logs(
    whose: Annotated[str, typer.Argument(metavar="RANK|gateway", help="Whose lines.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more come, until Ctrl-C.")] = False,
    name: Name = NAME,
) -> int:
    """Print what a broker, or the gateway, has logged since the cluster came up."""
    cluster = find(name)
    if whose != GATEWAY and not whose.isdecimal():
        raise UsageError(f"saw {whose[:32]!r}, expected a rank or {GATEWAY}")
    rank = None if whose == GATEWAY else check(cluster, int(whose))
    screen = Screen()
    for line in cluster.logs(rank, follow):
        screen.line(line)
    return OK


VERBS: Final[dict[str, Callable[..., int]]] = {"ls": ls, "status": status, "logs": logs}
"""Verb -> what does it."""
