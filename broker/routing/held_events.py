"""Events on their way up while there is no parent: kept, within a bound, until there is one again.

An event message carries no answer: nobody could tell its publisher that it was refused, so that it is kept instead.
(``event.publish`` is a request, and answered EHOSTUNREACH at once.) What is kept goes up first when the broker joins,
in the order in which it came. It is lost with the process, and what does not fit is lost and counted. There is no limit
in time: who publishes what must not come late says in the payload when that was.
"""

# compiled: mypyc

from __future__ import annotations

from broker.wire.message import Message
from broker.wire.shares import cost

HELD_BYTES: int = 16 << 20
"""What is kept of all users, as of ``shares.cost``: 4 000 small events."""
USER_BYTES: int = 4 << 20
"""What is kept of one user, the one that the event names, so that nobody takes the room of all others; and the largest
event that is."""


class HeldEvents:
    """Stamped events that wait for a parent, in order.

    Attributes:
        refused: events that did not fit since ``take``.
    """

    __slots__ = ("_by_user", "_bytes", "_messages", "refused")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._bytes: int = 0
        self._by_user: dict[int, int] = {}
        self.refused: int = 0

    def add(self, message: Message) -> bool:
        """Keep an event; False when there is no room."""
        userid, size = message.userid, cost(message)
        used = self._by_user.get(userid, 0) + size
        if used > USER_BYTES or self._bytes + size > HELD_BYTES:
            self.refused += 1
            return False
        self._by_user[userid] = used
        self._bytes += size
        self._messages.append(message)
        return True

    def take(self) -> list[Message]:
        """All of them; nothing is kept any more."""
        messages = self._messages
        self._messages, self._bytes, self._by_user, self.refused = [], 0, {}, 0
        return messages
