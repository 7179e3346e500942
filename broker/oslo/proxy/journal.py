"""What passes a node's proxy, for the journal: one feed for all rooms of a process, and the records of each pipeline:
who sent what, what was refused, what was handed on.

::

    record                  a message, with its frames behind
    IN                      came and was taken, from a client or a server. DENIED: was refused or dropped at once
    OUT                     was sent to a client or a server (``capture = both``); a fan-out is for whoever hears its
                            filter
    link.up, .down          a server process, from its first listener to the end of its last; of fan-outs, a topic that
                            somebody hears
    oslo.announce, .withdraw    each of its listeners: exchange, topic, server, pool

    topic   oslo.EXCHANGE.TOPIC.METHOD, of notifications oslo.EXCHANGE.TOPIC.EVENT_TYPE; "-" where it is not known
    JSON    pipeline (call, cast, fanout, notify), what (request, reply, cast, fanout, notification, ack, error,
            requeue), exchange, topic (of notifications without their priority), server, id, uid, rolemask, ttl_ms;
            requests: method, namespace; notifications: event_type, priority, publisher_id, message_id; errors: reason

Bodies are read for the names in the last two lines alone, when they have at most ``BODY_BYTES_MAX``; nothing else of a
body is ever in it.

Control messages (CREDIT, PULSE, BEAT and the like) are never recorded. The sockets of a pipeline are tapped when they
are opened (``frontend``, ``server``, ``control``, ``watch``); what it does with a message is known by what it counts
(``dropped``). So no pipeline knows its journal, and one without does nothing more than before. What came is noted when
its pipeline is done with it, or when something else has to be noted before.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from broker.identity import USERID_UNKNOWN, Credentials
from broker.journal.feed import WingFeed
from broker.journal.layout import CURVE, DENIED, IN, LINK_DOWN, LINK_UP, OSLO, OUT, PLAIN, STATE, UNIX
from broker.journal.options import JournalOptions
from broker.journal.recorder import CLOSE_S
from broker.nesting import decoder
from broker.oslo.frames import (
    HEAD_BYTES,
    ID_BYTES,
    NO_ID,
    Envelope,
    Flag,
    Kind,
    Malformed,
    decode,
    read_filter,
)
from broker.oslo.names import ERRNOS, PRIORITIES, Pipeline, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.reactor import Reactor, Socket
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Frames
from broker.oslo.records import Opening

if TYPE_CHECKING:
    from broker.oslo.proxy.registration import ServerLink


BODY_BYTES_MAX: Final = 64 << 10
"""Longer bodies are not looked into: finding a name in them takes as long as relaying them."""
NAME_CHARS_MAX: Final = 255
"""Of a name that stands in a body."""
UNKNOWN: Final = "-"
WHAT: Final = {
    int(Kind.CALL): "request",
    int(Kind.CAST): "cast",
    int(Kind.FANOUT): "fanout",
    int(Kind.NOTIFY): "notification",
    int(Kind.REPLY): "reply",
    int(Kind.REFUSED): "error",
    int(Kind.TAKEN): "ack",
    int(Kind.REQUEUE): "requeue",
}
"""Kinds that are recorded; the others are control messages."""


class _Message(msgspec.Struct, gc=False):
    method: Any = None
    namespace: Any = None
    event_type: Any = None
    publisher_id: Any = None
    message_id: Any = None
    packed: Any = msgspec.field(default=None, name="oslo.message")


class _Body(msgspec.Struct, gc=False):
    message: _Message | None = None


_NAMES: Final = ("method", "namespace", "event_type", "publisher_id", "message_id")
_read_body: Final = decoder(_Body)
_read_message: Final = decoder(_Message)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, ValueError)


def named(body: bytes) -> dict[str, str]:
    """The names in the body of a request or notification; {} when it is too long, or none of ours.

    >>> named(b'{"ctxt": {}, "message": {"method": "boot", "args": {"secret": 1}}}')
    {'method': 'boot'}
    """
    if len(body) > BODY_BYTES_MAX:
        return {}
    try:
        message = _read_body(body).message
        if message is not None and isinstance(message.packed, str):
            message = _read_message(message.packed)
    except _UNREADABLE:
        return {}
    found = {}
    for name in _NAMES if message is not None else ():
        value = getattr(message, name)
        if isinstance(value, str) and value:
            found[name] = value[:NAME_CHARS_MAX]
    return found


def facts_of(pipeline: str, envelope: Envelope, body: bytes) -> dict[str, Any]:
    """The JSON object of a message with its address in the envelope."""
    facts: dict[str, Any] = {
        "pipeline": pipeline,
        "what": WHAT.get(envelope.kind, UNKNOWN),
        "exchange": envelope.exchange,
        "topic": envelope.topic,
    }
    if envelope.kind in (Kind.NOTIFY, Kind.REQUEUE):
        topic, _, priority = envelope.topic.rpartition(".")
        if priority in PRIORITIES:
            facts["topic"], facts["priority"] = topic, priority
    if envelope.server:
        facts["server"] = envelope.server
    if envelope.id != NO_ID:
        facts["id"] = envelope.id.hex()
    if envelope.ttl_ms and not envelope.flags & Flag.DUE.value:
        facts["ttl_ms"] = envelope.ttl_ms
    if envelope.reason:
        facts["reason"] = _reason(envelope.reason)
    facts.update(named(body))
    return facts


def who(userid: int, rolemask: int) -> dict[str, int]:
    """The keys about a sender."""
    return {"rolemask": rolemask} if userid == USERID_UNKNOWN else {"uid": userid, "rolemask": rolemask}


def topic_of(facts: dict[str, Any]) -> str:
    """The record's topic."""
    last = facts.get("method") or facts.get("event_type") or UNKNOWN
    topic = facts.get("topic") or UNKNOWN
    if "priority" in facts:
        topic = f"{topic}.{facts['priority']}"
    return f"oslo.{facts.get('exchange') or UNKNOWN}.{topic}.{last}"


