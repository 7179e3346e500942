"""Logins that count at all gateways of a fleet: made here, found elsewhere, answers of providers used once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from broker.rates import Throttle
from gateway.fleet import messages
from gateway.fleet.kept import Kept
from gateway.identity.store import KEY_BYTES, Store
from gateway.principal import Denied

ANSWER_S: Final = 2.0
"""How long Redis may take to answer who logs in."""
FINDING: Final = 32
"""Unknown logins that are looked for at a time."""

log = logging.getLogger("headgate")
Found = TypeVar("Found")
WARN_EVERY_S: Final = 1.0
"""From one line of the log that says that Redis does not answer to the next."""


class SharedLogins:
    """What ``identity`` asks of other gateways.

    Args:
        kept: what Redis keeps. store: this gateway's copy.
        away: whether Redis is not reached. tell: says to the others which logins were made.
    """

    def __init__(
        self,
        kept: Kept,
        store: Store,
        away: Callable[[], bool],
        tell: Callable[[Sequence[bytes]], Awaitable[None]],
    ) -> None:
        self._kept = kept
        self._store = store
        self._away = away
        self._tell = tell
        self._behind = False  # a login may be here that is not kept
        self._lines = Throttle(WARN_EVERY_S)
        self._finding = asyncio.Semaphore(FINDING)

    @property
    def key(self) -> bytes | None:
        """What seals logins that any gateway may finish; None while Redis is away."""
        key = None if self._away() else self._kept.key
        return key if key is not None and len(key) == KEY_BYTES else None

    async def told(self, login_id: str) -> None:
        """A login was made here; returns when it counts everywhere. Where Redis does not answer it will, later."""
        kept = False
        try:
            kept = not self._away() and bool(await self._answered(self._keep(login_id)))
        finally:
            if not kept:
                self._behind = True

    async def find(self, login_id: str) -> bool:
        """Whether a login that is unknown here was made elsewhere; now it is known.

        Raises:
            Denied: it cannot be written down.
        """
        row = None if self._away() else await self._answered(self._look(login_id))
        if row is not None:
            messages.take(self._store, [row])
        return row is not None

    async def spend(self, answer: bytes, until: float) -> bool:
        """Whether an answer of a provider was used nowhere before; False, too, when Redis does not say so."""
        return bool(await self._answered(self._kept.spend(answer, until)))

    async def take_userid(self, userid: int, who: str) -> bool | None:
        """Whether a userid is ``who``'s at all gateways from now on; None when Redis does not say so."""
        return None if self._away() else await self._answered(self._kept.take_userid(userid, who))

    async def take_up(self) -> set[str]:
        """Read what Redis keeps, and return what is revoked there; `catch_up` gives it the logins it does not.

        Raises:
            Denied: it cannot be written down.
        """
        revoked = await self._kept.take_up()
        self._behind = True
        return revoked

    async def catch_up(self) -> None:
        """Keep the logins that could not be kept when they were made. Call it often."""
        if self._behind:
            self._behind = False
            try:
                await self._keep()
            except Denied as denied:
                self._behind = True
                log.warning("logins cannot be told to other gateways yet: %s", denied)

    async def _keep(self, login_id: str = "") -> bool:
        """Keep a login of ours, or all of them, and tell of those that were not kept."""
        rows = messages.rows(self._store, login_id)
        if login_id and rows:
            await self._tell(
                [row for row, _ in rows.values()]
            )  # before it is there: catch_up tells what is not
        if (added := await self._kept.add_logins(rows)) and not login_id:
            await self._tell(added)
        return True

    async def _look(self, login_id: str) -> bytes | None:
        async with self._finding:
            return await self._kept.login(login_id)

    async def _answered(self, work: Awaitable[Found]) -> Found | None:
        """What ``work`` finds; None when Redis does not answer in time."""
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(ANSWER_S):
                return await work
        except (RedisError, OSError, TimeoutError, Denied) as error:
            if self._lines.admits(None, self._store.wall()):  # anybody may send cookies that nobody knows
                log.warning("a login is not known to other gateways, or theirs not here: %r", error)
            return None
