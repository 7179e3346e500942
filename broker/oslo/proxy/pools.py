"""Who of a node gets a notification: pools of listeners, each a ring of ``listeners`` (pure).

Listeners of one pool share what comes to a topic; every pool gets its own copy. The sender has chosen one listener for
each pool from what it knows of the directory; here that choice is checked, and made anew where it no longer holds.

What was sent to a listener is not sent again by us: when it ends, nobody can tell what became of that. It may give a
notification back, which is known by the stamp it bore and a digest of the rest.

Where nobody of a pool is here, a backlog may keep what is for it: its next listener is sent that first (``backlog``).
"""

# compiled: mypyc

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from broker.oslo.frames import STAMP_AT, STAMP_END
from broker.oslo.names import Reason
from broker.oslo.proxy.listeners import Key, Listener, Listeners, WaitingMessage
from broker.oslo.records import Opening

if TYPE_CHECKING:
    from broker.oslo.proxy.backlog import Backlog

# read where it is used, not folded by the compiler: tests change it
ENDED_MAX: int = 4_096
"""Ended listeners whose pool is remembered: senders learn of an end with the directory's delay."""
HANDED_SPARE: Final = 1_024
"""Stamps remembered beyond a listener's window: those of messages it is working on, which it may give back."""
STAMP_BYTES: Final = STAMP_END - STAMP_AT
"""Of an envelope: who sent it."""


