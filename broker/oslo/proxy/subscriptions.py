"""Who has subscribed to what at a publishing socket of a proxy (pure).

The socket is an XPUB in manual mode: it reports every subscription, and its peer hears only what was granted. Each
connection has a name that no other ever has. What a peer takes back comes with that name; what ends with a connection
comes without, once for each filter it had subscribed to. So a filter counts its subscriptions, and:

- asking twice on one connection counts once, as it ends once;
- an end with a name counts only where that connection had subscribed: nobody ends the subscriptions of others;
- a nameless end is taken for that of a refused subscription as long as there is one: the filter may then seem to be
  heard until all who asked for it are gone, which costs nobody a message;
- filters are limited in number, for each user and in total; a subscription that was passed over is remembered in one of
  a fixed number of places, so that its nameless end is not taken for another one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final
from zlib import crc32

from broker.holdings import Holdings

FILTERS_MAX: Final = 65_536
"""Filters in all, as many as a state has records."""
FILTERS_OF_USER_MAX: Final = 32_768
"""Filters that one user brings in, so that nobody takes the place of all others."""
NAMES_SPARE: Final = 64
"""Names that a filter remembers beyond its subscriptions before those of ended connections are sorted out."""
_PLACES: Final = 1 << 16


class _Subscribed:
    """One filter: how many hear it, how many may not, who they are (and were), which user brought it in."""

    __slots__ = ("granted", "names", "refused", "user")

    def __init__(self, user: int) -> None:
        self.granted = 0
        self.refused = 0
        self.user = user
        self.names: dict[str, bool] = {}


class GrantedSubscriptions:
    """The filters of one publishing socket.

    Args:
        alive: whether the process at the end of the connection of that name may still be there.
    """

    def __init__(self, alive: Callable[[str], bool]) -> None:
        self._alive = alive
        self._filters: dict[bytes, _Subscribed] = {}
        self._of_user: Holdings[int] = Holdings()
        self._heard: dict[bytes, None] = {}
        self._passed_over: Counter[int] = Counter()

    def __len__(self) -> int:
        """Filters that somebody hears."""
        return len(self._heard)

    def __contains__(self, data: object) -> bool:
        """Whether somebody hears that filter."""
        return data in self._heard

    def heard(self) -> list[bytes]:
        """Filters that somebody hears, in the order they began."""
        return list(self._heard)

    def count(self, data: bytes) -> int:
        """Connections that hear that filter."""
        known = self._filters.get(data)
        return 0 if known is None else known.granted

    def names(self, data: bytes) -> list[str]:
        """Connections that were granted that filter, some of which may have ended."""
        known = self._filters.get(data)
        return [] if known is None else [name for name, granted in known.names.items() if granted]

    def has_room(self, data: bytes, user: int) -> bool:
        """Whether the limits allow a subscription of ``user`` to that filter."""
        if data in self._filters:
            return True
        return len(self._filters) < FILTERS_MAX and self._of_user.of(user) < FILTERS_OF_USER_MAX

    def pass_over(self, data: bytes) -> None:
        """Ignore this subscription, but remember that the end of it will be reported, without a name."""
        self._passed_over[crc32(data) % _PLACES] += 1

    def add(self, data: bytes, name: str, user: int, *, granted: bool) -> bool:
        """A subscription of the connection ``name``; True when it is the first that hears the filter."""
        known = self._filters.get(data)
        if known is None:
            known = self._filters[data] = _Subscribed(user)
            self._of_user.add(user)
        elif name in known.names:
            return False
        known.names[name] = granted
        if len(known.names) > known.granted + known.refused + NAMES_SPARE:
            self._sort_out(known, name)
        if not granted:
            known.refused += 1
            return False
        known.granted += 1
        self._heard[data] = None
        return known.granted == 1

    def remove(self, data: bytes, name: str) -> bool | None:
        """The end of a subscription; True when it was the last that heard the filter, None when there was none.

        ``name`` "": its connection ended.
        """
        if not name and self._passed_over and self._end_passed_over(data):
            return None
        known = self._filters.get(data)
        if known is None or (name and name not in known.names):
            return None
        was_granted = known.names.pop(name) if name else False
        if known.refused and (not was_granted or not known.granted):
            known.refused -= 1
        else:
            known.granted -= 1
        if known.refused + known.granted == 0:
            self._forget(data, known)
        if known.granted or data not in self._heard:
            return False
        del self._heard[data]
        return True

    def _end_passed_over(self, data: bytes) -> bool:
        place = crc32(data) % _PLACES
        if not self._passed_over[place]:
            return False
        self._passed_over[place] -= 1
        if not self._passed_over[place]:
            del self._passed_over[place]
        return True

    def _forget(self, data: bytes, known: _Subscribed) -> None:
        del self._filters[data]
        self._of_user.add(known.user, -1)

    def _sort_out(self, known: _Subscribed, newest: str) -> None:
        """Forget names of ended processes; where that is not enough, the oldest ones."""
        for name in [name for name in known.names if name != newest and not self._alive(name)]:
            del known.names[name]
        while len(known.names) > known.granted + known.refused + NAMES_SPARE:
            del known.names[next(iter(known.names))]
