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
from itertools import islice
from math import inf
from typing import Final

from broker.wire.message import Message

NUMBERS: Final = 0xFFFFFFFF
"""How many numbers there are: 1 to 2**32 - 1."""
AHEAD: Final = NUMBERS // 2
"""Numbers up to this distance are ahead; beyond it they are in the past."""
FRAME_BYTES: Final = 64
"""What a frame takes beside its bytes: the head of the object, its place in the row, and what the allocator rounds."""
FRAME_HEAD_BYTES: Final = 8
"""In front of a frame: magic, and how many bytes come behind, 4 each, big-endian."""
SEGMENT_BYTES: Final = 65536
"""Frames are put together when they take so much: what is written meanwhile stays in the caches of the processor."""
SEGMENTS_LEAST: Final = 16
"""Of so many segments the oldest goes, so that little more goes than has to."""
SEGMENT_COST: Final = 192
"""What a segment takes beside its bytes."""


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


class MessageHistory:
    """A bounded, unbroken stretch of events, as messages.

    Args:
        max_msgs: events kept at most; 0 keeps none.
        max_bytes: the lengths of their frames together at most; 0 keeps none.

    Attributes:
        max_msgs: as above.
        epoch: whose numbers these are; "" before ``begin``.
        last: the number of the newest event known, held or not.
        held_bytes: lengths of the frames of all held events together.
    """

    __slots__ = ("_held", "_known", "_max_bytes", "epoch", "held_bytes", "last", "max_msgs")

    def __init__(self, max_msgs: int, max_bytes: int) -> None:
        self.max_msgs: int = max_msgs
        self._max_bytes: int = max_bytes
        self._held: deque[Message] = deque()
        self._known: bool = (
            False  # False: `last` is behind what the instance has published, by an unknown count
        )
        self.epoch: str = ""
        self.last: int = 0
        self.held_bytes: int = 0

    def __len__(self) -> int:
        return len(self._held)

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

    def add(self, messages: list[Message]) -> None:
        """Keep events whose numbers follow each other, never none; when the first is not the one behind ``last``, those
        between were missed (``mark_gap``).
        """
        first = messages[0].sequence
        if not self._known or first != follower(self.last):
            self._clear()
            self._known = True
        self.last = (first + len(messages) - 2) % NUMBERS + 1
        held = self._held
        held.extend(messages)
        for message in messages:
            self.held_bytes += message.size
        while self.held_bytes > self._max_bytes or len(held) > self.max_msgs:
            self.held_bytes -= held.popleft().size

    @property
    def before(self) -> int:
        """The number behind which everything is held; that of the newest where nothing is."""
        return (self.last - len(self._held)) % NUMBERS

    def covers(self, epoch: str, sequence: int) -> bool:
        """Whether every event behind ``sequence`` of ``epoch``, up to the newest, is held."""
        if not self._known or not self.epoch or epoch != self.epoch:
            return False
        return distance(sequence, self.last) <= len(self._held)

    def since(self, sequence: int, most: int) -> list[Message]:
        """The events behind ``sequence``, oldest first, ``most`` of them at the most.

        Raises:
            LookupError: not all of them are held; ask ``covers`` first.
        """
        held = self._held
        first = len(held) - distance(sequence, self.last)
        if not self._known or first < 0:
            raise _not_held(sequence)
        return list(islice(held, first, first + most))

    def _clear(self) -> None:
        self._held = deque()
        self.held_bytes = 0


class _Segment:
    """Frames that follow each other, put together.

    Attributes:
        frames: the frames. count: how many they are.
        at_s: when all of them had come, by the clock of ``FrameHistory.mark``; inf: since its last look.
    """

    __slots__ = ("at_s", "count", "frames")

    def __init__(self, frames: bytes, count: int, at_s: float) -> None:
        self.frames: bytes = frames
        self.count: int = count
        self.at_s: float = at_s


