"""What one gateway process carries between its sessions and the upstream.

::

    clients -> Session (sessions/) -> Upstream.way
    Delivery.take       <- what one read brought for sessions, one after the other
    Delivery.answered   <- a response: the session whose route stack it carries
    Delivery.requested  <- a request: the session that serves its name
    Delivery.published  <- events: the fan-out, in runs

``Upstream`` calls all of it (``upstream.trunk.UpstreamReceiver``), and nothing here may wait.
"""

# compiled: mypyc

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from broker.identity import Role
from broker.wire.event_history import MessageHistory
from broker.wire.message import DELIMITER, REQUEST, RESPONSE, Message
from gateway import notices
from gateway.events.fanout import Fanout
from gateway.events.latest import Latest
from gateway.sessions.any_rank_retry import AnyRankRetry
from gateway.sessions.deadlines import Deadlines
from gateway.sessions.event_traces import EventTraces
from gateway.sessions.pressure import Pressure
from gateway.sessions.registrations import Registrations
from gateway.sessions.resume import Replays
from gateway.upstream.upstream import UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Sessions
    from gateway.upstream.upstream import Upstream

_TOLD: Final = int(Role.OWNER | Role.ADMIN)
"""Roles that are told why the broker is away."""
NOT_THERE: Final[int] = errno.ENOSYS
"""The last byte of the errnum of a response whose service nobody has."""
READ_S: Final = 2.0
"""How long clients may take to read events that come faster than they were published."""
LOOK_S: Final = 0.01
"""How often it is looked whether they have."""


