"""Ids of messages, and which of them a listener has had: what is sent again after a lost connection runs once (pure).

A connection that ends may lose what libzmq has taken. Senders therefore send again what they sent shortly before
(``sent_messages``), with ``Flag.REPEATED``, and listeners drop what they have already. An id is 16 bytes: 8 random ones
for each sender (a pipeline of a process) and a number that counts its messages. So a listener need not remember ids: it
remembers the greatest number of each sender, and which of the ``WINDOW`` before that it has had. Whoever sends again
keeps less than that.
"""

from __future__ import annotations

import itertools
import os
from typing import Final

from broker.memory import compact
from broker.oslo.frames import HEAD_BYTES

WINDOW: Final = 2048
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


class SeenMessages:
    """The messages that one listener has had."""

    __slots__ = ("_senders",)

    def __init__(self) -> None:
        self._senders: dict[bytes, tuple[int, int]] = {}

    def __contains__(self, head: bytes) -> bool:
        """Whether the message with the envelope ``head`` was added, or is too old to be told from one that was."""
        known = self._senders.get(head[_SENDER_AT:_NUMBER_AT])
        if known is None:
            return False
        newest, mask = known
        back = newest - int.from_bytes(head[_NUMBER_AT:HEAD_BYTES])
        return back >= WINDOW or (back >= 0 and bool(mask >> back & 1))

    def add(self, head: bytes) -> None:
        """The listener has it."""
        sender = head[_SENDER_AT:_NUMBER_AT]
        number = int.from_bytes(head[_NUMBER_AT:HEAD_BYTES])
        known = self._senders.get(sender)
        if known is None:
            if len(self._senders) >= SENDERS_MAX:
                self._forget_oldest()
            self._senders[sender] = (number, 1)
            return
        newest, mask = known
        ahead = number - newest
        if ahead > 0:
            self._senders[sender] = (number, (mask << ahead | 1) & _MASK if ahead < WINDOW else 1)
        elif -ahead < WINDOW:
            self._senders[sender] = (newest, mask | 1 << -ahead)

    def _forget_oldest(self) -> None:
        """Forget the half that was met first."""
        for sender in list(self._senders)[: SENDERS_MAX // 2]:
            del self._senders[sender]
        self._senders = compact(self._senders)
