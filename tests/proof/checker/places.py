"""The tree, and the way of a message through it: processes and links. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Link = frozenset[int]
"""Two ranks whose hosts speak with each other."""


@dataclass(frozen=True, slots=True)
class Way:
    """What a message passes.

    Attributes:
        members: processes: brokers, gateway and wings, the parties at both ends.
        ranks: of the brokers among them.
        links: between hosts.
    """

    members: frozenset[str]
    ranks: frozenset[int] = frozenset()
    links: frozenset[Link] = frozenset()

    def __or__(self, other: Way) -> Way:
        return Way(self.members | other.members, self.ranks | other.ranks, self.links | other.links)


class Places:
    """Where everybody is.

    Args:
        parents: of each rank, None for rank 0. hosts: member beside the brokers -> rank whose host it runs on.

    Raises:
        ValueError: the parents are no tree with its root at rank 0.
    """

    def __init__(self, parents: Sequence[int | None], hosts: Mapping[str, int]) -> None:
        if (
            not parents
            or parents[0] is not None
            or any(p is None or p >= r for r, p in list(enumerate(parents))[1:])
        ):
            raise ValueError(f"no tree: {parents}")
        self.parents = list(parents)
        self.hosts = dict(hosts)
        self._lines = [self._line(rank) for rank in range(len(parents))]

    def _line(self, rank: int) -> list[int]:
        """From a rank up to rank 0."""
        line = [rank]
        while (parent := self.parents[line[-1]]) is not None:
            line.append(parent)
        return line

    def above(self, rank: int) -> list[int]:
        """The rank itself, its parent, and so on to rank 0."""
        return self._lines[rank]

    def link_up(self, rank: int) -> Link | None:
        """The link of a rank to its parent; None at rank 0."""
        parent = self.parents[rank]
        return None if parent is None else frozenset((rank, parent))

    def below(self, rank: int) -> frozenset[Link]:
        """All links of the tree below a rank."""
        return frozenset(
            frozenset((other, parent))
            for other, parent in enumerate(self.parents)
            if parent is not None and rank in self._lines[parent]
        )

    def between(self, a: int, b: int) -> Way:
        """The way between two brokers of the tree, both included."""
        up, down = self._lines[a], self._lines[b]
        top = next(rank for rank in up if rank in down)
        ranks = [*up[: up.index(top) + 1], *down[: down.index(top)]]
        links = [self.link_up(rank) for rank in ranks if rank != top]
        return Way(
            frozenset(f"broker-{rank}" for rank in ranks),
            frozenset(ranks),
            frozenset(link for link in links if link is not None),
        )

    def is_broker(self, at: int | str) -> bool:
        """True where a connection ends in the tree: at a rank, or at a gateway in front of one."""
        return isinstance(at, int) or at.startswith("gateway")

    def rank_of(self, at: int | str) -> int:
        """The rank that a connection ends at, or whose host its member runs on.

        Raises:
            KeyError: no such member.
        """
        return at if isinstance(at, int) else self.hosts[at]

    def to_member(self, who: str, at: int | str, host: int | None) -> Way:
        """The way of a connection from its party to the process it ends at."""
        there = self.rank_of(at)
        link = frozenset[Link]() if host is None or host == there else frozenset((frozenset((host, there)),))
        if isinstance(at, int):
            return Way(frozenset((who, f"broker-{at}")), frozenset((at,)), link)
        return Way(frozenset((who, at)), frozenset(), link)
