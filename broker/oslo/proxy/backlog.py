"""Notifications that are kept for listeners that are away: what rabbit's queues give, bounded, at the node (pure).

A pool of a topic that was listened to once on this node has a **shelf** here: while it has no listener on this node,
what comes for it is kept, and its next listener gets that first, in order. The node goes on announcing a listener of
that pool, whose id begins with ``BACKLOG_LETTER``: notifiers choose it only while the pool has no other anywhere.

What is kept is bounded in messages and bytes, all shelves together: the oldest makes room for the newest. A message,
and a shelf that nobody came back to, is forgotten after a time, by the clock of the day: a backlog on disk outlives the
proxy.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.oslo.names import BACKLOG_LETTER, LISTENER_CHARS
from broker.oslo.node import BacklogConfig
from broker.oslo.proxy.listeners import Key, WaitingMessage
from broker.oslo.records import Record

if TYPE_CHECKING:
    from broker.oslo.proxy.backlog_store import BacklogFile

SHELVES_MAX: Final = 1_024
"""Pools of topics that are kept; a further one is not. Pools with a name for each process would take all of them."""


def listener_of(pool: str | None) -> str:
    """The id by which a node is chosen for what is kept for ``pool``: always the same.

    >>> len(listener_of("telemetry"))
    24
    """
    digest = hashlib.sha256(b"" if pool is None else b"=" + pool.encode()).hexdigest()
    return BACKLOG_LETTER + digest[: LISTENER_CHARS - 1]


class BacklogRecipient(NamedTuple):
    """Whom messages are kept for."""

    key: Key
    pool: str | None

    @property
    def record(self) -> Record:
        """What the directory is told of it."""
        return Record(*self.key, "", listener_of(self.pool), self.pool)


class Kept(NamedTuple):
    """A message, since when it is kept."""

    shelf: BacklogRecipient
    message: WaitingMessage
    at_s: float


class Backlog:
    """What is kept at one node.

    Args:
        config: which topics, how much, how long.
        clock: seconds of the clock of the day.
        store: where it survives; None: in memory alone.

    Attributes:
        counts: messages by what became of them: ``backlog_kept``, ``backlog_given`` to a listener, ``backlog_full``:
            the oldest that made room, ``backlog_expired``.
        bytes: of all messages.
    """

    def __init__(
        self, config: BacklogConfig, clock: Callable[[], float], store: BacklogFile | None = None
    ) -> None:
        self.counts = dict.fromkeys(("backlog_kept", "backlog_given", "backlog_full", "backlog_expired"), 0)
        self.bytes = 0
        self._config = config
        self._clock = clock
        self._store = store
        self._kept: dict[int, Kept] = {}
        self._shelves: dict[BacklogRecipient, deque[int]] = {}
        self._seen_s: dict[BacklogRecipient, float] = {}
        self._pools: dict[str, str | None] = {}
        self._next = 1

    def load(
        self, shelves: Iterable[tuple[BacklogRecipient, float]], kept: Iterable[tuple[int, Kept]]
    ) -> None:
        """What a store had, in order."""
        for shelf, seen_s in shelves:
            self._begin(shelf)
            self._seen_s[shelf] = seen_s
        for number, each in kept:
            if each.shelf not in self._shelves:  # a disk that was full has its messages, and not the shelf
                self._begin(each.shelf)
                self._seen_s[each.shelf] = each.at_s
            self._shelves[each.shelf].append(number)
            self._kept[number] = each
            self.bytes += each.message.size
            self._next = max(self._next, number + 1)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, shelf: object) -> bool:
        return shelf in self._shelves

    # ------------------------------------------------------------ shelves

    def shelves(self) -> Iterator[BacklogRecipient]:
        """All of them."""
        return iter(list(self._shelves))

    def pools(self) -> Mapping[str, str | None]:
        """The pools that something may be kept for, by ``listener_of`` them."""
        return self._pools

    def come(self, keys: Iterable[Key], pool: str | None) -> list[BacklogRecipient]:
        """A listener of ``pool`` is there; returns the shelves that are new."""
        fresh = []
        for key in keys:
            shelf = BacklogRecipient(key, pool)
            if not any(fnmatchcase(key[1], glob) for glob in self._config.topics):
                continue
            if shelf not in self._shelves:
                if len(self._shelves) >= SHELVES_MAX:
                    continue
                self._begin(shelf)
                fresh.append(shelf)
            self._see(shelf)
        return fresh

    def _begin(self, shelf: BacklogRecipient) -> None:
        self._shelves[shelf] = deque()
        self._pools[listener_of(shelf.pool)] = shelf.pool

    def _see(self, shelf: BacklogRecipient) -> None:
        self._seen_s[shelf] = self._clock()
        if self._store is not None:
            self._store.remember(shelf, self._seen_s[shelf])

    def expire(self, present: Callable[[BacklogRecipient], bool]) -> list[BacklogRecipient]:
        """Forget what was kept for too long; returns the shelves that nobody came back to, which are gone.

        Args:
            present: whether that shelf has a listener now.
        """
        over_s = self._clock() - self._config.keep_s
        while self._kept:
            number, kept = next(iter(self._kept.items()))
            if kept.at_s > over_s:
                break
            self._remove(number)
            self.counts["backlog_expired"] += 1
        gone = []
        for shelf in list(self._shelves):
            if present(shelf):
                self._see(shelf)
            elif self._seen_s[shelf] <= over_s and not self._shelves[shelf]:
                del self._shelves[shelf], self._seen_s[shelf]
                if self._store is not None:
                    self._store.drop(shelf)
                gone.append(shelf)
        if gone:
            self._pools = {listener_of(each.pool): each.pool for each in self._shelves}
        return gone

    def keeps(self, key: Key) -> bool:
        """Whether something may be kept for a pool there."""
        return any(shelf.key == key for shelf in self._shelves)

    # ------------------------------------------------------------ messages

    def put(self, message: WaitingMessage, pool: str | None) -> bool:
        """Keep ``message``; False: nothing is kept for that pool there, or it is larger than all that may be."""
        shelf = BacklogRecipient(message.key, pool)
        config = self._config
        if shelf not in self._shelves or message.size > config.bytes:
            return False
        while len(self._kept) >= config.messages or self.bytes + message.size > config.bytes:
            self._remove(next(iter(self._kept)))
            self.counts["backlog_full"] += 1
        kept = Kept(shelf, message, self._clock())
        number, self._next = self._next, self._next + 1
        self._kept[number] = kept
        self._shelves[shelf].append(number)
        self.bytes += message.size
        self.counts["backlog_kept"] += 1
        if self._store is not None:
            self._store.put(number, kept)
        return True

    def head(self, keys: Iterable[Key], pool: str | None) -> tuple[int, WaitingMessage] | None:
        """The oldest message that is kept for a listener of ``keys`` in ``pool``, and its number; None: none is."""
        if not self._kept:
            return None
        heads = [shelf[0] for key in keys if (shelf := self._shelves.get(BacklogRecipient(key, pool)))]
        return (number := min(heads), self._kept[number].message) if heads else None

    def give(self, number: int) -> None:
        """That message was given to a listener."""
        self.counts["backlog_given"] += 1
        self._remove(number)

    def _remove(self, number: int) -> None:
        """It is the oldest of its shelf."""
        kept = self._kept.pop(number)
        self.bytes -= kept.message.size
        self._shelves[kept.shelf].popleft()
        if self._store is not None:
            self._store.forget(number)

    def status(self) -> dict[str, Any]:
        """For STATUS: what is kept, for whom."""
        shelves = [
            {"exchange": shelf.key[0], "topic": shelf.key[1], "pool": shelf.pool, "messages": len(numbers)}
            for shelf, numbers in self._shelves.items()
        ]
        return {"messages": len(self._kept), "bytes": self.bytes, "shelves": shelves}

    def close(self) -> int:
        """Close the file; returns how many messages are lost, since there is none. Harmless twice."""
        if self._store is not None:
            self._store.close()
            return 0
        lost = len(self._kept)
        self._kept.clear()
        return lost
