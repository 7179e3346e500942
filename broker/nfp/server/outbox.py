"""Messages that wait to leave, in order, some of them for a commit (NFP, "Job Persistence": stored before told)."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Container, Iterator
from math import ceil
from typing import Generic, NamedTuple, TypeVar

import msgspec

from broker.nfp.contract import Peer
from broker.nfp.names import Command, Dialect
from broker.nfp.principal import Principal
from broker.nfp.server.invalid_messages import InvalidCount

Form = TypeVar("Form")
EVENT_SHARE = 0.75
"""Events and streams may fill this much of a queue: a result, which is not sent twice, still finds room."""
LESSER = frozenset({Command.EVENT, Command.STREAM})
"""What may be lost on the way to a peer that is full."""


class QueueLimits(NamedTuple):
    """Of one peer's queue."""

    size_bytes: int
    msgs: int


class Waiting(msgspec.Struct, Generic[Form], eq=False, gc=False):
    """A message in a queue: it leaves once the commit ``after`` is done."""

    after: int
    uuid: str
    size: int
    form: Form


class Outbox(Generic[Form]):
    """A FIFO bounded in bytes and messages.

    Attributes:
        size: bytes that wait.
    """

    __slots__ = ("_lesser_limits", "_limits", "_queue", "size")

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._lesser_limits = QueueLimits(
            int(limits.size_bytes * EVENT_SHARE), ceil(limits.msgs * EVENT_SHARE)
        )
        self._queue: deque[Waiting[Form]] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._queue)

    def has_room(self, command: Command, size: int) -> bool:
        """Whether a message of ``size`` bytes may be queued; a single one always may."""
        if not self._queue:
            return True
        limits = self._lesser_limits if command in LESSER else self._limits
        return len(self._queue) < limits.msgs and self.size + size <= limits.size_bytes

    @property
    def crowded(self) -> bool:
        """True while more than half of it is in use: what can wait should."""
        limits = self._limits
        return 2 * len(self._queue) > limits.msgs or 2 * self.size > limits.size_bytes

    @property
    def head(self) -> Waiting[Form] | None:
        """What leaves next."""
        return self._queue[0] if self._queue else None

    def uuids(self) -> frozenset[str]:
        """What the messages in it are about."""
        return frozenset(each.uuid for each in self._queue)

    def put_first(self, waiting: Waiting[Form]) -> None:
        """Queue, in front of everything: a message that has nothing to do with the others."""
        self._queue.appendleft(waiting)
        self.size += waiting.size

    def put(self, waiting: Waiting[Form]) -> None:
        """Queue, at the end."""
        self._queue.append(waiting)
        self.size += waiting.size

    def due(self, committed: int) -> Iterator[Form]:
        """What may leave, in order. Each has left once the next one is asked for; who stops keeps the last one here."""
        queue = self._queue
        while queue and queue[0].after <= committed:
            waiting = queue[0]
            yield waiting.form
            if self._queue is not queue:  # it was cleared meanwhile
                return
            queue.popleft()
            self.size -= waiting.size

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
        return lost


class QueuedPeer(Peer, Generic[Form]):
    """A peer of this broker with an outbox, before it is known how it is connected.

    Attributes:
        address: where it is, for people. transport: how it is connected, as the journal numbers it.
        invalid: the count of its invalid messages.
        deaf: True once it is cut: what it has sent is not handled.
        greeted: True once it has said something valid.
        worker: True once it has said something as a worker.
    """

    def __init__(
        self,
        name: str,
        identity: bytes,
        principal: Principal,
        limits: QueueLimits,
        address: str,
        transport: int,
    ) -> None:
        self.name = name
        self.address = address
        self.transport = transport
        self.identity = identity
        self.principal = principal
        self.dialect = Dialect.NORFAB
        self.features = frozenset()
        self.alive = True
        self.unsent = ()
        self.deaf = False
        self.invalid = InvalidCount()
        self.greeted = False
        self.worker = False
        self._outbox: Outbox[Form] = Outbox(limits)
        self._wants_room = False

    @property
    def waiting(self) -> tuple[int, int]:
        """Messages and bytes in the outbox."""
        return len(self._outbox), self._outbox.size

    def roomy(self) -> bool:
        """See ``Peer.roomy``."""
        if self.alive and not self._outbox.crowded:
            return True
        self._wants_room = True
        return False

    @abstractmethod
    def flush(self) -> None:
        """Let go what may leave; ``Flusher.hold`` when something waits for a commit."""

    def drop(self, uuids: Container[str]) -> int:
        """Forget what waits for the commit of ``uuids``, which failed; returns how many messages."""
        return self._outbox.drop(uuids)
