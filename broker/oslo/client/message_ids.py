"""Ids of messages, and which of them a listener has had: what is sent again after a lost connection runs once (pure).

A connection that ends may lose what libzmq has taken. Senders therefore send again what they sent shortly before
(``sent_messages``), with ``Flag.REPEATED``, and listeners drop what they have already. An id is 16 bytes: 8 random ones
for each sender (a pipeline of a process) and a number that counts its messages. So a listener need not remember ids: it
remembers the greatest number of each sender, and which of the ``WINDOW`` before that it has had. Whoever sends again
keeps less than that.
"""

# compiled: mypyc

from __future__ import annotations

import itertools
import os
from typing import Final

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


class SeenMessages:
    """The messages that one listener has had."""

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
        """The listener has it."""
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
