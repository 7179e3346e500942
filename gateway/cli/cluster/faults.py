"""``headgate cluster kill|start|pause|resume|partition|heal``: faults, one at a time or on top of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from broker.cli.exits import OK
from gateway.cli.cluster.shared_options import NAME, Name, Rank, check, find

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
    return _do(name, "kill", [rank], stay=stay)


def start(rank: Rank, name: Name = NAME) -> int:
    """Start a broker that was killed to stay away, or has ended."""
    return _do(name, "start", [rank])


def pause(rank: Rank, name: Name = NAME) -> int:
    """Freeze a broker: its connections stay open, nothing answers."""
    return _do(name, "pause", [rank])


def resume(rank: Rank, name: Name = NAME) -> int:
    """Let a frozen broker go on."""
    return _do(name, "resume", [rank])


def partition(ranks: Ranks, name: Name = NAME) -> int:
    """Cut brokers off from all others, silently: nothing is refused, nothing arrives.

    The brokers named are one side, the rest is the other; within a side messages pass. Whoever is below a cut link in
    the tree is away from rank 0, too. A second partition replaces the first.
    """
    return _do(name, "partition", ranks)


def heal(name: Name = NAME) -> int:
    """End a partition; what was held back goes on."""
    return _do(name, "partition", [])


def _do(name: str, verb: str, ranks: Sequence[int], **more: bool) -> int:
    cluster = find(name)
    cluster.ask(verb, [check(cluster, rank) for rank in ranks], **more)
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
