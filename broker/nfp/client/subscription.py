"""Events of all jobs one may see, by sequence (NFP, "NFP/Broker-PUB"; ours, deployed NorFab has no subscriptions).

Theory of operation. Any number of subscriptions of this client share one at the broker, whose wish is their union: so
events come in one order, and each subscription here filters them. Replays are read page by page and put in front of
what comes live meanwhile. When a connection is lost the broker's one begins anew behind the last number seen; what it
cannot bring back is told as an Event of kind ``gap``, with the number of missing events where it is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from broker.nfp.client.errors import RequestFailed
from broker.nfp.client.events import Event, RecentEvents
from broker.nfp.client.limits import Limits
from broker.nfp.contract import EventFilter
from broker.nfp.frames import Packet
from broker.nfp.names import EVENTS
from broker.nfp.opening import read_object

Ask = Callable[[str, str, dict[str, Any]], Awaitable[Any]]
"""service, task, kwargs -> answer."""
GAP: Final = "gap"
PAGE: Final = 1000


class Subscription:
    """Gives events for the time of a block: ``async with nfp.subscribe() as events: async for event in events``.

    Attributes:
        lost: events dropped here because nobody read them in time; ``gap`` events tell those missing at the broker.
    """

    def __init__(self, hub: Subscriptions, wanted: EventFilter, since: int | None) -> None:
        self.wanted = wanted
        self.since = since
        self.next = 0
        self._hub = hub
        self._buffer: RecentEvents = RecentEvents(hub.limits.subscription_msgs, hub.limits.stream_bytes)
        self._reader = self._buffer.reader(once=True)
        self._early: list[Event] | None = None

    async def __aenter__(self) -> Self:
        await self._hub.begin(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hub.end(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._reader)

    @property
    def ready(self) -> int:
        """Events that can be had without waiting."""
        return self._reader.ready

    @property
    def lost(self) -> int:
        """See the class."""
        return self._reader.lost

    def take(self, event: Event, size: int) -> None:
        """Take an event that came live."""
        known = event.sequence is not None and event.sequence < self.next
        wanted = event.kind == GAP or self.wanted.wants(event.uuid, event.service, event.kind)
        if known or not wanted:
            return
        if self._early is not None:
            self._early.append(event)
        else:
            self._buffer.put(event, size)

    def hold(self) -> None:
        """Keep what comes live back until ``replay``."""
        self._early = []

    def replay(self, earlier: Iterable[Event]) -> None:
        """Give what had come before, then what came live meanwhile."""
        early, self._early = self._early or [], None
        for event in (*earlier, *early):
            self._buffer.put(event)

    def finish(self, error: Exception | None = None) -> None:
        """End it: nothing more comes."""
        self._buffer.finish(error)


class Subscriptions:
    """Keeps all subscriptions of a client, over one at the broker."""

    def __init__(self, ask: Ask, limits: Limits) -> None:
        self.limits = limits
        self._ask = ask
        self._all: list[Subscription] = []
        self._ident = ""
        self._epoch = ""
        self._last = 0
        self._lock = asyncio.Lock()
        self._held: list[tuple[Event, int]] | None = None
        """Events right behind an answer that is not read yet."""

    def __len__(self) -> int:
        return len(self._all)

    async def begin(self, subscription: Subscription) -> None:
        """Add one, and return once it is in force and what it asked for has been read."""
        subscription.hold()
        self._all.append(subscription)
        try:
            now = await self._subscribe()
            subscription.next = now + 1
            replay: list[Event] = []
            if subscription.since is not None:
                replay = await self._read(subscription, subscription.since, now)
            subscription.replay(replay)
        except BaseException:
            self._all.remove(subscription)
            raise

    async def end(self, subscription: Subscription) -> None:
        """Take one away; the broker forgets ours with the last one."""
        if subscription not in self._all:
            return
        self._all.remove(subscription)
        subscription.finish()
        async with self._lock:
            if not self._all:
                self._epoch, self._last = "", 0
                await self._unsubscribe()

    async def resubscribe(self) -> None:
        """Subscribe anew in a new session, behind what was seen.

        A broker that has no subscriptions, or none for us, ends them all.
        """
        self._ident = ""
        if not self._all:
            return
        try:
            await self._subscribe()
        except RequestFailed as error:
            self.close(error)

    async def _unsubscribe(self) -> None:
        if self._ident:
            ident, self._ident = self._ident, ""
            await self._ask(EVENTS, "unsubscribe", {"subscription": ident})

    async def _subscribe(self) -> int:
        """Have at the broker what all want, and return the number of its latest event."""
        async with self._lock:
            # its answer comes behind the last event of the former one, so that number is known exactly
            await self._unsubscribe()
            kwargs = self._union()
            if self._epoch:
                kwargs |= {"since": self._last, "epoch": self._epoch}
            self._held = []
            try:
                answer = await self._ask(EVENTS, "subscribe", kwargs)
                return self._subscribed(answer)
            finally:
                held, self._held = self._held, None
                for event, size in held:
                    self._live(event, size)

    def _subscribed(self, answer: Mapping[str, Any]) -> int:
        """Read the broker's answer, and return the number of its latest event."""
        self._ident = str(answer.get("subscription") or "")
        epoch = str(answer.get("epoch") or "")
        if epoch != self._epoch:
            for subscription in self._all if self._epoch else ():
                subscription.next = 0  # another broker, or the same started anew: numbers begin again
            self._epoch, self._last = epoch, int(answer.get("since") or 0)
        for gap in gap_of(answer):
            self._give(gap, 0)
        return int(answer.get("sequence") or 0)

    def _union(self) -> dict[str, Any]:
        wanted = [one.wanted for one in self._all]
        uuids, services = {each.uuid for each in wanted}, {each.service for each in wanted}
        every_kind = not all(each.kinds for each in wanted)
        return EventFilter(
            uuids.pop() if len(uuids) == 1 else "",
            services.pop() if len(services) == 1 else "",
            frozenset() if every_kind else frozenset().union(*(each.kinds for each in wanted)),
        ).asked()

    async def _read(self, subscription: Subscription, since: int, until: int) -> list[Event]:
        wish = subscription.wanted.asked()
        found: list[Event] = []
        at = since
        while at < until:
            answer = await self._ask(EVENTS, "read", {**wish, "since": at, "limit": PAGE})
            found += gap_of(answer)
            events = [event_of(event) for event in answer.get("events") or ()]
            found += [event for event in events if event.sequence is not None and event.sequence <= until]
            if int(answer.get("next") or 0) <= at:
                break
            at = int(answer["next"])
        return found

    def received(self, packet: Packet) -> bool:
        """Take an EVENT with a sequence, or a gap that the broker tells; return False for other packets."""
        if packet.sequence is None and packet.service != EVENTS:
            return False
        said = read_object(packet.data)
        if said:
            event = event_of(said)
            if self._held is not None:
                self._held.append((event, len(packet.data)))
            else:
                self._live(event, len(packet.data))
        return True

    def _live(self, event: Event, size: int) -> None:
        self._last = max(self._last, event.sequence or 0)
        self._give(event, size)

    def _give(self, event: Event, size: int) -> None:
        for subscription in self._all:
            subscription.take(event, size)

    def close(self, error: Exception) -> None:
        """End all: the client is closed."""
        for subscription in self._all:
            subscription.finish(error)


def gap_of(answer: Mapping[str, Any]) -> list[Event]:
    """Return the gap that an answer tells, events that the broker has no more; [] when there is none."""
    gap = answer.get("gap")
    if not isinstance(gap, dict):
        return []
    first, last = int(gap.get("first") or 0), int(gap.get("last") or 0)
    lost = max(0, last - first + 1) if last else 0
    return [Event(GAP, message=str(gap.get("reason") or ""), body=gap, lost=lost)]


def event_of(said: dict[str, Any]) -> Event:
    """Return the event that the broker tells subscribers."""
    event = said.get("event")
    message = event.get("message") if isinstance(event, dict) else None
    sequence = said.get("sequence")
    return Event(
        str(said.get("kind") or ""),
        str(said.get("worker") or ""),
        str(message or said.get("reason") or ""),
        said,
        str(said.get("uuid") or ""),
        str(said.get("service") or ""),
        sequence if isinstance(sequence, int) else None,
        int(said.get("lost") or 0),
    )
