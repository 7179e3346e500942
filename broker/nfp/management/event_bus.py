"""Who is told about jobs: subscriptions of peers with replay, and listeners in this process (NFP, "NFP/Broker-PUB").

Theory of operation. Events are numbered and held by the buffer, the latest within a count and a number of bytes, so a
number is *held*, *forgotten* (older) or not given yet. Numbers begin at 1 with every start of the broker; its
incarnation id (``epoch``) tells which beginning is meant. What an event says is encoded when the first subscriber wants
it, once for all of them.

A subscription is a filter, and while it is *behind* the number it has come to. One that is not behind gets what it
wants at once, and is asked about nothing else: those for one job are found by its uuid. One whose peer's queue is long,
or that replays, is behind, and is delivered from the buffer later (``pump``). Only what the buffer forgets before it
could be delivered is lost, and that is counted exactly: the next thing the subscriber gets says so (kind ``gap``). Each
delivery asks again whether the peer may see the job.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from broker.bounded_queue import BoundedQueue
from broker.holdings import Holdings
from broker.nesting import read_json
from broker.nfp.access import Access
from broker.nfp.contract import EventFilter, JobEvent, Peer
from broker.nfp.frames import Packet, answer_packet
from broker.nfp.names import EVENTS, Command
from broker.nfp.principal import told_userid

SUBSCRIPTIONS_PER_HOLDER: Final = 16
"""On however many connections: a dashboard needs one or two."""
SUBSCRIPTIONS_MAX: Final = 256
"""In all: those for more than one job are asked about every event."""
BACKLOG_MAX: Final = 1000
"""Packets that may wait for a peer before its events wait in the buffer, so that its results still find room."""
TURN_MAX: Final = 256
"""Entries looked at for one subscription at a time: a long replay does not hold up everybody else."""

RETRY_S: Final = 0.1
"""How long a slow peer is left alone."""
HELD_MAX: Final = 8192
"""Events held, as the setting ``events_ring`` says by default."""
HELD_MAX_BYTES: Final = 32 << 20
"""Bytes of worker's words held, each event counted with ``ENTRY_BYTES`` more."""
ENTRY_BYTES: Final = 512
"""What an event weighs without its body."""
BODY_MAX_BYTES: Final = 16 << 10
"""A longer body is left out of the event, its size is told; results are fetched with GET."""
_SPOKEN: Final = frozenset({"progress", "input_request", "input_response", "result_ready", "published"})
"""Kinds whose body is the event itself; results and streams go to who asked for them."""

Later = Callable[[float, Callable[[], None]], object]
Listener = Callable[[JobEvent, int], None]
"""Gets every event with its number, body included, at once."""


