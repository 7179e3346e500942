"""A client that comes back: what it missed, through the same filter as live events, then live; and whether that is all.

The client brings the token of its former session, the epoch and the number of the last event it knows of, and its
prefixes. The position in rank 0's numbers says everything: any worker process can continue, and numbers that the
client never saw because of its prefixes or its rights are no loss.

    here < client     this process is behind: wait until it caught up, at most ``BEHIND_S``
    here >= client    replay what is behind the client's number, as fast as the client reads
    here == replayed  in the same moment subscribe, and say ``resumed``

``recovered`` is true exactly when every event since then, as far as the client may have it *now*, was replayed. It is
false when the epoch is another one, when the history does not reach back far enough (also if that happens during the
replay), or when this process does not catch up; then the client begins at the position it is told. Nothing at or below
the client's number is replayed, and ``resumed`` comes after what was replayed and before the first live event.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gateway.events.history import AHEAD, distance
from gateway.events.run import Run, send_run

if TYPE_CHECKING:
    from broker.transport.link import Link
    from broker.wire.message import Message
    from gateway.principal import Principal
    from gateway.sessions.session import Session

BEHIND_S: Final = 2.0
"""How long a client waits for a process that has not yet seen what it has."""
PORTION_BYTES: Final = 128 << 10
"""Events handed over at a time; less where a client's outbox is smaller."""
PORTION_MSGS: Final = 512
"""The same in events."""
DRAIN_S: Final = 0.02
"""Pause before the outbox of a client that does not keep up is looked at again."""
_MAC_CHARS: Final = 43


class Resumed(NamedTuple):
    """The outcome."""

    recovered: bool
    epoch: str
    sequence: int
    replayed: int
    denied: list[str]
    """Prefixes that the client may not subscribe to (any more)."""


Done: TypeAlias = Callable[[Resumed], None]


def token_for(key: bytes, principal: Principal, session: str) -> str:
    """The resume token of ``session``: worth something to this user only, and no credential by itself."""
    text = f"{session}\0{principal.userid}\0{principal.name}".encode("utf-8", "surrogateescape")
    return f"{session}.{hmac.new(key, text, hashlib.sha256).hexdigest()[:_MAC_CHARS]}"


def session_of(key: bytes, principal: Principal, token: str) -> str | None:
    """The session that ``token`` was made for; None when it is no token of this user."""
    session = token.partition(".")[0]
    good = token_for(key, principal, session)
    same = hmac.compare_digest(
        good.encode("utf-8", "surrogateescape"), token.encode("utf-8", "surrogateescape")
    )
    return session if same else None


class _Seeker:
    """The session as it will be once it is live: what the fan-out's filter asks for."""

    __slots__ = ("_session", "subscriptions")

    def __init__(self, session: Session, prefixes: list[bytes]) -> None:
        self._session = session
        self.subscriptions = dict.fromkeys(prefixes, 1)

    @property
    def link(self) -> Link:
        return self._session.link

    @property
    def principal(self) -> Principal:
        return self._session.principal

    def sees_topic(self, topic: bytes) -> bool:
        return self._session.sees_topic(topic)


class Resumption:
    """One client on its way back to live.

    Args:
        session: of the new connection.
        epoch, sequence: what it knows of. prefixes: what it wants again.
        done: hears the outcome, right after the session is live.
    """

    def __init__(
        self, session: Session, epoch: str, sequence: int, prefixes: Sequence[str], done: Done
    ) -> None:
        self._session = session
        self._hub = session.hub
        self._epoch = epoch
        self._cursor = sequence
        self._done = done
        self._replayed = 0
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._until = self._hub.clock() + BEHIND_S
        wanted = list(dict.fromkeys(prefixes))
        # a message has room for many more, and each of them is held against each event
        most = self._hub.settings.limits.subscriptions
        names = {text: text.encode("utf-8", "surrogateescape") for text in wanted[:most]}
        self._allowed = [text for text in names if self._may(names[text])]
        self._denied = [text for text in names if not self._may(names[text])] + wanted[most:]
        self._names = names
        self._seeker = _Seeker(session, [names[text] for text in self._allowed])

    def _may(self, prefix: bytes) -> bool:
        return self._hub.access.allows_pattern(self._session.roles, prefix)

    def advance(self) -> None:
        """Go on as far as possible now; called again when something may have changed."""
        history = self._hub.history
        if self._over or self._timer is not None:
            return
        if not self._hub.upstream.joined or self._is_behind():
            if self._hub.clock() >= self._until:
                self._finish(recovered=False)
        elif not history.covers(self._epoch, self._cursor):
            self._finish(recovered=False)
        else:
            self._replay(history.since(self._cursor))

    def cancel(self) -> None:
        """The session is gone."""
        self._over = True
        self._hub.deadlines.resumptions.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _is_behind(self) -> bool:
        """Whether this process has not yet seen the event that the client saw last."""
        history = self._hub.history
        return history.epoch == self._epoch and 0 < distance(history.last, self._cursor) <= AHEAD

    def _replay(self, events: list[Message]) -> None:
        """Hand over a portion of what is missing; the rest after the client has read."""
        portion = self._portion(events)
        mine = [message for message in portion if self._hub.fanout.matches(self._seeker, message)]
        if mine:
            send_run(self._session.link, Run(mine))
            self._replayed += len(mine)
        if portion:
            self._cursor = portion[-1].sequence
        if len(portion) == len(events):
            self._finish(recovered=True)
        else:
            self._timer = asyncio.get_running_loop().call_later(0, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if self._session.link.outbox.parked_bytes > self._share:
            self._timer = asyncio.get_running_loop().call_later(DRAIN_S, self._go_on)
        else:
            self.advance()

    @property
    def _share(self) -> int:
        """What may wait at the client: its own limit for events leaves room for more."""
        return min(PORTION_BYTES, self._hub.settings.limits.outbox_bytes // 4)

    def _portion(self, events: list[Message]) -> list[Message]:
        size, share = 0, self._share
        for index, message in enumerate(events[:PORTION_MSGS]):
            size += message.size
            if size > share:
                return events[: max(index, 1)]
        return events[:PORTION_MSGS]

    def _finish(self, *, recovered: bool) -> None:
        """Go live, and say so."""
        self._over = True
        session, hub = self._session, self._hub
        hub.deadlines.resumptions.discard(self)
        session.resumption = None
        for text in self._allowed:
            prefix = self._names[text]
            if not self._may(prefix) or hub.fanout.subscribe(session, prefix):
                self._denied.append(text)
        history = hub.history
        self._done(Resumed(recovered, history.epoch, history.last, self._replayed, self._denied))
        hub.deadlines.go_live()
