"""The centre of one gateway process: its sessions, and what they share.

::

    clients -> Session (sessions/) -> Hub.upstream.send
    Hub.answered   <- a response: the session whose route stack it carries
    Hub.requested  <- a request: the session that serves its name
    Hub.published  <- events: the fan-out, in runs

``Upstream`` calls the lower half, which must not wait. Everything here runs on one event loop; links share one Flusher
and one Budget (``options``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.holdings import Holdings
from broker.identity import USERID_UNKNOWN, Credentials, Role
from broker.tasks import Tasks
from broker.transport.link import Options
from gateway.access import Access
from gateway.closes import BUSY, ENDED, INTERNAL, MEANINGS, REVOKED, SHUTDOWN, TOO_MANY
from gateway.events.fanout import Fanout
from gateway.events.history import History
from gateway.events.latest import Latest
from gateway.identity.leases import Connections
from gateway.principal import Denied, Principal
from gateway.sessions import rights, service
from gateway.sessions.any_rank_retry import AnyRankRetry
from gateway.sessions.authorization_filter import AuthorizationFilter
from gateway.sessions.counters import Counters
from gateway.sessions.deadlines import Deadlines
from gateway.sessions.event_traces import EventTraces
from gateway.sessions.listing import Order
from gateway.sessions.publishers import Publishers
from gateway.sessions.refusals import Refusals
from gateway.sessions.registrations import Registrations
from gateway.sessions.replays import Replays
from gateway.sessions.reports import Reports
from gateway.sessions.session import CALLING, Session

if TYPE_CHECKING:
    from broker.client import Handler
    from broker.transport.link import Link
    from broker.wire.message import Message
    from gateway.fleet.member import Fleet
    from gateway.identity.authenticate import Authenticator
    from gateway.identity.hook import AuthorizationHook
    from gateway.settings.schema import GatewaySettings
    from gateway.trends.trends import Trends
    from gateway.upstream.supervisor import Upstream

log = logging.getLogger("headgate")

_TOLD: Final = int(Role.OWNER | Role.ADMIN)
"""Roles that are told why the broker is away."""
NOT_THERE: Final = errno.ENOSYS.to_bytes(4, "big")
"""The errnum of a response, as it stands in its header."""
Reload = Callable[[], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]
"""Reads certificates, tokens and keys again; returns what was read and what stayed as it was."""


class Hub:
    """What the sessions of one process share.

    Args:
        settings: limits, rules and sizes count.
        options: of the links: one Flusher and one Budget for all; ``limits`` are those of a client.
        key: secret of resume tokens, the same in all worker processes (``identity.store``).
        clock: monotonic seconds; None is the running loop's. wall: seconds since 1970.

    Attributes, to be set by the composition root before the first session:
        upstream: where sessions send. identity: checks fresh tokens and revocations.
        places: connections per user. reload: what ``gateway.reload`` does. leave: what ``gateway.drain`` does, of all
            worker processes; gets a reason. None: whoever runs the gateway ends it.
        trends: what is known of the brokers.
        hook: is asked, beside the rules, who may do what; None: nobody is.
        elsewhere: sends requests again whose service is at another rank; None: it is left at that.
        ask_others: asks the other worker processes (``service.answered``), b"" for who does not answer; None: there are
            none. fleet: what is known of other gateways; None: nothing.

    Attributes:
        access, fanout, history, registrations, deadlines, replays, publishers, refusals, reports, event_traces,
            counters: what they say. latest: None, where no topics are kept.
        sessions: by id. order: the same by age. fronts: by route stack. resting: those of HTTP connections on which no
            call is under way: they count for no limit, for `admission` of the web bounds these connections.
        waiting_bytes: of messages that wait for ``hook``, apart from ``options.budget``, whose half bounds it.
        cred: on answers of the gateway itself.
        accepting: False once the gateway leaves.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        options: Options | None = None,
        *,
        key: bytes,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.options = options or Options()
        self.key = key
        self.clock = clock or asyncio.get_running_loop().time
        self.wall = wall
        self.upstream: Upstream
        self.identity: Authenticator | None = None
        self.places = Connections(None)
        self.reload: Reload | None = None
        self.leave: Callable[[str], None] | None = None
        self.trends: Trends | None = None
        self.ask_others: Callable[[bytes], Awaitable[list[bytes]]] | None = None
        self.fleet: Fleet | None = None
        self.access = Access(settings.rules)
        self.elsewhere: AnyRankRetry | None = None
        self.hook: AuthorizationHook | None = None
        self.waiting_bytes = 0
        self.fanout = Fanout(settings.limits.subscriptions)
        self.history = History(settings.gateway.history_msgs, settings.gateway.history_bytes)
        kept = settings.gateway
        self.latest = Latest(kept.latest, kept.latest_msgs, kept.latest_bytes) if kept.latest else None
        self.registrations = Registrations(self)
        self.deadlines = Deadlines(self)
        self.replays = Replays(self)
        self.publishers = Publishers()
        self.counters = Counters()
        self.sessions: dict[str, Session] = {}
        self.order = Order()
        self.resting: set[Session] = set()
        self.fronts: dict[bytes, Session | Registrations] = {self.registrations.front: self.registrations}
        self.refusals = Refusals(self)
        self.reports = Reports(self)
        self.event_traces = EventTraces(self)
        self.cred = Credentials(os.getuid(), Role.OWNER)
        self.accepting = True
        self.started_at = wall()
        self._calling: Holdings[str] = Holdings()
        self._paused: set[Session] = set()
        self._tasks = Tasks()

    @property
    def denied(self) -> Sequence[Mapping[str, Any]]:
        """The newest refusals, oldest first."""
        return self.refusals.ring

    # -- sessions ------------------------------------------------------------------------------

    def open(
        self,
        principal: Principal,
        link: Link,
        *,
        kind: str,
        address: str,
        epoch: tuple[object, ...] | None = None,
    ) -> Session:
        """A session for a client that has proved who it is; the caller starts ``link`` with it.

        Args:
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
        session = Session(self, principal, link, kind, address)
        while session.id in self.sessions:
            session = Session(self, principal, link, kind, address)
        self._take_place(principal.name, kind)
        link.outbox.charge_to(principal.name, 0)
        self.sessions[session.id] = session
        self.order.add(session)
        self.fronts[session.front] = session
        self.counters.opened[kind] += 1
        self.deadlines.watch(session)
        return session

    def rest(self, session: Session) -> None:
        """The call of a session of kind ``http`` was answered, and its connection stays. While the gateway leaves, it
        ends: nothing follows, and a drain waits for all sessions.
        """
        if not self.accepting:
            session.close(SHUTDOWN, "the gateway leaves or restarts")
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
        self._take_place(principal.name, session.kind)
        self.resting.remove(session)
        return True

    def forget(self, session: Session) -> None:
        """For Session: it is gone."""
        del self.sessions[session.id]
        self.order.remove(session)
        del self.fronts[session.front]
        self._paused.discard(session)
        self.publishers.forget(session)
        self.fanout.forget(session)
        self.deadlines.forget(session)
        if self.elsewhere is not None:
            self.elsewhere.forget(session.front)
        if session in self.resting:
            self.resting.remove(session)
        elif session.kind == "http":
            self._calling.add(session.principal.name, -1)
        else:
            self.places.release(session.principal.name)

    def _take_place(self, user: str, kind: str) -> None:
        limit = self.settings.limits.connections_per_user
        if kind == "http":  # these are short and many: the file of all workers is not for them
            granted, uncertain = self._calling.of(user) < limit, False
            self._calling.add(user, int(granted))
        else:
            granted = self.places.acquire(user, limit)
            uncertain = not granted and self.places.uncertain(user)
        if not granted:
            close = BUSY if uncertain else TOO_MANY  # BUSY: come back and see
            text = f"too many connections of {user} (limits.connections_per_user)"
            raise self._refused(kind, text, status=429, close=close)

    def _admitted(self, mine: Principal, kind: str, epoch: tuple[object, ...] | None) -> Principal:
        """Who that is now: users may have been read again, and credentials revoked, since its body began to come."""
        if not self.accepting:
            raise self._refused(kind, "the gateway leaves", status=503, close=SHUTDOWN)
        if len(self.sessions) - len(self.resting) >= self.settings.limits.connections:
            raise self._refused(kind, "too many connections (limits.connections)", status=503, close=BUSY)
        if self.identity is None or (epoch is not None and self.identity.holds(mine, epoch)):
            return mine
        now = None if self.identity.revoked(mine) else self.identity.again(mine)
        if now is None:
            raise self._refused(kind, rights.GONE, status=401, close=REVOKED, errno=1)
        return now

    def _refused(self, kind: str, text: str, *, status: int, close: int, errno: int = 11) -> Denied:
        self.counters.refusals[f"{kind}: {status}"] += 1
        return Denied(text, public=text, status=status, close=close, errno=errno)

    def supersede(self, former: str, session: Session) -> None:
        """A client came back as ``session``: its former connection, if it is still there half open, ends."""
        other = self.sessions.get(former)
        if other is not None and other is not session and other.principal.name == session.principal.name:
            other.close(ENDED, "resumed by another connection")

    # -- from the upstream ---------------------------------------------------------------------

    def answered(self, message: Message) -> None:
        """A response whose top route is a session's hop; one for nobody is dropped and counted."""
        session = self.fronts.get(message.front)
        if session is None:
            self.counters.late += 1
            return
        elsewhere = self.elsewhere
        if (
            elsewhere is None
            or not (elsewhere.held or message.head[13:] == NOT_THERE)
            or not isinstance(session, Session)
            or not elsewhere.answered(session, message)
        ):
            session.answered(message)

    def requested(self, message: Message) -> bool:
        """A request; False when no session serves its name."""
        return self.registrations.requested(message)

    def published(self, messages: list[Message]) -> None:
        """Events in order, numbered without a hole since the last ``upstream_joined``; the history has them already."""
        if self.latest is not None:
            self.latest.update(messages)
        if self.event_traces.watchers:
            self.event_traces.publish(messages)
        else:
            self.fanout.publish(messages)
        if self.deadlines.resumptions:
            self.deadlines.arrived(messages)

    def fail_calls(self, front: bytes) -> None:
        """The link that carried the calls of one session ended: they are answered; ``front`` is its route stack."""
        session = self.fronts.get(front)
        if self.elsewhere is not None:
            self.elsewhere.forget(front)
        if isinstance(session, Session):
            session.fail_calls("upstream lost: the link that carried this call has ended")

    def upstream_lost(self, reason: str) -> None:
        """The upstream is gone: every open call is answered, every client is told."""
        text = self.unreachable
        if self.elsewhere is not None:
            self.elsewhere.clear()
        self.registrations.lost(text)
        self._each(lambda session: session.upstream_lost(text))
        self._tell_upstream(lost=None)
        self._resume_paused()
        self.publishers.set_shut(False)

    def upstream_joined(self, epoch_changed: bool, missed: int | None) -> None:
        """The upstream is there, or events were missed while it was: clients are told, what waited for it goes on.

        Args:
            epoch_changed: the instance's rank 0 is another one, numbers begin anew; also at the first time.
            missed: events nobody here saw, 0 for none, None when that cannot be known.
        """
        owner = self.upstream.owner
        if owner is not None and self.identity is not None and self.identity.set_owner(owner):
            self._each(rights.judge_again)  # it is no web user's who is no owner
        self.counters.missed += 0 if epoch_changed else missed or 0
        if self.latest is not None and (epoch_changed or missed != 0):
            self.latest.clear()
        self._tell_upstream(lost=None if epoch_changed else missed)
        self.deadlines.joined()

    def upstream_choked(self, choked: bool) -> None:
        """The upstream reads slowly (sessions are paused as they send), or does again."""
        if not choked:
            self._resume_paused()

    def upstream_shut(self, shut: bool) -> None:
        """Events have to wait (who publishes much is paused), or move on again."""
        self.publishers.set_shut(shut)

    def reregister(self) -> None:
        """A fresh link: register the services of sessions again."""
        self.registrations.restore()

    @property
    def service(self) -> Mapping[str, Handler | tuple[Handler, int]]:
        """The methods of ``gateway`` for callers behind the upstream."""
        return service.handlers(self)

    @property
    def process_service(self) -> Mapping[str, tuple[Handler, int]]:
        """The methods of the service that has the name of this process at the upstream; for owners only."""
        return {"trace": (self.event_traces.follow, int(Role.OWNER))}

    @property
    def unreachable(self) -> str:
        """What a client is told while the upstream is away; why, and which address it has, is for owners and admins."""
        return "upstream lost: the gateway has no broker now"

    def upstream_state(self) -> dict[str, Any]:
        """The upstream as welcomes and statistics show it."""
        up = self.upstream
        return {"joined": up.joined, "rank": up.rank, "size": up.size, "version": up.version}

    def _tell_upstream(self, lost: int | None) -> None:
        up = self.upstream
        said = {
            "type": "upstream",
            "joined": up.joined,
            "epoch": up.epoch or None,
            "reason": up.reason,
            "lost": lost,
        }
        others = said | {"reason": "the broker is away"} if up.reason else said
        for session in list(self.sessions.values()):
            session.tell(said if int(session.roles) & _TOLD else others)

    # -- pressure ------------------------------------------------------------------------------

    def pause(self, session: Session) -> None:
        """Read no more of a pure caller until the upstream takes more; providers go on: others wait for them."""
        if not session.provider.names and session not in self._paused:
            self._paused.add(session)
            session.set_paused(True)

    def unpause(self, session: Session) -> None:
        """Read ``session`` again, if it was paused."""
        if session in self._paused:
            self._paused.discard(session)
            session.set_paused(False)

    def _resume_paused(self) -> None:
        paused, self._paused = self._paused, set()
        for session in paused:
            session.set_paused(False)

    # -- rights --------------------------------------------------------------------------------

    def receiver(self, session: Session) -> Session | AuthorizationFilter:
        """What the link of a session hands its messages to."""
        return session if self.hook is None else AuthorizationFilter(session, self.hook)

    def set_access(self, access: Access) -> None:
        """Other rules from now on, and perhaps other users: every session gives up what is not allowed any more."""
        self.access = access
        self.fanout.invalidate()
        self._each(rights.judge_again)

    def revoked(self, credential: str | None = None) -> None:
        """End the sessions of ``credential`` (``Principal.credential``); None asks the identity about every one."""
        self._each(lambda session: rights.end_revoked(session, credential))

    def stopped(self, seconds: float) -> None:
        """This process was stopped for so long."""
        for session in self.sessions.values():
            session.forgive(seconds)

    def refresh(self, session: Session, token: str) -> None:
        """Check a fresh token on a live connection; one that is refused ends it."""
        session.refreshing = True
        self.spawn(f"refresh {session.id}", rights.refresh(session, token))

    def _each(self, work: Callable[[Session], None]) -> None:
        """Do ``work`` with every session; where it fails, that costs the session."""
        for session in list(self.sessions.values()):
            try:
                work(session)
            except Exception as error:
                self.fault(session, error)

    def fault(self, session: Session, error: Exception) -> None:
        """A fault of ours costs the session it happened with, and nobody else."""
        self.counters.faults += 1
        log.error("session %s of %s: a fault", session.id, session.principal.name, exc_info=error)
        session.close(INTERNAL, MEANINGS[INTERNAL].text)

    def deny(
        self, session: Session, kind: str, topic: str, reason: str, *, claimed: int = USERID_UNKNOWN
    ) -> None:
        """Record that ``session``, whose message said it came from ``claimed``, tried what it has no right to."""
        self.refusals.add(session, kind, topic, reason)
        self.reports.denied(session, kind, topic, claimed)

    # -- tasks and the end ---------------------------------------------------------------------

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task of this process; ``stop`` ends it."""
        self._tasks.spawn(name, work)

    async def drain(self, over_s: float | None = None) -> None:
        """Leave: accept no more, tell every client, spread the closes over ``over_s`` seconds (default: settings).

        Calls over HTTP are left alone until they are answered.
        """
        self.accepting = False
        for session in list(self.resting):
            session.close(SHUTDOWN, "the gateway leaves or restarts")
        seconds = self.settings.gateway.drain_s if over_s is None else over_s
        for session in list(self.sessions.values()):
            session.tell({"type": "shutdown", "in_s": seconds})
        waiting = [session for session in self.sessions.values() if session.kind not in CALLING]
        began = self.clock()
        for index, session in enumerate(waiting):
            pause = began + seconds * index / len(waiting) - self.clock()
            if pause > 0:
                await asyncio.sleep(pause)
            session.close(SHUTDOWN, "the gateway leaves or restarts")

    async def stop(self) -> None:
        """End every session and task at once; harmless twice."""
        self.accepting = False
        for session in list(self.sessions.values()):
            session.close(SHUTDOWN, "the gateway leaves or restarts")
        self.deadlines.stop()
        self.replays.stop()
        await self._tasks.stop()
