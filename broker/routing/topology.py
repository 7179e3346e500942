"""The tree: parents, children, and which neighbour leads to a rank (RFC 3, "Background").

Rank and size never change while an instance lives. A ``Topology`` is shared by all ranks of an instance; it knows
the shape only, not the connections.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.errors import ConfigError

RANK_MAX: Final = 0xFFFFFFFD
"""Highest rank that can be addressed (RFC 3, "Rank Assignment")."""
NO_PARENT: Final = -1


class Topology:
    """A tree over ranks 0 to size-1, rooted at 0.

    Args:
        size: number of ranks, 1 to 2^32-2.
        fanout: children per rank of a complete k-ary tree ("kary:K"); ignored when ``parents`` is given.
        parents: parent of each rank for a custom tree; ``parents[0]`` is ignored.

    Raises:
        ConfigError: size or fanout out of range, or ``parents`` is no tree rooted at 0.
    """

    __slots__ = ("_children", "_parents", "fanout", "size")

    def __init__(self, size: int, fanout: int = 2, parents: Sequence[int] | None = None) -> None:
        if not 1 <= size <= RANK_MAX + 1:
            raise ConfigError(f"size {size}: expected 1 to {RANK_MAX + 1}")
        if fanout < 1:
            raise ConfigError(f"kary:{fanout}: expected a fan-out of at least 1")
        self.size: int = size
        self.fanout: int = fanout
        self._parents: list[int] | None = None
        self._children: list[list[int]] | None = None
        if parents is not None:
            self._parents = [NO_PARENT, *parents[1:]]
            self._children = _children_of(self._parents, size)

    def parent(self, rank: int) -> int:
        """The parent of ``rank``; NO_PARENT for the root."""
        if self._parents is not None:
            return self._parents[rank]
        return (rank - 1) // self.fanout if rank else NO_PARENT

    def children(self, rank: int) -> Sequence[int]:
        """The children of ``rank``, lowest first."""
        if self._children is not None:
            return self._children[rank]
        first = rank * self.fanout + 1
        return range(min(first, self.size), min(first + self.fanout, self.size))

    def child_towards(self, rank: int, target: int) -> int:
        """The child of ``rank`` whose subtree holds ``target``; NO_PARENT when none does (go up)."""
        while target > 0:
            above = self.parent(target)
            if above == rank:
                return target
            target = above
        return NO_PARENT

    def depth(self, rank: int) -> int:
        """Hops from the root to ``rank``."""
        hops = 0
        while rank > 0:
            rank = self.parent(rank)
            hops += 1
        return hops

    def subtree(self, rank: int) -> Iterator[int]:
        """``rank`` and all its descendants, level by level."""
        level: Sequence[int] = (rank,)
        while level:
            yield from level
            level = [child for member in level for child in self.children(member)]

    def descendants(self, rank: int) -> int:
        """How many ranks are below ``rank``."""
        return sum(1 for _ in self.subtree(rank)) - 1

    def max_depth(self) -> int:
        """Hops from the root to the deepest rank."""
        if self._parents is None:
            return self.depth(self.size - 1)
        return max(self.depth(rank) for rank in range(self.size))


def parse(text: str, size: int, parents: Sequence[int] | None = None) -> Topology:
    """The topology that ``kary:K`` or ``custom`` names.

    Raises:
        ConfigError: neither, or K is no positive number.
    """
    kind, _, argument = text.partition(":")
    if kind == "kary" and (argument or "2").isdecimal():
        return Topology(size, int(argument or "2"))
    if text == "custom":
        return Topology(size, parents=parents if parents is not None else [0] * size)
    raise ConfigError(f"topology {text!r}: expected kary:K with K >= 1, or custom")


def _children_of(parents: Sequence[int], size: int) -> list[list[int]]:
    if len(parents) != size:
        raise ConfigError(f"{len(parents)} parents are given for {size} ranks")
    children: list[list[int]] = [[] for _ in range(size)]
    for rank in range(1, size):
        if not 0 <= parents[rank] < size:
            raise ConfigError(f"rank {rank}: parent {parents[rank]} is not a rank of this instance")
        children[parents[rank]].append(rank)
    reached, level = 0, [0]
    while level:
        reached += len(level)
        level = [child for rank in level for child in children[rank]]
    if reached != size:
        raise ConfigError(f"the parents form no tree: {size - reached} ranks cannot be reached from rank 0")
    return children
