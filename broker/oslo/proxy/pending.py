"""Calls that wait for their replies, and messages that wait in a server's queue and have to be known by id (pure).

The key is the route (index of the entry's pipe and the client's id there) with the message's id behind it. Whose reply
counts is part of the entry: the link that the message was sent to, or a later one of the same connection.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

GRACE_S: Final = 1.0
"""After its time was over a call is remembered for so long: a reply then is late, not foreign."""
FOREVER_S: Final = 86_400.0
"""Of calls without a limit."""


class Answerer(Protocol):
    """Who may answer: a connection of a server process."""

    @property
    def rid(self) -> bytes:
        """The router's id of the connection."""

    @property
    def origin(self) -> str:
        """The process behind it."""


class Call(NamedTuple):
    """One message that is not finished."""

    link: Answerer
    due_s: float
    """When its sender has given up; by the reactor's clock."""
    kind: int
    """``Kind.CALL``, or ``Kind.CAST`` for one that waits in a queue."""
    confirm: bool = False
    """A cast whose sender is told when it was taken."""


class Pending:
    """The table of one proxy.

    Args:
        most: entries at a time.

    Attributes:
        calls: by key; the hot path looks here directly.
    """

    def __init__(self, most: int) -> None:
        self.calls: dict[bytes, Call] = {}
        self.most = most

    def __len__(self) -> int:
        return len(self.calls)

    def fits(self, key: bytes, link: Answerer) -> Call | None:
        """The entry that ``link`` may answer; None: there is none, or it is somebody else's."""
        call = self.calls.get(key)
        if call is None or call.link is link:
            return call
        same = (call.link.rid, call.link.origin) == (link.rid, link.origin)
        return call if same else None

    def stale(self, key: bytes, now_s: float) -> bool:
        """True when what waits under ``key`` need not be sent any more."""
        call = self.calls.get(key)
        return call is None or call.due_s < now_s

    def expire(self, now_s: float) -> list[tuple[bytes, Call]]:
        """Forget what nobody waits for any more; returns it."""
        limit = now_s - GRACE_S
        over = [(key, call) for key, call in self.calls.items() if call.due_s < limit]
        for key, _call in over:
            del self.calls[key]
        return over

    def forget(self, link: Answerer) -> int:
        """Forget what ``link`` was to answer; returns how many."""
        keys = [key for key, call in self.calls.items() if call.link is link]
        for key in keys:
            del self.calls[key]
        return len(keys)
