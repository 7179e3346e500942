"""What comes for the listeners of a client, into their inboxes, and what becomes of that for which there is no room.

A listener whose inbox is full costs nobody else anything. Calls, casts and notifications come as far as it has given
credit (``proxy.listeners``). Fan-outs, which cannot wait anywhere, are dropped and counted.

What was sent again after a connection ended (``Flag.REPEATED``) is taken in by the listener that it is for, unless that
one has had it.
"""

# compiled: mypyc

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.oslo.client.inbox import ClientInbox, InboxCredit, ReceivedMessage
from broker.oslo.frames import (
    HEAD_BYTES,
    Envelope,
    Flag,
    Kind,
    Malformed,
    decode,
    encode,
    fanout_filter,
    refusal,
)
from broker.oslo.names import Pipeline, Reason
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.socket import Frames

_REPEATED: Final = int(Flag.REPEATED)
_CALL: Final = int(Kind.CALL)
_CAST: Final = int(Kind.CAST)
_CASTS: Final = Pipeline.CAST


ANSWERS_MAX: Final = 1024
ANSWERS_BYTES: Final = 4 << 20
"""Bodies of answers that are kept; one is, however large."""
BEGUN_MAX: Final = 10_000
BEGUN_BYTES: Final = 64 << 20
"""Calls that are worked on, as many as an inbox holds: of more than that the oldest are not known again."""
_KEY_AT: Final = 16
"""In an envelope: stamp and id. Who asks again has to have the credentials of who asked."""


class ReplyCache:
    """Which calls are worked on, and the replies that are kept. For the thread of the sockets.

    A client asks for a reply again that may be lost. A call that comes again is not run again. One that is worked on is
    answered over the new connection when it is done; one that was answered lately is answered once more; of one whose
    answer is not kept any more the client is told so.

    Args:
        send: sends frames to the node's proxy; False: there is no room.
    """

    def __init__(self, send: Callable[[Frames], bool]) -> None:
        self._send = send
        self._begun: OrderedDict[bytes, ReceivedMessage] = OrderedDict()
        self._begun_bytes = 0
        self._answers: OrderedDict[bytes, tuple[bytes, bytes, Envelope]] = OrderedDict()
        self._bytes = 0

    def begin(self, call: ReceivedMessage) -> None:
        """The call came and was taken in."""
        key = call.head[_KEY_AT:HEAD_BYTES]
        self._forget(key)  # its client took an id of a call that nobody has answered
        self._begun[key] = call
        self._begun_bytes += call.size
        while len(self._begun) > 1 and (len(self._begun) > BEGUN_MAX or self._begun_bytes > BEGUN_BYTES):
            self._begun_bytes -= self._begun.popitem(last=False)[1].size

    def send(self, kind: int, call: ReceivedMessage, body: bytes) -> bool:
        """Answer the call, or say that it is worked on (``Kind.BEAT``); False: there is no room."""
        head = encode(kind, id=call.envelope.id)
        if kind == Kind.REPLY:
            key = call.head[_KEY_AT:HEAD_BYTES]
            self._forget(key)
            former = self._answers.pop(key, None)
            if former is not None:
                self._bytes -= len(former[1])
            self._answers[key] = (head, body, call.envelope)
            self._bytes += len(body)
            while len(self._answers) > 1 and (
                len(self._answers) > ANSWERS_MAX or self._bytes > ANSWERS_BYTES
            ):
                self._bytes -= len(self._answers.popitem(last=False)[1][1])
        return self._send((head, call.route, body))

    def find_answered(self, number: bytes) -> Envelope | None:
        """The call of that id, when it was answered lately."""
        return next((each[2] for key, each in self._answers.items() if key.endswith(number)), None)

    def _forget(self, key: bytes) -> None:
        begun = self._begun.pop(key, None)
        if begun is not None:
            self._begun_bytes -= begun.size

    def answer_again(self, head: bytes, envelope: Envelope, route: bytes) -> bool:
        """A call came again that its listener has had; ``route``: where its client is now. False: there is no room."""
        key = head[_KEY_AT:HEAD_BYTES]
        call = self._begun.get(key)
        if call is not None:
            call.route = route
            return True
        answer = self._answers.get(key)
        if answer is None:
            return self._send((refusal(envelope.id, Reason.ANSWERED), route, b""))
        return self._send((answer[0], route, answer[1]))


