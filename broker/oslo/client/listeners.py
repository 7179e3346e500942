"""The listeners of a process, in the thread of the sockets: registered with the node's proxy, and what comes for them.

One process has one control link for each of CALL, CAST and NOTIFY, over which their messages come, and one SUB for
fan-outs. All of these sockets are IPC: servers listen on no network (zmq-patterns-usage, "ZMQ Proxy").

A listener whose inbox is full costs nobody else anything. Calls, casts and notifications come as far as it has given
credit (``proxy.listeners``). Fan-outs, which cannot wait anywhere, are dropped and counted.

What was sent again after a connection ended (``Flag.REPEATED``) is taken in by the listener that it is for, unless that
one has had it.
"""

# compiled: mypyc

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.oslo.client.inbox import ClientInbox, InboxCredit, ReceivedMessage
from broker.oslo.client.proxy_links import ControlLink, FanoutSubscriptions
from broker.oslo.frames import (
    HEAD_BYTES,
    Envelope,
    Flag,
    Kind,
    Malformed,
    decode,
    encode,
    fanout_filter,
    not_repeated,
    refusal,
)
from broker.oslo.names import Pipeline, Reason, control_file, exit_file
from broker.oslo.reactor import Timer
from broker.oslo.reactor.socket import Frames, Outcome
from broker.oslo.records import Opened

if TYPE_CHECKING:
    from broker.oslo.client.client import Client

SETTLE_S: Final = 0.03
"""After the last CLOSED nothing more is expected when for so long nothing came: what libzmq had under way."""
SETTLE_LOOK_S: Final = 0.01
CREDIT_LOOK_S: Final = 0.2
"""Between two looks for credit that is still to be given back: a proxy takes a listener for frozen that gives none for
half a second (``proxy.listeners``)."""
LISTED_LOOK_S: Final = 0.004
"""Between two looks whether the directory lists a listener: what this process sends next shall find it."""
# read where it is used, not folded by the compiler: tests change it
REQUEUE_S: float = 0.1
"""A notification that is given back leaves after so long: it would come again at once, as often as the machine can."""
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
        former = self._begun.pop(key, None)
        if former is not None:  # its client took an id of a call that nobody has answered
            self._begun_bytes -= former.size
        self._begun[key] = call
        self._begun_bytes += call.size
        while len(self._begun) > 1 and (len(self._begun) > BEGUN_MAX or self._begun_bytes > BEGUN_BYTES):
            self._begun_bytes -= self._begun.popitem(last=False)[1].size

    def send(self, kind: int, call: ReceivedMessage, body: bytes) -> bool:
        """Answer the call, or say that it is worked on (``Kind.BEAT``); False: there is no room."""
        head = encode(kind, id=call.envelope.id)
        if kind == Kind.REPLY:
            key = call.head[_KEY_AT:HEAD_BYTES]
            begun = self._begun.pop(key, None)
            if begun is not None:
                self._begun_bytes -= begun.size
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


