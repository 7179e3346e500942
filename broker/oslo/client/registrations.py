"""Local servers, in the thread of the sockets: registered with the node's proxy, and what comes for them.

One process has one control link for each of CALL, CAST and NOTIFY, over which their messages come, and one SUB for
fan-outs. All of these sockets are IPC: servers listen on no network (zmq-patterns-usage, "ZMQ Proxy").
What comes for them is ``delivery``'s.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.backoff import Backoff
from broker.oslo.client.delivery import Delivery
from broker.oslo.client.inbox import ClientInbox, ReceivedMessage
from broker.oslo.client.proxy_links import ControlLink, FanoutSubscriptions
from broker.oslo.frames import Kind, encode, fanout_filter, not_repeated
from broker.oslo.names import Pipeline, Reason, control_file, exit_file
from broker.oslo.reactor import Timer
from broker.oslo.reactor.socket import Frames, Outcome
from broker.oslo.records import Opened

if TYPE_CHECKING:
    from broker.oslo.client.client import ClientContext

SETTLE_S: Final = 0.03
"""After the last CLOSED nothing more is expected when for so long nothing came: what libzmq had under way."""
SETTLE_LOOK_S: Final = 0.01
CREDIT_LOOK_S: Final = 0.2
"""Between two looks for credit that is still to be given back: a proxy takes a listener for frozen that gives none for
half a second (``proxy.listeners``)."""
LISTED_LOOK_S: Final = 0.004
"""Between two looks whether the directory lists a listener: what this process sends next shall find it."""


FIRST_S: Final = 0.01
LONGEST_S: Final = 1.0
KNOWN_MAX: Final = 4096
"""Notifications that are remembered, those given back last."""


class ListenerRegistrations:
    """The listeners of one client."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._reactor = context.reactor
        self._settings = context.settings
        self._routes = context.routes
        self._counters = context.counters
        self._ending: dict[str, set[Pipeline]] = {}
        self._controls: dict[Pipeline, ControlLink] = {}
        self._fanouts: FanoutSubscriptions | None = None
        delivery = self._delivery = Delivery(context.reactor, context.counters, self._send)
        self._inboxes = delivery.inboxes
        self._closed = False
        self._given_back = GivenBack()
        self._resting: dict[ReceivedMessage, Timer] = {}
        self._credit_timer: Timer | None = None

    # ------------------------------------------------------------ begin

    def begin(self, inbox: ClientInbox) -> None:
        """Register it; ``inbox.ready`` is set when all pipelines that are there have confirmed."""
        if self._closed or inbox.stopping:  # its session was closed meanwhile
            inbox.cut_off()
            return
        inbox.begun_s = self._reactor.now()
        self._delivery.enter(inbox)
        if inbox.rpc:
            record = inbox.records[0]
            key = (record.exchange, record.topic)
            files = {
                Pipeline.CALL: control_file(Pipeline.CALL),
                Pipeline.CAST: control_file(Pipeline.CAST),
                Pipeline.FANOUT: exit_file(Pipeline.FANOUT),
            }
            folder = self._settings.ipc_dir
            there = {each for each, name in files.items() if os.path.exists(os.path.join(folder, name))}
            inbox.missing = there or {Pipeline.CALL}
            if self._fanouts is None:
                self._fanouts = FanoutSubscriptions(self._context, self._delivery.fanout)
            self._fanouts.subscribe(fanout_filter(*key), lambda opened: self._hears_fanouts(inbox, opened))
        else:
            inbox.missing = {Pipeline.NOTIFY}
        for credit in inbox.credits:
            self._control(credit.pipeline).register(inbox.listener, partial(inbox.opening, credit))
        if self._credit_timer is None:
            self._credit_timer = self._reactor.call_later(CREDIT_LOOK_S, self._look_at_credit)

    def _control(self, pipeline: Pipeline) -> ControlLink:
        link = self._controls.get(pipeline)
        if link is None:
            link = self._controls[pipeline] = ControlLink(
                self._context, pipeline, self, self._delivery.message
            )
        return link

    def _hears_fanouts(self, inbox: ClientInbox, opened: Opened) -> None:
        self._delivery.counts_from(opened.incarnation)
        inbox.fanouts_by = opened
        self._confirmed(inbox, Pipeline.FANOUT)

    def _confirmed(self, inbox: ClientInbox, pipeline: Pipeline) -> None:
        inbox.missing.discard(pipeline)
        inbox.confirmed.add(pipeline)
        if not inbox.missing:
            self._await_listed(inbox)

    def _await_listed(self, inbox: ClientInbox) -> None:
        """Registered everywhere; the directory tells us so, too, within milliseconds when it is there."""
        if self._routes.lists(inbox.listener, inbox.records, inbox.confirmed, inbox.fanouts_by):
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
            self._confirmed(inbox, pipeline)

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
        if not self._delivery.replies.send(kind, item, body):
            self._counters.count("dropped")
            self._counters.say("a reply found no room: the proxy of this node takes nothing")

    def requeue(self, item: ReceivedMessage) -> None:
        """Give a notification back, after a pause when that happens again and again."""
        inbox = item.inbox
        if inbox.listener in self._ending or self._inboxes.get(inbox.listener) is not inbox:
            self._give_back(item)
            return
        now = self._reactor.now()
        pause_s = self._given_back.pause_s(item.envelope.id, now)
        self._resting[item] = self._reactor.call_later(pause_s, self._rested, item)

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

    def note_too_large(self, what: str, size: int, limit: int) -> None:
        """Log and count what was not sent."""
        self._counters.count("too_large")
        self._counters.say(
            "%s of %d bytes was not sent, expected %d at most", what, size, limit, about=(what,)
        )

    # ------------------------------------------------------------ end

    def end(self, inbox: ClientInbox) -> None:
        """Take nothing more in; ``inbox.ended`` is set when nothing more is to be expected."""
        listener = inbox.listener
        if self._inboxes.get(listener) is not inbox or listener in self._ending:
            inbox.ended.set()
            return
        self._unsubscribe(inbox)
        self.credit(inbox)
        waited = self._ending[listener] = set()
        for pipeline, control in self._controls.items():
            if control.unregister(listener):
                waited.add(pipeline)
        self._give_back_rest(inbox)  # behind that, so that it goes to another one of the pool
        if not waited:
            self._settle(inbox, self._reactor.now())

    def _unsubscribe(self, inbox: ClientInbox) -> None:
        if inbox.rpc:
            record = inbox.records[0]
            data = fanout_filter(record.exchange, record.topic)
            if self._fanouts is not None and self._fanouts.unsubscribe(data):
                self._delivery.forget_number(data)

    def _settle(self, inbox: ClientInbox, closed_s: float) -> None:
        now = self._reactor.now()
        if now - max(closed_s, inbox.put_s) >= SETTLE_S:
            inbox.ended.set()
        else:
            self._reactor.call_later(SETTLE_LOOK_S, self._settle, inbox, closed_s)

    def forget(self, inbox: ClientInbox) -> None:
        """It is closed."""
        if not self._delivery.leave(inbox):
            return
        self._ending.pop(inbox.listener, None)

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
        self._delivery.close()

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"listeners": len(self._inboxes), "numbers": self._delivery.numbers}


class GivenBack:
    """The notifications that one process has given back lately, and how long each waits before it leaves (pure).

    A listener that gives back what it cannot do at present would get it again at once, as often as the machine allows.
    The first time it leaves nearly at once; each time that it comes back and is given back again it waits longer.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[Backoff, float]] = OrderedDict()

    def pause_s(self, number: bytes, now: float) -> float:
        """The notification ``number`` is given back at ``now``: how long it waits. When it stayed away, anew."""
        anew = (Backoff(FIRST_S, LONGEST_S, spread=False), now)
        law, last_s = self._known.pop(number, anew)
        self._known[number] = law, now
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return law.after(now - last_s)
