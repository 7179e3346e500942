"""Who listens to a pipeline on this node: in turns, with what waits for each of them, within its credit (pure).

Listeners of one address, or of one pool of a topic, form a ring and take turns. Each has a queue, bounded in messages
and bytes, and a **window**: as many messages as it gave credit for, and no more unconfirmed bytes than it wants, or its
queue may hold; one message always fits. What is within the window is sent, all else waits until credit comes.

A listener whose queue is nearly full **asks** that its pipeline's entry is not read, so that a burst is slowed to what
the slowest server takes, and nothing of it is lost: its senders wait, as their ``retry`` says. All servers of the node
share the entry, so a listener asks no longer when

* its queue has room again, or
* the queue has not moved for ``STILL_S``: whoever it is for is frozen, and may not ask before it has moved, or
* it has not come to have room within ``PAUSE_MAX_S``: it is too slow for others to be kept waiting, and may not ask
  again before it has had room.

What is for such a one and finds its queue full is lost, as far as no other listener can have it. Time is counted in
looks, not seconds: a proxy that was stopped, with its servers or alone, has looked but once meanwhile.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from broker.memory import compact
from broker.oslo.records import Opening

CREDIT_MAX: Final = 10_000
"""Messages a listener can have room for at once: the default size of an application's inbox."""
NO_QUEUE: Final = (0, 1 << 62)
"""Limits where nothing waits for a listener: its window is as many bytes as it says."""
FULL: Final = 0.9
"""The part of a queue from which on it asks for a pause: the rest is for what was under way."""
ROOM: Final = 0.85
"""The part below which it has room again. Close to the other one, so that pauses are short: a sender that can hand
nothing over for a second takes the node for one that is down, and one that is not even heard for the time of keep-alive
ends the connection."""
# read where they are used, not folded by the compiler: tests change them
STILL_S: float = 0.5
PAUSE_MAX_S: float = 5.0
LOOK_S: Final = 0.1
"""Between two looks while somebody asks for a pause."""

Key = tuple[str, str]
"""Exchange and topic; that of a notification has its priority at the end."""
Group = tuple[str, str, str, str | None]
"""Who takes turns: exchange, topic, server ("" all of the topic), pool (None outside of notifications, and one there).
"""


class WaitingMessage(NamedTuple):
    """A message for one listener."""

    head: bytes
    body: bytes
    size: int
    """Bytes of both."""
    key: Key = ("", "")
    id: bytes = b""
    stamp: bytes = b""
    """Notifications: what is remembered under ``id`` of who sent it and what it was."""


