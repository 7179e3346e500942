"""What comes for the listeners of a client, into their inboxes, and what becomes of that for which there is no room.

A listener whose inbox is full costs nobody else anything. Calls for it go back to the proxy, and their clients choose
again. Fan-outs, which cannot wait anywhere, are dropped and counted. Casts are not read until it has room, and wait at
the proxy, which slows their senders down (``proxy.back_pressure``). They cannot be told apart before they are read:
those for other rpc-servers of the process wait as well, as long as the full one takes something, and for
``HELD_MAX_S`` at most. Then what comes for it has as much room again, and is dropped and counted beyond that, until it
has room. The one rpc-server of a process may be full for ever, and nothing is dropped.

What was sent again after a connection ended (``Flag.REPEATED``) is taken in by the listener that it is for, unless that
one has had it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.oslo.client.cast_receiver import CastReceiver
from broker.oslo.client.counters import ClientCounters
from broker.oslo.client.inbox import ClientInbox, ReceivedMessage
from broker.oslo.client.replies import Replies
from broker.oslo.contract import Settings
from broker.oslo.frames import Envelope, Flag, Kind, Malformed, decode, encode, fanout_filter, refusal
from broker.oslo.names import Pipeline, Reason
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.pipe import Frames

HELD_STILL_S: Final = 0.5
"""A full server that takes nothing for so long does not keep the others of its process waiting any more."""
HELD_MAX_S: Final = 5.0
_REPEATED: Final = int(Flag.REPEATED)
HELD_LOOK_S: Final = 0.2
"""Between two looks at full servers: a proxy takes one for frozen that is not seen to take anything for half a second
(``proxy.back_pressure``)."""


class Delivery:
    """In the thread of the sockets.

    Args:
        send: sends a control message to the node's proxy; False: there is no room for it.

    Attributes:
        inboxes: by listener.
        casts: where casts come from.
        replies: answers of calls.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        counters: ClientCounters,
        send: Callable[[Pipeline, Frames], bool],
    ) -> None:
        self.inboxes: dict[str, ClientInbox] = {}
        self.casts = CastReceiver(reactor, settings, self._cast)
        self.replies = Replies(partial(send, Pipeline.CALL))
        self._reactor = reactor
        self._counters = counters
        self._send = send
        self._servers: dict[tuple[str, str], list[ClientInbox]] = {}
        self._numbers: dict[bytes, int] = {}
        self._numbers_of = 0
        self._held_timer: Timer | None = None

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
        self.relieved(inbox)
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
        """Close the socket; who listens still is told."""
        if self._held_timer is not None:
            self._held_timer.cancel()
        for inbox in list(self.inboxes.values()):
            inbox.cut_off()
        self.inboxes.clear()
        self._servers.clear()
        self.casts.close()

    # ------------------------------------------------------------ calls

    def message(self, pipeline: Pipeline, envelope: Envelope, frames: list[bytes]) -> None:
        """``[envelope][route][body]`` of a call, or of a cast that came this way; ``[envelope][listener][body]`` of a
        notification; or what became of a reply.
        """
        if pipeline is Pipeline.NOTIFY and envelope.kind == Kind.NOTIFY and len(frames) == 3:
            self._notice(envelope, frames)
            return
        if pipeline is Pipeline.CALL and envelope.kind == Kind.REFUSED and len(frames) == 2:
            self._undeliverable(envelope, frames[1])
            return
        if pipeline is not Pipeline.CALL or len(frames) != 3 or envelope.kind not in (Kind.CALL, Kind.CAST):
            self._counters.count("malformed")
            return
        self._deliver(Pipeline.CALL, envelope, frames[0], frames[1], frames[2])

    def _undeliverable(self, envelope: Envelope, text: bytes) -> None:
        """A reply of ours found nobody: the work was done, and its caller does not know."""
        self._counters.count("replies_undeliverable")
        answered = self.replies.answered(envelope.id)
        where = "" if answered is None else f" to {answered.exchange}/{answered.topic}"
        said = text[:64].decode(errors="replace")
        values = (envelope.id.hex(), where, said)
        self._counters.say("the reply %s%s could not be delivered: %s", *values, about=("reply", where, said))

    # ------------------------------------------------------------ casts

    def _cast(self, frames: list[bytes], _origin: str) -> None:
        try:
            envelope = decode(frames[0])
        except Malformed:
            self._counters.count("malformed")
            return
        if len(frames) != 2 or envelope.kind != Kind.CAST:
            self._counters.count("malformed")
            return
        self._deliver(Pipeline.CAST, envelope, frames[0], b"", frames[1])

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
                self._drop_full("fan-out", envelope)
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
            inbox.owe(1)  # it took credit, and no place
            self._counters.counts["had_already"] += 1
            return
        self._put(inbox, envelope, head, b"", body)

    # ------------------------------------------------------------ into inboxes

    def _deliver(
        self, pipeline: Pipeline, envelope: Envelope, head: bytes, route: bytes, body: bytes
    ) -> None:
        inbox = self.inboxes.get(envelope.listener)
        if envelope.flags & _REPEATED:
            if self._has_had(inbox, envelope, head, route):
                return
        elif inbox is None:
            inbox = self._stand_in(envelope)
        called = envelope.kind == Kind.CALL
        if inbox is not None and inbox.full:
            if called:
                self._send_back(envelope, route)
                return
            if inbox.brimful:
                self._drop_full("cast", envelope)
                return
        item = None if inbox is None else self._put(inbox, envelope, head, route, body)
        if inbox is None or item is None:
            self._counters.count("strays")
            if called:
                self._send_back(envelope, route)
            return
        if called:
            self.replies.begin(item)
        if pipeline is Pipeline.CAST and inbox.full:
            self._hold(inbox)

    def _put(
        self, inbox: ClientInbox, envelope: Envelope, head: bytes, route: bytes, body: bytes
    ) -> ReceivedMessage | None:
        """None: it is closed. Nobody is told of it before the end of this turn: a thread that is woken takes the
        interpreter's lock at the next read, which costs two switches between threads for each message.
        """
        now = self._reactor.now()
        item = ReceivedMessage(inbox, envelope, head, route, body, now)
        if not inbox.put(item, now):
            return None
        self._counters.counts["received"] += 1
        if not inbox.untold:
            inbox.untold = True
            self._reactor.call_soon(inbox.tell)
        return item

    def _has_had(self, inbox: ClientInbox | None, envelope: Envelope, head: bytes, route: bytes) -> bool:
        """Whether what was sent again needs no delivery: its listener has had it, or is gone and may have had it."""
        if inbox is not None and not inbox.has_had(head):
            return False
        self._counters.counts["had_already"] += 1
        if envelope.kind == Kind.CALL and not self.replies.again(head, envelope, route):
            self._counters.count("dropped")
        return True

    def _send_back(self, envelope: Envelope, route: bytes) -> None:
        """A call that nobody here begins with: its client gives it to somebody else, or to us again, later."""
        self._counters.counts["sent_back"] += 1
        if not self._send(Pipeline.CALL, (refusal(envelope.id, Reason.BUSY), route, b"")):
            self._counters.count("dropped")

    def _drop_full(self, what: str, envelope: Envelope) -> None:
        self._counters.count("dropped")
        self._counters.say("%s/%s: a %s found the inbox full", envelope.exchange, envelope.topic, what)

    def _stand_in(self, envelope: Envelope) -> ClientInbox | None:
        """Another listener of the same address in this process, where the meant one has just been closed."""
        for inbox in self._servers.get((envelope.exchange, envelope.topic), ()):
            if not envelope.server or inbox.records[0].server == envelope.server:
                return inbox
        return None

    # ------------------------------------------------------------ full inboxes

    def _hold(self, inbox: ClientInbox) -> None:
        """Read no casts until it has room, unless it has kept the others waiting for too long already."""
        if inbox.held or (inbox.slow and not self._is_alone()):
            return
        inbox.held = True
        inbox.held_s = inbox.moved_s = self._reactor.now()
        inbox.credit()
        self.casts.pause()
        if self._held_timer is None:
            self._held_timer = self._reactor.call_later(HELD_LOOK_S, self._look_at_held)
        if not inbox.full:
            self.relieved(inbox)  # all was taken in the meantime, by somebody who saw nothing held

    def _is_alone(self) -> bool:
        return sum(map(len, self._servers.values())) == 1

    def _look_at_held(self) -> None:
        """Tell the proxy who moves; who does not, or not enough, is not waited for."""
        now = self._reactor.now()
        self._held_timer = None
        for inbox in [each for each in self.inboxes.values() if each.held]:
            n = inbox.credit()
            if n:
                inbox.moved_s = now
                head = encode(Kind.CREDIT, listeners=(inbox.listener,), word=n)
                self._send(Pipeline.CAST, (head, b""))
            late = now - inbox.moved_s > HELD_STILL_S or now - inbox.held_s > HELD_MAX_S
            if late and not self._is_alone():
                inbox.slow = True
                self._release(inbox)
            elif self._held_timer is None:
                self._held_timer = self._reactor.call_later(HELD_LOOK_S, self._look_at_held)

    def relieved(self, inbox: ClientInbox) -> None:
        """It has room again, or is gone."""
        inbox.slow = False
        self._release(inbox)

    def _release(self, inbox: ClientInbox) -> None:
        if inbox.held:
            inbox.held = False
            if not any(each.held for each in self.inboxes.values()):
                self.casts.resume()