class BufferedEvent(msgspec.Struct, eq=False, gc=False):
    """A numbered event.

    Attributes:
        sequence: its number.
        event: what happened, without the body of a result or a stream.
        time_s: wall clock, for people.
        weight: bytes it counts for.
    """

    sequence: int
    event: JobEvent
    time_s: float
    weight: int = ENTRY_BYTES
    _encoded: bytes | None = None

    def encoded(self, epoch: str) -> bytes:
        """The JSON body of its EVENT packet, made once; see ``told``."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(told(self, epoch))
        return self._encoded


def numbered(sequence: int, event: JobEvent, time_s: float) -> BufferedEvent:
    """The entry of ``event``: bodies of results and streams, and what is too long, are left out of it."""
    size = len(event.body)
    if size and (size > BODY_MAX_BYTES or event.kind not in _SPOKEN):
        event = replace(event, body=b"", size=event.size or size)
        size = 0
    return BufferedEvent(sequence, event, time_s, ENTRY_BYTES + size)


def told(entry: BufferedEvent, epoch: str) -> dict[str, Any]:
    """What subscribers read.

    Keys: ``kind``, ``uuid``, ``service``, ``task``, ``holder``, ``userid`` (null: none), ``worker``, ``attempt``,
    ``status``, ``state`` (how it ended: of a finished part, or of the job), ``size`` (bytes left out or passed),
    ``time`` (wall clock seconds), ``sequence``, ``epoch`` and ``event``: what the worker said, null when it said
    nothing or no JSON. What was published and is no JSON is its text, or {"base64": ...}.
    """
    event = entry.event
    return {
        "kind": event.kind,
        "uuid": event.uuid,
        "service": event.service,
        "task": event.task,
        "holder": event.holder,
        "userid": told_userid(event.userid),
        "worker": event.worker,
        "attempt": event.attempt,
        "status": event.status,
        "state": event.state,
        "size": event.size,
        "time": round(entry.time_s, 3),
        "sequence": entry.sequence,
        "epoch": epoch,
        "event": _spoken(event.body, event.kind),
    }


def _spoken(body: Any, kind: str = "") -> Any:
    if not len(body):
        return None
    try:
        return read_json(body)
    except (msgspec.MsgspecError, UnicodeError):
        return _plain(bytes(body)) if kind == "published" else None


def _plain(body: bytes) -> Any:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


class ReplayBuffer:
    """The latest entries.

    Args:
        held_max: entries held at most, at least 1.
        held_max_bytes: their weight at most; the latest one is held whatever it weighs.
    """

    __slots__ = ("entries", "last")

    def __init__(self, held_max: int = HELD_MAX, held_max_bytes: int = HELD_MAX_BYTES) -> None:
        self.entries: BoundedQueue[BufferedEvent] = BoundedQueue(max(1, held_max), held_max_bytes)
        self.last = 0
        """The number of the latest event, 0 before the first."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def first(self) -> int:
        """The oldest number held; one more than ``last`` while nothing is."""
        return self.last - len(self.entries) + 1

    def add(self, event: JobEvent, time_s: float) -> BufferedEvent:
        """Number ``event`` and hold it; whether older ones have to go ``entries`` says."""
        self.last = last = self.last + 1
        entry = numbered(last, event, time_s)
        self.entries.add(entry, entry.weight)
        return entry

    def __getitem__(self, sequence: int) -> BufferedEvent:
        """The entry of a number that is held.

        Raises:
            IndexError: it is not.
        """
        if not self.first <= sequence <= self.last:
            raise IndexError(f"event {sequence} is not held: {self.first} to {self.last} are")
        return self.entries[sequence - self.first]


class EventSubscription:
    """One filter of one peer.

    Attributes:
        peer, event_filter, ident: whose, what, and its name, the uuid of the request that made it.
        next: the number to look at next, while it is behind.
        holder: whose job it counts as.
        lost: events it wanted, was allowed to see and will never get, not yet told.
        dropped: all it ever lost.
    """

    def __init__(self, peer: Peer, event_filter: EventFilter, ident: str, begin: int) -> None:
        self.peer = peer
        self.holder = peer.principal.holder
        self.event_filter = event_filter
        self.ident = ident
        self.next = begin
        self.lost = 0
        self.first_lost = 0
        self.last_lost = 0
        self.dropped = 0

    def missed(self, entry: BufferedEvent) -> None:
        """The buffer forgets ``entry``, which it wanted, before it was delivered."""
        self.lost += 1
        self.dropped += 1
        self.first_lost = self.first_lost or entry.sequence
        self.last_lost = entry.sequence


class Gap(NamedTuple):
    """Numbers a replay cannot bring back. ``first`` and ``last`` are 0 when they belong to another epoch."""

    reason: str
    first: int
    last: int


class Subscribed(NamedTuple):
    """How a subscription begins: behind number ``since``; ``gap`` is what was asked for and is not held."""

    ident: str
    since: int
    gap: Gap | None