def _reason(number: int) -> str:
    try:
        return Reason(number).name.lower()
    except ValueError:
        return str(number)


class Recording(WingFeed):
    """The feed of one proxy process.

    Args:
        options: where to, and what. reactor: where it says that the writer gave up.
        reported_by: the room whose STATUS tells of it, for all of this process; "" none.

    Attributes:
        pending: the pipeline that holds a message back until it knows what becomes of it.
    """

    def __init__(self, options: JournalOptions, reactor: Reactor, reported_by: str) -> None:
        super().__init__(options)
        self._reactor = reactor
        self.pending: PipelineJournal | None = None
        self._reported_by = reported_by

    def _gave_up(self, state: str) -> None:
        self._reactor.say(logging.ERROR, "the journal is %s", (state,))

    def done(self) -> None:
        """Note what a pipeline holds back."""
        journal, self.pending = self.pending, None
        if journal is not None:
            journal.note_pending()

    def status(self, room: str) -> dict[str, Any]:
        """For the STATUS of a room: state and figures of the recorder under ``journal``; {} unless it is the one."""
        if room != self._reported_by:
            return {}
        return {"journal": {"state": self.recorder.state, **self.recorder.figures._asdict()}}

    def stop(self) -> None:
        """Hand everything over and wait for the writer, ``CLOSE_S`` at most. Harmless twice."""
        if self.end("the proxy is stopping"):
            self.recorder.close(CLOSE_S)


ASKED_MAX: Final = 16_384
"""Calls whose topic is remembered for their replies; beyond it the oldest are forgotten."""
CLIENTS_MAX: Final = 8192
"""Senders that have a number; then all are forgotten and get new ones."""
DROPPED: Final = {
    **{f"refused_{reason.name.lower()}": number for reason, number in ERRNOS.items()},
    "denied": errno.EPERM,
    "malformed": errno.EPROTO,
    "unknown_version": errno.EPROTO,
    "unexpected": errno.EPROTO,
    "unaddressed": errno.EDESTADDRREQ,
    "requeue_unknown": errno.EPERM,
    "nobody": errno.EHOSTUNREACH,
    "no_route": errno.EHOSTUNREACH,
    "full": errno.EAGAIN,
    "late_replies": errno.ESRCH,
    "foreign_replies": errno.EPERM,
}
"""Of a message that was refused or dropped, by the name it is counted under."""
_ID: Final = slice(HEAD_BYTES - ID_BYTES, HEAD_BYTES)
_KIND_AT: Final = 4


