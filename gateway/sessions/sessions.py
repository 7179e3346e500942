"""Who is connected to one gateway process, and how many may be: the open sessions, and how they leave."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.holdings import Holdings
from broker.identity import Credentials, Role
from broker.tasks import Tasks
from broker.transport.link import Options
from gateway.access import Access
from gateway.closes import BUSY, ENDED, REVOKED, SHUTDOWN, TOO_MANY
from gateway.fleet.peers import Peers
from gateway.principal import Denied, Principal
from gateway.sessions.counters import Counters
from gateway.sessions.session import CALLING, GONE, Session

if TYPE_CHECKING:
    from broker.transport.link import Link
    from gateway.identity.authenticate import Authenticator
    from gateway.identity.hook import AuthorizationHook
    from gateway.sessions.delivery import Delivery
    from gateway.sessions.requests import GatewayService
    from gateway.settings.schema import GatewaySettings

log = logging.getLogger("headgate")

LEAVES: Final = "the gateway leaves or restarts"
Place: TypeAlias = tuple[float, str]
"""Of a session among those of all worker processes: when it was opened, and its id."""


class Sessions:
    """The open sessions of one process.

    Args:
        settings: limits, rules and sizes count.
        identity: checks fresh tokens and revocations.
        key: secret of resume tokens, the same in all worker processes (``identity.store``).
        options: of the links: one Flusher and one Budget for all; ``limits`` are those of a client.
        peers: other processes of this service, which count the connections of users together; None: there are none.
        hook: is asked, beside the rules, who may do what; None: nobody is.
        clock: monotonic seconds; None is the running loop's. wall: seconds since 1970.

    Attributes:
        access: the rules, as of the last reload.
        by_id, by_route: the sessions; the second by the route stack of their requests.
        resting: those of HTTP connections on which no call is under way.
        peers: as above. counters: what was done.
        waiting_bytes: of messages that wait for ``hook``, apart from ``options.budget``, whose half bounds it.
        cred: on answers of the gateway itself.
        tasks: what sessions have under way; ``stop`` ends it.
        accepting: False once the gateway leaves.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        identity: Authenticator,
        *,
        key: bytes,
        options: Options | None = None,
        peers: Peers | None = None,
        hook: AuthorizationHook | None = None,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.key = key
        self.options = options or Options()
        self.hook = hook
        self.clock = clock or asyncio.get_running_loop().time
        self.wall = wall
        self.access = Access(settings.rules)
        self.by_id: dict[str, Session] = {}
        self.by_route: dict[bytes, Session] = {}
        self.resting: set[Session] = set()
        self.peers = Peers() if peers is None else peers  # one without others is false
        self.counters = Counters()
        self.waiting_bytes = 0
        self.cred = Credentials(os.getuid(), Role.OWNER)
        self.tasks = Tasks()
        self.accepting = True
        self.started_at = wall()
        self._by_age: list[
            tuple[float, str, Session]
        ] = []  # a page costs the same however many stand before it
        self._calling: Holdings[str] = Holdings()

    def __len__(self) -> int:
        return len(self.by_id)

    def behind(self, place: Place) -> Iterator[Session]:
        """The sessions behind ``place``, oldest first; only until one is opened or gone."""
        first = bisect_right(self._by_age, place, key=lambda row: row[:2])
        return (self._by_age[index][2] for index in range(first, len(self._by_age)))

    def by_kind(self) -> dict[str, int]:
        """Kind -> how many there are of it."""
        return dict(Counter(session.kind for session in self.by_id.values()))

    # -- who comes -----------------------------------------------------------------------------

    def open(
        self,
        delivery: Delivery,
        administration: GatewayService,
        principal: Principal,
        link: Link,
        *,
        kind: str,
        address: str,
        epoch: tuple[object, ...] | None = None,
    ) -> Session:
        """A session for a client that has proved who it is; the caller starts ``link`` with its ``receiver``.

        Args:
            delivery: carries its messages.
            administration: answers it as ``gateway``.
            principal: who it is.
            link: its connection, not started yet.
            kind: the subprotocol, ``http``, ``ndjson`` or ``sse``.
            address: where the client is, for people.
            epoch: ``Authenticator.epoch`` of before ``principal`` was checked; None: it is judged again.

        Raises:
            Denied: the gateway leaves, too many connections, or too many of this user; or ``principal``, who may have
                been checked a while ago, counts no more.
        """
        principal = self._admitted(principal, kind, epoch)
        session = Session(self, delivery, administration, principal, link, kind, address)
        while session.id in self.by_id:
            session = Session(self, delivery, administration, principal, link, kind, address)
        self._count_in(principal.name, kind)
        link.outbox.charge_to(principal.name, 0)
        self.by_id[session.id] = session
        self.by_route[session.front] = session
        insort(self._by_age, (session.opened_at, session.id, session))
        self.counters.opened[kind] += 1
        delivery.deadlines.watch(session)
        return session

    def rest(self, session: Session) -> None:
        """The call of a session of kind ``http`` was answered, and its connection stays. While the gateway leaves, it
        ends: nothing follows, and a drain waits for all sessions.
        """
        if not self.accepting:
            session.close(SHUTDOWN, LEAVES)
            return
        self.resting.add(session)
        self._calling.add(session.principal.name, -1)

    def wake(self, session: Session, principal: Principal, epoch: tuple[object, ...]) -> bool:
        """The connection of a session that rests has its next call; False: it needs another session, for this one has
        ended, or is not of who ``principal`` is now.

        Raises:
            Denied: as `open`.
        """
        if self._admitted(principal, session.kind, epoch) != session.principal or session.ended:
            return False
        self._count_in(principal.name, session.kind)
        self.resting.remove(session)
        return True

    @property
    def full(self) -> bool:
        """Whether there are as many as may be. One that rests does not count: it does nothing, and ``web.admission``
        bounds the connections that have one.
        """
        return len(self.by_id) - len(self.resting) >= self.settings.limits.connections

    def _admitted(self, mine: Principal, kind: str, epoch: tuple[object, ...] | None) -> Principal:
        """Who that is now: users may have been read again, and credentials revoked, since its body began to come."""
        # what needs no look at anybody's credential comes first: a flood of clients costs least then
        if not self.accepting:
            raise self._refused(kind, "the gateway leaves", status=503, close=SHUTDOWN)
        if self.full:
            raise self._refused(kind, "too many connections (limits.connections)", status=503, close=BUSY)
        if epoch is not None and self.identity.holds(mine, epoch):
            return mine
        now = None if self.identity.revoked(mine) else self.identity.again(mine)
        if now is None:
            raise self._refused(kind, GONE, status=401, close=REVOKED, errno=1)
        return now

    def _count_in(self, user: str, kind: str) -> None:
        limit = self.settings.limits.connections_per_user
        if kind == "http":  # these are short and many: each would be told to all processes twice
            granted, uncertain = self._calling.of(user) < limit, False
            self._calling.add(user, int(granted))
        else:
            granted = self.peers.acquire(user, limit)
            uncertain = not granted and self.peers.uncertain(user)
        if not granted:
            # a worker that died may still hold places until its lease ends: who is told BUSY comes back and sees
            close = BUSY if uncertain else TOO_MANY
            text = f"too many connections of {user} (limits.connections_per_user)"
            raise self._refused(kind, text, status=429, close=close)

    def _refused(self, kind: str, text: str, *, status: int, close: int, errno: int = 11) -> Denied:
        self.counters.refusals[f"{kind}: {status}"] += 1
        return Denied(text, public=text, status=status, close=close, errno=errno)

    def supersede(self, former: str, user: str) -> bool:
        """A client of ``user`` came back by another connection: its former session ends; False: it is not here."""
        other = self.by_id.get(former)
        if other is None or other.principal.name != user:
            return False
        other.close(ENDED, "resumed by another connection")
        return True

    # -- who they are --------------------------------------------------------------------------

    def each(self, work: Callable[[Session], None]) -> None:
        """Do ``work`` with every session; see ``Session.attempt``."""
        for session in list(self.by_id.values()):
            if not session.ended:  # by what was done with another one
                session.attempt(work, session)

    def revoked(self, credential: str | None = None) -> None:
        """End the sessions of ``credential`` (``Principal.credential``); None asks the identity about every one."""

        def end(session: Session) -> None:
            mine = session.principal
            if self.identity.revoked(mine) if credential is None else mine.credential == credential:
                session.close(REVOKED, "the credential was revoked")

        self.each(end)

    def refresh(self, session: Session, token: str) -> None:
        """Check a fresh token on a live connection; one that is refused ends it."""
        session.refreshing = True
        self.tasks.spawn(f"refresh {session.id}", self._refresh(session, token))

    async def _refresh(self, session: Session, token: str) -> None:
        try:
            principal = await self.identity.authenticate_token(token, address=session.address)
            if not session.ended:
                session.set_principal(principal)
                session.tell(
                    {"type": "refreshed", "expires": principal.expires, "roles": principal.role_names}
                )
        except Denied as denied:
            if not session.ended:
                session.administration.deny(session, "refresh", "", str(denied))
                session.close(denied.close, denied.public)
        except Exception as error:
            session.fault(error)
        finally:
            session.refreshing = False

    def stopped(self, seconds: float) -> None:
        """This process was stopped for so long."""
        for session in self.by_id.values():
            session.forgive(seconds)

    # -- who goes ------------------------------------------------------------------------------

    def forget(self, session: Session) -> None:
        """For Session: ``session`` is gone."""
        del self.by_id[session.id]
        del self.by_route[session.front]
        del self._by_age[bisect_left(self._by_age, (session.opened_at, session.id))]
        if session in self.resting:
            self.resting.remove(session)
        elif session.kind == "http":
            self._calling.add(session.principal.name, -1)
        else:
            self.peers.release(session.principal.name)

    async def drain(self, over_s: float | None = None) -> None:
        """Leave: accept no more, tell every client, spread the closes over ``over_s`` seconds (default: settings).

        Calls over HTTP are left alone until they are answered.
        """
        self.accepting = False
        for session in list(self.resting):
            session.attempt(session.close, SHUTDOWN, LEAVES)
        seconds = self.settings.gateway.drain_s if over_s is None else over_s
        self.each(lambda session: session.tell({"type": "shutdown", "in_s": seconds}))
        waiting = [session for session in self.by_id.values() if session.kind not in CALLING]
        began = self.clock()
        for index, session in enumerate(waiting):
            pause = began + seconds * index / len(waiting) - self.clock()
            if pause > 0:
                await asyncio.sleep(pause)
            session.attempt(session.close, SHUTDOWN, LEAVES)

    async def stop(self) -> None:
        """End every session and task at once; harmless twice."""
        self.accepting = False
        self.each(lambda session: session.close(SHUTDOWN, LEAVES))
        await self.tasks.stop()
