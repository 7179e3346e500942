"""Tracks the sequence numbers of events, their gaps, and the epoch that they belong to.

Rank 0 numbers the events of its instance from 1 on (RFC 3, "Event Message Type"). Behind a link to rank 0 itself a
numbering lives as long as the link, so an odd number can only be a repetition or a gap. Behind another rank the
numbering may change while the link stays: rank 0 is started again and the tree heals. Whatever is odd there puts the
numbering *in doubt*: events are held back until somebody asked rank 0 who it is and what its newest number is
(``settle``); only then is it known what was missed. In between, what rank 0 has kept of it is filled in, page by page
(``fill``): clients that are here get it as if it came now, and the history has it for those that come back.

The history keeps epoch and newest number, also from one link to the next.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from broker.bounded_queue import BoundedQueue
from broker.wire.event_history import AHEAD, NUMBERS, distance, follower

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.wire.message import Message
    from gateway.upstream.trunk import UpstreamReceiver

HELD_MAX: Final = 16384
"""Events held back while in doubt; beyond it the oldest are given up and count as missed."""
HELD_MAX_BYTES: Final = 64 << 20
"""The same in bytes."""


class Numbering:
    """Follows the numbers of the events of one link; begins in doubt.

    Args:
        receiver: gets the events and is told what was missed; its history is kept here.
        on_doubt: called when doubt arises; ``settle`` ends it.

    Attributes:
        certain: the link goes to rank 0: what is odd there is a repetition or a gap.
        fillable: rank 0 keeps events: a gap puts the numbering in doubt even where it is certain.
        duplicates: events that came again and were dropped.
        missed: events that never came, as far as they could be counted.
    """

    __slots__ = (
        "_first",
        "_held",
        "_history",
        "_on_doubt",
        "_receiver",
        "_told",
        "certain",
        "duplicates",
        "fillable",
        "missed",
    )

    def __init__(self, receiver: UpstreamReceiver, on_doubt: Callable[[], None]) -> None:
        self._receiver = receiver
        self._history = receiver.history
        self._on_doubt = on_doubt
        self._held: BoundedQueue[Message] | None = BoundedQueue(HELD_MAX, HELD_MAX_BYTES)
        self._first = (
            not self._history.epoch
        )  # nobody can have been here before: what is filled in is nobody's news
        self._told = False
        self.certain = False
        self.fillable = False
        self.duplicates = 0
        self.missed = 0

    @property
    def in_doubt(self) -> bool:
        """True while events are held back."""
        return self._held is not None

    def doubt(self) -> None:
        """Something happened on the way to rank 0: believe no number until ``settle``."""
        if self._held is None:
            self._held = BoundedQueue(HELD_MAX, HELD_MAX_BYTES)
            self._told = False
            self._on_doubt()

    def received(self, messages: list[Message]) -> None:
        """Events of one read, in order; never empty."""
        if self._held is not None:
            self._hold(messages)
            return
        expected = follower(self._history.last)
        fresh: list[Message] = []
        for index, message in enumerate(messages):
            sequence = message.sequence
            if sequence != expected:
                if fresh:
                    self._take(fresh)
                    fresh = []
                if not self._bridge(sequence):
                    if not self.in_doubt:
                        continue
                    self._hold(messages[index:])
                    return
            fresh.append(message)
            expected = follower(sequence)
        if fresh:
            self._take(fresh)

    def _take(self, messages: list[Message]) -> None:
        """Keep consecutive events and hand them over."""
        self._history.add(messages)
        self._receiver.published(messages)

    def agree(self, epoch: str, sequence: int) -> None:
        """``sequence`` was given by ``epoch``, and belongs to an event that is held back: where that is another
        numbering than before, what came in front of its last unbroken stretch is the former one's, and goes.
        """
        held = self._held
        if held is not None and epoch != self._history.epoch:
            for _ in range(_stretch(list(held), sequence)):
                held.pop()

    def fill(self, epoch: str, messages: list[Message]) -> None:
        """Take events that rank 0 has kept, while in doubt: of ``epoch``, in order, before those that are held back;
        never empty. Those that are known here are passed over.
        """
        history = self._history
        changed = epoch != history.epoch
        if changed:
            history.begin(epoch, (messages[0].sequence - 1) % NUMBERS)
        fresh = [message for message in messages if 0 < distance(history.last, message.sequence) <= AHEAD]
        if not fresh:
            return
        missed = distance(history.last, fresh[0].sequence) - 1
        if missed:
            self.missed += missed
            history.begin(epoch, (fresh[0].sequence - 1) % NUMBERS)
        if self._first:
            history.add(fresh)
            return
        if changed or missed or not self._told:
            self._tell(changed, None if changed else missed)
        self._take(fresh)

    def meets(self, sequence: int) -> bool:
        """Whether what is held back begins at or before the event behind ``sequence``."""
        held = self._held
        return held is not None and len(held) > 0 and distance(held[0].sequence, follower(sequence)) <= AHEAD

    def _tell(self, epoch_changed: bool, missed: int | None) -> None:
        if self._first:
            epoch_changed, missed, self._first = True, None, False
        self._told = True
        self._receiver.upstream_joined(epoch_changed, missed)

    def settle(self, epoch: str, sequence: int) -> None:
        """End the doubt: the numbering is ``epoch``'s, and ``sequence`` belongs to an event that was published since.

        Tells the receiver what was missed, then hands over what was held.
        """
        held, self._held = list(self._held or ()), None
        if epoch == self._history.epoch:
            self._go_on(held, sequence)
        else:
            self._begin(epoch, held, sequence)

    def _hold(self, messages: list[Message]) -> None:
        held = self._held
        assert held is not None
        for message in messages:
            held.add(message, message.size)
        while held.overflowing:
            held.pop()

    def _bridge(self, sequence: int) -> bool:
        """Whether the event numbered ``sequence``, which is not the next one, is to be taken."""
        step = distance(self._history.last, sequence)
        # numbers wrap at 32 bits: what lies far ahead lies behind
        if not step or not sequence or (self.certain and step > AHEAD):
            self.duplicates += 1
            return False
        if self.fillable or not self.certain:
            self.doubt()
            return False
        self.missed += step - 1
        self._history.mark_gap()
        self._receiver.upstream_joined(False, step - 1)
        return True

    def _go_on(self, held: list[Message], sequence: int) -> None:
        """The same numbering as before."""
        last = self._history.last
        ahead = [message for message in held if 0 < distance(last, message.sequence) <= AHEAD]
        if not self._told:  # what was filled in was held back, too
            self.duplicates += len(held) - len(ahead)
        first = ahead[0].sequence if ahead else follower(sequence)
        missed = distance(last, first) - 1
        if missed < 0 or missed > AHEAD:  # nothing came and nothing is missing
            missed = 0
        if missed:
            self.missed += missed
            self._history.begin(self._history.epoch, (first - 1) % NUMBERS)
        if missed or not self._told:
            self._tell(False, missed)
        self._deliver(ahead)

    def _begin(self, epoch: str, held: list[Message], sequence: int) -> None:
        """Another numbering: what was held belongs to it from the last unbroken stretch up to ``sequence`` on."""
        start = _stretch(held, sequence)
        fresh = held[start:]
        before = (fresh[0].sequence - 1) % NUMBERS if fresh else sequence
        self._history.begin(epoch, before)
        self._tell(True, None)
        self._deliver(fresh)

    def _deliver(self, held: list[Message]) -> None:
        """Hand over what was held; it is all of one numbering, so that a gap in it is no more than a gap."""
        before = self.certain, self.fillable
        self.certain, self.fillable = True, False
        try:
            if held:
                self.received(held)
        finally:
            self.certain, self.fillable = before


def _stretch(held: list[Message], sequence: int) -> int:
    """Index in ``held`` where the unbroken stretch that holds ``sequence`` begins; its end when it does not hold it."""
    numbers = [message.sequence for message in held]
    if sequence not in numbers:
        return len(held)
    at = len(numbers) - 1 - numbers[::-1].index(sequence)
    pairs = list(pairwise(numbers[: at + 1]))
    while at and pairs[at - 1][1] == follower(pairs[at - 1][0]):
        at -= 1
    return at
