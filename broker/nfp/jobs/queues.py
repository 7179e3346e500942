"""Requests that wait, served fairly: clients take turns, each in the order it asked (NFP, "Overall Topology")."""

# compiled: mypyc

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """One queue: of a service, or of a worker that was named. Every operation is O(1)."""

    __slots__ = ("_lanes", "_size")

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, OrderedDict[Item, None]] = OrderedDict()
        """By holder, whose turn it is first."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Item]:
        for lane in self._lanes.values():
            yield from lane

    def push(self, item: Item, holder: str, *, front: bool = False) -> None:
        """Behind everything of the same holder; ``front``: before everything, it had its turn already."""
        lane = self._lanes.get(holder)
        if lane is None:
            lane = self._lanes[holder] = OrderedDict()
        lane[item] = None
        if front:
            lane.move_to_end(item, last=False)
            self._lanes.move_to_end(holder, last=False)
        self._size += 1

    def pop(self) -> Item:
        """The next one; its holder's next turn is behind everybody else's.

        Raises:
            KeyError: nothing waits.
        """
        holder, lane = next(iter(self._lanes.items()), ("", None))
        if lane is None:
            raise KeyError("nothing waits")
        item, _ = lane.popitem(last=False)
        if lane:
            self._lanes.move_to_end(holder)
        else:
            del self._lanes[holder]
        self._size -= 1
        return item

    def remove(self, item: Item, holder: str) -> None:
        """Take out ``item`` of ``holder``, which waits here."""
        lane = self._lanes[holder]
        del lane[item]
        if not lane:
            del self._lanes[holder]
        self._size -= 1
