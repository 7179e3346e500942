"""Which cluster a verb is about: ``--name``, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from broker.cli.exits import UsageError
from broker.errors import ConfigError
from gateway.cluster import state
from gateway.cluster.engine import Engine, make
from gateway.cluster.state import Saved

NAME: Final = "headgate"

Name = Annotated[
    str, typer.Option("--name", "-n", metavar="NAME", help="Which cluster; there may be several.")
]
Rank = Annotated[int, typer.Argument(metavar="RANK", min=0, help="Which broker.")]


@dataclass(frozen=True)
class Cluster:
    """One that was made: its state folder, what is saved there, the engine that runs it."""

    folder: Path
    saved: Saved
    engine: Engine

    def check(self, rank: int) -> int:
        """``rank`` itself.

        Raises:
            UsageError: the cluster has no such rank.
        """
        try:
            return self.saved.shape.check(rank)
        except ConfigError as error:
            raise UsageError(str(error)) from None


def find(name: str) -> Cluster:
    """The cluster ``name``.

    Raises:
        UsageError: there is none. ConfigError: what is saved of it is none of ours.
    """
    folder = state.folder_of(name)
    if not (folder / state.FILE).exists():
        there = ", ".join(state.names()) or "none; `headgate cluster up` makes one"
        raise UsageError(f"no cluster {name}; there are: {there}")
    saved = state.load(folder)
    return Cluster(folder, saved, make(saved.engine, folder))
