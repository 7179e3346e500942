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
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
    notify_filter,
    read_filter,
    stamped,
)
from broker.oslo.names import Pipeline, Reason
from broker.oslo.proxy.listeners import Key, Listener, WaitingMessage
from broker.oslo.proxy.pipeline import ListenerRoom
from broker.oslo.proxy.pools import STAMP_BYTES, Pools, digest_of, message_of
from broker.oslo.proxy.registration import CannotOpen, ServerLink
from broker.oslo.records import Opening

if TYPE_CHECKING:
    from broker.oslo.proxy.backlog import Backlog, BacklogRecipient

# read where it is used, not folded by the compiler: tests change it
STRAGGLE_S: float = 2.0
"""Between the end of a topic's last listener and that of the subscription: what was sent before its senders knew is
counted here, while libzmq would drop it without a word."""
BACKLOG_LOOK_S: float = 15.0
"""Between two looks at what a backlog has kept for too long."""


class NotifyProxy(ListenerRoom):
    """One node's pipeline of notifications; arguments and attributes as ``ListenerRoom``'s.

    Attributes:
        pools: its listeners; their counts are told with those of ``counters``.
    """

    pipeline = Pipeline.NOTIFY
    kind = zmq.SUB
    pools: Pools

    def _open(self, undo: contextlib.ExitStack) -> None:
        config = self._config
        self._keys: dict[bytes, Key] = {}
        self._stats: dict[bytes, NameStats] = {}
        self._backlog = self._open_backlog()
        if self._backlog is not None:
            undo.callback(self._backlog.close)
            self._backlog_timer = self._reactor.call_later(BACKLOG_LOOK_S, self._expire)
        limits = (config.queue_msgs, config.queue_bytes)
        self.pools = Pools(limits, self._send, self._lost, self._backlog)
        undo.callback(self._close_listeners)
        self._register(undo, self.pools)
        if self._backlog is not None:
            self._announce(self._backlog.shelves())

    def _close_listeners(self) -> None:
        """What waits is lost, but for what a backlog keeps."""
        lost = self.pools.drop_all()
        if self._backlog is not None:
            self._backlog_timer.cancel()
            lost += self._backlog.close()
        if lost:
            self.counters.count("lost_at_close", lost)

    # ------------------------------------------------------------ listeners

    def open_listener(self, link: ServerLink, opening: Opening) -> None:
        """See ``Registration``."""
        if any(record.pool != opening.pool for record in opening.records):
            raise CannotOpen(Reason.MALFORMED, f"saw a record of another pool, expected {opening.pool!r:.64}")
        for record in opening.records:
            self._subscribe((record.exchange, record.topic))
        listener = self.pools.open(opening, link)
        self._announcer.add(opening.records)
        self._keep(listener)

    def _end_listener(self, link: ServerLink, ended: Listener) -> None:
        for key in ended.keys:
            if not self.pools.listened(key):
                self._reactor.call_later(STRAGGLE_S, self._unsubscribe, key)
        self._keep(ended)

    def _subscribe(self, key: Key) -> None:
        data = notify_filter(*key)
        if data not in self._keys:
            self._keys[data] = key
            self._stats[data] = self.topics.of(*key, listened=True)
            self._set_entries(zmq.SUBSCRIBE, data)

    def _unsubscribe(self, key: Key) -> None:
        data = notify_filter(*key)
        kept = self._backlog is not None and self._backlog.keeps(key)
        if data in self._keys and not kept and not self.pools.listened(key):
            del self._keys[data], self._stats[data]
            self._set_entries(zmq.UNSUBSCRIBE, data)

    def _set_entries(self, option: int, data: bytes) -> None:
        for socket in self._frontend.sockets:
            if not socket.closed:
                socket.sock.setsockopt(option, data)
                self._reactor.check_after_turn(socket)

    # ------------------------------------------------------------ the backlog

    def _open_backlog(self) -> Backlog | None:
        """With what was kept when the last proxy ended. Raises ConfigError: its file can be neither read nor made."""
        kept = self._config.backlog
        if kept is None:
            return None
        from broker.oslo.proxy.backlog import Backlog, BacklogFile  # and SQLite, which others need not load

        file = BacklogFile(self._reactor, kept.path, self.counters) if kept.path else None
        return Backlog(kept, time.time, file)

    def _keep(self, listener: Listener) -> None:
        """It has come, or is just leaving: from now on something may be kept for its pool."""
        if self._backlog is not None:
            self._announce(self._backlog.come(listener.keys, listener.pool))

    def _announce(self, shelves: Iterable[BacklogRecipient]) -> None:
        """Notifiers find this node as a listener of these pools, and it has subscribed, whoever is here."""
        for shelf in shelves:
            self._subscribe(shelf.key)
            self._announcer.add((shelf.record,))

    def _expire(self) -> None:
        assert self._backlog is not None
        self._backlog_timer = self._reactor.call_later(BACKLOG_LOOK_S, self._expire)
        for shelf in self._backlog.expire(lambda shelf: self.pools.is_here(shelf.key, shelf.pool)):
            self._announcer.remove((shelf.record,))
            self._unsubscribe(shelf.key)

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
            self.pools.take(message, envelope.listeners, again=again)
            self._pause()

    def _send(self, listener: Listener, message: WaitingMessage) -> int:
        frames = [listener.owner.rid, message.head, listener.id.encode(), message.body]
        return self.servers.send(frames, credited=True)

    def _lost(self, message: WaitingMessage, reason: Reason) -> None:
        """One pool does not get it."""
        self.topics.failed(*message.key, reason, int.from_bytes(message.stamp[:4]))

    def _read(self, head: bytes, whose: object) -> Envelope | None:
        envelope = self._decoded(head, whose)
        if envelope is None or envelope.kind == Kind.NOTIFY:
            return envelope
        text = "dropped a message of %s: saw kind %d, expected a notification"
        self.counters.count_dropped("malformed", text, whose, envelope.kind)
        return None

    def _plausible(self, data: bytes, key: Key) -> bool:
        """A filter that nobody here has (any more) may still be right: its listeners may have just left."""
        if data[:1] == NOTIFY_LETTER and read_filter(data) == key:
            return True
        text = "dropped a notification for %.64r at the filter %r, expected that of its topic"
        self.counters.count_dropped("malformed", text, f"{key[0]}/{key[1]}", data[:64])
        return False

    # ------------------------------------------------------------ what listeners say

    def on_control_message(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        """See ``Registration``: CREDIT, REQUEUE."""
        if envelope.kind == Kind.REQUEUE and len(rest) == 2:
            self._requeued(link, envelope.listener, rest)
        else:
            super().on_control_message(link, envelope, rest)

    def _requeued(self, link: ServerLink, listener: str, rest: list[bytes]) -> None:
        head, body = rest
        envelope = self._read(head, link)
        if envelope is None:
            return
        key = (envelope.exchange, envelope.topic)
        known = self.pools.known_of(listener, link, key)
        if known is None:
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
        self.pools.requeue(message, known.pool)
        self._pause()

    # ------------------------------------------------------------ STATUS

    def _pipeline_status(self) -> dict[str, Any]:
        backlog = {} if self._backlog is None else {"backlog": self._backlog.status()}
        return super()._pipeline_status() | backlog

    def _counted(self) -> dict[str, int]:
        kept = {} if self._backlog is None else self._backlog.counts
        return {**self.counters.status(), **self.pools.counts, **kept}
