"""The last events, for clients that come back: exactly which numbers are held is always known.

Rank 0 numbers every event of the instance from 1 on without a hole (RFC 3, "Event Message Type"); after 2**32 - 1
comes 1 again. The history holds one unbroken stretch of these numbers, ending with the last event seen, so the
event behind number N is found by subtraction, and "is everything behind N here?" has an exact answer.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.wire.message import Message

NUMBERS: Final = 0xFFFFFFFF
"""How many numbers there are: 1 to 2**32 - 1."""
AHEAD: Final = NUMBERS // 2
"""Numbers up to this distance are ahead; beyond it they are in the past."""


def follower(sequence: int) -> int:
    """The number that comes behind ``sequence``; 0 stands for "none was given yet".

    >>> follower(0), follower(7), follower(0xFFFFFFFF)
    (1, 8, 1)
    """
    return sequence % NUMBERS + 1


def distance(earlier: int, later: int) -> int:
    """How many events there are behind ``earlier`` up to ``later``; above AHEAD, ``later`` is in fact the earlier.

    >>> distance(5, 8), distance(0xFFFFFFFF, 2), distance(0, 3)
    (3, 2, 3)
    """
    return (later - earlier) % NUMBERS


class History:
    """A bounded, unbroken stretch of events.

    Args:
        max_msgs: events kept at most; 0 keeps none.
        max_bytes: their sizes together at most; 0 keeps none.

    Attributes:
        epoch: whose numbers these are (uuid of rank 0's broker); "" before ``begin``.
        last: the number of the newest event known, held or not.
        bytes: sizes of all held events together.
    """

    __slots__ = ("_known", "_max_bytes", "_max_msgs", "_messages", "bytes", "epoch", "last")

    def __init__(self, max_msgs: int, max_bytes: int) -> None:
        self._max_msgs = max_msgs
        self._max_bytes = max_bytes
        self._messages: deque[Message] = deque()
        self._known = False  # False: `last` is behind what the instance has published, by an unknown count
        self.epoch = ""
        self.last = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def begin(self, epoch: str, sequence: int) -> None:
        """Start afresh: everything behind ``sequence`` of ``epoch`` will be added."""
        self._clear()
        self.epoch = epoch
        self.last = sequence
        self._known = True

    def mark_gap(self) -> None:
        """Numbers were missed: nothing before the next event can be bridged any more."""
        self._clear()
        self._known = False

    def add(self, message: Message) -> None:
        """Keep the event behind ``last``; another number means that those between were missed (``mark_gap``)."""
        self.extend([message])

    def extend(self, messages: list[Message]) -> None:
        """As ``add`` for each of ``messages``, whose numbers follow each other; never empty."""
        if not self._known or messages[0].sequence != follower(self.last):
            self._clear()
            self._known = True
        self.last = messages[-1].sequence
        held = self._messages
        held.extend(messages)
        self.bytes += sum([message.size for message in messages])
        while self.bytes > self._max_bytes or len(held) > self._max_msgs:
            self.bytes -= held.popleft().size

    def covers(self, epoch: str, sequence: int) -> bool:
        """Whether every event behind ``sequence`` of ``epoch``, up to the newest, is held."""
        if not self._known or not self.epoch or epoch != self.epoch:
            return False
        return distance(sequence, self.last) <= len(self)

    def since(self, sequence: int, most: int) -> list[Message]:
        """The events behind ``sequence``, oldest first, ``most`` of them at the most.

        Raises:
            LookupError: not all of them are held; ask ``covers`` first.
        """
        held = self._messages
        first = len(held) - distance(sequence, self.last)
        if not self._known or first < 0:
            raise LookupError(f"the events behind {sequence} are not all held")
        return [held[index] for index in range(first, min(first + most, len(held)))]

    def _clear(self) -> None:
        self._messages = deque()
        self.bytes = 0
