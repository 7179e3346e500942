"""The last events, for whoever comes back: exactly which numbers are held is always known.

Rank 0 numbers every event of the instance from 1 on without a hole (RFC 3, "Event Message Type"); after 2**32 - 1
comes 1 again. A history holds one unbroken stretch of these numbers, ending with the last event seen, so the event
behind number N is found by subtraction, and "is everything behind N here?" has an exact answer.

Rank 0 keeps the frames that its links send (``FrameHistory``); gateways keep messages, which they judge once more for
each receiver (``MessageHistory``).
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Generic, TypeVar

from broker.wire.message import Message

NUMBERS: Final = 0xFFFFFFFF
"""How many numbers there are: 1 to 2**32 - 1."""
AHEAD: Final = NUMBERS // 2
"""Numbers up to this distance are ahead; beyond it they are in the past."""
FRAME_BYTES: Final = 64
"""What a frame takes beside its bytes: the head of the object, its place in the row, and what the allocator rounds."""

Entry = TypeVar("Entry")


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


class History(Generic[Entry]):
    """A bounded, unbroken stretch of events.

    Args:
        max_msgs: events kept at most; 0 keeps none.
        max_bytes: their sizes together at most; 0 keeps none.

    Attributes:
        max_msgs: as above.
        epoch: whose numbers these are; "" before ``begin``.
        last: the number of the newest event known, held or not.
        bytes: sizes of all held events together.
    """

    __slots__ = ("_append", "_held", "_known", "_max_bytes", "_popleft", "bytes", "epoch", "last", "max_msgs")

    def __init__(self, max_msgs: int, max_bytes: int) -> None:
        self.max_msgs: int = max_msgs
        self._max_bytes: int = max_bytes
        self._held: deque[Entry] = deque()
        self._append: Callable[[Entry], None] = self._held.append
        self._popleft: Callable[[], Entry] = self._held.popleft
        self._known: bool = (
            False  # False: `last` is behind what the instance has published, by an unknown count
        )
        self.epoch: str = ""
        self.last: int = 0
        self.bytes: int = 0

    def __len__(self) -> int:
        return len(self._held)

    def size_of(self, entry: Entry) -> int:
        """What an event counts for, in bytes."""
        raise NotImplementedError

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

    def extend(self, first: int, entries: list[Entry]) -> None:
        """Keep events whose numbers follow each other, never none; when ``first`` is not the one behind ``last``, those
        between were missed (``mark_gap``).
        """
        if not self._known or first != follower(self.last):
            self._clear()
            self._known = True
        self.last = (first + len(entries) - 2) % NUMBERS + 1
        self._held.extend(entries)
        for entry in entries:
            self.bytes += self.size_of(entry)
        if self.bytes > self._max_bytes or len(self._held) > self.max_msgs:
            self._shrink()

    def prepend(self, last: int, entries: list[Entry]) -> bool:
        """Keep events up to number ``last``, which has to be right before the oldest that is held; as many of the
        newest as there is room for. Returns whether that was all of them.
        """
        if last != self.before:
            return False
        for entry in reversed(entries):
            size = self.size_of(entry)
            if self.bytes + size > self._max_bytes or len(self._held) >= self.max_msgs:
                return False
            self._held.appendleft(entry)
            self.bytes += size
        return True

    @property
    def before(self) -> int:
        """The number behind which everything is held; that of the newest where nothing is."""
        return (self.last - len(self._held)) % NUMBERS

    def covers(self, epoch: str, sequence: int) -> bool:
        """Whether every event behind ``sequence`` of ``epoch``, up to the newest, is held."""
        if not self._known or not self.epoch or epoch != self.epoch:
            return False
        return distance(sequence, self.last) <= len(self._held)

    def since(self, sequence: int, most: int) -> list[Entry]:
        """The events behind ``sequence``, oldest first, ``most`` of them at the most.

        Raises:
            LookupError: not all of them are held; ask ``covers`` first.
        """
        held = self._held
        first = len(held) - distance(sequence, self.last)
        if not self._known or first < 0:
            raise LookupError(f"the events behind {sequence} are not all held")
        return list(islice(held, first, first + most))

    def _shrink(self) -> None:
        held = self._held
        while self.bytes > self._max_bytes or len(held) > self.max_msgs:
            self.bytes -= self.size_of(held.popleft())

    def _clear(self) -> None:
        self._held = deque()
        self._append = self._held.append
        self._popleft = self._held.popleft
        self.bytes = 0


class MessageHistory(History[Message]):
    """The history of a gateway: messages, by the sizes of their frames."""

    __slots__ = ()

    def size_of(self, entry: Message) -> int:
        """The length that its frame has."""
        return entry.size

    def add(self, messages: list[Message]) -> None:
        """Keep messages, see ``extend``."""
        self.extend(messages[0].sequence, messages)


class FrameHistory(History[bytes]):
    """The history of rank 0: the frames that links send, bounded in bytes, what each takes beside its own among them,
    and in age.

    Args:
        max_bytes: as above. max_age_s: events that are older go; 0 keeps them whatever their age.
    """

    __slots__ = ("_marks", "_max_age_s")

    def __init__(self, max_bytes: int, max_age_s: float) -> None:
        super().__init__(NUMBERS, max_bytes)
        self._max_age_s: float = max_age_s
        self._marks: deque[tuple[float, int]] = deque()  # when, and the newest number at that time

    def size_of(self, entry: bytes) -> int:
        """Its length, and what it takes beside that."""
        return len(entry) + FRAME_BYTES

    def add(self, message: Message, sequence: int) -> None:
        """Keep the frame of the event that was just numbered, the one behind ``last``."""
        frame = message.framed()  # which links send, too
        self.last = sequence
        self._append(frame)
        self.bytes += len(frame) + FRAME_BYTES
        # once it is full, for every event: ``_shrink`` would ask for each what it counts for, and for their number
        while self.bytes > self._max_bytes:
            self.bytes -= len(self._popleft()) + FRAME_BYTES

    def mark(self, now_s: float) -> None:
        """It is ``now_s`` by a clock that runs forward; to be called about once a second. What is too old goes."""
        marks = self._marks
        if not marks or marks[-1][1] != self.last:
            marks.append((now_s, self.last))
        oldest = now_s - self._max_age_s
        while marks and (
            distance(marks[0][1], self.last) > len(self._held) or (self._max_age_s and marks[0][0] < oldest)
        ):
            old = len(self._held) - distance(marks.popleft()[1], self.last)
            for _ in range(old):
                self.bytes -= self.size_of(self._held.popleft())

    def number_at(self, when_s: float) -> int:
        """The number behind which all events came after ``when_s``, by the clock of ``mark``; that of the oldest that
        is held, where those came later.
        """
        number = self.before
        for at_s, last in self._marks:
            if at_s > when_s:
                break
            if distance(last, self.last) <= len(self._held):
                number = last
        return number

    def remember(self, when_s: float, number: int) -> None:
        """Of events that were put in front (``prepend``): ``number`` was the newest at ``when_s``."""
        self._marks.appendleft((when_s, number))
