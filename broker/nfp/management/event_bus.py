"""Who is told about jobs: subscriptions of peers, and listeners in this process (NFP, "NFP/Broker-PUB").

Theory of operation. Events are numbered and held, the latest within a count and a number of bytes, so a number is
*held*, *forgotten* (older) or not given yet. Numbers begin at 1 with every start of the broker; its incarnation id
(``epoch``) tells which beginning is meant. Held events are read by number, page by page (``read``).

A subscription is a filter. What passes it is sent at once, or not at all: while the peer's queue is more than half full
the events it misses are counted, and the next thing the subscriber gets, as soon as there is room, says which numbers
they have (kind ``gap``), so that it can read them. Subscriptions for one job are found by its uuid, and are asked about
no other. Each delivery asks again whether the peer may see the job. What an event says is encoded when the first
subscriber wants it, once for all of them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from broker.bounded_queue import BoundedQueue
from broker.holdings import Holdings
from broker.nesting import read_json
from broker.nfp.access import Access
from broker.nfp.contract import EventFilter, JobEvent, Peer
from broker.nfp.frames import answer_packet
from broker.nfp.names import EVENTS, Command
from broker.nfp.principal import told_userid

SUBSCRIPTIONS_PER_HOLDER: Final = 16
"""On however many connections: a dashboard needs one or two."""
SUBSCRIPTIONS_MAX: Final = 256
"""In all: those for more than one job are asked about every event."""
LOOKED_AT_MAX: Final = 20_000
"""Events one ``read`` looks at: all that are held by default."""
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


class BufferedEvent(msgspec.Struct, eq=False, gc=False):
    """A numbered event.

    Attributes:
        sequence: its number.
        event: what happened, without the body of a result or a stream.
        time_s: wall clock, for people.
        epoch: whose number it is.
    """

    sequence: int
    event: JobEvent
    time_s: float
    epoch: str
    _encoded: bytes | None = None

    def told(self) -> dict[str, Any]:
        """Return what subscribers read.

        Keys: ``kind``, ``uuid``, ``service``, ``task``, ``holder``, ``userid`` (null: none), ``worker``, ``attempt``,
        ``status``, ``state`` (how it ended: of a finished part, or of the job), ``size`` (bytes left out or passed),
        ``time`` (wall clock seconds), ``sequence``, ``epoch`` and ``event``: what the worker said, null when it said
        nothing or no JSON. What was published and is no JSON is its text, or {"base64": ...}.
        """
        said = asdict(self.event)
        return said | {
            "userid": told_userid(self.event.userid),
            "time": round(self.time_s, 3),
            "sequence": self.sequence,
            "epoch": self.epoch,
            "event": _spoken(said.pop("body"), self.event.kind),
        }

    def encoded(self) -> bytes:
        """Return that as the JSON body of its EVENT packet, made once."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(self.told())
        return self._encoded


Listener = Callable[[JobEvent, BufferedEvent], None]
"""Gets every event at once, body included, and as it is held."""


def _held(event: JobEvent) -> JobEvent:
    """The event without the body of a result or a stream, or one that is too long."""
    size = len(event.body)
    if size and (size > BODY_MAX_BYTES or event.kind not in _SPOKEN):
        return replace(event, body=b"", size=event.size or size)
    return event


def _spoken(body: Any, kind: str) -> Any:
    if not len(body):
        return None
    try:
        return read_json(body)
    except (msgspec.MsgspecError, UnicodeError):
        if kind != "published":
            return None
    try:
        return bytes(body).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


class EventSubscription(msgspec.Struct, eq=False):
    """One filter of one peer.

    Attributes:
        peer, event_filter, ident: whose, what, and its name, the uuid of the request that made it.
        holder: whom it counts for, also when somebody else speaks there by now.
        missed: how many events it was not sent and not yet told of; ``first_missed`` and ``last_missed`` of them.
        dropped: all it was ever not sent.
    """

    peer: Peer
    event_filter: EventFilter
    ident: str
    holder: str
    missed: int = 0
    first_missed: int = 0
    last_missed: int = 0
    dropped: int = 0

    def miss(self, sequence: int) -> None:
        """The event of this number is not sent: the peer has no room."""
        self.first_missed = self.first_missed if self.missed else sequence
        self.last_missed = sequence
        self.missed += 1
        self.dropped += 1


