"""Requests that wait, served fairly: clients take turns, each in the order it asked (NFP, "Overall Topology")."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.nfp.dispatch.job import Slot


class FairQueue:
    """One queue: of a service, or of a worker that was named. Every operation is O(1)."""

    __slots__ = ("_lanes", "_size")

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, OrderedDict[Slot, None]] = OrderedDict()
        """By holder, whose turn it is first."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, slot: Slot) -> None:
        """Behind everything of the same holder."""
        self._lane(slot)[slot] = None
        self._size += 1
        slot.queue = self

    def push_front(self, slot: Slot) -> None:
        """In front of everything: it had its turn before."""
        lane = self._lane(slot)
        lane[slot] = None
        lane.move_to_end(slot, last=False)
        self._lanes.move_to_end(slot.job.holder, last=False)
        self._size += 1
        slot.queue = self

    def _lane(self, slot: Slot) -> OrderedDict[Slot, None]:
        holder = slot.job.holder
        lane = self._lanes.get(holder)
        if lane is None:
            lane = self._lanes[holder] = OrderedDict()
        return lane

    def pop(self) -> Slot:
        """The next one; its holder's next turn is behind everybody else's.

        Raises:
            KeyError: nothing waits.
        """
        holder, lane = next(iter(self._lanes.items()), ("", None))
        if lane is None:
            raise KeyError("nothing waits")
        slot, _ = lane.popitem(last=False)
        if lane:
            self._lanes.move_to_end(holder)
        else:
            del self._lanes[holder]
        self._size -= 1
        slot.queue = None
        return slot

    def remove(self, slot: Slot) -> None:
        """Take out ``slot``, which waits here."""
        holder = slot.job.holder
        lane = self._lanes[holder]
        del lane[slot]
        if not lane:
            del self._lanes[holder]
        self._size -= 1
        slot.queue = None
