"""The open calls of one session, and whom to tell when it ends (RFC 6, "Matchtag Field", "Disconnection").

A response is for a session only while the call it belongs to is open: a call opens when its request is forwarded and
ends with its one response, or with the error that ends a stream. Sessions have one sender each (their routes are
discarded), so the matchtag names the call; calls that share a matchtag, as those with 0 do, wait in a row and are told
apart by topic.

Each distinct (service path, nodeid, upstream flag) that was asked gets one ``X.disconnect`` when the session ends,
unless the client said so itself. A session of calls over HTTP tells only those of calls that are open then: to what
was answered nothing more belongs.
"""

# compiled: mypyc

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.wire.message import DELIMITER, NORESPONSE, PAYLOAD, ROUTE, STREAMING, TOPIC, UPSTREAM, Message
from broker.wire.parts import encode_part, part_data
from broker.wire.topic import path_of, service_of

if TYPE_CHECKING:
    from gateway.sessions.decisions import Decision

NO_ERROR: Final = b"\0\0\0\0"
NO_TAG: Final = b"\0\0\0\0"
DISCONNECT: Final = b".disconnect"
"""How the topic of a notice ends."""
CANCEL: Final = b".cancel"
NOTICES_MAX: Final = 4096
"""Distinct notices one session can owe: beyond it services do not learn of its end. A client that asks each rank of a
large instance has one a rank."""


class OpenCalls:
    """Open calls and notices owed.

    Args:
        limit: calls that may be open at a time.

    Attributes:
        count: calls that are open.
    """

    __slots__ = ("_notices", "_open", "_repeats", "_services", "count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._open: dict[bytes, Decision] = {}
        self._repeats: dict[bytes, list[Decision]] = {}  # those behind the one in _open
        self._notices: dict[bytes, tuple[bytes, bytes, bytes]] = {}  # key -> head, tag, topic part
        self._services: set[bytes] = set()

    # -- open calls ----------------------------------------------------------------------------

    def add(self, tag: bytes, call: Decision) -> bool:
        """Open a call; False when too many are open."""
        if self.count >= self.limit:
            return False
        self.count += 1
        if tag in self._open:
            self._repeats.setdefault(tag, []).append(call)
        else:
            self._open[tag] = call
        return True

    def take(self, message: Message) -> bool:
        """Whether the response ``message`` belongs to an open call; its last one ends it."""
        tag = message.tag
        call = self._open.get(tag)
        if call is None:
            return False
        if self._repeats and tag in self._repeats:
            return self._take_repeat(tag, message)
        head = message.head
        # RFC 6: a stream ends with an error; a response without the flag is the only one, whatever was asked for
        if call.single_response or head[13:] != NO_ERROR or not head[4] & STREAMING:
            del self._open[tag]
            self.count -= 1
        return True

    def _take_repeat(self, tag: bytes, message: Message) -> bool:
        """The oldest of several calls with this tag and topic takes the response."""
        row = [self._open[tag], *self._repeats[tag]]
        call = next((one for one in row if one.topic_part == message.topic_part), None)
        if call is None:
            return False
        head = message.head
        if call.single_response or head[13:] != NO_ERROR or not head[4] & STREAMING:
            row.remove(call)
            self.count -= 1
            self._put(tag, row)
        return True

    def _put(self, tag: bytes, row: list[Decision]) -> None:
        if row:
            self._open[tag] = row[0]
        else:
            self._open.pop(tag, None)
        if len(row) > 1:
            self._repeats[tag] = row[1:]
        else:
            self._repeats.pop(tag, None)

    def withdraw(self, tag: bytes, call: Decision) -> None:
        """Take back the call that was added last with this tag: it could not be sent."""
        row = [self._open[tag], *self._repeats.get(tag, ())]
        row.remove(call)
        self.count -= 1
        self._put(tag, row)

    def all(self) -> list[tuple[bytes, Decision]]:
        """(matchtag, call) of every open call."""
        rows = [(tag, call) for tag, call in self._open.items()]
        return rows + [(tag, call) for tag, row in self._repeats.items() for call in row]

    def clear(self) -> None:
        """Forget every call and every notice: there is nobody left to hear of them."""
        self._open = {}
        self._repeats = {}
        self._notices = {}
        self._services = set()
        self.count = 0

    # -- notices -------------------------------------------------------------------------------

    def has_called(self, topic: bytes) -> bool:
        """Whether the session ever asked the service of ``topic``: then it may cancel and take leave there."""
        return service_of(topic) in self._services

    def owe_notice(self, topic: bytes, head: bytes, tag: bytes) -> None:
        """The provider of ``topic`` learns of the session's end; ``head`` is stamped."""
        key = notice_key(topic, head)
        # beyond the bound a call is made all the same, and its service is not told: the client is the one that loses
        if key not in self._notices and len(self._notices) < NOTICES_MAX:
            self._notices[key] = (head, tag, encode_part(path_of(topic) + DISCONNECT))
            self._services.add(service_of(topic))

    def owe_notices_of_open(self) -> None:
        """The providers of open calls learn of the session's end, and where none is open nobody does."""
        if not self.count:
            self._notices = {}
        for tag, call in self.all():
            self.owe_notice(bytes(part_data(call.topic_part) or b""), call.head, tag)

    def disconnect(self, topic: bytes, head: bytes) -> None:
        """The client's own ``X.disconnect`` passes: X owes it nothing more, and it owes X no notice."""
        self._notices.pop(notice_key(topic, head), None)
        path = path_of(topic)
        row: list[Decision]
        for tag in list(self._open):
            row = [self._open[tag], *self._repeats.get(tag, ())]
            left = [call for call in row if path_of(bytes(part_data(call.topic_part) or b"")) != path]
            self.count -= len(row) - len(left)
            self._put(tag, left)

    def notices(self, front: bytes) -> list[Message]:
        """One ``X.disconnect`` for each service that is owed one, sent from the route stack ``front``."""
        found = []
        for head, tag, topic_part in self._notices.values():
            flags = (head[4] & ~(PAYLOAD | STREAMING)) | NORESPONSE | ROUTE | TOPIC
            stamped = head[:4] + bytes((flags,)) + head[5:]
            found.append(Message(front or DELIMITER, topic_part, b"", stamped, tag))
        return found


def unanswered(topic: bytes) -> bool:
    """Whether ``topic`` is one of the two methods that have no response (RFC 6, "Cancellation", "Disconnection")."""
    return topic.endswith((CANCEL, DISCONNECT))


def notice_key(topic: bytes, head: bytes) -> bytes:
    """(service path, upstream, nodeid): one notice each, as deployed brokers send them."""
    return b"".join((path_of(topic), b"\0", bytes((head[4] & UPSTREAM,)), head[13:]))
