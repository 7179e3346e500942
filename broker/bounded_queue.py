"""What waits, in order, bounded in messages and in bytes: one that is larger than the bound may wait alone (pure).

The owner of a queue decides what happens at its bound: what does not fit is refused (``put``), or the oldest go
(``add``, then ``pop`` while it is ``overflowing``). Nothing in here waits, and no thread is safe from another.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BoundedQueue(Generic[Item]):
    """First in, first out.

    Args:
        max_msgs, max_bytes: how much it holds.

    Attributes:
        bytes: of all that is in it, as it was told with each.

    >>> queue = BoundedQueue(2, 100)
    >>> queue.put("large", 150), queue.put("a", 1), queue.pop(), queue.put("a", 60), queue.put("b", 60)
    (True, False, 'large', True, False)
    >>> queue.add("b", 60), queue.overflowing, queue.pop(), queue.overflowing, queue.bytes
    (None, True, 'a', False, 60)
    """

    __slots__ = ("_items", "_max_bytes", "_max_msgs", "bytes")

    def __init__(self, max_msgs: int, max_bytes: int) -> None:
        self._items: deque[tuple[Item, int]] = deque()
        self._max_msgs: int = max_msgs
        self._max_bytes: int = max_bytes
        self.bytes: int = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """What is in it now, the oldest first."""
        return iter([item for item, _size in self._items])

    def __getitem__(self, index: int) -> Item:
        """The one that was put ``index`` behind the oldest."""
        return self._items[index][0]

    def put(self, item: Item, size: int) -> bool:
        """Add an item of ``size`` bytes behind the others; False: it does not fit."""
        items = self._items
        if items and (len(items) >= self._max_msgs or self.bytes + size > self._max_bytes):
            return False
        items.append((item, size))
        self.bytes += size
        return True

    def add(self, item: Item, size: int) -> None:
        """Add it, whether or not it fits."""
        self._items.append((item, size))
        self.bytes += size

    @property
    def full(self) -> bool:
        """Whether nothing more fits, however small it is."""
        waiting = len(self._items)
        return waiting > 0 and (waiting >= self._max_msgs or self.bytes >= self._max_bytes)

    @property
    def overflowing(self) -> bool:
        """Whether more is in it than it holds, and not only one."""
        waiting = len(self._items)
        return waiting > 1 and (waiting > self._max_msgs or self.bytes > self._max_bytes)

    def pop(self) -> Item:
        """Take the oldest out.

        Raises:
            IndexError: nothing is in it.
        """
        item, size = self._items.popleft()
        self.bytes -= size
        return item

    def clear(self) -> None:
        """Forget what is in it."""
        self._items.clear()
        self.bytes = 0
