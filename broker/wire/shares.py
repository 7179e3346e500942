"""The cost of an event, and how much one user may publish while events have to wait."""

from __future__ import annotations

from typing import Final

from broker.wire.message import Message

EVENT_BYTES: Final = 4096
"""The cost of handling an event beside its bytes: the time in which so many are copied."""
SHARE_BYTES: Final = 1 << 20
"""Bytes that one user may publish in a second while events are blocked, over all links of one broker, as of ``cost``:
240 small events, at once, and from then on as many as grow again each ``RENEW_S``. A user that says little does not
notice that others say too much, and all users together stay below every cap. The user is the one that an owner's link
names, as the gateway does for web users."""
RENEW_S: Final = 0.2
"""How often shares grow, and so how long a user that has used up its own waits at least."""


def cost(message: Message) -> int:
    """The cost of an event, in bytes."""
    return EVENT_BYTES + len(message.topic_part) + len(message.payload_part)


class Shares:
    """The shares of all users, as far as they are used up."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._used)

    def take(self, userid: int, count: int) -> bool:
        """Whether the user may still publish ``count`` bytes; what it may publish is less then."""
        used = self._used.get(userid, 0) + count
        if used <= SHARE_BYTES:
            self._used[userid] = used
        return used <= SHARE_BYTES

    def grow(self, elapsed_s: float) -> None:
        """``elapsed_s`` later."""
        grown = int(SHARE_BYTES * elapsed_s)
        self._used = {userid: used - grown for userid, used in self._used.items() if used > grown}
