"""Timers of all sessions (credentials that expire, subscriptions and resumes that are pending), by one timer of the
loop.

``expiry``        a session whose credential ends is closed (EXPIRED) unless it was refreshed
``subscriptions`` that came while they could not be live: made live with the upstream's return, or answered EHOSTUNREACH
``resumptions``   that wait until this process has seen what the client has seen

A tick that comes late judges nobody, the next one does: this process was stopped, and a fresh credential, or the event
that is waited for, may lie in its sockets.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.awake import Deadline
from broker.wire.audience import PREFIX_MAX_BYTES
from broker.wire.message import DELIMITER
from gateway.closes import EXPIRED
from gateway.sessions import answers, requests
from gateway.upstream.upstream import UNREACHABLE

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.sessions.resume import Resumption
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Sessions

TICK_S: Final = 0.25
"""How often deadlines are looked at: so late may a session end after its credential."""
LIVE_S: Final = 5.0
"""How long a subscription may wait for the upstream."""
WAITING_MAX: Final = 256
"""Subscriptions of one session that may wait; beyond it EAGAIN."""


class _Waiting(NamedTuple):
    """A subscription that is not live yet."""

    until: float
    message: Message
    prefix: bytes


class Deadlines:
    """The deadlines of one process.

    Attributes:
        resumptions: those that wait, by the number of the event that they wait for.
    """

    __slots__ = ("_expires", "_sessions", "_subscriptions", "_timer", "resumptions")

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._expires: dict[Session, float] = {}
        self._subscriptions: dict[Session, list[_Waiting]] = {}
        self.resumptions: dict[int, set[Resumption]] = {}
        self._timer: Deadline | None = None

    def watch(self, session: Session) -> None:
        """Take note of when the credential of ``session`` ends."""
        expires = session.principal.expires
        if expires is None:
            self._expires.pop(session, None)
        else:
            self._expires[session] = expires
            self._run()

    def subscribe_later(self, session: Session, message: Message, prefix: bytes) -> None:
        """Subscribe as soon as that is live, and answer ``message`` then; a prefix that is too long stays too long."""
        row = self._subscriptions.setdefault(session, [])
        if len(row) >= WAITING_MAX:
            answers.refuse(
                session, message, errno.EAGAIN, f"{len(row)} subscriptions wait already: retry in 1 s"
            )
            return
        message.front, message.payload_part = DELIMITER, b""  # an answer needs neither, and they may be large
        row.append(_Waiting(self._sessions.clock() + LIVE_S, message, prefix[: PREFIX_MAX_BYTES + 1]))
        self._run()

    def subscribe_waiting(self, session: Session) -> None:
        """Make the waiting subscriptions of ``session`` live, where that can be now: its resumption has ended, or the
        upstream is there.
        """
        if session.ready:
            for waiting in self._subscriptions.pop(session, ()):
                requests.subscribe_now(session, waiting.message, waiting.prefix)

    def joined(self) -> None:
        """The upstream is there: make live what can be."""
        for session in list(self._subscriptions):
            session.attempt(self.subscribe_waiting, session)
        self.advance()

    def wait_for_event(self, resumption: Resumption) -> None:
        """Advance ``resumption`` once the event that it waits for has come, the upstream has, or time has passed."""
        self.resumptions.setdefault(resumption.cursor, set()).add(resumption)
        self._run()

    def stop_waiting(self, resumption: Resumption) -> None:
        """``resumption`` waits no more; harmless when it does not."""
        row = self.resumptions.get(resumption.cursor, set())
        row.discard(resumption)
        if not row:
            self.resumptions.pop(resumption.cursor, None)

    def arrived(self, messages: list[Message]) -> None:
        """Events came: who waits for one of them goes on. Numbers that never come are left to time."""
        for message in messages:
            for resumption in list(self.resumptions.get(message.sequence, ())):
                resumption.session.attempt(resumption.advance)

    def advance(self) -> None:
        """The upstream joined, or time passed: all that wait look whether they may go on."""
        for resumption in [one for row in self.resumptions.values() for one in row]:
            resumption.session.attempt(resumption.advance)

    def forget(self, session: Session) -> None:
        """``session`` is gone."""
        self._expires.pop(session, None)
        self._subscriptions.pop(session, None)

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the timer -----------------------------------------------------------------------------

    def _run(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = Deadline(loop, loop.time() + TICK_S, TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.sweep()
        finally:  # whatever goes wrong: without a timer credentials would count for ever
            if self._expires or self._subscriptions or self.resumptions:
                self._run()

    def sweep(self) -> None:
        """Look at every deadline."""
        wall, now = self._sessions.wall(), self._sessions.clock()
        # expiry by the wall clock, as credentials say it; waits by the clock that nobody sets
        for session in [one for one, expires in self._expires.items() if expires <= wall]:
            session.attempt(session.close, EXPIRED, "the credential expired; connect with a fresh one")
        for session, row in list(self._subscriptions.items()):
            if session not in self._subscriptions:
                continue  # the answer to another one was too much for all, and ended it
            left = [one for one in row if one.until > now]
            if left:
                self._subscriptions[session] = left
            else:
                del self._subscriptions[session]
            for one in row:
                if one.until <= now:
                    session.attempt(answers.refuse, session, one.message, errno.EHOSTUNREACH, UNREACHABLE)
        self.advance()
