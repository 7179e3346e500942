"""A userid for each person who has none otherwise: people who come from an identity provider.

Services, jobs and private events belong to userids (RFC 12), so two people must never have the same one. A person's is
the first free one of ``access.own_userids``, in an order that its name gives::

    first + SHA-256("N:SOURCE USER")[:8] % count, for N = 0, 1, 2, ...      SOURCE USER: "oidc:corp corp:alice"

That is nearly always the first, so that a store that was lost gives the same ones again. Who has which stands in the
store for good, and in Redis where several gateways share one: there it is taken first, and while it cannot be, who has
none yet gets none. What the claim of a JWT says stands there, too (``"jwt alice"``), so that it is one person's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gateway.identity.store import Store

if TYPE_CHECKING:
    from gateway.fleet.logins import SharedLogins

TRIED: Final = 64
"""Userids that are tried for one person."""


class Userids:
    """Who has which.

    Args:
        store: where that stands.
        bounds: the first and the last userid that are given.
    """

    def __init__(self, store: Store, bounds: tuple[int, int]) -> None:
        self._store = store
        self._first, self._last = bounds

    async def give(self, who: str, wanted: int | None, elsewhere: SharedLogins | None) -> int | None:
        """The userid of ``who`` from now on; None: none can be found out, or had, at the moment.

        Args:
            who: source and name.
            wanted: what a claim says; one that another person has is not given.
            elsewhere: other gateways; None: there are none.

        Raises:
            Denied: the store cannot be written.
        """
        known = self._known(who)
        given = known is not None and self._first <= known <= self._last
        first = [wanted, known if given and wanted is None else None]
        for userid in dict.fromkeys((*first, *self._candidates(who))):
            if userid is None:
                continue
            free = True if elsewhere is None else await elsewhere.take_userid(userid, who)
            if free is None:
                return userid if userid == known else None
            if free and self._take(userid, who):
                return userid
        return None

    async def take(self, who: str, userid: int, elsewhere: SharedLogins | None) -> bool | None:
        """Whether ``who`` has ``userid``, and no other one, from now on; None: that cannot be found out at the moment.

        Raises:
            Denied: the store cannot be written.
        """
        if self._known(who) == userid:
            return True
        free = True if elsewhere is None else await elsewhere.take_userid(userid, who)
        return self._take(userid, who) if free else free

    def _known(self, who: str) -> int | None:
        found = self._store.reading("SELECT userid FROM userids WHERE who = ?", who)
        return found[0][0] if found else None

    def _candidates(self, who: str) -> Iterator[int]:
        for number in range(TRIED):
            digest = hashlib.sha256(f"{number}:{who}".encode()).digest()
            yield self._first + int.from_bytes(digest[:8], "big") % (self._last - self._first + 1)

    def _take(self, userid: int, who: str) -> bool:
        """Whether it is theirs: nobody else's here."""
        holder = self._store.reading("SELECT who FROM userids WHERE userid = ?", userid)
        if not holder:
            with self._store.writing(durable=True) as base:
                base.execute(
                    "INSERT OR REPLACE INTO userids SELECT ?, ? WHERE NOT EXISTS "
                    "(SELECT 1 FROM userids WHERE userid = ?)",
                    (who, userid, userid),
                )
            holder = self._store.reading("SELECT who FROM userids WHERE userid = ?", userid)
        return bool(holder) and bool(holder[0][0] == who)