class Listeners:
    """The listeners of one client.

    Attributes:
        replies: answers of calls.
    """

    def __init__(self, client: Client) -> None:
        self.replies = ReplyCache(partial(self._send, Pipeline.CALL))
        self._client = client
        self._reactor = client.reactor
        self._settings = client.settings
        self._routes = client.routes
        self._counters = client.counters
        self._inboxes: dict[str, ClientInbox] = {}
        self._servers: dict[tuple[str, str], list[ClientInbox]] = {}
        self._ending: dict[str, set[Pipeline]] = {}
        self._controls: dict[Pipeline, ControlLink] = {}
        self._fanouts: FanoutSubscriptions | None = None
        self._numbers: dict[bytes, int] = {}
        """Of the last fan-out of each filter."""
        self._numbers_of = 0
        self._resting: dict[ReceivedMessage, Timer] = {}
        self._credit_timer: Timer | None = None
        self._closed = False

    # ------------------------------------------------------------ begin

    def begin(self, inbox: ClientInbox) -> None:
        """Register it; ``inbox.ready`` is set when all pipelines that are there have confirmed."""
        if self._closed or inbox.stopping:  # its session was closed meanwhile
            inbox.cut_off()
            return
        inbox.begun_s = self._reactor.now()
        self._inboxes[inbox.listener] = inbox
        if inbox.rpc:
            topic = inbox.topic
            self._servers.setdefault(topic, []).append(inbox)
            files = {
                Pipeline.CALL: control_file(Pipeline.CALL),
                Pipeline.CAST: control_file(Pipeline.CAST),
                Pipeline.FANOUT: exit_file(Pipeline.FANOUT),
            }
            folder = self._settings.ipc_dir
            there = {each for each, name in files.items() if os.path.exists(os.path.join(folder, name))}
            inbox.missing = there or {Pipeline.CALL}
            if self._fanouts is None:
                self._fanouts = FanoutSubscriptions(self._client, self.on_fanout)
            self._fanouts.subscribe(fanout_filter(*topic), partial(self._hears_fanouts, inbox))
        else:
            inbox.missing = {Pipeline.NOTIFY}
        for credit in inbox.credits:
            self._control(credit.pipeline).register(inbox.listener, partial(inbox.opening, credit))
        if self._credit_timer is None:
            self._credit_timer = self._reactor.call_later(CREDIT_LOOK_S, self._look_at_credit)

    def _control(self, pipeline: Pipeline) -> ControlLink:
        link = self._controls.get(pipeline)
        if link is None:
            link = self._controls[pipeline] = ControlLink(self._client, pipeline, self)
        return link

    def _hears_fanouts(self, inbox: ClientInbox, opened: Opened) -> None:
        if opened.incarnation != self._numbers_of:  # another proxy than before counts anew
            self._numbers_of = opened.incarnation
            self._numbers.clear()
        self._confirmed(inbox, Pipeline.FANOUT, opened)

    def _confirmed(self, inbox: ClientInbox, pipeline: Pipeline, opened: Opened) -> None:
        inbox.missing.discard(pipeline)
        inbox.confirmed[pipeline] = opened
        if not inbox.missing:
            self._await_listed(inbox)

    def _await_listed(self, inbox: ClientInbox) -> None:
        """Registered everywhere; the directory tells us so, too, within milliseconds when it is there."""
        if self._routes.lists(inbox.confirmed):
            inbox.ready.set()
        elif self._reactor.now() < inbox.begun_s + self._settings.ready_s:  # its caller waits no longer
            self._reactor.call_later(LISTED_LOOK_S, self._await_listed, inbox)

    # ------------------------------------------------------------ what control links tell

    def on_opened(self, pipeline: Pipeline, listener: str, opened: Opened) -> None:
        """The proxy has registered it; possibly once more."""
        self._routes.home_is(opened.node)
        inbox = self._inboxes.get(listener)
        if inbox is not None:
            if opened.message_bytes_max:
                inbox.body_max = min(opened.message_bytes_max, self._settings.message_bytes_max)
            self._confirmed(inbox, pipeline, opened)

    def on_refused(self, pipeline: Pipeline, listener: str, reason: int, text: str) -> None:
        """The proxy will not have it. Tried again, after ``proxy_links.DENIED_S`` when the reason is DENIED."""
        inbox = self._inboxes.get(listener)
        where = "" if inbox is None else f"{inbox.records[0].exchange}/{inbox.records[0].topic}"
        self._counters.say(
            "the proxy of this node does not let us listen at %s (%s): %s",
            where,
            pipeline,
            text,
            about=(where, pipeline),
        )
        if inbox is not None and reason == Reason.DENIED:
            inbox.refusal = text
            inbox.ready.set()

    def on_closed(self, pipeline: Pipeline, listener: str) -> None:
        """Nothing more comes for it there."""
        waited = self._ending.get(listener)
        inbox = self._inboxes.get(listener)
        if waited is not None and inbox is not None:
            waited.discard(pipeline)
            if not waited:
                self._settle(inbox, self._reactor.now())

    def on_unknown(self, pipeline: Pipeline) -> None:
        """The proxy does not know us: everything is opened again."""
        self._counters.count("opened_again")
        self._reactor.say(
            logging.INFO, "the proxy of this node does not know us at %s: registered again", (pipeline,)
        )

    def on_malformed(self, pipeline: Pipeline, text: str) -> None:
        """Something came that is no message."""
        self._counters.count("malformed")
        self._counters.say(
            "dropped a message of the proxy of this node (%s): %s", pipeline, text, about=(pipeline,)
        )

    # ------------------------------------------------------------ what items ask for

    def _send(self, pipeline: Pipeline, frames: Frames) -> bool:
        """False: no room, or nothing was ever opened there."""
        link = self._controls.get(pipeline)
        return link is not None and link.send(frames) > Outcome.FULL

    def answer(self, kind: int, item: ReceivedMessage, body: bytes) -> None:
        """Send a reply or heartbeat."""
        if not self.replies.send(kind, item, body):
            self._counters.count("dropped")
            self._counters.say("a reply found no room: the proxy of this node takes nothing")

    def requeue(self, item: ReceivedMessage) -> None:
        """Give a notification back, after a pause."""
        inbox = item.inbox
        if inbox.listener in self._ending or self._inboxes.get(inbox.listener) is not inbox:
            self._give_back(item)
            return
        self._resting[item] = self._reactor.call_later(REQUEUE_S, self._rested, item)

    def _rested(self, item: ReceivedMessage) -> None:
        del self._resting[item]
        self._give_back(item)

    def _give_back_rest(self, inbox: ClientInbox | None = None) -> None:
        """What still waits leaves now: ``inbox``, or with None everything, ends."""
        for item, timer in list(self._resting.items()):
            if inbox is None or item.inbox is inbox:
                timer.cancel()
                self._rested(item)

    def _give_back(self, item: ReceivedMessage) -> None:
        head = encode(Kind.REQUEUE, listeners=(item.inbox.listener,))
        if not self._send(Pipeline.NOTIFY, (head, not_repeated(item.head), item.body)):
            self._counters.count("dropped")

    def credit(self, inbox: ClientInbox) -> None:
        """Give credit back for what was taken."""
        for credit in inbox.credits:
            messages = credit.owed
            if messages:
                head = encode(Kind.CREDIT, listeners=(inbox.listener,), word=messages)
                if self._send(credit.pipeline, (head, b"")):  # else at the next look
                    credit.give(messages)

    def _look_at_credit(self) -> None:
        self._credit_timer = self._reactor.call_later(CREDIT_LOOK_S, self._look_at_credit)
        for inbox in self._inboxes.values():
            if inbox.listener not in self._ending:
                self.credit(inbox)

    def drop(self, name: str, n: int) -> None:
        """Count what was lost in an inbox."""
        self._counters.count(name, n)

    def note_too_large(self, size: int, limit: int) -> None:
        """Log and count a reply that is not sent."""
        self._counters.count("too_large")
        self._counters.say(
            "a reply of %d bytes was not sent, expected %d at most", size, limit, about=("reply",)
        )

    # ------------------------------------------------------------ what comes

    def on_message(self, pipeline: Pipeline, envelope: Envelope, frames: list[bytes]) -> None:
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

    def on_fanout(self, frames: list[bytes]) -> None:
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
        inbox = self._inboxes.get(listener.decode(errors="replace"))
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
        inbox = self._inboxes.get(envelope.listener)
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

    # ------------------------------------------------------------ end

    def end(self, inbox: ClientInbox) -> None:
        """Take nothing more in; ``inbox.ended`` is set when nothing more is to be expected."""
        listener = inbox.listener
        if self._inboxes.get(listener) is not inbox or listener in self._ending:
            inbox.ended.set()
            return
        if inbox.rpc and self._fanouts is not None:
            data = fanout_filter(*inbox.topic)
            if self._fanouts.unsubscribe(data):
                self._numbers.pop(data, None)
        self.credit(inbox)
        waited = self._ending[listener] = set()
        for pipeline, control in self._controls.items():
            if control.unregister(listener):
                waited.add(pipeline)
        self._give_back_rest(inbox)  # behind that, so that it goes to another one of the pool
        if not waited:
            self._settle(inbox, self._reactor.now())

    def _settle(self, inbox: ClientInbox, closed_s: float) -> None:
        now = self._reactor.now()
        if now - max(closed_s, inbox.put_s) >= SETTLE_S:
            inbox.ended.set()
        else:
            self._reactor.call_later(SETTLE_LOOK_S, self._settle, inbox, closed_s)

    def forget(self, inbox: ClientInbox) -> None:
        """It is closed."""
        if self._inboxes.pop(inbox.listener, None) is None:
            return
        self._ending.pop(inbox.listener, None)
        if inbox.rpc:
            left = [each for each in self._servers[inbox.topic] if each is not inbox]
            if left:
                self._servers[inbox.topic] = left
            else:
                del self._servers[inbox.topic]
                self._numbers.pop(fanout_filter(*inbox.topic), None)

    @property
    def inboxes(self) -> list[ClientInbox]:
        """Those that are registered. From any thread."""
        return list(self._inboxes.values())

    @property
    def waiting(self) -> int:
        """Replies and control messages that may still leave."""
        return sum(link.waiting for link in self._controls.values())

    def close(self, linger_ms: int) -> None:
        """Close all sockets; who listens still is told."""
        self._closed = True
        self._give_back_rest()
        if self._credit_timer is not None:
            self._credit_timer.cancel()
        for link in self._controls.values():
            self._counters.count("unflushed", link.waiting)
            link.close(linger_ms)
        if self._fanouts is not None:
            self._fanouts.close()
        for inbox in list(self._inboxes.values()):
            inbox.cut_off()
        self._inboxes.clear()
        self._servers.clear()

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"listeners": len(self._inboxes), "numbers": len(self._numbers)}