class Pools(Listeners):
    """All listeners of one node's notifications; arguments and attributes as ``Listeners``', and

    Args:
        lost: told each message that a pool does not get, and why.
        backlog: keeps what is for pools that nobody is here of; None: that is lost.

    Attributes:
        counts: messages by what became of them, see ``COUNTED``.
    """

    COUNTED: Final = {
        "handed": "given to a listener",
        "rechosen": "given to another listener of the pool than the chosen one",
        "moved": "waited for a listener that ended, and wait for another one of its pool now",
        "requeued": "came back from a listener, and wait again",
        "lost_unknown": "for a listener that was never here, or too long ago to know its pool",
        "lost_pool": "nobody else of the pool is here",
        "lost_full": "no room in the queue of anybody of the pool",
        "lost_again": "sent again, for a listener that is gone or has no room, and may have had it",
        "doubled": "a second choice for the same pool, left out",
        "unconfirmed": "given to a listener that ended without confirming it: nobody knows",
    }

    def __init__(
        self,
        limits: tuple[int, int],
        send: Callable[[Listener, WaitingMessage], int],
        lost: Callable[[WaitingMessage, Reason], None],
        backlog: Backlog | None = None,
    ) -> None:
        super().__init__(limits, send)
        self.counts: dict[str, int] = dict.fromkeys(self.COUNTED, 0)
        self._lost = lost
        self._backlog = backlog
        self._ended: dict[str, Listener] = {}

    # ------------------------------------------------------------ who is here

    def open(self, opening: Opening, owner: Any) -> Listener:
        """One more listener; it is sent what was kept for its pool."""
        self._ended.pop(opening.listener, None)
        listener = super().open(opening, owner)
        self._drain(listener)
        return listener

    def close(self, listener: str) -> Listener | None:
        """A listener has ended; its queue is moved to the front of the queues of the other listeners of its pool."""
        ended = super().close(listener)
        if ended is not None:
            self._ended[listener] = ended
            if len(self._ended) > ENDED_MAX:
                del self._ended[next(iter(self._ended))]
            self.counts["unconfirmed"] += len(ended.flying)
            self._move(ended)
            for left in (ended.queue, ended.flying, ended.handed):
                left.clear()  # pool, keys and owner are what is remembered
        return ended

    def known_of(self, listener: str, owner: Any, key: Key) -> Listener | None:
        """``owner``'s ``listener``, also when it has ended; None: there is no such, or it never listened at ``key``."""
        known = self.get(listener) or self._ended.get(listener)
        return known if known is not None and known.owner is owner and key in known.keys else None

    def status(self) -> list[dict[str, Any]]:
        """See ``Listeners.status``."""
        return [{**each.status(), "pool": each.pool} for each in self]

    # ------------------------------------------------------------ messages

    def take(self, message: WaitingMessage, chosen: Iterable[str], *, again: bool = False) -> None:
        """A message for the ``chosen`` listeners, each of them for its pool.

        ``again``: it was sent before, and they may have had it. They know; others of their pools do not.
        """
        served: set[str | None] = set()
        kept = {} if self._backlog is None else self._backlog.pools()
        for name in chosen:
            listener = self.get(name)
            known = listener or self._ended.get(name)
            if known is not None:
                pool = known.pool
            elif name in kept:
                pool = kept[name]
            else:
                self._lose("lost_unknown", message, Reason.NO_ROUTE)
                continue
            if pool in served:
                self.counts["doubled"] += 1
                continue
            served.add(pool)
            if listener is not None and message.key in listener.keys and self.offer(listener, message):
                continue
            if again:
                self._lose("lost_again", message, Reason.NO_ROUTE)
                continue
            other = self._another(message, pool)
            if other is not None:
                self.counts["rechosen"] += 1
                self.offer(other, message)

    def requeue(self, message: WaitingMessage, pool: str | None) -> None:
        """A listener of ``pool`` gives a message back: to the end of the queue of its next one."""
        other = self._another(message, pool)
        if other is not None:
            self.counts["requeued"] += 1
            self.offer(other, message)

    def stamp_of(self, listener: str, number: bytes, owner: Any) -> bytes | None:
        """``stamp`` of the message ``number`` that ``listener`` of ``owner`` was given lately; told once."""
        here = self.get(listener)
        return here.handed.pop(number, None) if here is not None and here.owner is owner else None

    def drop_all(self) -> int:
        """Forget what waits and no backlog keeps; returns how many messages that was."""
        dropped = 0
        for listener in self:
            while listener.queue:
                message = listener.next_waiting()
                dropped += not (self._backlog is not None and self._backlog.put(message, listener.pool))
        return dropped

    # ------------------------------------------------------------ inside

    def _another(self, message: WaitingMessage, pool: str | None) -> Listener | None:
        """The next listener of the pool and topic in turn that has room; None, and counted, when nobody has."""
        if not self.is_here(message.key, pool):
            if self._backlog is None or not self._backlog.put(message, pool):
                self._lose("lost_pool", message, Reason.NO_ROUTE)
            return None
        for listener in self.turns((*message.key, "", pool)):
            if listener.has_room:
                return listener
        self._lose("lost_full", message, Reason.BUSY)
        return None

    def _lose(self, name: str, message: WaitingMessage, reason: Reason) -> None:
        self.counts[name] += 1
        self._lost(message, reason)

    def _hand(self, listener: Listener, message: WaitingMessage) -> bool:
        if not super()._hand(listener, message):
            return False
        self.counts["handed"] += 1
        listener.handed[message.id] = message.stamp
        if len(listener.handed) > listener.credit + len(listener.flying) + HANDED_SPARE:
            del listener.handed[next(iter(listener.handed))]
        return True

    def _drain(self, listener: Listener) -> None:
        backlog = self._backlog
        while backlog is not None and (head := backlog.head(listener.keys, listener.pool)) is not None:
            number, message = head
            if not (listener.takes(message.size) and self._hand(listener, message)):
                return
            backlog.give(number)
        super()._drain(listener)

    def _move(self, ended: Listener) -> None:
        """Give what waited for ``ended`` to others, in turn, in order, before what waits for them; what waited for the
        last one of a pool goes to the backlog. Where there is no room for all of it, the oldest are lost.
        """
        touched: dict[Listener, None] = {}
        rest: deque[WaitingMessage] = deque()
        for message in ended.queue:
            alone = self._backlog is not None and not self.is_here(message.key, ended.pool)
            if not (alone and self._backlog is not None and self._backlog.put(message, ended.pool)):
                rest.append(message)
        for message in reversed(rest):
            other = self._another(message, ended.pool)
            if other is not None:
                other.wait(message, first=True)
                touched[other] = None
                self.counts["moved"] += 1
        for other in touched:
            self._drain(other)
            if other.queue:
                self._press(other)


def message_of(key: Key, number: bytes, head: bytes, body: bytes, digest: bytes) -> WaitingMessage:
    """A notification as the pools keep it; ``digest`` as of ``digest_of``."""
    return WaitingMessage(head, body, len(head) + len(body), key, number, head[STAMP_AT:STAMP_END] + digest)


def digest_of(head: bytes, body: bytes) -> bytes:
    """What nobody can find another message for: a digest of all of it but for its stamp."""
    digest = hashlib.sha256(head[:STAMP_AT] + head[STAMP_END:])
    digest.update(body)
    return digest.digest()
