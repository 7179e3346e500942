"""What libzmq took lately, of one pipeline: a connection that ends may have lost it, and it is sent again (pure).

Bounded by number, bytes and time. Less than ``message_ids.WINDOW`` are kept, so that whoever has one of them knows it.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from typing import Final, Generic, Protocol, TypeVar

SENT_MSGS: Final = 4096
"""More than a proxy that reads nothing for two seconds has in its sockets: one that has just begun, and ends again."""
SENT_BYTES: Final = 4 << 20
SENT_S: Final = 20.0
"""Longer than a dead connection takes to be noticed (``tuning.KeepAlive``)."""


class Sized(Protocol):
    """Something that was sent."""

    size: int


Sent = TypeVar("Sent", bound=Sized)


class SentMessages(Generic[Sent]):
    """The latest messages of one pipeline, over all of its connections.

    Attributes:
        bytes: of all of them.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._sent: deque[tuple[float, object, Sent]] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, link: object, message: Sent, now_s: float) -> None:
        """``message`` went over ``link``; what is beyond the bounds is forgotten."""
        sent = self._sent
        sent.append((now_s, link, message))
        self.bytes += message.size
        while len(sent) > 1 and (
            len(sent) > SENT_MSGS or self.bytes > SENT_BYTES or sent[0][0] < now_s - SENT_S
        ):
            self.bytes -= sent.popleft()[2].size

    def take(self, link: object, now_s: float) -> list[Sent]:
        """Forget what went over ``link``; returns what of it is young enough to be sent again, oldest first."""
        taken = [message for sent_s, over, message in self._sent if over is link and sent_s >= now_s - SENT_S]
        self._sent = deque(entry for entry in self._sent if entry[1] is not link)
        self.bytes = sum(entry[2].size for entry in self._sent)
        return taken
