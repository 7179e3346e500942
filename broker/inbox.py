"""The bounded queue between what never waits, such as a link, and one consumer.

One side (``put``, ``finish``) never waits; the other one (``get``) waits for an item or for
the end. What does not fit is not taken: the owner decides what that means and counts it. Pausing the link
instead would stall every other call, stream and subscription of the same handle.

Concurrency: one event loop, one consumer at a time.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from broker.bounded_queue import BoundedQueue

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """FIFO of at most ``max_msgs`` items and ``max_bytes`` bytes; one item always fits an empty one."""

    __slots__ = ("_end", "_items", "_waiter")

    def __init__(self, max_msgs: int, max_bytes: int) -> None:
        self._items: BoundedQueue[Item] = BoundedQueue(max_msgs, max_bytes)
        self._end: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def bytes(self) -> int:
        """Of what is queued."""
        return self._items.bytes

    @property
    def end(self) -> Exception | None:
        """What ``get`` raises once the items are used up; None while more may come."""
        return self._end

    def put(self, item: Item, size: int) -> bool:
        """Queue ``item`` of ``size`` bytes; False when it does not fit or the end was told."""
        if self._end is not None or not self._items.put(item, size):
            return False
        self._wake()
        return True

    def finish(self, end: Exception) -> None:
        """Let ``get`` raise ``end`` behind what is queued; only the first end counts."""
        if self._end is None:
            self._end = end
            self._wake()

    def clear(self) -> None:
        """Forget what is queued."""
        self._items.clear()

    async def get(self) -> Item:
        """The oldest item; waits for one.

        Raises:
            RuntimeError: two tasks read at once. Otherwise the end, when it was told.
        """
        while not self._items:
            if self._end is not None:
                raise self._end
            await self._wait()
        return self._items.pop()

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("another task reads here already: one consumer at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