class EventBus:
    """Numbers job events and delivers them.

    Args:
        epoch: the broker's incarnation id.
        access: the rules. Default: users may call everything.
        held_max, held_max_bytes: the buffer's bounds.
        backlog: how many packets wait for a peer.
        backlog_max: see ``BACKLOG_MAX``.
        later: calls a function after some seconds (a loop's ``call_later``), for replays and peers that were slow;
            without it somebody has to call ``pump``.
        wall: wall clock, seconds.

    Attributes:
        epoch: as given.
        delivered: events sent.
        dropped: events subscribers lost.
    """

    def __init__(
        self,
        epoch: str,
        access: Access | None = None,
        *,
        held_max: int = HELD_MAX,
        held_max_bytes: int = HELD_MAX_BYTES,
        backlog: Callable[[Peer], int] = lambda _: 0,
        backlog_max: int = BACKLOG_MAX,
        later: Later | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.epoch = epoch
        self._access = access or Access()
        self.delivered = 0
        self.dropped = 0
        self.buffer = ReplayBuffer(held_max, held_max_bytes)
        self._backlog = backlog
        self._backlog_max = backlog_max
        self._wall = wall
        self._later = later
        self._due = False
        self._by_peer: dict[int, list[EventSubscription]] = {}
        self._by_holder: Holdings[str] = Holdings()
        self._by_uuid: dict[str, dict[EventSubscription, None]] = {}
        """Under "": those for more than one job."""
        self._all: dict[EventSubscription, None] = {}
        self._behind: dict[EventSubscription, None] = {}
        self._listeners: dict[Listener, None] = {}

    # -- what happens -----------------------------------------------------------------------------

    def publish(self, event: JobEvent) -> None:
        """Number, hold and deliver ``event``."""
        buffer = self.buffer
        entry = buffer.add(event, self._wall())
        if self._all:
            self._deliver(entry)
        while buffer.entries.overflowing:
            forgotten = buffer.entries.pop()
            if self._behind:
                self._forget(forgotten)
        if self._listeners:
            for listener in tuple(self._listeners):
                listener(event, entry.sequence)

    def _deliver(self, entry: BufferedEvent) -> None:
        event, behind = entry.event, self._behind
        for subscription in tuple(behind):
            self._advance(subscription)
        for uuid in ("", event.uuid):
            for subscription in tuple(self._by_uuid.get(uuid, ())):
                if subscription.next > entry.sequence or subscription in behind:
                    continue  # it is through, or has to wait
                if self._matches(subscription, event):
                    subscription.next = entry.sequence
                    self._advance(subscription)
        if behind:
            self._schedule(RETRY_S)

    def _forget(self, entry: BufferedEvent) -> None:
        for subscription in self._behind:
            if subscription.next <= entry.sequence:
                subscription.next = entry.sequence + 1
                if self._matches(subscription, entry.event):
                    subscription.missed(entry)
                    self.dropped += 1

    def _matches(self, subscription: EventSubscription, event: JobEvent) -> bool:
        return self.may_follow(subscription.peer, subscription.event_filter, event)

    def may_follow(self, peer: Peer, event_filter: EventFilter, event: JobEvent) -> bool:
        """True when ``event_filter`` is for ``event`` and ``peer`` may see it now.

        What a worker published is nobody's: who knows its topic and may call the worker's service may see it.
        """
        if not event_filter.wants(event.uuid, event.service, event.kind):
            return False
        if event.kind != "published":
            return peer.principal.may_see(event.holder)
        return bool(event_filter.uuid) and self._access.may_call(peer.principal, event.service, event.task)

    def pump(self) -> bool:
        """Deliver what waits (a replay proceeds by ``TURN_MAX`` each time) and end subscriptions whose peer is gone.

        Returns: True when a peer with room still has something to get: call again soon.
        """
        more = False
        for subscription in tuple(self._behind):
            more |= self._advance(subscription)
        if self._behind:
            self._schedule(0.0 if more else RETRY_S)
        return more

    def _schedule(self, delay_s: float) -> None:
        if self._later is not None and not self._due:
            self._due = True
            self._later(delay_s, self._pump_due)

    def _pump_due(self) -> None:
        self._due = False
        self.pump()

    def _advance(self, subscription: EventSubscription) -> bool:
        """Deliver as much as peer and turn allow; True when only the turn has ended."""
        peer, buffer = subscription.peer, self.buffer
        if not peer.alive:
            self.gone(peer)
            return False
        self._behind[subscription] = None
        for _ in range(TURN_MAX):
            if subscription.lost and not self._tell_gap(subscription):
                return False
            if subscription.next > buffer.last:
                del self._behind[subscription]
                return False
            entry = buffer[subscription.next]
            if self._matches(subscription, entry.event):
                if not self._send(peer, _event_packet(peer, entry, self.epoch)):
                    return False
                self.delivered += 1
            subscription.next += 1
        return True

    def _send(self, peer: Peer, packet: Packet) -> bool:
        return self._backlog(peer) < self._backlog_max and peer.send(packet)

    def _tell_gap(self, subscription: EventSubscription) -> bool:
        body = {
            "kind": "gap",
            "subscription": subscription.ident,
            "lost": subscription.lost,
            "first": subscription.first_lost,
            "last": subscription.last_lost,
            "sequence": subscription.last_lost,
            "epoch": self.epoch,
        }
        told = msgspec.json.encode(body)
        packet = _packet(subscription.peer, EVENTS, subscription.ident, told, subscription.last_lost)
        if not self._send(subscription.peer, packet):
            return False
        subscription.lost = subscription.first_lost = subscription.last_lost = 0
        return True

    # -- who wants to know ------------------------------------------------------------------------

    def subscribe(
        self, peer: Peer, event_filter: EventFilter, ident: str, *, since: int | None = None, epoch: str = ""
    ) -> Subscribed:
        """Deliver to ``peer`` what passes ``event_filter`` from now on; the same ``ident`` again replaces the old one.

        Args:
            peer: who.
            event_filter: what.
            ident: the subscription's name, at most once for a peer.
            since: also what came behind this number; None: nothing older.
            epoch: whose numbers ``since`` counts; "" means the present ones.

        Nothing is delivered before the next ``pump``, so that the answer to the request leaves first.

        Raises:
            ValueError: too many subscriptions, or ``since`` was not given yet.
        """
        begin, gap = self.begin(since, epoch)
        self._forget_the_gone()
        self.unsubscribe(peer, ident)
        holder = peer.principal.holder
        has = self._by_holder.of(holder)
        if has >= SUBSCRIPTIONS_PER_HOLDER:
            raise ValueError(f"{holder} has {has} subscriptions, at most {SUBSCRIPTIONS_PER_HOLDER}")
        if len(self._all) >= SUBSCRIPTIONS_MAX:
            raise ValueError(f"{len(self._all)} subscriptions in all, at most {SUBSCRIPTIONS_MAX}")
        subscription = EventSubscription(peer, event_filter, ident, begin)
        self._by_peer.setdefault(id(peer), []).append(subscription)
        self._by_holder.add(holder)
        self._by_uuid.setdefault(event_filter.uuid, {})[subscription] = None
        self._all[subscription] = None
        if begin <= self.buffer.last:
            self._behind[subscription] = None
        self._schedule(0.0)
        return Subscribed(ident, begin - 1, gap)

    def begin(self, since: int | None, epoch: str) -> tuple[int, Gap | None]:
        """The number a reader who knows ``since`` of ``epoch`` gets first, and what it has missed.

        Raises:
            ValueError: that number was not given yet, or is negative.
        """
        buffer = self.buffer
        if since is None:
            return buffer.last + 1, None
        if epoch not in ("", self.epoch):
            return buffer.first, Gap("the broker was started anew; what came before is not held", 0, 0)
        if not 0 <= since <= buffer.last:
            raise ValueError(f"since {since}, expected 0 to {buffer.last}, the latest event")
        if since + 1 < buffer.first:
            return buffer.first, Gap("no longer held", since + 1, buffer.first - 1)
        return since + 1, None

    def unsubscribe(self, peer: Peer, ident: str = "") -> int:
        """End the subscription ``ident`` of ``peer``, "" all of them; returns how many ended."""
        mine = self._by_peer.get(id(peer), [])
        ended = [one for one in mine if not ident or one.ident == ident]
        for one in ended:
            mine.remove(one)
            self._forget_subscription(one)
        if not mine:
            self._by_peer.pop(id(peer), None)
        return len(ended)

    def _forget_subscription(self, one: EventSubscription) -> None:
        del self._all[one]
        self._behind.pop(one, None)
        same = self._by_uuid[one.event_filter.uuid]
        del same[one]
        if not same:
            del self._by_uuid[one.event_filter.uuid]
        self._by_holder.add(one.holder, -1)

    def _forget_the_gone(self) -> None:
        """A subscription that nothing matches is not noticed to be nobody's."""
        for one in tuple(self._all):
            if not one.peer.alive:
                self.gone(one.peer)

    def gone(self, peer: Peer) -> None:
        """The connection of ``peer`` has ended, and its subscriptions with it."""
        if self._all:
            self.unsubscribe(peer)

    def reached(self, subscription: EventSubscription) -> int:
        """The number it looks at next."""
        return subscription.next if subscription in self._behind else self.buffer.last + 1

    def subscriptions(self, peer: Peer | None = None) -> list[EventSubscription]:
        """Return the subscriptions of ``peer``; None: all."""
        return list(self._all if peer is None else self._by_peer.get(id(peer), ()))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` for every event from now on; it must not raise. Returns what ends it."""
        self._listeners[listener] = None

        def end() -> None:
            self._listeners.pop(listener, None)

        return end


def _event_packet(peer: Peer, entry: BufferedEvent, epoch: str) -> Packet:
    return _packet(peer, entry.event.service, entry.event.uuid, entry.encoded(epoch), entry.sequence)


def _packet(peer: Peer, service: str, uuid: str, body: bytes, sequence: int) -> Packet:
    packet = answer_packet(Command.EVENT, peer.dialect, service, uuid, 200, body)
    packet.sequence = sequence
    return packet
