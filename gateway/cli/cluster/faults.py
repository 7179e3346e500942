"""``headgate cluster kill|start|pause|resume|partition|heal``: faults, one at a time or on top of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from broker.cli.exits import OK
from gateway.cli.cluster.which import NAME, Name, Rank, find

Ranks = Annotated[list[int], typer.Argument(metavar="RANK...", min=0, help="The brokers of one side.")]


def kill(
    rank: Rank,
    stay: Annotated[
        bool, typer.Option("--stay", help="Do not start it again; `headgate cluster start` does.")
    ] = False,
    name: Name = NAME,
) -> int:
    """Kill a broker (SIGKILL). It is started again after a second, as a supervisor would.

    Rank 0 may be killed, too: the others keep their clients and join it again.
    """
    cluster = find(name)
    cluster.engine.kill(cluster.check(rank), stay=stay)
    return OK


def start(rank: Rank, name: Name = NAME) -> int:
    """Start a broker that was killed to stay away, or has ended."""
    cluster = find(name)
    cluster.engine.start(cluster.check(rank))
    return OK


def pause(rank: Rank, name: Name = NAME) -> int:
    """Freeze a broker: its connections stay open, nothing answers."""
    cluster = find(name)
    cluster.engine.pause(cluster.check(rank))
    return OK


def resume(rank: Rank, name: Name = NAME) -> int:
    """Let a frozen broker go on."""
    cluster = find(name)
    cluster.engine.resume(cluster.check(rank))
    return OK


def partition(ranks: Ranks, name: Name = NAME) -> int:
    """Cut brokers off from all others, silently: nothing is refused, nothing arrives.

    The brokers named are one side, the rest is the other; within a side messages pass. Whoever is below a cut link in
    the tree is away from rank 0, too. A second partition replaces the first.
    """
    cluster = find(name)
    cluster.engine.partition([cluster.check(rank) for rank in ranks])
    return OK


def heal(name: Name = NAME) -> int:
    """End a partition; what was held back goes on."""
    find(name).engine.heal()
    return OK


VERBS: Final[dict[str, Callable[..., int]]] = {
    "kill": kill,
    "start": start,
    "pause": pause,
    "resume": resume,
    "partition": partition,
    "heal": heal,
}
"""Verb -> what does it."""