class Delivery:
    """In the thread of the sockets.

    Args:
        send: sends a control message to the node's proxy; False: there is no room for it.

    Attributes:
        inboxes: by listener.
        replies: answers of calls.
    """

    def __init__(
        self,
        reactor: Reactor,
        counters: Counters,
        send: Callable[[Pipeline, Frames], bool],
    ) -> None:
        self.inboxes: dict[str, ClientInbox] = {}
        self.replies = ReplyCache(partial(send, Pipeline.CALL))
        self._reactor = reactor
        self._counters = counters
        self._send = send
        self._servers: dict[tuple[str, str], list[ClientInbox]] = {}
        self._numbers: dict[bytes, int] = {}
        self._numbers_of = 0

    # ------------------------------------------------------------ listeners

    def enter(self, inbox: ClientInbox) -> None:
        """It begins."""
        self.inboxes[inbox.listener] = inbox
        if inbox.rpc:
            record = inbox.records[0]
            self._servers.setdefault((record.exchange, record.topic), []).append(inbox)

    def leave(self, inbox: ClientInbox) -> bool:
        """It has ended; False: it was not here."""
        if self.inboxes.pop(inbox.listener, None) is None:
            return False
        if inbox.rpc:
            record = inbox.records[0]
            key = (record.exchange, record.topic)
            left = [each for each in self._servers.get(key, ()) if each is not inbox]
            if left:
                self._servers[key] = left
            else:
                self._servers.pop(key, None)
                self._numbers.pop(fanout_filter(*key), None)
        return True

    def counts_from(self, incarnation: int) -> None:
        """A proxy has confirmed a subscription of fan-outs; another one than before counts anew."""
        if incarnation != self._numbers_of:
            self._numbers_of = incarnation
            self._numbers.clear()

    def forget_number(self, data: bytes) -> None:
        """That filter is not subscribed to any more."""
        self._numbers.pop(data, None)

    @property
    def numbers(self) -> int:
        """Filters whose fan-outs are counted."""
        return len(self._numbers)

    def close(self) -> None:
        """Who listens still is told."""
        for inbox in list(self.inboxes.values()):
            inbox.cut_off()
        self.inboxes.clear()
        self._servers.clear()

    # ------------------------------------------------------------ calls

    def message(self, pipeline: Pipeline, envelope: Envelope, frames: list[bytes]) -> None:
        """``[envelope][route][body]`` of a call, or of a cast that came that way; ``[envelope][body]`` of a cast;
        ``[envelope][listener][body]`` of a notification; or what became of a reply.
        """
        kind = envelope.kind
        if kind == _CAST and len(frames) == 2 and pipeline is _CASTS:
            self._deliver(envelope, frames[0], b"", frames[1])
        elif pipeline is Pipeline.NOTIFY and kind == Kind.NOTIFY and len(frames) == 3:
            self._notice(envelope, frames)
        elif pipeline is Pipeline.CALL and kind == Kind.REFUSED and len(frames) == 2:
            self._undeliverable(envelope, frames[1])
        elif pipeline is Pipeline.CALL and kind in (Kind.CALL, Kind.CAST) and len(frames) == 3:
            self._deliver(envelope, frames[0], frames[1], frames[2])
        else:
            self._counters.count("malformed")

    def _undeliverable(self, envelope: Envelope, text: bytes) -> None:
        """A reply of ours found nobody: the work was done, and its caller does not know."""
        self._counters.count("replies_undeliverable")
        answered = self.replies.find_answered(envelope.id)
        where = "" if answered is None else f" to {answered.exchange}/{answered.topic}"
        said = text[:64].decode(errors="replace")
        values = (envelope.id.hex(), where, said)
        self._counters.say("the reply %s%s could not be delivered: %s", *values, about=("reply", where, said))

    # ------------------------------------------------------------ fan-outs

    def fanout(self, frames: list[bytes]) -> None:
        """``[filter][envelope][body]`` of a fan-out, for all servers of its topic."""
        data = frames[0]
        try:
            envelope = decode(frames[1]) if len(frames) == 3 else None
        except Malformed:
            envelope = None
        if (
            envelope is None
            or envelope.kind != Kind.FANOUT
            or data != fanout_filter(envelope.exchange, envelope.topic)
        ):
            self._counters.count("malformed")
            return
        servers = self._servers.get((envelope.exchange, envelope.topic))
        if servers is None:
            return  # it was on its way when the last one ended
        last = self._numbers.get(data)
        if last is not None and envelope.word > last + 1:
            self._counters.count("gaps", envelope.word - last - 1)
            self._counters.say("%.200r: fan-outs were lost on their way from the proxy of this node", data)
        self._numbers[data] = envelope.word
        for inbox in servers:
            if envelope.flags & _REPEATED and inbox.has_had(frames[1]):
                self._counters.counts["had_already"] += 1
            elif inbox.full:
                self._counters.count("dropped")
                self._counters.say("%s/%s: a fan-out found the inbox full", envelope.exchange, envelope.topic)
            else:
                self._put(inbox, envelope, frames[1], b"", frames[2])

    # ------------------------------------------------------------ notifications

    def _notice(self, envelope: Envelope, frames: list[bytes]) -> None:
        head, listener, body = frames
        inbox = self.inboxes.get(listener.decode(errors="replace"))
        if inbox is None or inbox.rpc:
            self._counters.count("strays")
            return
        if envelope.flags & _REPEATED and inbox.has_had(head):
            inbox.skip(inbox.credit)
            self._counters.counts["had_already"] += 1
            return
        self._put(inbox, envelope, head, b"", body, inbox.credit)

    # ------------------------------------------------------------ into inboxes

    def _deliver(self, envelope: Envelope, head: bytes, route: bytes, body: bytes) -> None:
        """A call, or a cast: it has taken credit of its listener."""
        inbox = self.inboxes.get(envelope.listener)
        credit = None
        if inbox is not None:
            credit = inbox.call_credit if route else inbox.credit
        if envelope.flags & _REPEATED:
            if self._is_settled(inbox, credit, envelope, head, route):
                return
        elif inbox is None:
            inbox = self._stand_in(envelope)
        item = None if inbox is None else self._put(inbox, envelope, head, route, body, credit)
        if item is None:
            self._counters.count("strays")
            if envelope.kind == _CALL:
                self._refuse(envelope, route, Reason.NO_ROUTE)
        elif envelope.kind == _CALL:
            self.replies.begin(item)

    def _put(
        self,
        inbox: ClientInbox,
        envelope: Envelope,
        head: bytes,
        route: bytes,
        body: bytes,
        credit: InboxCredit | None = None,
    ) -> ReceivedMessage | None:
        """None: it is closed. Nobody is told of it before the end of this turn: a thread that is woken takes the
        interpreter's lock at the next read, which costs two switches between threads for each message.
        """
        now = self._reactor.now()
        item = ReceivedMessage(inbox, envelope, head, route, body, now, credit)
        if not inbox.put(item, now):
            return None
        self._counters.counts["received"] += 1
        if not inbox.untold:
            inbox.untold = True
            self._reactor.call_soon(inbox.tell)
        return item

    def _is_settled(
        self,
        inbox: ClientInbox | None,
        credit: InboxCredit | None,
        envelope: Envelope,
        head: bytes,
        route: bytes,
    ) -> bool:
        """Whether what was sent again is not delivered: its listener has had it, or is gone and may have had it. A call
        comes again without regard to credit: one that the listener has not had may find no room.
        """
        called = envelope.kind == _CALL
        if inbox is None or inbox.has_had(head):
            self._counters.counts["had_already"] += 1
            if called and not self.replies.answer_again(head, envelope, route):
                self._counters.count("dropped")
        elif called and inbox.full:
            self._refuse(envelope, route, Reason.BUSY)
        else:
            return False
        if inbox is not None:
            inbox.skip(credit)
        return True

    def _refuse(self, envelope: Envelope, route: bytes, reason: Reason) -> None:
        """A call that nobody here begins with."""
        if not self._send(Pipeline.CALL, (refusal(envelope.id, reason), route, b"")):
            self._counters.count("dropped")

    def _stand_in(self, envelope: Envelope) -> ClientInbox | None:
        """Another listener of the same address in this process, where the meant one has just been closed."""
        for inbox in self._servers.get((envelope.exchange, envelope.topic), ()):
            if not envelope.server or inbox.records[0].server == envelope.server:
                return inbox
        return None
