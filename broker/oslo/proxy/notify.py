"""The NOTIFY pipeline of a node: SUB towards clients (TCP 9503 and IPC), ROUTER towards listeners (IPC).

Seed 003, "PUB/SUB for Notifier". A client publishes a notification once to each node where it chose listeners, one
for each pool; here every chosen one gets its copy, or another one of its pool where that no longer holds (``pools``)::

    client XPUB    [filter][envelope, listeners=(chosen on this node)][body]      SUB
    proxy          [envelope][listener][body]                                     notify.ctl, the listener's process

A listener registers at the control socket and is given its notifications there, within its ``credit``. It may say::

    REQUEUE (listener) + envelope and body of a notification    to the end of the queue of the pool's next listener;
                                                               gives no credit of its own

What comes back exactly as it was given out goes on as its sender's; anything else is what the listener says itself, and
only where it may send. Neither leaves the topics that it listens to.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
from typing import Any

import zmq

from broker.identity import Credentials
from broker.name_stats import NameStats
from broker.oslo.frames import (
    NOTIFY_LETTER,
    STAMP_AT,
    STAMP_END,
    Envelope,
    Flag,
    Kind,
    Malformed,
    decode,
    notify_filter,
    read_filter,
    stamped,
)
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.credit import ListenerCredit
from broker.oslo.proxy.credited_queue import CreditedQueue
from broker.oslo.proxy.kept_pools import KeptPools
from broker.oslo.proxy.pipeline import PipelineRoom
from broker.oslo.proxy.pool_member import STAMP_BYTES, Handout, Key, Notification, digest_of, message_of
from broker.oslo.proxy.pools import Pools
from broker.oslo.proxy.registration import CannotOpen, RegistrationSocket, ServerLink
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.socket import Outcome
from broker.oslo.records import Opened, Opening, Record

# read where it is used, not folded by the compiler: tests change it
STRAGGLE_S: float = 2.0
"""Between the end of a topic's last listener and that of the subscription: what was sent before its senders knew is
counted here, while libzmq would drop it without a word."""


class NotifyProxy(PipelineRoom):
    """One node's pipeline of notifications; arguments as ``PipelineRoom``'s.

    Attributes:
        pools: the listeners and what waits for them; its counts are told with those of ``counters``.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig, acl: AccessControl) -> None:
        super().__init__(reactor, config, acl, Pipeline.NOTIFY, zmq.SUB)
        self.pools = Pools(config.queue_msgs, config.queue_bytes)
        self._records: dict[str, tuple[Record, ...]] = {}
        self._keys: dict[bytes, Key] = {}
        self._stats: dict[bytes, NameStats] = {}

    def _open(self, undo: contextlib.ExitStack) -> RegistrationSocket:
        reactor, config = self._reactor, self._config
        self._kept = KeptPools(reactor, config, self.counters)
        undo.callback(self._kept.close)
        self.pools = Pools(config.queue_msgs, config.queue_bytes, self._kept.backlog)
        self.pools.lost = self._lost
        self._credit = ListenerCredit(reactor, self._frontend, self.counters, self._add_credit)
        undo.callback(self._credit.close)
        self._kept.begin(self._announcer, self._subscribe, self._unsubscribe, self.pools)
        registration = RegistrationSocket(
            reactor,
            config,
            Pipeline.NOTIFY,
            self._acl,
            self.counters,
            opened=self._open_listener,
            closed=self._close_listener,
            other=self._on_control_message,
            status=self.status,
            figures=self.figures,
            journal=self._journal,
        )
        self._credit.begin(registration)
        return registration

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent."""
        return super().waiting + self.pools.waiting()

    def close(self, linger_ms: int = 0) -> None:
        """See ``PipelineRoom.close``; what waits is lost, but for what a backlog keeps."""
        lost = self.pools.drop_all() + self._kept.close()
        if lost:
            self.counters.count("lost_at_close", lost)
        self._credit.close()
        super().close(linger_ms)

    # ------------------------------------------------------------ listeners

    def _open_listener(self, link: ServerLink, opening: Opening) -> Opened:
        if any(record.pool != opening.pool for record in opening.records):
            raise CannotOpen(Reason.MALFORMED, f"saw a record of another pool, expected {opening.pool!r:.64}")
        self._credit.check(link)
        keys = [(record.exchange, record.topic) for record in opening.records]
        self._subscribe(
            self.pools.open(opening.listener, opening.pool, keys, opening.credit, link, opening.credit_bytes)
        )
        member = self.pools.member(opening.listener)
        if member is not None:
            member.resume(opening.held, opening.held_bytes)
        self._records[opening.listener] = opening.records
        self._give(self.pools.attach(opening.listener))
        self._announcer.add(opening.records)
        self._kept.come(keys, opening.pool)
        return self._confirmation()

    def _close_listener(self, link: ServerLink, listener: str) -> None:
        member = self.pools.member(listener)
        if member is not None:
            self._credit.forget(member)
        handouts, last = self.pools.close(listener)
        for key in last:
            self._reactor.call_later(STRAGGLE_S, self._unsubscribe, key)
        if member is not None:
            self._kept.come(member.keys, member.pool)
        self._give(handouts)
        self._announcer.remove(self._records.pop(listener))

    def _subscribe(self, first: list[Key]) -> None:
        for key in first:
            data = notify_filter(*key)
            if data not in self._keys:
                self._keys[data] = key
                self._stats[data] = self.topics.of(*key, listened=True)
                self._set_entries(zmq.SUBSCRIBE, data)

    def _unsubscribe(self, key: Key) -> None:
        data = notify_filter(*key)
        if data in self._keys and not self._kept.keeps(key) and not self.pools.listened(key):
            del self._keys[data], self._stats[data]
            self._set_entries(zmq.UNSUBSCRIBE, data)

    def _set_entries(self, option: int, data: bytes) -> None:
        for socket in self._frontend.sockets:
            if not socket.closed:
                socket.sock.setsockopt(option, data)
                self._reactor.check_after_turn(socket)

    # ------------------------------------------------------------ messages

    def on_client_message(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """A notification: give it to the chosen listeners, or others of their pools."""
        if len(frames) != 3:
            self.counters.count_dropped(
                "malformed", "dropped a message of %d frames, expected 3", len(frames)
            )
            return
        data, head, body = frames
        envelope = self._read(head, f"uid {who.userid}")
        if envelope is None:
            return
        key = (envelope.exchange, envelope.topic)
        if self._keys.get(data) != key and not self._plausible(data, key):
            return
        stats = self._stats.get(data)
        if stats is None:
            stats = self.topics.of(*key, listened=False)
        stats.calls += 1
        if not self._acl.may_send(who, *key):
            self.topics.ended(stats, Reason.DENIED, who.userid)
            where = f"{key[0][:64]}/{key[1][:64]}"
            self.counters.count_dropped(
                "denied", "dropped a message: uid %d may not send to %s", who.userid, where
            )
        elif not envelope.listeners:
            self.topics.ended(stats, Reason.NO_ROUTE, who.userid)
            text = "dropped a notification of uid %d: saw no listener chosen for it"
            self.counters.count_dropped("unaddressed", text, who.userid)
        else:
            head = stamped(head, who)
            message = message_of(key, envelope.id, head, body, digest_of(head, body))
            again = bool(envelope.flags & Flag.REPEATED)
            self._give(self.pools.take(message, envelope.listeners, again=again))

    def _lost(self, message: Notification, reason: Reason) -> None:
        """One pool does not get it."""
        self.topics.failed(*message.key, reason, int.from_bytes(message.stamp[:4]))

    def _read(self, head: bytes, whose: object) -> Envelope | None:
        try:
            envelope = decode(head)
        except Malformed as error:
            name = "unknown_version" if error.unknown_version else "malformed"
            self.counters.count_dropped(name, "dropped a message of %s: %s", whose, error)
            return None
        if envelope.kind != Kind.NOTIFY:
            text = "dropped a message of %s: saw kind %d, expected a notification"
            self.counters.count_dropped("malformed", text, whose, envelope.kind)
            return None
        return envelope

    def _plausible(self, data: bytes, key: Key) -> bool:
        """A filter that nobody here has (any more) may still be right: its listeners may have just left."""
        if data[:1] == NOTIFY_LETTER and read_filter(data) == key:
            return True
        text = "dropped a notification for %.64r at the filter %r, expected that of its topic"
        self.counters.count_dropped("malformed", text, f"{key[0]}/{key[1]}", data[:64])
        return False

    def _give(self, handouts: list[Handout]) -> None:
        send = self._registration.socket.send
        missed: list[Handout] = []
        for handout in handouts:
            member, (_key, _id, _stamp, (head, body), _size), _kept = handout
            if send([member.owner.rid, head, member.id.encode(), body], credited=True) <= Outcome.FULL:
                missed.append(handout)
        if missed:
            self.pools.undo(missed)
        for each in self.pools.waited:
            self._credit.waits(each)
        self.pools.waited.clear()

    def _add_credit(self, listener: str, messages: int) -> CreditedQueue[Any] | None:
        self._give(self.pools.credit(listener, messages))
        return self.pools.member(listener)

    # ------------------------------------------------------------ what listeners say

    def _on_control_message(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        if envelope.kind == Kind.CREDIT:
            self._credit.on_credit(link, envelope.listener, envelope.word)
        elif envelope.kind == Kind.REQUEUE and len(rest) == 2:
            self._requeued(link, envelope.listener, rest)
        else:
            self._unexpected(link, envelope, rest)

    def _requeued(self, link: ServerLink, listener: str, rest: list[bytes]) -> None:
        head, body = rest
        envelope = self._read(head, link)
        if envelope is None:
            return
        key = (envelope.exchange, envelope.topic)
        known = self.pools.known_of(listener, link)
        if known is None or key not in known.keys:
            text = "dropped what %s gave back for a listener or at a topic that is not its own"
            self.counters.count_dropped("requeue_unknown", text, link)
            return
        digest = digest_of(head, body)
        given = self.pools.stamp_of(listener, envelope.id, link)
        if given is not None and given[STAMP_BYTES:] == digest:
            stamp = given[:STAMP_BYTES]
        else:  # we did not give that out, or a proxy before us did: the listener speaks for itself
            stamp = link.stamp
            if not self._acl.may_send(link.credentials, *key):
                self.counters.count_dropped("denied", "dropped what %s gave back: it may not send that", link)
                return
        head = b"".join((head[:STAMP_AT], stamp, head[STAMP_END:]))
        message = message_of(key, envelope.id, head, body, digest)
        self._give(self.pools.requeue(listener, message, link) or [])

    # ------------------------------------------------------------ STATUS

    def _pipeline_status(self) -> dict[str, Any]:
        return {
            "topics": {f"{exchange}/{topic}": number for (exchange, topic), number in self.pools.topics()},
            "waiting": self.pools.waiting(),
            "members": self.pools.status(),
            "back_pressure": self._credit.status(),
            **self._kept.status(),
        }

    def _counted(self) -> dict[str, int]:
        return {**self.counters.status(), **self.pools.counts, **self._kept.counts}
