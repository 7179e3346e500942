"""A client that comes back: what it missed, through the same filter as live events, then live; and whether that is all.

The client brings the epoch and the number of the last event it knows of, and its prefixes. The position in rank 0's
numbers says everything: any gateway of the instance can continue, and numbers that the client never saw because of its
prefixes or its rights are no loss.

    here < client     this process is behind: wait until it caught up, at most ``BEHIND_S``
    here >= client    replay what is behind the client's number, in portions, as fast as the client reads and as
                      ``Replays`` lets it, where everybody's portions take turns
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
from typing import TYPE_CHECKING, Final, Protocol, cast

from broker.rates import Buckets
from broker.wire.audience import Prefixes
from broker.wire.event_history import AHEAD, distance
from broker.wire.parts import part_data
from gateway.events.fanout import may_see
from gateway.events.run import Run

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.principal import Principal
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Sessions

BEHIND_S: Final = 2.0
"""How long a client waits for a process that has not yet seen what it has."""
PORTION_BYTES: Final = 64 << 10
"""Events looked at in one turn; less where a client's outbox is smaller. It takes about a millisecond."""
PORTION_MSGS: Final = 128
"""The same in events; portions end at multiples of it, so that clients that come back together get the same ones."""
SHARED_RUNS: Final = 32
"""Portions that are kept for the next client."""
FEW_MSGS: Final = 32
"""Who missed no more waits for no turn: thousands that come back at once are live one after the other."""
_MAC_CHARS: Final = 43


class HasRoom(Protocol):
    """The outbox of a web client (``websocket.outbox.WebOutbox``, which sessions do not know)."""

    queued_bytes: int

    def when_room(self, room_bytes: int, told: Callable[[], None]) -> None:
        """Call ``told`` once, when no more than ``room_bytes`` wait any more."""


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


