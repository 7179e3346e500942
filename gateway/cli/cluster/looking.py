"""``headgate cluster status|logs``: what its members do, and what they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Final

import typer

from broker.cli import options
from broker.cli.exits import NO_CONNECTION, OK, UsageError
from broker.cli.screen import Screen
from gateway.cli.cluster import telling
from gateway.cli.cluster.which import NAME, Name, find

GATEWAY: Final = "gateway"


def status(name: Name = NAME, as_json: options.AsJson = False) -> int:
    """List the members of a cluster, and what the tree thinks of each broker.

    The state is what the engine knows: running, starting, paused, partitioned, exited. The column tree is what rank 0
    and those below it tell: full, partial, degraded, lost, offline; - when they cannot be asked.
    """
    cluster = find(name)
    members = cluster.engine.status()
    screen = Screen(as_json)
    if not members:
        screen.record(
            {"name": name, "engine": cluster.saved.engine, "members": []},
            f"cluster {name} is not up; `headgate cluster down --name {name}` removes what is left of it",
        )
        return NO_CONNECTION
    health = telling.health(cluster.engine, cluster.saved.shape)
    if as_json:
        values = [{**dataclasses.asdict(member), "tree": health.get(member.rank)} for member in members]
        screen.value({"name": name, "engine": cluster.saved.engine, "members": values})
    else:
        telling.table(screen, members, health)
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
    rank = None if whose == GATEWAY else cluster.check(int(whose))
    screen = Screen()
    for line in cluster.engine.logs(rank, follow):
        screen.line(line)
    return OK


VERBS: Final[dict[str, Callable[..., int]]] = {"status": status, "logs": logs}
"""Verb -> what does it."""