class JournalPeer(NamedTuple):
    """Where a message came from."""

    number: int
    userid: int
    rolemask: int


class _Asked(NamedTuple):
    """What is remembered of a call: who asked, and what the record of its reply is to say."""

    client: int
    facts: dict[str, Any]


class _Pending:
    """A message that came and is not noted yet."""

    __slots__ = ("errnum", "head", "key", "sender", "wire")

    def __init__(self, sender: JournalPeer, head: bytes, wire: list[bytes], key: bytes) -> None:
        self.sender = sender
        self.head = head
        self.wire = wire
        self.key = key
        self.errnum = 0


def journal_of(
    recording: Recording | None, pipeline: Pipeline, config: NodeConfig, counters: Counters
) -> PipelineJournal | None:
    """The notes of one pipeline, which hear of what ``counters`` count; None when nothing is recorded."""
    if recording is None:
        return None
    made = PipelineJournal(recording, pipeline, int(bool(config.host)), CURVE if config.curve_cert else PLAIN)
    counters.noticed = made.dropped
    return made


class PipelineJournal:
    """One pipeline's records; made by ``journal_of``.

    Args:
        recording: where they go.
        pipeline: whose.
        local_from: index of the entry's local socket.
        remote: how those before it are connected, CURVE or PLAIN.
    """

    def __init__(self, recording: Recording, pipeline: Pipeline, local_from: int, remote: int) -> None:
        self._recording = recording
        self._pipeline = str(pipeline)
        self._local_from = local_from
        self._remote = remote
        self._clients: dict[tuple[int, Credentials], JournalPeer] = {}
        self._servers: dict[ServerLink | bytes, int] = {}
        self._listeners: dict[str, int] = {}
        self._asked: dict[bytes, _Asked] = {}
        self._pending: _Pending | None = None

    # ------------------------------------------------------------ what comes

    def frontend(self, take: Callable[..., None]) -> Callable[..., None]:
        """``take``, what an entry gives its messages to, with each of them noted."""
        return self._noting(self._from_client, take)

    def server(self, take: Callable[..., None]) -> Callable[..., None]:
        """``take``, what a registration socket gives replies to (the router's id first), with each of them noted."""
        return self._noting(self._from_server, take)

    def control(self, take: Callable[..., None]) -> Callable[..., None]:
        """The same of control messages: a notification that is given back is noted, its envelope and body behind it."""
        return self._noting(self._given_back, take)

    def _noting(self, came: Callable[..., None], take: Callable[..., None]) -> Callable[..., None]:
        def noted(*message: Any) -> None:
            if self._recording.active:
                came(*message)
            take(*message)
            self._recording.done()

        return noted

    def _from_client(self, frames: list[bytes], credentials: Credentials, index: int) -> None:
        at = 0 if self._pipeline == Pipeline.CAST else 1
        head = frames[at] if len(frames) > at else b""
        key, wire = b"", frames
        if self._pipeline == Pipeline.CALL:
            key, wire = bytes([index]) + frames[0] + head[_ID], frames[1:]
        self._came(self._client(index, credentials), head, wire, key)

    def _from_server(self, link: ServerLink, frames: list[bytes]) -> None:
        if len(frames) >= 3 and frames[1][_KIND_AT] in WHAT:
            self._came(self._server(link), frames[1], frames[1:], frames[2] + frames[1][_ID])

    def _given_back(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        if envelope.kind == Kind.REQUEUE and len(rest) == 2:
            head = rest[0][:_KIND_AT] + bytes([Kind.REQUEUE]) + rest[0][_KIND_AT + 1 :]
            self._came(self._server(link), head, rest, b"")

    def dropped(self, name: str) -> None:
        """Something was counted under ``name``: what came last, where that is a name of ``DROPPED``."""
        if self._pending is not None and not self._pending.errnum:
            self._pending.errnum = DROPPED.get(name, 0)

    def note_pending(self) -> None:
        """What came last has been dealt with: note it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        sender = pending.sender
        body = pending.wire[-1] if len(pending.wire) > 1 else b""
        try:
            facts = self._facts(decode(pending.head), body, pending)
        except Malformed:
            facts = {"pipeline": self._pipeline, "what": UNKNOWN}
        facts.update(who(sender.userid, sender.rolemask))
        errnum = pending.errnum
        direction = DENIED if errnum else IN
        self._message(
            facts, pending.wire, direction=direction, reason=errnum, peer=sender.number, claimed=sender.userid
        )

    def _came(self, sender: JournalPeer, head: bytes, wire: list[bytes], key: bytes) -> None:
        self._recording.done()
        self._pending = _Pending(sender, head, wire, key)
        self._recording.pending = self

    def _facts(self, envelope: Envelope, body: bytes, pending: _Pending) -> dict[str, Any]:
        if envelope.kind in (Kind.REPLY, Kind.REFUSED):
            find = self._asked.get if self._recording.both else self._asked.pop
            return self._answer(envelope, find(pending.key, None))
        facts = facts_of(self._pipeline, envelope, body)
        answered = envelope.kind == Kind.CALL or envelope.flags & Flag.CONFIRM
        if pending.key and answered and (self._recording.both or not pending.errnum):
            if len(self._asked) >= ASKED_MAX:
                del self._asked[next(iter(self._asked))]
            self._asked[pending.key] = _Asked(pending.sender.number, facts)
        return facts

    def _answer(self, envelope: Envelope, asked: _Asked | None) -> dict[str, Any]:
        """Facts of an answer: those of what was asked, as far as they are known."""
        facts = facts_of(self._pipeline, envelope, b"")
        if asked is not None:
            names = ("exchange", "topic", "server", "method", "namespace")
            facts |= {name: asked.facts[name] for name in names if name in asked.facts}
        return facts

    def _message(self, facts: dict[str, Any], wire: list[bytes], **mark: int) -> None:
        self._recording.note(OSLO, topic_of(facts), facts, wire, **mark)

    # ------------------------------------------------------------ what goes

    def watch(self, socket: Socket, index: int = -1, heard: Callable[[bytes], int] | None = None) -> None:
        """Note what ``socket`` sends, where deliveries are wanted.

        Args:
            socket: to be tapped.
            index: of an entry's socket; -1 leads to servers.
            heard: how many connections hear a filter, where ``socket`` publishes fan-outs.
        """
        if self._recording.both:
            # the frames of a ROUTER begin with its peer's id, those of a publishing socket with the filter
            skip = int(isinstance(socket, RouterSocket) or heard is not None)
            socket.tap = partial(self._went, skip, index, heard)

    def _went(self, skip: int, index: int, heard: Callable[[bytes], int] | None, frames: Frames) -> None:
        head = frames[skip]
        kind = head[_KIND_AT]
        if not self._recording.active or kind not in WHAT:
            return
        if index < 0 and kind in (Kind.REFUSED, Kind.TAKEN):
            return
        self._recording.done()
        envelope = decode(head)
        number = via = 0
        wire = list(frames if heard is not None else frames[skip:])
        if index >= 0:
            asked = self._asked.pop(bytes([index]) + frames[0] + head[_ID], None)
            facts, number = self._answer(envelope, asked), asked.client if asked is not None else 0
        else:
            facts = facts_of(self._pipeline, envelope, frames[-1])
            if heard is not None:
                number, via = self._servers.get(frames[0], 0), heard(frames[0])
                facts["delivered"] = via
            else:
                listener = frames[2].decode() if kind == Kind.NOTIFY else envelope.listener
                number = self._listeners.get(listener, 0)
        facts.update(who(envelope.userid, envelope.rolemask))
        self._message(facts, wire, direction=OUT, peer=number, via=via, claimed=envelope.userid)

    # ------------------------------------------------------------ who is there

    def _client(self, index: int, credentials: Credentials) -> JournalPeer:
        sender = self._clients.get((index, credentials))
        if sender is None:
            if len(self._clients) >= CLIENTS_MAX:
                for each in self._clients.values():
                    self._recording.forget(each.number)
                self._clients.clear()
            transport = UNIX if index >= self._local_from else self._remote
            whose = f"uid {credentials.userid}" if credentials.userid != USERID_UNKNOWN else "unknown"
            name = f"{self._pipeline} clients, {whose}"
            facts = who(credentials.userid, credentials.rolemask)
            number = self._recording.peer(name, transport, "client", pipeline=self._pipeline, **facts)
            sender = self._clients[(index, credentials)] = JournalPeer(
                number, credentials.userid, credentials.rolemask
            )
        return sender

    def _server(self, link: ServerLink) -> JournalPeer:
        credentials = link.credentials
        return JournalPeer(self._servers.get(link, 0), credentials.userid, credentials.rolemask)

    def opened(self, link: ServerLink, opening: Opening) -> None:
        """A server's listener begins."""
        if not self._recording.active:
            return
        self._recording.done()
        if link not in self._servers:
            facts = {"pid": link.pid, **_uid(link)}
            self._up(link, f"{self._pipeline} server, pid {link.pid}", facts, **facts)
        number = self._listeners[opening.listener] = self._servers[link]
        self._announced("oslo.announce", number, opening)

    def closed(self, link: ServerLink, opening: Opening) -> None:
        """It ended; ``link`` has the others."""
        self._recording.done()
        number = self._listeners.pop(opening.listener, None)
        if number is None or not self._recording.active:
            return
        self._announced("oslo.withdraw", number, opening)
        if not (link.listeners or link.dropping):
            why = "silent for a lease" if link.lapsed else "its last listener ended"
            self._down(link, f"{self._pipeline} server, pid {link.pid}", why, **_uid(link))

    def heard(self, data: bytes) -> None:
        """Somebody hears that filter of fan-outs from now on."""
        address = read_filter(data)
        if self._recording.active and address is not None and data not in self._servers:
            exchange, topic = address
            self._up(data, f"servers of {exchange}/{topic}", {}, exchange=exchange, topic=topic)

    def unheard(self, data: bytes) -> None:
        """Nobody does any more."""
        address = read_filter(data)
        if address is not None:
            self._down(data, "servers of {}/{}".format(*address), "nobody hears it any more")

    def _announced(self, topic: str, number: int, opening: Opening) -> None:
        for record in opening.records:
            facts: dict[str, Any] = {
                "pipeline": self._pipeline,
                "exchange": record.exchange,
                "topic": record.topic,
                "listener": opening.listener,
            }
            if record.server:
                facts["server"] = record.server
            if record.pool is not None:
                facts["pool"] = record.pool
            self._state(topic, number, facts)

    def _up(self, whose: ServerLink | bytes, name: str, known: dict[str, Any], **facts: Any) -> None:
        pipeline = self._pipeline
        number = self._recording.peer(name, UNIX, "server", pipeline=pipeline, **known)
        self._servers[whose] = number
        self._state(LINK_UP, number, {"peer": name, "role": "server", "pipeline": pipeline, **facts})

    def _down(self, whose: ServerLink | bytes, name: str, why: str, **facts: Any) -> None:
        number = self._servers.pop(whose, None)
        if number is not None and self._recording.active:
            facts = {"peer": name, "role": "server", "reason": why, **facts}
            self._state(LINK_DOWN, number, {**facts, "pipeline": self._pipeline, "cause": "ended"})
            self._recording.forget(number)

    def _state(self, topic: str, number: int, facts: dict[str, Any]) -> None:
        self._recording.note(STATE, topic, facts, transport=UNIX, peer=number)


def _uid(link: ServerLink) -> dict[str, int]:
    return who(link.credentials.userid, link.credentials.rolemask)
