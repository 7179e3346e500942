"""One process among those of all gateways: how many connections each user has over all of them, who is logged in, which
credentials count no more, and whose sessions there are, for an admin at any of them.

Each process publishes how many connections its users have: changes at once, all counts every ``BEAT_S``. A process that
is silent for ``LEASE_S`` counts no more. A revocation goes to all processes, and a process that joins is sent all
revocations: a credential that one gateway refuses is accepted by another only until the message arrives. ``headgate
token restore`` has to be called at each gateway. A login is kept in Redis (``kept``) before its browser has the cookie,
and sent to all gateways, which write it down; a gateway that is shown an unknown cookie looks for it in Redis.

While Redis is away each gateway has limits and new logins of its own, and nobody is refused for it; ``away`` and a
metric say so. Whoever may write there may end sessions, revoke credentials and log in as anybody: the server is as
trusted as the state directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker import secret
from broker.awake import StallMeter
from broker.backoff import Backoff
from gateway.fleet import messages
from gateway.fleet.kept import AT_ONCE, Kept, SharedLogins
from gateway.fleet.messages import (
    Bye,
    Counts,
    Entered,
    Question,
    Reply,
    Revoked,
    Said,
    decode,
    encode,
)
from gateway.fleet.peers import ASK_S, Questions, Roster, label_of
from gateway.identity.leases import HEARTBEAT_S, LEASE_S
from gateway.identity.store import FLEET
from gateway.principal import Denied
from gateway.settings.redis_url import client_of

if TYPE_CHECKING:
    from broker.secret import SecretUrl
    from gateway.identity.leases import Connections
    from gateway.identity.store import Store


HELD_BYTES: Final = 4 << 20
"""What may wait, besides one message."""
ENTRY_BYTES: Final = 200
"""What each entry takes besides its text."""


class Inbox:
    """What other gateways have told, revocations and logins, until it is written down here.

    It waits for the next tick, and for as long as the store cannot be written. What comes beyond ``HELD_BYTES`` then is
    left out, and ``missed`` says so: once the store can be written again, everything has to be read and asked for anew.

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
            messages.take(self._store, rows)
            del self._rows[:AT_ONCE]
            self.held_bytes -= _size(rows)
        if not self._revoked and not self._rows:
            self.held_bytes = 0  # what was told twice counted twice


def _size(texts: Iterable[str] | Iterable[bytes]) -> int:
    return sum(len(each) + ENTRY_BYTES for each in texts)


log = logging.getLogger("headgate")

BEAT_S: Final = HEARTBEAT_S
CONNECT_S: Final = 2.0
TICK_S: Final = 0.1
"""How often what changed is told."""
RETRY_S: Final = (0.2, 5.0)
"""Shortest and longest pause before Redis is tried again."""
RETELL_S: Final = 0.02
"""For each other process: within so long one of them tells a newcomer what is revoked ..."""
RETELL_MAX_S: Final = 2.0
"""... and within so long in any case."""
PART: Final = 2048
"""Users, or credentials, in one message."""
ROWS: Final = 256
"""Logins in one message."""
WAITING_MAX: Final = 4096
"""Messages that wait for Redis; beyond it the link is made anew, and all is told again."""


class _Lost(Exception):
    """The link to Redis is of no use any more."""