class Delivery:
    """The messages and events of one process (``upstream.trunk.UpstreamReceiver``).

    Args:
        sessions: to and from whom. upstream: where they send; it is to be started with this.

    Attributes:
        fanout: who gets which event. history: the newest events, for clients that come back.
        latest: the newest event of each topic of ``gateway.latest``; None where the setting names no topics.
        registrations: which session serves which name. deadlines: what sessions wait for.
        replays: turns of the sessions that come back.
        pressure: sessions that are not read. event_traces: owners who look on.
        any_rank_retry: sends requests again whose service is at another rank; None: such requests fail with ENOSYS.
    """

    def __init__(self, sessions: Sessions, upstream: Upstream) -> None:
        kept = sessions.settings.gateway
        self.sessions = sessions
        self.upstream = upstream
        self.fanout = Fanout(sessions.settings.limits.subscriptions)
        self.history = MessageHistory(kept.history_msgs, kept.history_bytes)
        self.latest = Latest(kept.latest, kept.latest_msgs, kept.latest_bytes) if kept.latest else None
        self.pressure = Pressure()
        self.registrations = Registrations(sessions, upstream, self.pressure)
        self.deadlines = Deadlines(sessions)
        self.replays = Replays(sessions)
        self.event_traces = EventTraces(sessions, upstream, self.fanout)
        self.any_rank_retry = AnyRankRetry(sessions, upstream) if kept.anywhere else None
        self._by_route = sessions.by_route
        self._kept_requests = {} if self.any_rank_retry is None else self.any_rank_retry.held

    def forget(self, session: Session) -> None:
        """For Session: ``session`` is gone."""
        self.pressure.forget(session)
        self.fanout.forget(session)
        self.deadlines.forget(session)
        if self.any_rank_retry is not None:
            self.any_rank_retry.forget(session.front)

    def stop(self) -> None:
        """Wait for nothing any more; sessions are for ``Sessions`` to end."""
        self.deadlines.stop()
        self.replays.stop()

    # -- from the upstream ---------------------------------------------------------------------

    def take(self, messages: list[Message], at: int, fault: Callable[[Message, Exception], object]) -> int:
        """See ``UpstreamReceiver``."""
        end = len(messages)
        while at < end:
            message = messages[at]
            kind = message.head[3]
            try:
                # with an empty stack, which is the delimiter alone, it answers a call of the gateway's own
                if kind == RESPONSE and len(message.front) > len(DELIMITER):
                    self.answered(message)
                elif kind != REQUEST or not self.registrations.requested(message):
                    break
            except Exception as error:
                fault(message, error)
            at += 1
        return at

    def answered(self, message: Message) -> None:
        """A response whose top route is a session's hop; one for nobody is dropped and counted."""
        session = self._by_route.get(message.front)
        if session is None:
            if message.front == self.registrations.front:
                self.registrations.answered(message)
            else:
                self.sessions.counters.late += 1
            return
        # one comparison in the usual case: no request is kept, and the service was there
        if self._kept_requests or message.head[16] == NOT_THERE:
            retry = self.any_rank_retry
            if retry is not None and retry.answered(session, message):
                return
        session.answered(message)

    def requested(self, message: Message) -> bool:
        """See ``UpstreamReceiver``."""
        return self.registrations.requested(message)

    def published(self, messages: list[Message]) -> None:
        """See ``UpstreamReceiver``."""
        if self.latest is not None:
            self.latest.update(messages)
        if self.event_traces.watchers:
            self.event_traces.publish(messages)
        else:
            self.fanout.publish(messages)
        if self.deadlines.resumptions:
            self.deadlines.arrived(messages)

    async def until_read(self) -> bool:
        """See ``UpstreamReceiver``: nobody has more than a quarter waiting of what may wait, so that who reads is not
        taken for slow because of what comes at once.
        """
        most = self.sessions.settings.limits.outbox_bytes // 4
        until = self.sessions.clock() + READ_S
        while self.sessions.options.budget.used_bytes > most and any(
            session.link.outbox.queued_bytes > most for session in self.sessions.by_id.values()
        ):
            if self.sessions.clock() > until:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def fail_calls(self, front: bytes) -> None:
        """See ``UpstreamReceiver``: they are answered."""
        if self.any_rank_retry is not None:
            self.any_rank_retry.forget(front)
        session = self._by_route.get(front)
        if session is not None:
            session.attempt(session.fail_calls, "upstream lost: the link that carried this call has ended")

    def upstream_lost(self, reason: str) -> None:
        """The upstream is gone: every open call is answered, every client is told."""
        if self.any_rank_retry is not None:
            self.any_rank_retry.clear()
        self.registrations.lost(UNREACHABLE)
        self.sessions.each(lambda session: session.upstream_lost(UNREACHABLE))
        self._tell_upstream(lost=None)
        self.pressure.release_all()
        self.pressure.set_shut(False)

    def upstream_joined(self, epoch_changed: bool, missed: int | None) -> None:
        """See ``UpstreamReceiver``: clients are told, what waited for it goes on."""
        owner = self.upstream.owner
        if owner is not None and self.sessions.identity.set_owner(owner):
            self.sessions.each(
                lambda session: session.recheck_principal()
            )  # it is no web user's who is no owner
        self.sessions.counters.missed += 0 if epoch_changed else missed or 0
        if self.latest is not None and (epoch_changed or missed != 0):
            self.latest.clear()  # the newest event of a topic may be among the missed: an older one would be wrong
            if self.history:
                self.latest.update(self.history.since(self.history.before, len(self.history)))
        self._tell_upstream(lost=None if epoch_changed else missed)
        self.deadlines.joined()

    def upstream_choked(self, choked: bool) -> None:
        """See ``UpstreamReceiver``: sessions are held as they send, and released together."""
        if not choked:
            self.pressure.release_all()

    def upstream_shut(self, shut: bool) -> None:
        """See ``UpstreamReceiver``: who publishes much is held."""
        self.pressure.set_shut(shut)

    def reregister(self) -> None:
        """See ``UpstreamReceiver``."""
        self.registrations.restore()

    def _tell_upstream(self, lost: int | None) -> None:
        up = self.upstream
        said: notices.Upstream = {
            "type": "upstream",
            "joined": up.joined,
            "epoch": up.epoch or None,
            "reason": up.reason,
            "lost": lost,
        }
        others: notices.Upstream = {**said, "reason": "the broker is away"} if up.reason else said
        self.sessions.each(lambda session: session.tell(said if int(session.roles) & _TOLD else others))
