"""What waits for one listener, and the window within which it is given that (pure).

What waits is bounded in messages and bytes. It is handed out within the **window**: as many messages as the listener
gave credit for, and no more unconfirmed bytes than it wants, or its queue may hold (one message always fits).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Generic, Protocol, TypeVar

CREDIT_MAX: Final = 10_000
"""Messages a listener can have room for at once: the default size of an application's inbox."""


class SizedMessage(Protocol):
    """What waits."""

    @property
    def size(self) -> int:
        """Bytes of its frames."""


Waiting = TypeVar("Waiting", bound=SizedMessage)


class CreditedQueue(Generic[Waiting]):
    """The queue of one listener.

    Args:
        listener: its id.
        credit: messages it has room for.
        owner: the process that it belongs to, opaque here.
        limits: messages and bytes that may wait.
        credit_bytes: it has room for; 0: as many as may wait.

    Attributes:
        attached: it can be reached; else everything waits.
        flying, flying_bytes: handed out, not confirmed by credit yet.
        moves: how often something of it was confirmed, or it began to wait; counted by its owner.
    """

    __slots__ = (
        "attached", "credit", "flying", "flying_bytes", "id", "limits", "moves", "owner", "queue", "queue_bytes",
        "window_bytes",
    )  # fmt: skip

    def __init__(
        self, listener: str, credit: int, owner: Any, limits: tuple[int, int], credit_bytes: int = 0
    ) -> None:
        self.id = listener
        self.credit = min(credit, CREDIT_MAX)
        self.window_bytes = min(credit_bytes or limits[1], limits[1])
        self.owner = owner
        self.limits = limits
        self.moves = 0
        self.attached = False
        self.queue: deque[Waiting] = deque()
        self.queue_bytes = 0
        self.flying: deque[int] = deque()
        self.flying_bytes = 0

    @property
    def filled(self) -> float:
        """The part of it that is in use, of messages or bytes, whichever is more."""
        msgs_max, bytes_max = self.limits
        return max(len(self.queue) / max(msgs_max, 1), self.queue_bytes / max(bytes_max, 1))

    @property
    def has_room(self) -> bool:
        """Whether one more may wait: the one that makes the queue full still fits."""
        msgs_max, bytes_max = self.limits
        return not self.queue or (len(self.queue) < msgs_max and self.queue_bytes < bytes_max)

    @property
    def has_credit(self) -> bool:
        """Whether it may have one more that cannot wait: the one that makes the window full still fits."""
        return self.credit > 0 and self.flying_bytes < self.window_bytes

    def is_open(self, size: int) -> bool:
        """Whether a message of so many bytes fits into the window."""
        return (
            self.attached
            and self.credit > 0
            and (not self.flying or self.flying_bytes + size <= self.window_bytes)
        )

    def wait(self, message: Waiting) -> None:
        """``message`` waits behind the others."""
        self.queue.append(message)
        self.queue_bytes += message.size

    def wait_first(self, message: Waiting) -> None:
        """``message`` waits before the others."""
        self.queue.appendleft(message)
        self.queue_bytes += message.size

    def next_waiting(self) -> Waiting:
        """Take the first that waits."""
        message = self.queue.popleft()
        self.queue_bytes -= message.size
        return message

    def fly(self, size: int) -> None:
        """A message of so many bytes is on its way: to be confirmed."""
        self.credit -= 1
        self.flying.append(size)
        self.flying_bytes += size

    def resume(self, messages: int, size: int) -> None:
        """It has so many messages of ``size`` bytes already, of a proxy before this one: they are confirmed first."""
        messages = min(messages, self.credit + CREDIT_MAX)  # calls that came again needed no credit
        for left in range(messages, 0, -1):
            self.fly(size // left)
            size -= size // left

    def forget(self, size: int) -> None:
        """A message of so many bytes that was handed out was dropped on its way."""
        if size in self.flying:  # else its listener has confirmed what it never had
            self.flying.remove(size)
            self.flying_bytes -= size
            self.credit += 1

    def land(self) -> None:
        """The latest that was handed out could not be sent: the listener can have nothing more, all else waits."""
        self.attached = False
        self.credit += 1
        self.flying_bytes -= self.flying.pop()

    def confirm(self, messages: int) -> None:
        """Give it credit for so many more; as many of the oldest that it was given are confirmed."""
        self.credit = min(self.credit + messages, CREDIT_MAX)
        for _ in range(min(messages, len(self.flying))):
            self.flying_bytes -= self.flying.popleft()

    def status(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "listener": self.id,
            "attached": self.attached,
            "credit": self.credit,
            "waiting": len(self.queue),
            "waiting_bytes": self.queue_bytes,
            "unconfirmed": len(self.flying),
        }
