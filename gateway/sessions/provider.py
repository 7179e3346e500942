"""A web client as the provider of services: requests it was delivered, and what it may answer.

A response of a provider goes upstream only for a request that was delivered to this very session, matched by full
route stack and matchtag, and once (a stream: until its error). So nobody can answer for somebody else, whatever stack
it learned or guessed; a real flux-core behind the gateway would not check (RFC 6, "Response Messages").
"""

# compiled: mypyc

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.wire.message import NORESPONSE, PAYLOAD, ROUTE, STREAMING, TOPIC, Message, response
from broker.wire.parts import part_data
from broker.wire.payload import encode_reason
from broker.wire.topic import path_of
from gateway.sessions.calls import DISCONNECT, NO_ERROR

if TYPE_CHECKING:
    from gateway.sessions.session import Session

OWED_MAX: Final = 16384
"""Requests a provider may leave unanswered; beyond it callers get EAGAIN."""
HEADS_MAX: Final = 64
"""Headers of responses remembered: they differ in flags, errnum and what the client wrote as credentials."""


Owed: TypeAlias = tuple[bytes, bytes]
"""Topic part and header of a delivered request that wants an answer: what is needed to check one, or to make one."""


class Provider:
    """The serving side of one session.

    Attributes:
        names: its services, as the upstream has them.
        count: requests it has not answered.
        forged: responses that belonged to no request of this session, dropped.
    """

    __slots__ = ("_heads", "_owed", "count", "forged", "names")

    def __init__(self) -> None:
        self._owed: dict[bytes, dict[bytes, list[Owed]]] = {}  # route stack -> matchtag -> requests
        self._heads: dict[bytes, tuple[bytes, bool]] = {}
        self.names: set[str] = set()
        self.count = 0
        self.forged = 0

    # -- requests ------------------------------------------------------------------------------

    def requested(self, session: Session, message: Message) -> None:
        """Deliver a request to the client, or answer it in its place."""
        topic_part = message.topic_part
        if topic_part.endswith(DISCONNECT):
            self._forget_sender(message.front, bytes(part_data(topic_part) or b""))
        elif session.busy:
            self._decline(
                session,
                message,
                errno.EAGAIN,
                "the provider does not keep up with its requests: retry in 1 s",
            )
            return
        elif self.count >= OWED_MAX:
            self._decline(
                session,
                message,
                errno.EAGAIN,
                f"the provider left {self.count} requests unanswered: retry in 1 s",
            )
            return
        if not message.head[4] & NORESPONSE:
            self.count += 1
            tags = self._owed.setdefault(message.front, {})
            tags.setdefault(message.tag, []).append((topic_part, message.head))
        session.counters.delivered += 1
        session.link.send(message)

    def _forget_sender(self, front: bytes, topic: bytes) -> None:
        """A sender took leave of a service: its requests there need no answer."""
        path = path_of(topic)
        tags = self._owed.get(front, {})
        for tag, row in list(tags.items()):
            for owed in [one for one in row if path_of(bytes(part_data(one[0]) or b"")) == path]:
                self._remove(front, tag, tags, row, owed)

    def _decline(self, session: Session, message: Message, errnum: int, text: str) -> None:
        """Answer a request that was not delivered."""
        if not message.head[4] & NORESPONSE:
            self._answer(
                session,
                Message(message.front, message.topic_part, b"", message.head, message.tag),
                errnum,
                text,
            )

    def _answer(self, session: Session, request: Message, errnum: int, text: str) -> None:
        answer = response(request, encode_reason(text), errnum=errnum)
        answer.head = answer.head[:5] + session.stamp + answer.head[13:]
        session.delivery.upstream.send(answer)

    # -- responses -----------------------------------------------------------------------------

    def responded(self, session: Session, message: Message) -> None:
        """Send a response of the client upstream, or drop and count it."""
        head = message.head
        known = self._heads.get(head)
        if known is None:
            known = self._learn(session, head)
        tags = self._owed.get(message.front)
        row = None if tags is None else tags.get(message.tag)
        if tags is None or row is None:
            self.forged += 1
            session.counters.forged += 1
            return
        owed = row[0]
        if len(row) > 1:
            # a sender may use one matchtag for several requests, as 0 for all of them: the topic tells them apart
            owed = next((one for one in row if one[0] == message.topic_part), owed)
        message.head, failed = known
        message.topic_part = owed[0]
        if failed or not owed[1][4] & STREAMING:
            self._remove(message.front, message.tag, tags, row, owed)
        way = session.delivery.upstream.way
        if way is not None:  # else nobody waits any more (``forget``)
            way(message)

    def _learn(self, session: Session, head: bytes) -> tuple[bytes, bool]:
        """(stamped header, is it an error) for the header of a response, remembered."""
        if len(self._heads) >= HEADS_MAX:
            self._heads = {}
        flags = head[4] | ROUTE | TOPIC
        stamped = b"".join((head[:4], bytes((flags,)), session.stamp, head[13:]))
        known = self._heads[head] = (stamped, head[13:] != NO_ERROR)
        return known

    def _remove(
        self, front: bytes, tag: bytes, tags: dict[bytes, list[Owed]], row: list[Owed], owed: Owed
    ) -> None:
        self.count -= 1
        if len(row) > 1:
            row.remove(owed)
            return
        del tags[tag]
        if not tags:
            del self._owed[front]

    # -- ends ----------------------------------------------------------------------------------

    def forget_headers(self) -> None:
        """The session's stamp is another one: make the headers of responses anew."""
        self._heads = {}

    def forget(self) -> None:
        """Whoever waits for an answer is gone with the upstream."""
        self._owed = {}
        self.count = 0

    def answer_all(self, session: Session, reason: str) -> None:
        """The provider is gone: answer what it owes with EHOSTUNREACH."""
        owed, self._owed = self._owed, {}
        self.count = 0
        for front, tags in owed.items():
            for tag, row in tags.items():
                for topic_part, asked in row:
                    head = asked[:4] + bytes((asked[4] & ~PAYLOAD,)) + asked[5:]  # the payload was not kept
                    self._answer(
                        session, Message(front, topic_part, b"", head, tag), errno.EHOSTUNREACH, reason
                    )