class FrameHistory:
    """The last events of rank 0: the frames that links send, bounded in bytes, what they take beside their own among
    them, and in age. The newest are as they came, in a row; those before are put together in segments, which go whole.

    Args:
        max_bytes: as above. max_age_s: events that are older go; 0 keeps them whatever their age.

    Attributes:
        epoch: whose numbers these are.
        last: the number of the newest event.
    """

    __slots__ = (
        "_gone_s",
        "_max_age_s",
        "_max_bytes",
        "_newest",
        "_newest_bytes",
        "_segment_bytes",
        "_segments",
        "_segments_bytes",
        "_segments_count",
        "epoch",
        "last",
    )

    def __init__(self, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes: int = max_bytes
        self._max_age_s: float = max_age_s
        self._segment_bytes: int = min(SEGMENT_BYTES, max_bytes // SEGMENTS_LEAST)
        self.begin("", 0)

    def begin(self, epoch: str, sequence: int) -> None:
        """Start afresh: everything behind ``sequence`` of ``epoch`` will be added."""
        self.epoch: str = epoch
        self.last: int = sequence
        # when the newest of those that are not held had come, by the clock of `mark`; inf: since its last look
        self._gone_s: float = inf if sequence else -inf
        self._newest: list[bytes] = []
        self._newest_bytes: int = 0
        self._segments: deque[_Segment] = deque()
        self._segments_bytes: int = 0
        self._segments_count: int = 0

    def __len__(self) -> int:
        return self._segments_count + len(self._newest)

    @property
    def held_bytes(self) -> int:
        """The memory that is taken."""
        return self._segments_bytes + self._newest_bytes

    @property
    def before(self) -> int:
        """The number behind which everything is held; that of the newest where nothing is."""
        return (self.last - len(self)) % NUMBERS

    def covers(self, epoch: str, sequence: int) -> bool:
        """Whether every event behind ``sequence`` of ``epoch``, up to the newest, is held."""
        return bool(epoch) and epoch == self.epoch and distance(sequence, self.last) <= len(self)

    def add(self, message: Message, sequence: int) -> None:
        """Keep the frame of the event that was just numbered, the one behind ``last``."""
        frame = message.framed()  # which links send, too
        self.last = sequence
        self._newest.append(frame)
        self._newest_bytes += len(frame) + FRAME_BYTES
        if self._newest_bytes > self._segment_bytes:
            self._seal()

    def _seal(self) -> None:
        newest = self._newest
        frames = b"".join(newest)
        self._segments.append(_Segment(frames, len(newest), inf))
        self._segments_count += len(newest)
        self._segments_bytes += len(frames) + SEGMENT_COST
        newest.clear()
        self._newest_bytes = 0
        while self._segments_bytes > self._max_bytes - self._segment_bytes:
            self._drop()

    def _drop(self) -> None:
        """The oldest segment goes."""
        oldest = self._segments.popleft()
        self._segments_count -= oldest.count
        self._segments_bytes -= len(oldest.frames) + SEGMENT_COST
        self._gone_s = oldest.at_s

    def mark(self, now_s: float) -> None:
        """It is ``now_s`` by a clock that runs forward; to be called about once a second. What is too old goes."""
        if self._newest:
            self._seal()
        segments = self._segments
        for segment in reversed(segments):
            if segment.at_s != inf:
                break
            segment.at_s = now_s
        if self._gone_s == inf:
            self._gone_s = now_s
        while self._max_age_s and segments and segments[0].at_s < now_s - self._max_age_s:
            self._drop()

    def number_at(self, when_s: float) -> int:
        """The number behind which all events came after ``when_s``, by the clock of ``mark``; that of the oldest that
        is held, where those came later.
        """
        number = self.before
        for segment in self._segments:
            if segment.at_s > when_s:
                break
            number = (number + segment.count) % NUMBERS
        return number

    def holds_since(self, when_s: float) -> bool:
        """Whether every event that came after ``when_s``, by the clock of ``mark``, is held."""
        return self._gone_s <= when_s

    def prepend(self, last: int, frames: list[bytes], at_s: float) -> bool:
        """Keep events up to number ``last``, which has to be right before the oldest that is held, and came at
        ``at_s``; as many of the newest as there is room for. Returns whether that was all of them.
        """
        if last != self.before:
            return False
        room = self._max_bytes - self._segment_bytes - self._segments_bytes - SEGMENT_COST
        first = len(frames)
        while first and room >= len(frames[first - 1]):
            first -= 1
            room -= len(frames[first])
        if first < len(frames):
            kept = b"".join(frames[first:])
            self._segments.appendleft(_Segment(kept, len(frames) - first, at_s))
            self._segments_count += len(frames) - first
            self._segments_bytes += len(kept) + SEGMENT_COST
            self._gone_s = at_s if self.before else -inf
        return not first

    def since(self, sequence: int, most: int) -> list[bytes]:
        """The frames behind ``sequence``, oldest first, ``most`` of them at the most.

        Raises:
            LookupError: not all of them are held; ask ``covers`` first.
        """
        skip = len(self) - distance(sequence, self.last)
        if skip < 0:
            raise _not_held(sequence)
        found: list[bytes] = []
        for segment in self._segments:
            if skip >= segment.count:
                skip -= segment.count
                continue
            if len(found) >= most:
                return found
            frames, at = segment.frames, 0
            while at < len(frames) and len(found) < most:
                end = at + FRAME_HEAD_BYTES + int.from_bytes(frames[at + 4 : at + FRAME_HEAD_BYTES], "big")
                if skip:
                    skip -= 1
                else:
                    found.append(frames[at:end])
                at = end
        return found + self._newest[skip : skip + most - len(found)]


def _not_held(sequence: int) -> LookupError:
    return LookupError(f"the events behind {sequence} are not all held")
