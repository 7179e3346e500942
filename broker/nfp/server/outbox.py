"""Messages that wait to leave, in order, some of them for a commit (NFP, "Job Persistence": stored before told)."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import Generic, NamedTuple, TypeVar

from broker.nfp.names import Command

Form = TypeVar("Form")
EVENT_SHARE = 0.75
"""Events and streams may fill this much of a queue: a result, which is not sent twice, still finds room."""
_LESSER = frozenset({Command.EVENT, Command.STREAM})


class Limits(NamedTuple):
    """Of one peer's queue."""

    size_bytes: int
    msgs: int


class Waiting(NamedTuple, Generic[Form]):
    """A message in a queue: it leaves once the commit ``after`` is done."""

    after: int
    uuid: str
    size: int
    form: Form


class Outbox(Generic[Form]):
    """A FIFO bounded in bytes and messages.

    Attributes:
        size: bytes that wait. dropped: messages that found no room, or whose job could not be stored.
    """

    __slots__ = ("_limits", "_queue", "dropped", "size")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue: deque[Waiting[Form]] = deque()
        self.size = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._queue)

    def has_room(self, command: Command, size: int) -> bool:
        """Whether a message of ``size`` bytes may be queued; a single one always may."""
        if not self._queue:
            return True
        share = EVENT_SHARE if command in _LESSER else 1.0
        limits = self._limits
        return len(self._queue) < limits.msgs * share and self.size + size <= limits.size_bytes * share

    def put(self, waiting: Waiting[Form]) -> None:
        """Queue, at the end."""
        self._queue.append(waiting)
        self.size += waiting.size

    def due(self, committed: int) -> Waiting[Form] | None:
        """What may leave next, None when nothing may yet."""
        queue = self._queue
        return queue[0] if queue and queue[0].after <= committed else None

    def taken(self) -> None:
        """What ``due`` said has left."""
        self.size -= self._queue.popleft().size

    def drop(self, uuids: Container[str]) -> int:
        """Forget what waits for a commit about ``uuids``, which failed; returns how many messages."""
        if not self._queue:
            return 0
        return self._keep(deque(each for each in self._queue if not (each.after and each.uuid in uuids)))

    def clear(self) -> int:
        """Forget everything; returns how many messages that were."""
        return self._keep(deque())

    def overtakers(self, committed: int) -> Iterator[Waiting[Form]]:
        """What may leave although others in front wait for a commit: messages about other jobs.

        For the time that nothing can be stored, when the usual order would keep even "the disk is full" waiting.
        """
        held: set[str] = set()
        for each in list(self._queue):
            if each.after > committed:
                held.add(each.uuid)
            elif each.uuid not in held:
                yield each

    def remove(self, gone: Waiting[Form]) -> None:
        """One of ``overtakers`` has left."""
        for at, each in enumerate(self._queue):
            if each is gone:
                del self._queue[at]
                self.size -= gone.size
                return

    def _keep(self, kept: deque[Waiting[Form]]) -> int:
        lost = len(self._queue) - len(kept)
        self._queue = kept
        self.size = sum(each.size for each in kept)
        self.dropped += lost
        return lost