class Gap(NamedTuple):
    """Numbers that are not held. ``first`` and ``last`` are 0 when they belong to another epoch."""

    reason: str
    first: int
    last: int


class EventBus:
    """Numbers job events, holds the latest, and delivers them.

    Args:
        epoch: the broker's incarnation id.
        access: the rules. Default: users may call everything.
        held_max: events held at most, at least 1.
        held_max_bytes: their weight at most; the latest one is held whatever it weighs.
        wall: wall clock, seconds.

    Attributes:
        epoch: as given. last: the number of the latest event, 0 before the first. held: events held.
        delivered: events sent.
        dropped: events that subscribers had no room for.
    """

    def __init__(
        self,
        epoch: str,
        access: Access | None = None,
        *,
        held_max: int = HELD_MAX,
        held_max_bytes: int = HELD_MAX_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.epoch = epoch
        self.last = 0
        self.delivered = 0
        self.dropped = 0
        self.held: BoundedQueue[BufferedEvent] = BoundedQueue(max(1, held_max), held_max_bytes)
        self._access = access or Access()
        self._wall = wall
        self._by_peer: dict[int, list[EventSubscription]] = {}
        self._by_holder: Holdings[str] = Holdings()
        self._by_uuid: dict[str, dict[EventSubscription, None]] = {}
        """Under "": those for more than one job."""
        self._listeners: dict[str, dict[Listener, None]] = {}
        """Under "": those for everything."""

    # -- what happens -----------------------------------------------------------------------------

    def publish(self, event: JobEvent) -> None:
        """Number, hold and deliver ``event``."""
        self.last = sequence = self.last + 1
        entry = BufferedEvent(sequence, _held(event), self._wall(), self.epoch)
        self.held.add(entry, ENTRY_BYTES + len(entry.event.body))
        while self.held.overflowing:
            self.held.pop()
        if self._by_uuid:
            for uuid in ("", event.uuid):
                for subscription in tuple(self._by_uuid.get(uuid, ())):
                    if self.may_follow(subscription.peer, subscription.event_filter, entry.event):
                        self._deliver(subscription, entry)
        if self._listeners:
            for uuid in ("", event.uuid):
                for listener in tuple(self._listeners.get(uuid, ())):
                    listener(event, entry)

    def may_follow(self, peer: Peer, event_filter: EventFilter, event: JobEvent) -> bool:
        """True when ``event_filter`` is for ``event`` and ``peer`` may see it now.

        What a worker published is nobody's: who knows its topic and may call the worker's service may see it.
        """
        if not event_filter.wants(event.uuid, event.service, event.kind):
            return False
        if event.kind != "published":
            return peer.principal.may_see(event.holder)
        return bool(event_filter.uuid) and self._access.may_call(peer.principal, event.service, event.task)

    def _deliver(self, subscription: EventSubscription, entry: BufferedEvent) -> None:
        peer, event = subscription.peer, entry.event
        if not peer.alive:
            self.unsubscribe(peer)
        elif self._tell_gap(subscription) and self._send(
            peer, event.service, event.uuid, entry.encoded(), entry.sequence
        ):
            self.delivered += 1
        else:
            subscription.miss(entry.sequence)
            self.dropped += 1

    def _tell_gap(self, subscription: EventSubscription) -> bool:
        """Tell which events it has missed, if there are any; False: not even for that there is room."""
        if not subscription.missed:
            return True
        last = subscription.last_missed
        body = {
            "kind": "gap",
            "subscription": subscription.ident,
            "lost": subscription.missed,
            "first": subscription.first_missed,
            "last": last,
            "sequence": last,
            "epoch": self.epoch,
        }
        if not self._send(subscription.peer, EVENTS, subscription.ident, msgspec.json.encode(body), last):
            return False
        subscription.missed = 0
        return True

    def _send(self, peer: Peer, service: str, uuid: str, body: bytes, sequence: int) -> bool:
        if not peer.has_spare_room():
            return False
        packet = answer_packet(Command.EVENT, peer.dialect, service, uuid, 200, body)
        packet.sequence = sequence
        return peer.send(packet)

    def has_room(self, peer: Peer) -> None:
        """``peer`` has room again, after it had none: it is told what it has missed."""
        for subscription in self._by_peer.get(id(peer), ()):
            self._tell_gap(subscription)

    # -- what has happened ------------------------------------------------------------------------

    def read(
        self, peer: Peer, event_filter: EventFilter, limit: int, *, since: int | None = None, epoch: str = ""
    ) -> tuple[list[dict[str, Any]], int, Gap | None]:
        """Return held events, the number up to which they were looked for, and what is missing.

        Args:
            peer: who may see them.
            event_filter: which.
            limit: how many at most; at most ``LOOKED_AT_MAX`` are looked at.
            since: those behind this number; None: all that are held.
            epoch: whose numbers ``since`` counts; "" means the present ones.

        Raises:
            ValueError: ``since`` was not given yet.
        """
        at, gap = self.missing(0 if since is None else since, epoch)
        told: list[dict[str, Any]] = []
        oldest = self.last - len(self.held) + 1
        end = min(self.last, at + LOOKED_AT_MAX)
        while at < end and len(told) < limit:
            at += 1
            entry = self.held[at - oldest]
            if self.may_follow(peer, event_filter, entry.event):
                told.append(entry.told())
        return told, at, gap if since is not None else None

    def missing(self, since: int, epoch: str) -> tuple[int, Gap | None]:
        """Return what a reader who knows ``since`` of ``epoch`` can go on behind, and what is no longer held of it.

        Raises:
            ValueError: that number was not given yet, or is negative.
        """
        before = self.last - len(self.held)
        if epoch not in ("", self.epoch):
            return before, Gap("the broker was started anew; what came before is not held", 0, 0)
        if not 0 <= since <= self.last:
            raise ValueError(f"since {since}, expected 0 to {self.last}, the latest event")
        if since < before:
            return before, Gap("no longer held", since + 1, before)
        return since, None

    # -- who wants to know ------------------------------------------------------------------------

    def subscribe(self, peer: Peer, event_filter: EventFilter, ident: str) -> None:
        """Send ``peer`` what passes ``event_filter`` from now on; the same ``ident`` again replaces the old one.

        Raises:
            ValueError: too many subscriptions.
        """
        for one in self.subscriptions():  # one that nothing matches is not noticed to be nobody's
            if not one.peer.alive:
                self.unsubscribe(one.peer)
        self.unsubscribe(peer, ident)
        holder = peer.principal.holder
        has = self._by_holder.of(holder)
        if has >= SUBSCRIPTIONS_PER_HOLDER:
            raise ValueError(f"{holder} has {has} subscriptions, at most {SUBSCRIPTIONS_PER_HOLDER}")
        if self._by_holder.total >= SUBSCRIPTIONS_MAX:
            raise ValueError(f"{self._by_holder.total} subscriptions in all, at most {SUBSCRIPTIONS_MAX}")
        subscription = EventSubscription(peer, event_filter, ident, holder)
        self._by_peer.setdefault(id(peer), []).append(subscription)
        self._by_holder.add(holder)
        self._by_uuid.setdefault(event_filter.uuid, {})[subscription] = None

    def unsubscribe(self, peer: Peer, ident: str = "") -> int:
        """End the subscription ``ident`` of ``peer``, "" all of them; returns how many ended."""
        mine = self._by_peer.get(id(peer), [])
        ended = [one for one in mine if not ident or one.ident == ident]
        for one in ended:
            mine.remove(one)
            same = self._by_uuid[one.event_filter.uuid]
            del same[one]
            if not same:
                del self._by_uuid[one.event_filter.uuid]
            self._by_holder.add(one.holder, -1)
        if not mine:
            self._by_peer.pop(id(peer), None)
        return len(ended)

    def subscriptions(self, peer: Peer | None = None) -> list[EventSubscription]:
        """Return the subscriptions of ``peer``; None: all."""
        if peer is not None:
            return list(self._by_peer.get(id(peer), ()))
        return [one for mine in self._by_peer.values() for one in mine]

    def listen(self, listener: Listener, uuid: str = "") -> Callable[[], None]:
        """Call ``listener`` for every event of the job from now on; "": of all jobs. It must not raise.

        Returns what ends it, harmless twice.
        """
        self._listeners.setdefault(uuid, {})[listener] = None

        def end() -> None:
            mine = self._listeners.get(uuid, {})
            mine.pop(listener, None)
            if not mine:
                self._listeners.pop(uuid, None)

        return end
