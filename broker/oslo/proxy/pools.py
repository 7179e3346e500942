"""Who of a node gets a notification: pools of listeners, what waits for each of them, what each has room for (pure).

Listeners of one pool share what comes to a topic; every pool gets its own copy. The sender has chosen one listener for
each pool from what it knows of the directory; here that choice is checked, and made anew where it no longer holds.

What waits for a listener is handed out within its window (``credited_queue``), and not handed out again by us: when its
listener ends, nobody can tell what became of it.

Where nobody of a pool is here, a backlog may keep what is for it: its next listener is handed that first (``backlog``).

Every message that is not handed out is counted, under the names in ``Pools.counts``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.oslo.names import Reason
from broker.oslo.proxy.pool_member import Handout, Key, Member, Notification

if TYPE_CHECKING:
    from broker.oslo.proxy.backlog import Backlog

ENDED_MAX: Final = 4_096
"""Ended listeners whose pool is remembered: senders learn of an end with the directory's delay."""


class Ended(NamedTuple):
    """What is remembered of a listener that is gone."""

    pool: str | None
    keys: tuple[Key, ...]
    owner: Any


class Pools:
    """All listeners of one node's pipeline.

    Methods that make room return what is to be sent now, in order; the caller sends all of it, or says ``undo``.

    Args:
        queue_msgs, queue_bytes: what may wait for one listener.
        backlog: keeps what is for pools that nobody is here of; None: that is lost.

    Attributes:
        counts: messages by what became of them, other than being handed out: see ``COUNTED``.
        lost: told each message that a pool does not get, and why; None nobody.
        waited: listeners whose queue something was put into; emptied by whoever looks at it.
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

    def __init__(self, queue_msgs: int, queue_bytes: int, backlog: Backlog | None = None) -> None:
        self._backlog = backlog
        self.counts: dict[str, int] = dict.fromkeys(self.COUNTED, 0)
        self.lost: Callable[[Notification, Reason], None] | None = None
        self.waited: set[Member] = set()
        self._limits = (queue_msgs, queue_bytes)
        self._members: dict[str, Member] = {}
        self._groups: dict[tuple[Key, str | None], deque[str]] = {}
        self._keys: dict[Key, int] = {}
        self._ended: dict[str, Ended] = {}

    # ------------------------------------------------------------ who is here

    def __contains__(self, listener: str) -> bool:
        return listener in self._members

    def __len__(self) -> int:
        return len(self._members)

    def member(self, listener: str) -> Member | None:
        """The listener of that id."""
        return self._members.get(listener)

    def listened(self, key: Key) -> bool:
        """Whether anybody listens there."""
        return key in self._keys

    def is_here(self, key: Key, pool: str | None) -> bool:
        """Whether a listener of that pool is at that key."""
        return (key, pool) in self._groups

    def topics(self) -> Iterable[tuple[Key, int]]:
        """What is listened to, by how many."""
        return self._keys.items()

    def waiting(self) -> int:
        """Messages in all queues."""
        return sum(len(member.queue) for member in self._members.values())

    def status(self) -> list[dict[str, Any]]:
        """Every listener, as plain data."""
        return [
            {**member.status(), "pool": member.pool, "topics": [list(key) for key in member.keys]}
            for member in self._members.values()
        ]

    def open(
        self,
        listener: str,
        pool: str | None,
        keys: Iterable[Key],
        credit: int,
        owner: Any,
        credit_bytes: int = 0,
    ) -> list[Key]:
        """A listener begins; returns the keys that nobody listened to before. It is not attached yet.

        Raises:
            ValueError: there is one of that id.
        """
        if listener in self._members:
            raise ValueError(f"listener {listener[:64]!r} is open already")
        self._ended.pop(listener, None)
        member = self._members[listener] = Member(
            listener, pool, keys, max(credit, 0), owner, self._limits, credit_bytes
        )
        first = [key for key in member.keys if key not in self._keys]
        for key in member.keys:
            self._keys[key] = self._keys.get(key, 0) + 1
            self._groups.setdefault((key, pool), deque()).append(listener)
        return first

    def close(self, listener: str) -> tuple[list[Handout], list[Key]]:
        """A listener ends: its queue is moved to the front of the queues of the other listeners of its pool.

        Returns what can be sent at once, and the keys that nobody listens to any more. Harmless when unknown.
        """
        member = self._members.pop(listener, None)
        if member is None:
            return [], []
        last = []
        for key in member.keys:
            group = self._groups[key, member.pool]
            group.remove(listener)
            if not group:
                del self._groups[key, member.pool]
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
                last.append(key)
        self._ended[listener] = Ended(member.pool, member.keys, member.owner)
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self.counts["unconfirmed"] += len(member.flying)
        return self._move(member), last

    def known_of(self, listener: str, owner: Any) -> Ended | None:
        """Pool and keys of ``owner``'s ``listener``, or those it had before it ended; None: there is no such."""
        member = self._members.get(listener)
        known = self._ended.get(listener) if member is None else Ended(member.pool, member.keys, member.owner)
        return known if known is not None and known.owner is owner else None

    # ------------------------------------------------------------ room

    def attach(self, listener: str) -> list[Handout]:
        """The listener can be reached from now on."""
        member = self._members.get(listener)
        if member is None:
            return []
        member.attached = True
        return self._drain(member)

    def undo(self, handouts: Sequence[Handout]) -> None:
        """These could not be sent, their listeners are gone: let all that is for them wait, as it was before."""
        for member, message, kept in reversed(handouts):
            member.take_back(message)
            if kept is None:
                member.wait_first(message)
            self.counts["handed"] -= 1
        given = [handout.kept for handout in handouts if handout.kept is not None]
        if given and self._backlog is not None:
            self._backlog.restore(given)

    def credit(self, listener: str, messages: int) -> list[Handout]:
        """The listener has room for so many messages more: as many of the oldest it was given are confirmed."""
        member = self._members.get(listener)
        if member is None:
            return []
        member.confirm(messages)
        return self._drain(member)

    # ------------------------------------------------------------ messages

    def take(self, message: Notification, chosen: Iterable[str], *, again: bool = False) -> list[Handout]:
        """A message for the ``chosen`` listeners, each of them for its pool.

        ``again``: it was sent before, and they may have had it. They know; others of their pools do not.
        """
        handouts: list[Handout] = []
        served: set[str | None] = set()
        for listener in chosen:
            member = self._members.get(listener)
            if member is None:
                ended = self._ended.get(listener)
                if ended is not None:
                    pool = ended.pool
                elif self._backlog is not None and listener in self._backlog.pools():
                    pool = self._backlog.pools()[listener]
                else:
                    self._lose("lost_unknown", message, Reason.NO_ROUTE)
                    continue
            else:
                pool = member.pool
            if pool in served:
                self.counts["doubled"] += 1
                continue
            served.add(pool)
            if member is None or message.key not in member.keys or not member.has_room:
                if again:
                    self._lose("lost_again", message, Reason.NO_ROUTE)
                    continue
                member = self._another(message, pool)
                if member is None:
                    continue
                self.counts["rechosen"] += 1
            self._append(member, message, handouts)
        return handouts

    def requeue(self, listener: str, message: Notification, owner: Any) -> list[Handout] | None:
        """A listener of ``owner`` gives a message back: to the end of the queue of the pool's next one.

        Returns None when the listener is not one of ``owner``'s, or never listened at the message's key.
        """
        known = self.known_of(listener, owner)
        if known is None or message.key not in known.keys:
            return None
        member = self._another(message, known.pool)
        if member is None:
            return []
        self.counts["requeued"] += 1
        handouts: list[Handout] = []
        self._append(member, message, handouts)
        return handouts

    def stamp_of(self, listener: str, number: bytes, owner: Any) -> bytes | None:
        """``stamp`` of the message ``number`` that ``listener`` of ``owner`` was given lately; told once."""
        member = self._members.get(listener)
        return member.handed.pop(number, None) if member is not None and member.owner is owner else None

    def drop_all(self) -> int:
        """Forget what waits and no backlog keeps; returns how many messages that was."""
        if self._backlog is not None:
            for member in self._members.values():
                member.queue = deque(
                    each for each in member.queue if not self._backlog.put(each, member.pool)
                )
        dropped = self.waiting()
        for member in self._members.values():
            member.queue.clear()
            member.queue_bytes = 0
        return dropped

    # ------------------------------------------------------------ inside

    def _another(self, message: Notification, pool: str | None) -> Member | None:
        """The next listener of the pool and topic in turn that has room; None, and counted, when nobody has."""
        group = self._groups.get((message.key, pool))
        if group is None:
            if self._backlog is None or not self._backlog.put(message, pool):
                self._lose("lost_pool", message, Reason.NO_ROUTE)
            return None
        for _ in range(len(group)):
            member = self._members[group[0]]
            group.rotate(-1)
            if member.has_room:
                return member
        self._lose("lost_full", message, Reason.BUSY)
        return None

    def _lose(self, name: str, message: Notification, reason: Reason) -> None:
        self.counts[name] += 1
        if self.lost is not None:
            self.lost(message, reason)

    def _append(self, member: Member, message: Notification, handouts: list[Handout]) -> None:
        if not member.queue and member.is_open(message.size):
            handouts.append(self._hand_out(member, message))
        else:
            member.wait(message)
            self.waited.add(member)

    def _hand_out(self, member: Member, message: Notification, kept: Any = None) -> Handout:
        self.counts["handed"] += 1
        return member.hand_out(message, kept)

    def _drain(self, member: Member) -> list[Handout]:
        handouts: list[Handout] = []
        if self._backlog is not None and not self._drain_backlog(self._backlog, member, handouts):
            return handouts
        while member.queue and member.is_open(member.queue[0].size):
            handouts.append(self._hand_out(member, member.next_waiting()))
        return handouts

    def _drain_backlog(self, backlog: Backlog, member: Member, handouts: list[Handout]) -> bool:
        """Hand out what was kept for ``member``'s pool while it was away; False: some of it has to wait."""
        while (head := backlog.head(member.keys, member.pool)) is not None:
            number, message = head
            if not member.is_open(message.size):
                return False
            handouts.append(self._hand_out(member, message, backlog.give(number)))
        return True

    def _keep(self, backlog: Backlog, ended: Member) -> None:
        """What waited for the last one of a pool goes to the backlog, in order."""
        rest: deque[Notification] = deque()
        for message in ended.queue:
            alone = (message.key, ended.pool) not in self._groups
            if not (alone and backlog.put(message, ended.pool)):
                rest.append(message)
        ended.queue = rest

    def _move(self, ended: Member) -> list[Handout]:
        """Give what waited for ``ended`` to others, in turn, in order, before what waits for them.

        Where there is no room for all of it, the oldest are lost.
        """
        touched: dict[str, Member] = {}
        if self._backlog is not None:
            self._keep(self._backlog, ended)
        for message in reversed(ended.queue):
            member = self._another(message, ended.pool)
            if member is not None:
                member.wait_first(message)
                touched[member.id] = member
                self.counts["moved"] += 1
        self.waited.update(touched.values())
        handouts: list[Handout] = []
        for member in touched.values():
            handouts += self._drain(member)
        return handouts
