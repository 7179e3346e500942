"""What is sent again after a lost connection, and how it runs once all the same: ids of messages, which of them a
listener has had, and what libzmq took lately (pure).

A connection that ends may lose what libzmq has taken. Senders therefore send again what they sent shortly before
(``ResendBuffer``), with ``Flag.REPEATED``, and listeners drop what they have already (``Deduplicator``). An id is 16
bytes: 8 random ones for each sender (a pipeline of a process) and a number that counts its messages. So a listener need
not remember ids: it remembers the greatest number of each sender, and which of the ``WINDOW`` before that it has had.
What is sent again is bounded by number, bytes and time; less than ``WINDOW`` are kept, so that whoever has one of them
knows it.
"""

# compiled: mypyc

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from broker.oslo.frames import HEAD_BYTES

WINDOW: Final = 8192
"""Numbers of one sender that a listener tells apart; what is older counts as seen."""
SENDERS_MAX: Final = 4096
"""Senders that one listener remembers; whoever was silent for longest is forgotten first."""
SENDER_BYTES: Final = 8
_SENDER_AT: Final = 16
"""In an envelope: the stamp and the sender's part of the id. Nobody repeats for somebody with other credentials."""
_NUMBER_AT: Final = 32
_MASK: Final = (1 << WINDOW) - 1


class MessageIds:
    """Counts the messages of one sender. From any thread."""

    def __init__(self) -> None:
        self._sender = os.urandom(SENDER_BYTES)
        self._numbers = itertools.count(1)

    def next(self) -> bytes:
        """Another id."""
        return self._sender + next(self._numbers).to_bytes(8)


class Deduplicator:
    """Tells which messages one listener has had, so that none runs twice."""

    __slots__ = ("_before", "_lately")

    def __init__(self) -> None:
        self._lately: dict[bytes, tuple[int, int]] = {}
        self._before: dict[bytes, tuple[int, int]] = {}
        """Senders that sent nothing since ``_lately`` was begun anew."""

    def __len__(self) -> int:
        """Senders that are remembered."""
        return len(self._lately) + len(self._before)

    def __contains__(self, head: bytes) -> bool:
        """Whether the message with the envelope ``head`` was added, or is too old to be told from one that was."""
        sender = head[_SENDER_AT:_NUMBER_AT]
        known = self._lately.get(sender) or self._before.get(sender)
        if known is None:
            return False
        newest, mask = known
        back = newest - int.from_bytes(head[_NUMBER_AT:HEAD_BYTES])
        return back >= WINDOW or (back >= 0 and bool(mask >> back & 1))

    def add(self, head: bytes) -> None:
        """Remember that the listener has had the message with the envelope ``head``."""
        sender = head[_SENDER_AT:_NUMBER_AT]
        number = int.from_bytes(head[_NUMBER_AT:HEAD_BYTES])
        known = self._lately.get(sender)
        if known is None:
            known = self._meet(sender) or (number, 1)
        newest, mask = known
        ahead = number - newest
        if ahead > 0:
            self._lately[sender] = (number, (mask << ahead | 1) & _MASK if ahead < WINDOW else 1)
        elif -ahead < WINDOW:
            self._lately[sender] = (newest, mask | 1 << -ahead)
        else:
            self._lately[sender] = known

    def _meet(self, sender: bytes) -> tuple[int, int] | None:
        """What is known of one that was silent; there is room for it then."""
        known = self._before.pop(sender, None)
        if len(self._lately) >= SENDERS_MAX // 2:
            self._before, self._lately = self._lately, {}
        return known


SENT_MSGS: Final = 4096
"""More than a proxy that reads nothing for two seconds has in its sockets: one that has just begun, and ends again."""
SENT_BYTES: Final = 4 << 20
SENT_S: Final = 20.0
"""Longer than a dead connection takes to be noticed (``tuning.KeepAlive``)."""


class Parcel:
    """A message on its way to a node.

    Attributes:
        size: of its body, in bytes.
        link: the link that it was handed to; None while it waits for a choice.
        repeated: its connection ended after it was sent: that node may have it, so that nobody else may.
        over: nobody wants it sent any more.
    """

    __slots__ = ("link", "over", "repeated", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.link: object = None
        self.repeated = False
        self.over = False

    def mark_repeated(self) -> None:
        """It is sent once more: whoever has it takes no notice."""
        self.repeated = True


P = TypeVar("P", bound=Parcel)


class ResendBuffer(Generic[P]):
    """The latest messages that libzmq took of a pipeline that has no answers, over all of its connections.

    Args:
        clock: seconds that never go back.

    Attributes:
        bytes: of all of them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.bytes = 0
        self._now = clock
        self._sent: deque[tuple[float, P]] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def note_sent(self, parcel: P) -> None:
        """Keep ``parcel``, which libzmq took; what is beyond the bounds is forgotten."""
        sent, now_s = self._sent, self._now()
        sent.append((now_s, parcel))
        self.bytes += parcel.size
        while len(sent) > 1 and (
            len(sent) > SENT_MSGS or self.bytes > SENT_BYTES or sent[0][0] < now_s - SENT_S
        ):
            self.bytes -= sent.popleft()[1].size

    def take(self, link: object) -> list[P]:
        """Forget what went over ``link``; returns what of it is to be sent again, oldest first: not what is too old."""
        oldest_s = self._now() - SENT_S
        taken = [parcel for sent_s, parcel in self._sent if parcel.link is link and sent_s >= oldest_s]
        self._sent = deque(entry for entry in self._sent if entry[1].link is not link)
        self.bytes = sum(parcel.size for _sent_s, parcel in self._sent)
        return taken
