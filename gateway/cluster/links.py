"""What lies between the ranks of a cluster, and can be cut.

``relays``   a relay in front of every listening rank, for processes that share one network
``network``  a network namespace for each rank, joined by bridges
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gateway.cluster.shape import Shape

Enter = Callable[[], None]
"""Runs in a new process before it becomes a member, to put it where it belongs."""


class Links(Protocol):
    """The ways between ranks, made by the supervisor before the first rank and closed behind the last."""

    async def open(self) -> None:
        """Make them.

        Raises:
            HeadgateError: the machine does not let us; the text says what was tried.
        """

    async def close(self) -> None:
        """Take them away; harmless twice."""

    def enter(self, rank: int) -> Enter | None:
        """What a process of ``rank`` has to run first; None: nothing."""

    async def cut(self, apart: frozenset[int]) -> None:
        """Have no byte pass between the ranks in ``apart`` and the others, silently; the empty set heals."""


def crossing(shape: Shape, apart: frozenset[int]) -> frozenset[int]:
    """The ranks whose link to their parent leads from one side to the other.

    >>> sorted(crossing(Shape("demo", 7), frozenset({1})))
    [1, 3, 4]
    >>> sorted(crossing(Shape("demo", 7), frozenset({1, 3})))
    [1, 4]
    """
    parents = {rank: shape.parent(rank) for rank in shape.ranks()}
    return frozenset(
        rank
        for rank, parent in parents.items()
        if parent is not None and (rank in apart) != (parent in apart)
    )


def places(engine: str, shape: Shape, sockets: Path) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """Where each rank is dialled, and where it listens, as of ``files.write``."""
    if engine == "processes":
        from gateway.cluster import relays

        return relays.addresses(shape, sockets), relays.binds(shape, sockets)
    from gateway.cluster import network

    return network.addresses(shape), {}
