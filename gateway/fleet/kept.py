"""What Redis keeps for all gateways of a fleet, each key beginning with ``gateway.redis_channel``:

    .login.ID   a login (`login_rows.Row`), until it ends
    .revoked    credentials that count no more, ended logins among them, and until when that counts
    .spent      answers of identity providers that were used, by hash, until none so old counts any more
    .userids    userids that people of providers have: userid -> who, for good
    .key        what seals logins that were begun, so that any gateway can finish them

Each gateway has a copy of the first two, which counts while Redis is away. Who comes back takes what was revoked first,
and then logins: none that was ended meanwhile comes to life again. When Redis has lost everything, the gateways bring
it back; what was begun with the old key has to be begun again. What stands under a name of ours and is none of the
above (another type, a key that is too short) is deleted with a line of the log, and counts as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from broker.rates import Throttle
from gateway.fleet import login_rows
from gateway.identity.store import KEY_BYTES, LOGIN, LONGEST_S, Store
from gateway.principal import Denied

SPENT: Final = 16384
"""Used answers that are remembered; of more the earliest are forgotten."""
AT_ONCE: Final = 1000
"""Keys in one command, and revocations or logins in one transaction of the store."""
KINDS: Final = {"key": "string", "revoked": "zset", "spent": "zset", "userids": "hash"}
"""What the type of each key is in Redis."""

log = logging.getLogger("headgate")


class Kept:
    """The keys of one fleet.

    Args:
        redis: a client of redis-py. name: what keys begin with. store: this gateway's copy.

    Attributes:
        key: as above; None before `take_up`.

    What redis-py raises passes through: RedisError, OSError, TimeoutError.
    """

    def __init__(self, redis: Any, name: str, store: Store) -> None:
        self.key: bytes | None = None
        self._redis = redis
        self._name = name
        self._store = store

    async def take_up(self) -> set[str]:
        """Read everything; returns what is revoked there.

        Raises:
            Denied: the store cannot be written.
        """
        for part, kind in KINDS.items():
            await self._delete_odd(f"{self._name}.{part}", kind, KEY_BYTES if part == "key" else None)
        await self._redis.set(f"{self._name}.key", secrets.token_bytes(KEY_BYTES), nx=True)
        self.key = await self._redis.get(f"{self._name}.key")
        await self._forget_ended()
        named = await self._redis.zrange(f"{self._name}.revoked", 0, -1, withscores=True)
        found = {name.decode(errors="replace"): until for name, until in named}
        items = list(found.items())
        for at in range(0, len(items), AT_ONCE):
            self._store.revoke_all(dict(items[at : at + AT_ONCE]))
            await asyncio.sleep(0)
        pattern, cursor = re.sub(r"([\[\]*?\\])", r"\\\1", self._name) + ".login.*", 0
        while True:
            cursor, names = await self._redis.scan(cursor, match=pattern, count=AT_ONCE)
            if names:
                login_rows.take(self._store, filter(None, await self._redis.mget(names)))
            if not cursor:
                return set(found)

    async def _delete_odd(self, key: str, kind: str, size: int | None) -> None:
        """Delete what is there when it is of another type, or a string of another size; no command could use it."""
        from redis.exceptions import WatchError

        async with self._redis.pipeline() as pipe:
            await pipe.watch(key)  # another gateway may put it right meanwhile
            found = (await pipe.type(key)).decode()
            if found == "none":
                return
            has = await pipe.strlen(key) if found == kind and size is not None else size
            if (found, has) == (kind, size):
                return
            pipe.multi()
            pipe.delete(key)
            with contextlib.suppress(WatchError):
                await pipe.execute()
                saw = f"a {found}" if found != kind else f"{has} bytes"
                expected = f"a {kind}" if found != kind else f"{size}"
                log.warning("redis: %s was deleted: saw %s, expected %s", key, saw, expected)

    async def is_emptied(self) -> bool:
        """Whether Redis has lost what it kept, or has it from somebody else: read it all again."""
        return bool(await self._redis.get(f"{self._name}.key") != self.key)

    async def add_logins(self, rows: Mapping[str, tuple[bytes, float]]) -> list[bytes]:
        """Keep logins; returns those that were not there."""
        added = []
        items = list(rows.items())
        for at in range(0, len(items), AT_ONCE):
            part = items[at : at + AT_ONCE]
            async with self._redis.pipeline(transaction=False) as pipe:
                for name, (row, until) in part:
                    left_s = min(until - self._store.wall(), LONGEST_S)
                    left_ms = max(1, int(left_s * 1000))
                    pipe.set(f"{self._name}.login.{name}", row, nx=True, px=left_ms)
                added += [row for (_, (row, _)), new in zip(part, await pipe.execute(), strict=True) if new]
        return added

    async def login(self, name: str) -> bytes | None:
        """The login with this id, unless it was ended."""
        async with self._redis.pipeline() as pipe:
            row, ended = await (
                pipe.get(f"{self._name}.login.{name}").zscore(f"{self._name}.revoked", LOGIN + name).execute()
            )
        return row if ended is None else None

    async def revoke(self, credentials: Mapping[str, float], said: bytes) -> None:
        """Keep that these count no more, ``AT_ONCE`` at most, and no login that is among them; and tell all gateways.
        What would have ended by now is forgotten.
        """
        await self._forget_ended()
        logins = [name.removeprefix(LOGIN) for name in credentials if name.startswith(LOGIN)]
        async with (
            self._redis.pipeline() as pipe
        ):  # one transaction: what is kept was told, and the other way round
            pipe.zadd(f"{self._name}.revoked", credentials, gt=True)
            if logins:
                pipe.delete(*(f"{self._name}.login.{name}" for name in logins))
            pipe.publish(f"{self._name}.all", said)
            await pipe.execute()

    async def _forget_ended(self) -> None:
        await self._redis.zremrangebyscore(f"{self._name}.revoked", "-inf", f"({self._store.wall()}")

    async def restore(self, credentials: Sequence[str]) -> None:
        """Forget that these were revoked."""
        await self._redis.zrem(f"{self._name}.revoked", *credentials)

    async def take_userid(self, userid: int, who: str) -> bool:
        """Whether a userid is ``who``'s; it is from now on, if it was nobody's."""
        async with self._redis.pipeline() as pipe:
            pipe.hsetnx(f"{self._name}.userids", str(userid), who)
            pipe.hget(f"{self._name}.userids", str(userid))
            return bool((await pipe.execute())[1] == who.encode())

    async def spend(self, answer: bytes, until: float) -> bool:
        """Whether this is the first use of an answer, anywhere; it is remembered until then, wall clock seconds."""
        spent = f"{self._name}.spent"
        async with self._redis.pipeline() as pipe:
            pipe.zremrangebyscore(spent, "-inf", self._store.wall())
            pipe.zadd(spent, {answer: until}, nx=True)
            pipe.zremrangebyrank(spent, 0, -SPENT - 1)
            return bool((await pipe.execute())[1])


ANSWER_S: Final = 2.0
"""How long Redis may take to answer who logs in."""
FINDING: Final = 32
"""Unknown logins that are looked for at a time."""

Found = TypeVar("Found")
WARN_EVERY_S: Final = 1.0
"""From one line of the log that says that Redis does not answer to the next."""


class SharedLogins:
    """Logins that count at all gateways: made here, found elsewhere, answers of providers used once.

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

    async def share(self, login_id: str) -> None:
        """Let a login that was made here count everywhere; where Redis does not answer, `catch_up` does it later."""
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
            login_rows.take(self._store, [row])
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
        rows = login_rows.rows(self._store, login_id)
        if login_id and rows:
            # before Redis has it: `catch_up` tells of those that Redis did not have
            await self._tell([row for row, _ in rows.values()])
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
