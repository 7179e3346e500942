"""Arguments that several verbs have, and the cluster that ``--name`` is about."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from broker.cli.exits import UsageError
from broker.errors import ConfigError
from gateway.cluster import state
from gateway.cluster.client import Cluster
from gateway.cluster.shape import Shape

NAME: Final = "headgate"
DEFAULT: Final = Shape(NAME, 7)
"""What there is unless it is said otherwise."""

Name = Annotated[
    str, typer.Option("--name", "-n", metavar="NAME", help="Which cluster; there may be several.")
]
Rank = Annotated[int, typer.Argument(metavar="RANK", min=0, help="Which broker.")]
Size = Annotated[int, typer.Option("--size", "-s", metavar="N", help="How many brokers.")]
Fanout = Annotated[int, typer.Option("--fanout", metavar="K", help="Children a broker may have (kary:K).")]
Nfp = Annotated[bool, typer.Option("--nfp", help="And a broker of NFP.")]
Oslo = Annotated[bool, typer.Option("--oslo", help="And a node proxy for oslo.messaging.")]
Bare = Annotated[bool, typer.Option("--no-gateway", help="Brokers only: no gateway, no dashboard.")]


def find(name: str) -> Cluster:
    """The cluster ``name``.

    Raises:
        UsageError: there is none. ConfigError: what is saved of it is none of ours.
    """
    folder = state.folder_of(name)
    if not (folder / state.FILE).exists():
        there = ", ".join(state.names()) or "none; `headgate cluster up` makes one"
        raise UsageError(f"no cluster {name}; there are: {there}")
    return Cluster(folder, state.load(folder))


def check(cluster: Cluster, rank: int) -> int:
    """``rank`` itself.

    Raises:
        UsageError: the cluster has no such rank.
    """
    try:
        return cluster.shape.check(rank)
    except ConfigError as error:
        raise UsageError(str(error)) from None
