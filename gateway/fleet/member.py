"""Between gateways that share a Redis server: what their ``peers`` tell each other, and what each has to write into its
store as the workers of one gateway find it in theirs: who is logged in, and which credentials count no more.

What changed is told every ``TICK_S``. A revocation is kept in Redis (``kept``) and told to all processes in one step,
and a process that joins reads all that are kept: a credential that one gateway refuses is accepted by another only
until the message arrives. ``headgate token restore`` has to be called at each gateway. A login is kept in Redis before
its browser has the cookie, and sent to all gateways, which write it down; a gateway that is shown an unknown cookie
looks for it in Redis.

While Redis is away each gateway has limits and new logins of its own, and nobody is refused for it; ``away`` and a
metric say so. Whoever may write there may end sessions, revoke credentials and log in as anybody: the server is as
trusted as the state directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker import secret
from broker.awake import StallMeter
from broker.backoff import Backoff
from gateway.fleet import login_rows
from gateway.fleet.kept import AT_ONCE, Kept, SharedLogins
from gateway.fleet.messages import Bye, Counts, Entered, Question, Revoked, Said, decode, encode
from gateway.fleet.peers import ASK_S, BEAT_S, LEASE_S, Lost, Peers
from gateway.identity.store import FLEET
from gateway.principal import Denied
from gateway.settings.redis_url import client_of

if TYPE_CHECKING:
    from broker.secret import SecretUrl
    from gateway.identity.store import Store


HELD_BYTES: Final = 4 << 20
"""What may wait, besides one message."""
ENTRY_BYTES: Final = 200
"""What each entry takes besides its text."""


class Inbox:
    """What other gateways have told, revocations and logins, until it is written down here.

    It waits for the next tick, and for as long as the store cannot be written. What comes beyond ``HELD_BYTES`` then is
    left out, and ``missed`` says so: once the store can be written again, everything has to be read anew.

    Args:
        store: where they are written.

    Attributes:
        held_bytes: about what waits. missed: some of it was left out; whoever reads everything anew sets it back.
    """

    def __init__(self, store: Store) -> None:
        self.held_bytes = 0
        self.missed = False
        self._store = store
        self._revoked: dict[str, float] = {}
        self._rows: list[bytes] = []

    def add(self, said: Revoked | Entered) -> bool:
        """Keep what was told; False: it was left out, and counts as missed."""
        size = _size(said.credentials if isinstance(said, Revoked) else said.rows)
        try:
            while not self.missed and self.held_bytes and self.held_bytes + size > HELD_BYTES:
                self._write_some()
        except Denied:
            self.missed = True
        if self.missed:
            return False
        self.held_bytes += size
        if isinstance(said, Revoked):
            self._revoked |= said.credentials
        else:
            self._rows += said.rows
        return True

    async def write(self) -> None:
        """Write down what waits, in portions; what is heard meanwhile, too: nothing waits when this returns.

        Raises:
            Denied: the store cannot be written; what waits stays.
        """
        while self._revoked or self._rows:
            self._write_some()
            await asyncio.sleep(0)

    def _write_some(self) -> None:
        if self._revoked:
            now, part = self._store.wall(), dict(islice(self._revoked.items(), AT_ONCE))
            self._store.revoke_all({name: until for name, until in part.items() if until >= now})
            for name in part:
                del self._revoked[name]
            self.held_bytes -= _size(part)
        else:
            rows = self._rows[:AT_ONCE]
            login_rows.take(self._store, rows)
            del self._rows[:AT_ONCE]
            self.held_bytes -= _size(rows)
        if not self._revoked and not self._rows:
            self.held_bytes = 0  # what was told twice counted twice


def _size(texts: Iterable[str] | Iterable[bytes]) -> int:
    return sum(len(each) + ENTRY_BYTES for each in texts)


log = logging.getLogger("headgate")

CONNECT_S: Final = 2.0
TICK_S: Final = 0.1
"""How often what changed is told."""
RETRY_S: Final = (0.2, 5.0)
"""Shortest and longest pause before Redis is tried again."""
ROWS: Final = 256
"""Logins in one message."""
WAITING_MAX: Final = 4096
"""Messages that wait for Redis; beyond it the link is made anew, and all is told again."""


def gateway_of(store: Store) -> str:
    """What names the gateway with this store among those of a fleet. A store that was asked for it remembers what has
    ended, for others (``identity.login``).
    """
    return store.key(FLEET).hex()[:16]


class Fleet:
    """What one process tells those of other gateways, and hears of them.

    Args:
        url: of the Redis server. channel: what the gateways of one instance have in common.
        store: has logins and revocations. peers: who is there.
        clock: seconds, never going back.
        password_file: has the password of the server where the URL has none.

    Attributes:
        away: Redis is not reached.
        logins: what ``identity`` asks of other gateways.

    Raises:
        ConfigError: redis-py is missing, the URL is none, or the password cannot be read.
        Denied: the store cannot be written.
    """

    tells_ends = False

    def __init__(
        self,
        url: SecretUrl,
        channel: str,
        store: Store,
        peers: Peers,
        clock: Callable[[], float],
        password_file: str | None = None,
    ) -> None:
        self.away = True
        self._store = store
        self._peers = peers
        self._clock = clock
        self._channel = channel
        self._changed: set[str] = set()
        self._told: set[str] = set()
        self._known: Mapping[str, float] = {}
        self._seen = -1
        self._inbox = Inbox(store)
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._running: asyncio.Task[None] | None = None
        password = {} if password_file is None else {"password": secret.read_file(password_file)}
        self._redis = client_of(
            url, socket_connect_timeout=CONNECT_S, health_check_interval=BEAT_S, **password
        )
        self._kept = Kept(self._redis, channel, store)
        self.logins = SharedLogins(self._kept, store, lambda: self.away, self._say_logins)
        self._reached = asyncio.Event()
        peers.join(self)

    @property
    def others(self) -> int:
        """Processes of other gateways."""
        return len(self._peers.names(self))

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """See ``Carrier``: nobody can be held back."""
        return nullcontext()

    def changed(self, user: str) -> None:
        """See ``Carrier``: it is told with the next tick."""
        self._changed.add(user)

    # -- the link ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to speak with the others; Redis may come and go."""
        self._running = asyncio.get_running_loop().create_task(self._run(), name="fleet")

    async def reached(self) -> None:
        """Wait until what Redis keeps was read, ``ASK_S`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                await self._reached.wait()

    async def _run(self) -> None:
        from redis.exceptions import RedisError

        backoff = Backoff(*RETRY_S)
        while True:
            began = self._clock()
            try:
                await self._speak()
            except (
                Exception
            ) as error:  # an odd thing there must not end this, with what is revoked elsewhere unheard
                if not isinstance(error, (RedisError, OSError, TimeoutError, Lost)):
                    log.exception("Redis of this fleet: a fault of ours, or an odd thing there")
                elif not self.away or not backoff.failures:
                    log.error(
                        "Redis of this fleet: %s; limits of users are this gateway's own meanwhile", error
                    )
                self._forget()
                with contextlib.suppress(RedisError, OSError):
                    await self._redis.connection_pool.disconnect()
            await asyncio.sleep(backoff.after(self._clock() - began))

    async def close(self) -> None:
        """Say that this process ends, and speak no more."""
        from redis.exceptions import RedisError

        if self._running is not None:
            await _ended([self._running])  # first: a beat behind the goodbye would bring us back for a lease
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(ASK_S):
                if not self.away:
                    await self._redis.publish(f"{self._channel}.all", encode(Bye(self._peers.name)))
        await self._redis.aclose()

    async def _speak(self) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=True) as heard:
            async with asyncio.timeout(LEASE_S):  # older redis-py waits for the first answer for ever
                await heard.subscribe(f"{self._channel}.all", f"{self._channel}.{self._peers.name}")
                try:
                    told = await self.logins.take_up()
                except Denied as denied:
                    raise Lost(str(denied)) from denied
            self._waiting.clear()
            self._reached.set()
            self._told, self._known, self._seen = told, {}, -1
            self._say_counts(hello=True)
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(self._hear(heard)), loop.create_task(self._tell())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
            finally:
                await _ended(tasks)

    async def _hear(self, heard: Any) -> None:
        """Take in what is said; our own counts, too, which show that Redis lives. Who was stopped listens first."""
        last, stall = self._clock(), StallMeter(self._clock)
        while True:
            stall.wakes_at(self._clock() + BEAT_S)
            got = await heard.get_message(timeout=BEAT_S)
            last += stall.stalled_s()
            if got is None:
                if self._clock() - last > LEASE_S:
                    raise Lost(f"nothing was heard for {LEASE_S:g} s")
                continue
            last = self._clock()
            if self.away:
                self.away = False
                log.info("Redis of this fleet is reached")
            try:
                self._heard(decode(got["data"]))
            except Lost:
                raise
            except Exception as error:  # whatever another version says: it must not silence all others
                log.warning("Redis of this fleet: an odd message was left out: %r", error)

    async def _tell(self) -> None:
        beat = self._clock() + BEAT_S
        while True:
            await self._pass_on()
            await self.logins.catch_up()
            await asyncio.sleep(TICK_S)
            if self._clock() >= beat:
                beat = self._clock() + BEAT_S
                if await self._kept.is_emptied():
                    raise Lost("it has lost what it kept")
                self._say_counts()
                self._peers.beat(self)
            elif self._changed:
                for each in self._peers.counts(self._changed):
                    self.say(each)
            self._changed.clear()
            await self._say_revoked()

    async def _pass_on(self) -> None:
        while self._waiting:
            await self._redis.publish(*self._waiting.popleft())

    def say(self, said: Said, to: str = "") -> None:
        """See ``Carrier``."""
        if len(self._waiting) >= WAITING_MAX:
            raise Lost("it takes too little")
        self._waiting.append((f"{self._channel}.{to or 'all'}", encode(said)))

    def _say_counts(self, *, hello: bool = False) -> None:
        for each in self._peers.counts(hello=hello):
            self.say(each)

    async def _say_logins(self, rows: Sequence[bytes]) -> None:
        for at in range(0, len(rows), ROWS):
            said = encode(Entered(self._peers.gateway, list(rows[at : at + ROWS])))
            await self._redis.publish(f"{self._channel}.all", said)

    async def _say_revoked(self) -> None:
        """What counts no more since we looked last, unless it was heard here; what others did is written before."""
        try:
            await self._inbox.write()
            if self._inbox.missed:
                await self._read_anew()
            seen = self._store.changes()
            revoked = self._store.revocations(since=self._seen) if seen != self._seen else {}
            known = self._store.revocations(logins=False) if seen != self._seen else self._known
        except Denied:
            return  # once more at the next tick
        rows = [each for each in revoked.items() if each[0] not in self._told]
        self._told.clear()  # it is written here, and not looked at again
        for at in range(0, len(rows), AT_ONCE):
            part = dict(rows[at : at + AT_ONCE])
            await self._kept.revoke(part, encode(Revoked(self._peers.gateway, part)))
        now = self._store.wall()
        if restored := [name for name, until in self._known.items() if name not in known and until > now]:
            await self._kept.restore(restored)
        self._seen, self._known = seen, known

    async def _read_anew(self) -> None:
        """Some of what was heard could not be kept: read what Redis has.

        Raises:
            Denied: it cannot be written down.
        """
        self._inbox.missed = False
        try:
            told = await self.logins.take_up()
        except Denied:
            self._inbox.missed = True
            raise
        self._told |= told

    # -- what is heard -------------------------------------------------------------------------

    def _heard(self, said: Said) -> None:
        if isinstance(said, Revoked):
            if said.gateway == self._peers.gateway or self._inbox.add(said):
                self._told |= said.credentials.keys()  # all have heard it: nobody has to say it again
        elif isinstance(said, Counts | Question | Entered) and said.gateway == self._peers.gateway:
            return  # ours, or of another worker, who says that itself
        elif isinstance(said, Entered):
            self._inbox.add(said)
        else:
            self._peers.hear(said, self)

    def _forget(self) -> None:
        self.away = True
        self._peers.forget(self)
        self._changed.clear()  # all is told when Redis is back


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End tasks that speak with Redis: redis-py may swallow one cancellation, when something else happens as well.

    Who is cancelled meanwhile, for it takes its time, goes on until they have ended: they would open connections anew.
    """
    cancelled: asyncio.CancelledError | None = None
    while left := [each for each in tasks if not each.done()]:
        for each in left:
            each.cancel()
        try:
            await asyncio.wait(left, timeout=TICK_S)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await asyncio.gather(*tasks, return_exceptions=True)
