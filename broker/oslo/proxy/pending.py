"""Calls that wait for their replies, and messages that wait in a server's queue and have to be known by id (pure).

The key is the route (index of the entry's socket, the client's id there) with the message's id behind it. Whose reply
counts is part of the entry: the link that the message was sent to, or a later one of the same connection.

The table is shared by all clients: none of them may have more in it than it leaves to the others. One alone may fill
half of it, each of two a third, and so on; there is always a place for one who has nothing in it.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker.name_stats import NameStats
from broker.oslo.frames import ID_BYTES

GRACE_S: float = 1.0
"""After its time was over a call is remembered for so long: a reply then is late, not foreign."""
FOREVER_S: Final = 86_400.0
"""Of calls without a limit."""


class GivenCall(NamedTuple):
    """One message that is not finished."""

    link: Any
    """Who is to answer it, a ``registration.ServerLink``: by its ``rid`` and ``origin``."""
    due_s: float
    """When its sender has given up; by the reactor's clock."""
    confirm: bool = False
    """A cast that waits for its server's process, and whose sender is told when that has taken it."""
    stats: NameStats | None = None
    """Where it is counted."""


class PendingReplies:
    """The table of one proxy.

    Args:
        most: entries at a time.

    Attributes:
        calls: by key; to be looked at only.
        held: keys by route.
        owed: keys by link (its ``id``, for it is in the entries): its end costs what it was to answer.
    """

    def __init__(self, most: int) -> None:
        self.calls: dict[bytes, GivenCall] = {}
        self.held: dict[bytes, set[bytes]] = {}
        self.owed: dict[int, set[bytes]] = {}
        self.most = most

    def __len__(self) -> int:
        return len(self.calls)

    def has_room(self, route: bytes) -> bool:
        """Whether the client of that route may have one more."""
        return len(self.held.get(route, ())) < self.most - len(self.calls)

    def put(self, key: bytes, call: GivenCall) -> None:
        """Remember it."""
        former = self.calls.get(key)
        if former is not None:
            self._settle(key, former)
        self.calls[key] = call
        if call.stats is not None:
            call.stats.open += 1
        self.owed.setdefault(id(call.link), set()).add(key)
        self.held.setdefault(key[:-ID_BYTES], set()).add(key)

    def end(self, key: bytes) -> GivenCall | None:
        """Forget it; returns what it was."""
        call = self.calls.pop(key, None)
        if call is not None:
            route = key[:-ID_BYTES]
            held = self.held[route]
            held.discard(key)
            if not held:
                del self.held[route]
            self._settle(key, call)
        return call

    def _settle(self, key: bytes, call: GivenCall) -> None:
        """Its link owes this answer no longer."""
        if call.stats is not None:
            call.stats.open -= 1
        owed = self.owed[id(call.link)]
        owed.discard(key)
        if not owed:
            del self.owed[id(call.link)]

    def fits(self, key: bytes, link: Any) -> GivenCall | None:
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

    def expire(self, now_s: float) -> list[tuple[bytes, GivenCall]]:
        """Forget what nobody waits for any more; returns it."""
        limit = now_s - GRACE_S
        over = [(key, call) for key, call in self.calls.items() if call.due_s < limit]
        for key, _call in over:
            self.end(key)
        return over

    def forget(self, link: Any) -> int:
        """Forget what ``link`` was to answer; returns how many."""
        keys = list(self.owed.get(id(link), ()))
        for key in keys:
            self.end(key)
        return len(keys)

    def forget_client(self, route: bytes) -> int:
        """Forget what the client of that route waits for; returns how many."""
        keys = self.held.pop(route, ())
        for key in keys:
            self._settle(key, self.calls.pop(key))
        return len(keys)

    def lasting(self, until_s: float) -> list[bytes]:
        """Routes of clients with something that ends after ``until_s`` only."""
        return [
            route for route, keys in self.held.items() if any(self.calls[key].due_s > until_s for key in keys)
        ]