class Listener:
    """One listener.

    Args:
        opening: what it said when it opened; what it has already, of a proxy before this one, is confirmed first.
        owner: the process that it belongs to, opaque here.
        limits: messages and bytes that may wait.

    Attributes:
        alive: False once it has ended: whoever remembers it has to choose again.
        reachable: its process takes what it is sent; else everything waits.
        queue: what waits, oldest first.
        flying: sizes of what was sent and is not confirmed yet.
        handed: stamps of notifications that it was given lately, by id; see ``pools``.
        moved: the look at which it last confirmed something, or began to wait.
        tail: the address of a message for any server of its topic that it shall have.
    """

    __slots__ = (
        "alive", "credit", "flying", "flying_bytes", "handed", "id", "keys", "limits", "moved", "owner", "pool",
        "queue", "queue_bytes", "reachable", "records", "tail", "window_bytes",
    )  # fmt: skip

    def __init__(self, opening: Opening, owner: Any, limits: tuple[int, int]) -> None:
        self.id = opening.listener
        self.records = opening.records
        self.keys: tuple[Key, ...] = tuple(
            dict.fromkeys((each.exchange, each.topic) for each in opening.records)
        )
        self.pool = opening.pool
        self.owner = owner
        self.limits = limits
        self.alive = self.reachable = True
        self.credit = min(opening.credit, CREDIT_MAX)
        self.window_bytes = min(opening.credit_bytes or limits[1], limits[1])
        self.queue: deque[WaitingMessage] = deque()
        self.queue_bytes = self.flying_bytes = self.moved = 0
        self.flying: deque[int] = deque()
        self.handed: dict[bytes, bytes] = {}
        self.tail = self.tail_for("")
        size = opening.held_bytes
        # calls that came again needed no credit
        for left in range(min(opening.held, self.credit + CREDIT_MAX), 0, -1):
            self.fly(size // left)
            size -= size // left

    def tail_for(self, server: str) -> bytes:
        """The address (see ``frames``) of a message to ``server`` that this listener shall have."""
        record = self.records[0]
        return f"{record.exchange}\0{record.topic}\0{server}\0{self.id}".encode()

    def groups(self) -> Iterable[Group]:
        """The rings that it is in."""
        return dict.fromkeys(
            (each.exchange, each.topic, server, each.pool)
            for each in self.records
            for server in ("", each.server)
        )

    # ------------------------------------------------------------ the queue

    @property
    def filled(self) -> float:
        """The part of its queue that is in use, of messages or bytes, whichever is more."""
        msgs_max, bytes_max = self.limits
        return max(len(self.queue) / max(msgs_max, 1), self.queue_bytes / max(bytes_max, 1))

    @property
    def has_room(self) -> bool:
        """Whether one more may wait: the one that makes the queue full still fits."""
        msgs_max, bytes_max = self.limits
        return not self.queue or (len(self.queue) < msgs_max and self.queue_bytes < bytes_max)

    def wait(self, message: WaitingMessage, *, first: bool = False) -> None:
        """``message`` waits behind the others, or before them."""
        if first:
            self.queue.appendleft(message)
        else:
            self.queue.append(message)
        self.queue_bytes += message.size

    def next_waiting(self) -> WaitingMessage:
        """Take the first that waits."""
        message = self.queue.popleft()
        self.queue_bytes -= message.size
        return message

    # ------------------------------------------------------------ the window

    @property
    def has_credit(self) -> bool:
        """Whether it may have one more that cannot wait: the one that makes the window full still fits."""
        return self.credit > 0 and self.flying_bytes < self.window_bytes

    def takes(self, size: int) -> bool:
        """Whether a message of so many bytes may be sent to it now."""
        return (
            self.reachable
            and self.credit > 0
            and (not self.flying or self.flying_bytes + size <= self.window_bytes)
        )

    def fly(self, size: int) -> None:
        """A message of so many bytes was sent: to be confirmed."""
        self.credit -= 1
        self.flying.append(size)
        self.flying_bytes += size

    def forget(self, size: int) -> None:
        """A message of so many bytes was dropped on its way."""
        if size in self.flying:  # else it has confirmed what it never had
            self.flying.remove(size)
            self.flying_bytes -= size
            self.credit += 1

    def confirm(self, messages: int) -> None:
        """It has room for so many more; as many of the oldest that it was sent are confirmed."""
        self.credit = min(self.credit + messages, CREDIT_MAX)
        for _ in range(min(messages, len(self.flying))):
            self.flying_bytes -= self.flying.popleft()

    def status(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "listener": self.id,
            "attached": self.reachable,
            "credit": self.credit,
            "waiting": len(self.queue),
            "unconfirmed": len(self.flying),
        }


class _Ring:
    """Listeners in turns. Who has ended keeps a place, and has no turn, until half of all places are such."""

    __slots__ = ("_next", "_places", "size")

    def __init__(self) -> None:
        self.size = 0
        self._places: list[Listener] = []
        self._next = 0

    def add(self, listener: Listener) -> None:
        self._places.append(listener)
        self.size += 1

    def remove(self) -> None:
        """One of them is not alive any more."""
        self.size -= 1
        if 2 * self.size <= len(self._places):
            self._next = sum(listener.alive for listener in self._places[: self._next])
            self._places = [listener for listener in self._places if listener.alive]

    def turn(self) -> Listener:
        """Whose turn it is: there has to be somebody."""
        while True:
            at = self._next if self._next < len(self._places) else 0
            self._next = at + 1
            if self._places[at].alive:
                return self._places[at]


class Listeners:
    """All listeners of one pipeline on this node.

    Args:
        limits: messages and bytes that may wait for each of them.
        send: sends a message to a listener; returns more than 0 when its process has it or will, 0 when that takes
            nothing now (``resume`` says that it does again), less when it is gone.
        drops: whether a message that waits is not to be sent any more; who says so counts it. None: nothing is dropped.

    Attributes:
        asking: those for whom the entry is not to be read.
    """

    def __init__(
        self,
        limits: tuple[int, int],
        send: Callable[[Listener, WaitingMessage], int],
        drops: Callable[[WaitingMessage], bool] | None = None,
    ) -> None:
        self.asking: set[Listener] = set()
        self._limits = limits
        self._send = send
        self._drops = drops
        self._listeners: dict[str, Listener] = {}
        self._rings: dict[Group, _Ring] = {}
        self._keys: dict[Key, int] = {}
        self._blocked: dict[Any, dict[Listener, None]] = {}
        self._full: dict[Listener, int] = {}
        self._looks = 0

    def __len__(self) -> int:
        return len(self._listeners)

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._listeners.values())

    def __contains__(self, listener: object) -> bool:
        return listener in self._listeners

    def get(self, listener: str) -> Listener | None:
        """The listener with that id."""
        return self._listeners.get(listener)

    # ------------------------------------------------------------ who is here

    def open(self, opening: Opening, owner: Any) -> Listener:
        """One more listener; its id must be new."""
        listener = Listener(opening, owner, self._limits)
        self._listeners[listener.id] = listener
        for key in listener.keys:
            self._keys[key] = self._keys.get(key, 0) + 1
        for group in listener.groups():
            self._rings.setdefault(group, _Ring()).add(listener)
        return listener

    def close(self, listener: str) -> Listener | None:
        """A listener has ended; what waits for it is still in its queue. None: not known."""
        ended = self._listeners.pop(listener, None)
        if ended is None:
            return None
        ended.alive = ended.reachable = False
        for key in ended.keys:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
        for group in ended.groups():
            ring = self._rings[group]
            ring.remove()
            if not ring.size:
                del self._rings[group]
        self._unblock(ended)
        self._full.pop(ended, None)
        self.asking.discard(ended)
        self._listeners = compact(self._listeners)
        self._rings = compact(self._rings)
        return ended

    def listened(self, key: Key) -> bool:
        """Whether anybody listens there."""
        return key in self._keys

    def is_here(self, key: Key, pool: str | None) -> bool:
        """Whether a listener of that pool is at that key."""
        return (*key, "", pool) in self._rings

    def topics(self) -> dict[str, int]:
        """For STATUS: how many listen to each topic."""
        return {f"{exchange}/{topic}": number for (exchange, topic), number in self._keys.items()}

    # ------------------------------------------------------------ turns

    def fitting(self, exchange: str, topic: str, server: str, listener: str) -> Listener | None:
        """The listener with that id, when it is here and listens to that address; ``server`` "" any."""
        known = self._listeners.get(listener)
        if known is None:
            return None
        record = known.records[0]
        fits = (record.exchange, record.topic) == (exchange, topic) and server in ("", record.server)
        return known if fits else None

    def turn(self, group: Group) -> Listener | None:
        """Whose turn it is, strictly round robin. None: nobody is there."""
        ring = self._rings.get(group)
        return None if ring is None else ring.turn()

    def turns(self, group: Group, most: int | None = None) -> Iterator[Listener]:
        """All listeners of a group, or ``most`` of them, beginning with whose turn it is."""
        ring = self._rings.get(group)
        if ring is not None:
            for _ in range(ring.size if most is None else min(most, ring.size)):
                yield ring.turn()

    # ------------------------------------------------------------ what they are given

    def waiting(self) -> int:
        """Messages in all queues."""
        return sum(len(listener.queue) for listener in self)

    def status(self) -> list[dict[str, Any]]:
        """Every listener, as plain data."""
        return [listener.status() for listener in self]

    def offer(self, listener: Listener, message: WaitingMessage) -> bool:
        """Send ``message`` to it, or let it wait there; False: there is no room."""
        if not listener.has_room:
            self._drain(listener)  # what is not to be sent any more makes room, in its window, too
        if not listener.queue and listener.takes(message.size):
            if self._hand(listener, message):
                return True
        elif not listener.has_room:
            return False
        listener.wait(message)
        self._press(listener)
        return True

    def confirm(self, listener: Listener, messages: int) -> None:
        """See ``Listener.confirm``; what waits is sent as far as that goes."""
        listener.confirm(messages)
        if messages:
            listener.moved = self._looks
        self._drain(listener)

    def resume(self, owner: Any) -> None:
        """The process ``owner`` takes something again: its listeners that had to wait for that are sent more, until it
        takes no more.
        """
        blocked = self._blocked.get(owner, {})
        for listener in list(blocked):
            self._unblock(listener)
            listener.reachable = True
            self._drain(listener)
            if not listener.reachable:
                break  # it is the last of them now

    @property
    def blocked(self) -> bool:
        """Whether anybody waits for ``resume``."""
        return bool(self._blocked)

    def _unblock(self, listener: Listener) -> None:
        blocked = self._blocked.get(listener.owner)
        if blocked is not None:
            blocked.pop(listener, None)
            if not blocked:
                del self._blocked[listener.owner]

    def _hand(self, listener: Listener, message: WaitingMessage) -> bool:
        outcome = self._send(listener, message)
        if outcome > 0:
            listener.fly(message.size)
            return True
        listener.reachable = False
        if outcome == 0:  # else its connection has ended, and it does in a moment
            self._blocked.setdefault(listener.owner, {})[listener] = None
        return False

    def _drain(self, listener: Listener) -> None:
        """Send what waits for it, as far as its window and its process take it."""
        self._drop(listener)
        while listener.queue and listener.takes(listener.queue[0].size):
            message = listener.next_waiting()
            if not self._hand(listener, message):
                listener.wait(message, first=True)
                break
            self._drop(listener)
        if listener in self._full and listener.filled < ROOM:
            self._content(listener)

    def _drop(self, listener: Listener) -> None:
        """Drop the oldest that are not to be sent any more."""
        while self._drops is not None and listener.queue and self._drops(listener.queue[0]):
            listener.next_waiting()

    # ------------------------------------------------------------ who asks for a pause

    def _press(self, listener: Listener) -> None:
        """Something began to wait for it."""
        if len(listener.queue) == 1:
            listener.moved = self._looks
        if listener.filled >= FULL:
            self._full.setdefault(listener, self._looks)
            if not self._gave_up(listener):
                self.asking.add(listener)

    def _content(self, listener: Listener) -> None:
        self._full.pop(listener, None)
        self.asking.discard(listener)

    def _gave_up(self, listener: Listener) -> str:
        """Why it may not ask: the name under which that is counted; "" it may."""
        if (self._looks - listener.moved) * LOOK_S > STILL_S:
            return "pauses_still"
        return "pauses_slow" if (self._looks - self._full[listener]) * LOOK_S > PAUSE_MAX_S else ""

    def look(self) -> list[str]:
        """``LOOK_S`` has passed since somebody began to ask, or since the last look; returns the names under which
        those are counted who ask no longer, though they have no room.
        """
        self._looks += 1
        ended = []
        for listener in list(self.asking):
            if listener.filled < ROOM:
                self._content(listener)
            elif name := self._gave_up(listener):
                self.asking.discard(listener)
                ended.append(name)
        return ended