class Resumption:
    """One client on its way back to live.

    Args:
        session: of the new connection.
        epoch, sequence: what it knows of. prefixes: what it wants again.

    Attributes:
        session: as above. allowed: the prefixes that it may have.
        cursor: number of the last event that the client has, or need not have.
    """

    def __init__(self, session: Session, epoch: str, sequence: int, prefixes: Sequence[str]) -> None:
        self.session = session
        self._sessions = session.sessions
        self._delivery = session.delivery
        self._epoch = epoch
        self.cursor = sequence
        self._replayed = 0
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._until = self._sessions.clock() + BEHIND_S
        wanted = list(dict.fromkeys(prefixes))
        # a message has room for many more
        most = self._sessions.settings.limits.subscriptions
        names = {text: text.encode("utf-8", "surrogateescape") for text in wanted[:most]}
        self.allowed = tuple(text for text in names if self._may(names[text]))
        self._denied = [text for text in names if not self._may(names[text])] + wanted[most:]
        self._names = names
        self._prefixes: Prefixes[bool] = Prefixes()
        for text in self.allowed:
            self._prefixes.add(names[text], True)

    def _may(self, prefix: bytes) -> bool:
        return self._sessions.access.allows_pattern(self.session.roles, prefix)

    def advance(self) -> None:
        """Go on as far as possible now; called again when what it waits for may have happened."""
        self._delivery.deadlines.stop_waiting(self)
        self._go_on(self._queue)

    def turn(self) -> None:
        """Hand over a portion: it is its turn among all replays."""
        self._go_on(self._replay)

    def _go_on(self, replay: Callable[[], None]) -> None:
        history, asked = self._delivery.history, self.session.delivery_filter
        if self._over or (asked is not None and asked.when_empty(lambda: self._go_on(replay))):
            return
        # first whether this process knows enough: of an event that only the client has seen its history says nothing
        behind = history.epoch == self._epoch and 0 < distance(history.last, self.cursor) <= AHEAD
        if not self._delivery.upstream.joined or behind:
            if self._sessions.clock() >= self._until:
                self._finish(recovered=False)
            else:
                self._delivery.deadlines.wait_for_event(self)
        elif not history.covers(self._epoch, self.cursor):
            self._finish(recovered=False)
        elif not distance(self.cursor, history.last):
            self._finish(recovered=True)
        elif distance(self.cursor, history.last) <= FEW_MSGS:
            self._replay()  # out of turn: a turn costs more than these few
        else:
            replay()

    def cancel(self) -> None:
        """The session is gone, and its outbox tells nobody of room."""
        self._over = True
        self._delivery.deadlines.stop_waiting(self)
        self._delivery.replays.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _queue(self) -> None:
        self._timer = None
        self._delivery.replays.add(self)

    def _replay(self) -> None:
        """Hand over a portion of what is missing; the rest after the client has read, in further turns."""
        session, delivery = self.session, self._delivery
        outbox = cast("HasRoom", session.link.outbox)
        if outbox.queued_bytes > self._share:
            outbox.when_room(self._share, self._queue)
            return
        most = PORTION_MSGS - self.cursor % PORTION_MSGS
        portion = self._portion(delivery.history.since(self.cursor, most))
        granted = delivery.replays.grant(session.principal, len(portion))
        if not granted:
            wait_s = delivery.replays.wait_s(session.principal)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._queue)
            return
        run = delivery.replays.run_of(self, portion[:granted])
        if run is not None:
            session.send_run(run)
            self._replayed += len(run)
        self.cursor = portion[granted - 1].sequence
        self._go_on(self._queue)

    def wants(self, message: Message) -> bool:
        """Whether the client would get ``message`` if it came now."""
        topic = bytes(part_data(message.topic_part) or b"")
        return (
            bool(self._prefixes.matching(topic))
            and self.session.sees_topic(topic)
            and may_see(self.session.principal, message)
        )

    @property
    def _share(self) -> int:
        """What may wait at the client: its own limit for events leaves room for more."""
        return min(PORTION_BYTES, self._sessions.settings.limits.outbox_bytes // 4)

    def _portion(self, events: list[Message]) -> list[Message]:
        size, share = 0, self._share
        for index, message in enumerate(events):
            size += message.size
            if size > share:
                return events[: max(index, 1)]  # one that is larger than a share goes alone
        return events

    def _finish(self, *, recovered: bool) -> None:
        """Go live, and say so."""
        self._over = True
        session, delivery = self.session, self._delivery
        session.resumption = None
        for text in self.allowed:
            prefix = self._names[text]
            # asked again: rules may have been read anew while it was replayed
            if not self._may(prefix) or delivery.fanout.subscribe(session, prefix):
                self._denied.append(text)
        history, asked, replayed = delivery.history, session.delivery_filter, self._replayed
        if asked is not None:
            recovered, replayed = recovered and not asked.lost, asked.passed
        session.tell(
            {
                "type": "resumed",
                "recovered": recovered,
                "epoch": history.epoch,
                "sequence": history.last,
                "replayed": replayed,
                "denied": self._denied,
            }
        )
        delivery.deadlines.subscribe_waiting(session)


class Replays:
    """Whose turn it is to replay: one portion in each turn of the loop, users in turn, charged to each user's rate.

    However many clients of however many users come back at once, whatever else the process does goes on between two
    portions. A user's portions are charged event by event; whoever asks for the history again and again waits, and
    nobody else does.

    At once a user may replay the whole history over each connection that it may have, and ``limits.replay_msgs_per_s``
    over time; owners without limit.
    """

    __slots__ = ("_buckets", "_handle", "_rows", "_runs", "_sessions")

    def __init__(self, sessions: Sessions) -> None:
        settings = sessions.settings
        burst = max(settings.gateway.history_msgs, 1) * settings.limits.connections_per_user
        self._sessions = sessions
        self._buckets = Buckets(settings.limits.replay_msgs_per_s, burst)
        self._rows: dict[str, dict[Resumption, None]] = {}  # by user; who is first has the next turn
        self._handle: asyncio.Handle | None = None
        self._runs: dict[tuple[object, ...], Run | None] = {}

    def wait_s(self, principal: Principal) -> float:
        """Seconds after which ``principal`` may begin another replay; 0.0 is now."""
        return (
            0.0
            if self.grant(principal, 1)
            else self._buckets.of(principal.name, self._sessions.clock()).refuse()
        )

    def grant(self, principal: Principal, wanted: int) -> int:
        """Charge ``principal`` for up to so many events; returns for how many."""
        if principal.owner:
            return wanted
        now = self._sessions.clock()
        return self._buckets.of(principal.name, now).grant(now, wanted)

    def run_of(self, resumption: Resumption, events: list[Message]) -> Run | None:
        """What the client wants of ``events``, and may have; None where that is none of them. Clients with the same
        rights and prefixes that come back together share it, and the bytes that are made of it.
        """
        who = resumption.session.principal
        epoch, access = resumption.session.delivery.history.epoch, self._sessions.access
        rights = who.roles, who.userid, who.shared, access  # another one once rules are read anew
        key = epoch, events[0].sequence, len(events), resumption.allowed, rights
        if key not in self._runs:
            mine = [message for message in events if resumption.wants(message)]
            self._runs[key] = Run(mine) if mine else None
            if len(self._runs) > SHARED_RUNS:
                del self._runs[next(iter(self._runs))]
        return self._runs[key]

    def add(self, resumption: Resumption) -> None:
        """Give ``resumption`` one turn, after those of its user that wait already."""
        self._rows.setdefault(resumption.session.principal.name, {})[resumption] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def remove(self, resumption: Resumption) -> None:
        """``resumption`` needs no turn any more; harmless when it waits for none."""
        user = resumption.session.principal.name
        row = self._rows.get(user, {})
        row.pop(resumption, None)
        if not row:
            self._rows.pop(user, None)

    def stop(self) -> None:
        """No more turns."""
        self._rows.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _turn(self) -> None:
        self._handle = None
        if not self._rows:
            return
        user = next(iter(self._rows))
        row = self._rows.pop(user)
        resumption = next(iter(row))
        del row[resumption]
        if row:
            self._rows[user] = row
        resumption.session.attempt(resumption.turn)
        if not self._rows:
            self._runs.clear()
        elif self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)
