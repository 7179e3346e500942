"""What becomes of each event at each subscriber, for owners who look on (``headgate trace --events``).

While nobody does, nothing of this is in the way of an event (``Delivery.published``). Else events are handed out one by
one: before, the fan-out is asked whom the rules and privacy keep it from; behind it each link is asked what it did.
What subscribers get is the same. Events that are sent again to who comes back are not told.

Each process answers for its own sessions, by the name that it has at the upstream: ``gateway-1a2b3c4d.trace``. That is
for the owner, through the upstream, and not for web clients.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ProtocolError, RpcError
from broker.wire.message import PRIVATE
from broker.wire.parts import part_data
from broker.wire.payload import decode_json

if TYPE_CHECKING:
    from broker.client import Request
    from broker.wire.message import Message
    from gateway.events.fanout import Fanout
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Sessions
    from gateway.upstream.upstream import Upstream

WATCHERS_MAX: Final = 16
"""Each of them is work for every event."""
WAITING_MAX: Final = 1024
"""Records that wait for one of them; it is told how many more there were (``dropped``)."""
ROWS_MAX: Final = 200
"""Subscribers of one record; those from whom the event was kept come first."""
_SLOW: Final = "the client reads too slowly"


class _Watcher:
    """One owner that looks on: which topics, and what it has not been sent yet."""

    def __init__(self, prefixes: tuple[bytes, ...]) -> None:
        self.prefixes = prefixes
        self.records: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING_MAX)
        self.dropped = 0

    def tell(self, record: Mapping[str, Any]) -> None:
        if self.records.full():
            self.dropped += 1
            return
        missed, self.dropped = self.dropped, 0
        self.records.put_nowait({**record, "dropped": missed} if missed else dict(record))


class EventTraces:
    """Those who look on at one process.

    Args:
        sessions: the subscribers. upstream: has the name of this process. fanout: hands the events out.

    Attributes:
        watchers: empty while nobody does.
    """

    def __init__(self, sessions: Sessions, upstream: Upstream, fanout: Fanout) -> None:
        self._sessions = sessions
        self._upstream = upstream
        self._fanout = fanout
        self.watchers: set[_Watcher] = set()

    async def follow(self, request: Request) -> AsyncIterator[Mapping[str, Any]]:
        """``NAME.trace {["topics"]}``: first ``{}``, then for each event whose topic begins with one of ``topics``
        ``{"at", "gateway", "topic", "sequence", "userid", "private", "subscribers": [{"session", "user", "userid",
        "address", "outcome", "why"}], "more", "unsubscribed"[, "dropped"]}``.

        ``outcome`` is delivered, withheld, dropped, waiting (for the authorisation hook) or closed; ``more``: so many
        subscribers have no row. ``unsubscribed``: so many sessions have no prefix of that topic.

        Raises:
            RpcError: EAGAIN; there are too many. ProtocolError: topics are no texts.
        """
        watcher = _Watcher(_prefixes(request))
        if len(self.watchers) >= WATCHERS_MAX:
            raise RpcError(errno.EAGAIN, f"{WATCHERS_MAX} traces are open")
        self.watchers.add(watcher)
        try:
            yield {}
            while True:
                yield await watcher.records.get()
        finally:
            self.watchers.discard(watcher)

    def publish(self, messages: list[Message]) -> None:
        """As ``Fanout.publish``, and tell who looks on."""
        for message in messages:
            topic = bytes(part_data(message.topic_part) or b"")
            watchers = [each for each in self.watchers if topic.startswith(each.prefixes)]
            if not watchers:
                self._fanout.publish([message])
                continue
            record = self._publish_one(topic, message)
            for watcher in watchers:
                watcher.tell(record)

    def _publish_one(self, topic: bytes, message: Message) -> dict[str, Any]:
        resting = self._sessions.resting
        sessions = [session for session in self._sessions.by_id.values() if session not in resting]
        kept = self._fanout.explain(message)
        asking = [session for session in sessions if session in kept]
        before = [session.link.outbox.dropped_events for session in asking]
        self._fanout.publish([message])
        rows = [
            self._row(session, topic, kept[session], session.link.outbox.dropped_events - dropped)
            for session, dropped in zip(asking, before, strict=True)
        ]
        rows.sort(key=lambda row: row["outcome"] == "delivered")
        return {
            "at": self._sessions.wall(),
            "gateway": self._upstream.name,
            "topic": topic.decode("utf-8", "replace"),
            "sequence": message.sequence,
            "userid": message.userid,
            "private": bool(message.flags & PRIVATE),
            "subscribers": rows[:ROWS_MAX],
            "more": len(rows[ROWS_MAX:]),
            "unsubscribed": len(sessions) - len(asking),
        }

    def _row(self, session: Session, topic: bytes, kept: str, dropped: int) -> dict[str, Any]:
        outcome, why = self._outcome(session, topic, kept, dropped)
        return {
            "session": session.id,
            "user": session.principal.name,
            "userid": session.principal.userid,
            "address": session.address,
            "outcome": outcome,
            "why": why,
        }

    def _outcome(self, session: Session, topic: bytes, kept: str, dropped: int) -> tuple[str, str]:
        if kept == "rule":
            return "withheld", self._sessions.access.explain_denial(session.roles, "subscribe", topic)
        if kept:
            return "withheld", "private: for owners and its sender's userid"
        if session.ended:
            return "closed", _SLOW
        if dropped:
            return "dropped", f"{_SLOW}, its policy is drop: it is told of a gap"
        hook = self._sessions.hook
        if session.delivery_filter is None or hook is None:
            return "delivered", ""
        verdict = hook.known(session.principal, "subscribe", topic)
        if verdict is None:
            return "waiting", "for the authorisation hook"
        return ("delivered", "") if verdict.allowed else ("withheld", f"authorisation hook: {verdict.text}")


def _prefixes(request: Request) -> tuple[bytes, ...]:
    asked = decode_json(request.payload) if request.payload else {}
    topics = asked.get("topics", [""])
    if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
        raise ProtocolError("topics: expected an array of beginnings of topics")
    return tuple(each.encode("utf-8", "surrogateescape") for each in topics or [""])