class Fleet:
    """One process among those of all gateways.

    Args:
        url: of the Redis server. channel: what the gateways of one instance have in common.
        store: has what names this gateway, and revocations. connections: those of this process.
        answer: to what others ask (``Administration.answered``).
        clock: seconds, never going back.
        password_file: has the password of the server where the URL has none.

    Attributes:
        away: Redis is not reached. label: what this gateway is called in answers for people.
        logins: what ``identity`` asks of other gateways.

    Raises:
        ConfigError: redis-py is missing, the URL is none, or the password cannot be read.
        Denied: the store cannot be written.
    """

    def __init__(
        self,
        url: SecretUrl,
        channel: str,
        store: Store,
        connections: Connections,
        answer: Callable[[bytes], bytes],
        clock: Callable[[], float],
        password_file: str | None = None,
    ) -> None:
        self.away = True
        self._gateway = store.key(FLEET).hex()[:16]
        self._name = secrets.token_hex(8)
        self._host = os.uname().nodename[:255]
        self.label = label_of(self._host, self._gateway)
        self._store = store
        self._connections = connections
        self._answer = answer
        self._clock = clock
        self._channel = channel
        self._roster = Roster()
        self._changed: set[str] = set()
        self._told: set[str] = set()
        self._known: Mapping[str, float] = {}
        self._seen = -1
        self._retell_at: float | None = None
        self._inbox = Inbox(store)
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._questions = Questions()
        self._running: asyncio.Task[None] | None = None
        password = {} if password_file is None else {"password": secret.read_file(password_file)}
        self._redis = client_of(
            url, socket_connect_timeout=CONNECT_S, health_check_interval=HEARTBEAT_S, **password
        )
        self._kept = Kept(self._redis, channel, store)
        self.logins = SharedLogins(self._kept, store, lambda: self.away, self._say_logins)
        self._reached = asyncio.Event()
        connections.elsewhere = self.elsewhere
        connections.changed = self._changed.add

    def elsewhere(self, user: str) -> int:
        """Connections of a user at other gateways."""
        return self._roster.of(user)

    @property
    def others(self) -> int:
        """Processes of other gateways."""
        return len(self._roster.peers)

    @property
    def processes(self) -> Counter[str]:
        """Labels of the other gateways, and how many processes each has."""
        return Counter(peer.label for peer in self._roster.peers.values())

    async def ask(self, question: bytes) -> list[bytes]:
        """What each process of the other gateways answers; b"" for one that does not in time."""
        peers = self._roster.peers
        try:
            return await self._questions.ask(
                peers, lambda number: self._say(Question(self._gateway, self._name, number, question))
            )
        except _Lost:
            return [b""] * len(peers)

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
                if not isinstance(error, (RedisError, OSError, TimeoutError, _Lost)):
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

        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(ASK_S):
                if not self.away:
                    await self._redis.publish(f"{self._channel}.all", encode(Bye(self._name)))
        if self._running is not None:
            await _ended([self._running])
        await self._redis.aclose()

    async def _speak(self) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=True) as heard:
            async with asyncio.timeout(LEASE_S):  # older redis-py waits for the first answer for ever
                await heard.subscribe(f"{self._channel}.all", f"{self._channel}.{self._name}")
                try:
                    told = await self.logins.take_up()
                except Denied as denied:
                    raise _Lost(str(denied)) from denied
            self._waiting.clear()
            self._reached.set()
            self._told, self._known, self._seen, self._retell_at = told, {}, -1, None
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
                    raise _Lost(f"nothing was heard for {LEASE_S:g} s")
                continue
            last = self._clock()
            if self.away:
                self.away = False
                log.info("Redis of this fleet is reached")
            try:
                self._heard(decode(got["data"]))
            except _Lost:
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
                    raise _Lost("it has lost what it kept")
                self._say_counts()
                for name in self._roster.beat():
                    self._drop(name)
            elif self._changed:
                self._say_users([(user, self._connections.own(user)) for user in self._changed])
            self._changed.clear()
            await self._say_revoked()

    async def _pass_on(self) -> None:
        while self._waiting:
            await self._redis.publish(*self._waiting.popleft())

    def _say(self, said: Said, channel: str = "") -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise _Lost("it takes too little")
        self._waiting.append((channel or f"{self._channel}.all", encode(said)))

    def _say_counts(self, *, hello: bool = False) -> None:
        """All of them."""
        rows = list(self._connections.all_own().items())
        parts = [dict(rows[at : at + PART]) for at in range(0, len(rows), PART)] or [{}]
        for number, part in enumerate(parts, 1):
            first, more = number == 1, number < len(parts)
            self._say(Counts(self._gateway, self._name, part, first, more, hello and first, self._host))

    async def _say_logins(self, rows: Sequence[bytes]) -> None:
        for at in range(0, len(rows), ROWS):
            said = encode(Entered(self._gateway, list(rows[at : at + ROWS])))
            await self._redis.publish(f"{self._channel}.all", said)

    def _say_users(self, rows: Sequence[tuple[str, int]]) -> None:
        for at in range(0, len(rows), PART):
            self._say(Counts(self._gateway, self._name, dict(rows[at : at + PART]), host=self._host))

    async def _say_revoked(self) -> None:
        """What counts no more since we looked last, unless it was heard here; what others did is written before."""
        if self._retell_at is not None and self._clock() >= self._retell_at:
            self._seen, self._retell_at = -1, None
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
        if self._retell_at is None:
            self._told.clear()  # it is written here, and not looked at again
        for at in range(0, len(rows), PART):
            part = dict(rows[at : at + PART])
            self._say(Revoked(self._gateway, part))
            await self._pass_on()  # told before it is kept: who comes back takes what is kept for told
            await self._kept.revoke(part)
        now = self._store.wall()
        if restored := [name for name, until in self._known.items() if name not in known and until > now]:
            await self._kept.restore(restored)
        self._seen, self._known = seen, known

    async def _read_anew(self) -> None:
        """Some of what was heard could not be kept: read what Redis has, and let the others say again what they know.

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
        self._say_counts(hello=True)

    # -- what is heard -------------------------------------------------------------------------

    def _heard(self, said: Said) -> None:
        if isinstance(said, Reply):
            self._questions.take_reply(said.number, said.name, said.body)
        elif isinstance(said, Bye):
            self._drop(said.name)
        elif isinstance(said, Revoked):
            if said.gateway == self._gateway or self._inbox.add(said):
                self._told |= said.credentials.keys()  # all have heard it: nobody has to say it again
        elif said.gateway == self._gateway:
            return
        elif isinstance(said, Counts):
            if self._roster.take_counts(said) and said.hello:
                self._say_counts()
                self._retell()
        elif isinstance(said, Entered):
            self._inbox.add(said)
        else:
            self._say(Reply(self._name, said.number, self._answer(said.body)), f"{self._channel}.{said.name}")

    def _retell(self) -> None:
        """All that is revoked is told again; of many gateways one, as a rule: the others hear it before their turn."""
        self._told.clear()
        self._retell_at = self._clock() + random.uniform(0, min(self.others * RETELL_S, RETELL_MAX_S))

    def _drop(self, name: str) -> None:
        self._roster.drop(name)
        self._questions.drop(name)

    def _forget(self) -> None:
        self.away = True
        self._roster.clear()
        self._changed.clear()  # all is told when Redis is back
        self._questions.give_up()


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
