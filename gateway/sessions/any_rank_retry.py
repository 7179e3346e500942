"""Sends a request to any rank again where its service is elsewhere in the tree, to the nearest rank that provides
it.

A request of a kind that was not answered yet is kept until its first response. Where that is ENOSYS, the brokers are
asked which ranks have the service (``broker.client.nearby``), and it goes to one of them. What is not kept (large
messages, too many of them) is answered ENOSYS, whose text says where the service is.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from broker.client.nearby import directed
from broker.errors import LinkError
from broker.wire.parts import part_data
from broker.wire.topic import service_of
from gateway.sessions.calls import NO_TAG, unanswered

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.sessions.decisions import Decision
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Sessions
    from gateway.upstream.upstream import Upstream

KEPT_MESSAGE_BYTES: Final = 1 << 16
KEPT_BYTES: Final = 1 << 24
ASKED_AT_ONCE: Final = 64
NOTICES_MAX: Final = 16
ASKED_S: Final = 5.0
"""An answer of the brokers that takes longer is none."""


class KeptRequest:
    """A request that may have to be sent again.

    Attributes:
        asking: its ENOSYS has come, and the brokers are asked. notices: what the client said to the service meanwhile.
    """

    __slots__ = ("asking", "decision", "message", "notices", "topic", "tried")

    def __init__(self, message: Message, decision: Decision, topic: bytes) -> None:
        self.message = message.copy()
        self.decision = decision
        self.topic = topic
        self.tried: set[int] = set()
        self.asking = False
        self.notices: list[Message] = []


class AnyRankRetry:
    """The requests of all sessions that are kept.

    Args:
        sessions: whose they are. upstream: is sent them, and knows who provides what.

    Attributes:
        held: by route stack of the session, then by matchtag.
    """

    def __init__(self, sessions: Sessions, upstream: Upstream) -> None:
        self._sessions = sessions
        self._upstream = upstream
        self._bytes = 0
        self._asking = 0
        self._directed: dict[bytes, dict[bytes, set[int]]] = {}
        """Route stack -> service -> ranks where the session has called it: whom its notices concern."""
        self.held: dict[bytes, dict[bytes, KeptRequest]] = {}

    def keep(self, session: Session, message: Message, decision: Decision) -> None:
        """Keep a request to any rank, which is about to leave, until its first response."""
        topic = bytes(part_data(message.topic_part) or b"")
        if unanswered(topic):
            self._notify(session.front, message, service_of(topic))
            return
        size = message.size
        if message.tag == NO_TAG or size > KEPT_MESSAGE_BYTES or self._bytes + size > KEPT_BYTES:
            return
        row = self.held.setdefault(session.front, {})
        if message.tag not in row:
            row[message.tag] = KeptRequest(message, decision, topic)
            self._bytes += size

    def _notify(self, front: bytes, message: Message, service: bytes) -> None:
        """A cancel or a disconnect goes where the session's requests went, and where they will go yet."""
        for rank in self._directed.get(front, {}).get(service, ()):
            self._upstream.send(directed(message, rank))
        for held in self.held.get(front, {}).values():
            if service_of(held.topic) == service and len(held.notices) < NOTICES_MAX:
                held.notices.append(message.copy())

    def answered(self, session: Session, message: Message) -> bool:
        """A response: of a request that is kept, or ENOSYS; True when it is not the session's to see, or not yet."""
        held = self.held.get(session.front, {}).get(message.tag)
        absent = message.errnum == errno.ENOSYS
        if held is None or held.asking:
            if absent:
                session.forget_decisions()  # what was there is gone: the next one is kept
            return False
        if not absent or self._asking >= ASKED_AT_ONCE:
            if message.errnum == errno.EHOSTUNREACH:
                self._invalidate(held)  # the rank that had the service has gone
            elif not absent and not held.tried:
                held.decision.anywhere = False  # the service is on the way: others of this kind need no copy
            self._release(session.front, message.tag)
            return False
        held.asking = True
        self._asking += (
            1  # bounded: each question goes to the brokers, and a client may name services without end
        )
        self._sessions.tasks.spawn(f"any-rank retry {session.id}", self._ask(session, held, message))
        return True

    async def _ask(self, session: Session, held: KeptRequest, answer: Message) -> None:
        """Find the next rank and send the request there; without one the session gets its ENOSYS."""
        front, tag = session.front, answer.tag
        try:
            rank = await self._next(held)
        finally:
            self._asking -= 1
        if self.held.get(front, {}).get(tag) is not held:  # the session, or the upstream, is gone
            return
        held.asking = False
        if rank is not None:
            held.tried.add(rank)
            again = directed(held.message, rank)
            self._directed.setdefault(front, {}).setdefault(service_of(held.topic), set()).add(rank)
            session.calls.owe_notice(held.topic, again.head, tag)
            if self._upstream.send(again):
                for notice in held.notices:
                    self._upstream.send(directed(notice, rank))
                return
        self._release(front, tag)
        session.answered(answer)

    async def _next(self, held: KeptRequest) -> int | None:
        nearby = self._upstream.nearby
        if nearby is None:
            return None
        if held.tried:
            self._invalidate(held)
        try:
            async with asyncio.timeout(ASKED_S):
                ranks = await nearby.ranks(held.topic.decode("utf-8", "replace"))
        except (LinkError, TimeoutError):
            return None
        return next((rank for rank in ranks if rank not in held.tried), None)

    def _invalidate(self, held: KeptRequest) -> None:
        nearby = self._upstream.nearby
        if nearby is not None:
            nearby.invalidate(service_of(held.topic.decode("utf-8", "replace")))

    def _release(self, front: bytes, tag: bytes) -> None:
        row = self.held[front]
        self._bytes -= row.pop(tag).message.size
        if not row:
            del self.held[front]

    def forget(self, front: bytes) -> None:
        """The calls of the session with this route stack are over."""
        self._directed.pop(front, None)
        self._bytes -= sum(held.message.size for held in self.held.pop(front, {}).values())

    def clear(self) -> None:
        """Nothing that was asked will be answered."""
        for front in list(self.held):
            self.forget(front)
        self._directed.clear()
