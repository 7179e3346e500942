"""Which ranks provide which service, at one broker and below it: pure state, no I/O, no clock.

A broker knows what its own clients provide, and what each child announced last: the names and ranks of its whole
subtree. A broker announces both to its own parent, within bounds. Names that begin with a digit, as those of guests do,
are left out before others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from broker.errors import ProtocolError
from broker.wire.topic import check_service

NAMES_MAX: Final = 1024
"""Names that one broker announces."""
RANKS_MAX: Final = 16
"""Ranks that it announces of one name, the nearest ones."""
LEFT_OUT_MAX: Final = 1 << 53


class SubtreeServices(NamedTuple):
    """What one broker announces: itself and everything below it."""

    services: dict[str, list[int]]
    """Name -> ranks, the nearest first."""
    left_out: int
    """Pairs of a name and a rank that are beyond the bounds, here or below."""


class ServiceLocations:
    """What one broker knows.

    Args:
        rank: its own. size: of the instance.
        parent: the parent of a rank; below 0 for the root.
        names_max, ranks_max: the bounds of what it announces and accepts.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        parent: Callable[[int], int],
        names_max: int = NAMES_MAX,
        ranks_max: int = RANKS_MAX,
    ) -> None:
        self._rank = rank
        self._size = size
        self._parent = parent
        self._names_max = names_max
        self._ranks_max = ranks_max
        self._own: set[str] = set()
        self._children: dict[int, SubtreeServices] = {}
        self._hops: dict[int, int] = {}

    def provide(self, name: str, there: bool) -> None:
        """A client of this broker provides ``name`` from now on, or nobody does any more."""
        (self._own.add if there else self._own.discard)(name)

    def set_child(self, child: int, services: Mapping[str, Any], left_out: int) -> None:
        """A child announced its subtree; this replaces what it announced before.

        Raises:
            ProtocolError: it cannot be true; then nothing of what the child announced counts any more.
        """
        self._children.pop(child, None)
        if len(services) > self._names_max or not 0 <= left_out <= LEFT_OUT_MAX:
            raise ProtocolError(
                f"{len(services)} names, {left_out} left out: expected {self._names_max} names"
            )
        checked = {name: self._checked(child, name, ranks) for name, ranks in services.items()}
        if checked or left_out:
            self._children[child] = SubtreeServices(checked, left_out)

    def _checked(self, child: int, name: str, ranks: Any) -> list[int]:
        check_service(name)
        if not isinstance(ranks, list) or not 0 < len(ranks) <= self._ranks_max:
            raise ProtocolError(f"{name}: expected a list of 1 to {self._ranks_max} ranks")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < self._size or child not in self._way_up(rank):
                raise ProtocolError(f"{name}: {str(rank)[:16]} is no rank at or below {child}")
        if len(set(ranks)) < len(ranks):
            raise ProtocolError(f"{name}: a rank stands there twice")
        return ranks

    def forget(self, child: int) -> bool:
        """A child is gone, with all that it announced; False when that was nothing."""
        return self._children.pop(child, None) is not None

    # -- what is known -------------------------------------------------------------------------

    def ranks(self, name: str, near: int | None = None) -> list[int]:
        """Who provides ``name``, the nearest to rank ``near`` (default: ours) first."""
        found = [rank for child in self._children.values() for rank in child.services.get(name, ())]
        if name in self._own:
            found.append(self._rank)
        hops = self._distance if near is None else self._distances_from(near)
        return sorted(found, key=lambda rank: (hops(rank), rank))

    def nearest(self, name: str, near: int) -> tuple[list[int], int]:
        """The same, and how many at its head are equally near."""
        ranks, hops = self.ranks(name, near), self._distances_from(near)
        return ranks, sum(hops(rank) == hops(ranks[0]) for rank in ranks)

    def subtree(self) -> SubtreeServices:
        """What this broker announces: itself and everything below it, within the bounds."""
        names = self._own.union(*(child.services for child in self._children.values()))
        kept: dict[str, list[int]] = {}
        left_out = sum(child.left_out for child in self._children.values())
        for name in sorted(names, key=lambda name: (name[:1].isdecimal(), name)):
            ranks = self.ranks(name)
            if len(kept) < self._names_max:
                kept[name] = ranks[: self._ranks_max]
                left_out += len(ranks) - len(kept[name])
            else:
                left_out += len(ranks)
        return SubtreeServices(kept, min(left_out, LEFT_OUT_MAX))

    # -- the tree ------------------------------------------------------------------------------

    def _way_up(self, rank: int) -> Iterator[int]:
        """``rank`` and those above it, as far as this broker, which is the last unless ``rank`` is not below it."""
        while rank >= 0:
            yield rank
            if rank == self._rank:
                return
            rank = self._parent(rank)

    def _distance(self, rank: int) -> int:
        """Hops from us to a rank below."""
        hops = self._hops.get(rank)
        if hops is None:
            hops = self._hops[rank] = sum(1 for _ in self._way_up(rank)) - 1
        return hops

    def _distances_from(self, near: int) -> Callable[[int], int]:
        """The hops from rank ``near``, by the lowest broker above both; from us when it is not below us."""
        above = {rank: hops for hops, rank in enumerate(self._way_up(near))}

        def far(rank: int) -> int:
            below = (up + above[at] for up, at in enumerate(self._way_up(rank)) if at in above)
            return next(below, self._distance(rank))

        return far
