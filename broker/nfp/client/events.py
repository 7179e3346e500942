"""What happens to jobs, kept for readers: bounded, so that nobody who does not read makes the client grow.

A job keeps its own events (``RecentEvents``), for any number of readers, and its stream (``ByteStream``), for one.

Events of all jobs that one may see come by sequence to whoever subscribes (NFP, "NFP/Broker-PUB"; ours, deployed NorFab
has no subscriptions). Any number of subscriptions of a client share one at the broker, whose wish is their union: so
events come in one order, and each subscription here filters them. When a connection is lost each reads on behind the
last number that it has seen; what the broker cannot bring back is told as an Event of kind ``gap``, with the number of
missing events where it is known.

Concurrency: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from broker.bounded_queue import BoundedQueue
from broker.errors import Overrun
from broker.inbox import Inbox
from broker.nfp.client.errors import RequestFailed
from broker.nfp.contract import EventFilter
from broker.nfp.frames import Packet
from broker.nfp.names import EVENTS
from broker.nfp.opening import read_object

CHARGE_BYTES: Final = 256
"""Counted for each event on top of its own bytes: what it weighs in memory at least."""
GAP: Final = "gap"
"""Kind of the Event that stands for those that are missing."""
PAGE: Final = 1000
"""Events of a replay asked for at a time."""
Ask = Callable[..., Any]
"""``NfpClient.mmi``."""


class Event(NamedTuple):
    """Something that happened to a job.

    ``kind`` is what the worker's event says (progress, result_ready, input_request, input_response), or what an answer
    meant: queued, dispatched, accepted, finished (one worker's result), failed (one worker's error). ``body`` is the
    event, or the body of that answer, as it came.
    """

    kind: str
    worker: str = ""
    message: str = ""
    body: Any = None
    uuid: str = ""
    service: str = ""
    sequence: int | None = None
    """Of events from a subscription."""
    lost: int = 0
    """Events of a subscription that are missing in front of this one."""

    @property
    def input_id(self) -> str:
        """The id of an input_request, which ``Job.answer`` wants; "" for other events."""
        asked = self._asked()
        return str(asked.get("id") or asked.get("input_id") or "")

    @property
    def question(self) -> str:
        """The question of an input_request; "" for other events."""
        return str(self._asked().get("question") or (self.message if self.input_id else ""))

    def _asked(self) -> dict[str, Any]:
        extras = self.body.get("extras") if isinstance(self.body, dict) else None
        asked = extras.get("input_request") if isinstance(extras, dict) else None
        return asked if isinstance(asked, dict) else {}


class RecentEvents:
    """Keeps the last ``max_msgs`` events, at most ``max_bytes`` of them, for any number of readers."""

    __slots__ = ("_changed", "_ended", "_events", "_first")

    def __init__(self, max_msgs: int, max_bytes: int) -> None:
        self._changed: asyncio.Future[None] | None = None
        self._ended: Exception | None = None
        self._events: BoundedQueue[Event] = BoundedQueue(max_msgs, max_bytes)
        self._first = 0

    def finish(self, end: Exception | None = None) -> None:
        """End it: readers end behind what is kept, with ``end`` where it is an error. The first end counts."""
        if self._ended is None:
            self._ended = end or StopAsyncIteration()
            self._wake()

    async def wait_for_change(self) -> None:
        """Wait for more, or for the end."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)  # others may wait for it, too

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    def put(self, event: Event, size: int = 0) -> None:
        """Add ``event`` of ``size`` bytes; the oldest make room for it. After the end nothing is added."""
        if self._ended is not None:
            return
        self._events.add(event, size + CHARGE_BYTES)
        while self._events.overflowing:
            self._events.pop()
            self._first += 1
        self._wake()

    def forget(self, number: int) -> None:
        """Keep nothing in front of the event ``number``."""
        while self._events and self._first < number:
            self._events.pop()
            self._first += 1

    def reader(self, *, from_start: bool = True, once: bool = False) -> EventReader:
        """Return a reader of what is kept and of what comes; ``from_start`` False: only of what comes.

        What is read ``once`` is kept for nobody else.
        """
        return EventReader(self, self._first if from_start else self._first + len(self._events), once)

    def ready(self, number: int) -> int:
        """Return how many from ``number`` on can be had at once."""
        return self._first + len(self._events) - max(number, self._first)

    def at(self, number: int) -> tuple[int, Event] | None:
        """Return the event ``number``, or the oldest behind it, with its number; None while there is none.

        Raises:
            Exception: the end, as ``finish`` was told it, when nothing is left.
        """
        number = max(number, self._first)
        if number - self._first < len(self._events):
            return number, self._events[number - self._first]
        if self._ended is not None:
            raise self._ended
        return None


class EventReader:
    """Reads events, ``async for event in reader``; for one task at a time.

    Attributes:
        lost: events that were dropped before this reader came to them.
    """

    __slots__ = ("_buffer", "_next", "_once", "lost")

    def __init__(self, buffer: RecentEvents, start: int, once: bool) -> None:
        self._buffer = buffer
        self._next = start
        self._once = once
        self.lost = 0

    @property
    def ready(self) -> int:
        """Events that can be had without waiting."""
        return self._buffer.ready(self._next)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while (found := self._buffer.at(self._next)) is None:
            await self._buffer.wait_for_change()
        number, event = found
        self.lost += number - self._next
        self._next = number + 1
        if self._once:
            self._buffer.forget(self._next)
        return event


class ByteStream(Inbox[bytes]):
    """Keeps the chunks of a stream for one reader: ``async for chunk in job.stream``."""

    __slots__ = ()

    def add(self, chunk: bytes) -> None:
        """Keep ``chunk``. One that does not fit ends the stream: behind a gap the rest is worth nothing."""
        if not self.put(chunk, len(chunk)):
            waits = f"{self.bytes} bytes of a stream wait for a reader that does not read"
            self.finish(Overrun(waits, lost=1))

    @property
    def ready(self) -> int:
        """Chunks that can be had without waiting."""
        return len(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self.get()


# -- subscriptions --------------------------------------------------------------------------------


class Subscription(EventReader):
    """Gives events for the time of a block: ``async with nfp.subscribe() as events: async for event in events``.

    Attributes:
        lost: events dropped here because nobody read them in time; ``gap`` events tell those missing at the broker.
        wanted: which events. seen: the number of the latest one that is known here, wanted or not; None: of the latest
        when it begins. epoch: in which of the broker's lives that number was given; "" before it begins.
    """

    __slots__ = ("_all", "epoch", "seen", "wanted")

    def __init__(self, subscriptions: Subscriptions, wanted: EventFilter, since: int | None) -> None:
        super().__init__(RecentEvents(*subscriptions.bounds), 0, once=True)
        self.wanted = wanted
        self.seen = since
        self.epoch = ""
        self._all = subscriptions

    async def __aenter__(self) -> Self:
        await self._all.begin(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._all.end(self)

    def take(self, event: Event, size: int = 0) -> None:
        """Take an event, in the order of their numbers; one that is known already is passed over."""
        if event.kind == GAP:
            self._buffer.put(event, size)
        elif event.sequence is not None and event.sequence > (self.seen or 0):
            self.seen = event.sequence
            if self.wanted.wants(event.uuid, event.service, event.kind):
                self._buffer.put(event, size)

    def finish(self, error: Exception | None = None) -> None:
        """End it: nothing more comes."""
        self._buffer.finish(error)


class Subscriptions:
    """All subscriptions of a client, over one at the broker.

    Whenever that one is made anew, in a new session or because what all want together has changed, each subscription
    reads from the broker's numbered events what it has not seen. So nothing depends on the order in which the broker
    ends the one and begins the other. The same is done where the broker says that it had no room for some (``gap``).

    Args:
        ask: ``NfpClient.mmi``. again: has ``resubscribe`` called soon. bounds: messages and bytes that each keeps.
    """

    def __init__(self, ask: Ask, again: Callable[[], object], bounds: tuple[int, int]) -> None:
        self.bounds = bounds
        self._send = ask
        self._all: list[Subscription] = []
        self._ident: str | None = None
        """Of the one at the broker; "": whichever it has, for its answer has not come; None: none."""
        self._lock = asyncio.Lock()
        self._again = again
        self._held: BoundedQueue[tuple[Event, int]] | None = None
        """Events that come while the subscriptions change: in front of them stands what is still to be read."""
        self._cut = False
        """There was no room for all of them."""

    def __len__(self) -> int:
        return len(self._all)

    async def begin(self, subscription: Subscription) -> None:
        """Add one, and return once it is in force and what it asked for has been read."""
        async with self._lock:
            self._all.append(subscription)
            try:
                await self._renew()
            except BaseException:
                self._all.remove(subscription)
                if self._all:
                    self._again()  # the others have not read what they missed meanwhile
                raise

    async def end(self, subscription: Subscription) -> None:
        """Take one away; the broker forgets ours with the last one."""
        subscription.finish()
        if subscription in self._all:
            self._all.remove(subscription)
            async with self._lock:
                if not self._all:
                    await self._unsubscribe()

    def forget_session(self) -> None:
        """Note that the broker's one has ended with its session; what it brought and nobody got is read in the next."""
        self._ident = None
        if self._held is not None:
            self._hold_back()

    async def resubscribe(self) -> None:
        """Subscribe anew, and read what was missed meanwhile.

        A broker that has no subscriptions, or none for us, ends them all.
        """
        async with self._lock:
            try:
                if self._all:
                    await self._renew()
            except RequestFailed as error:
                self.close(error)

    async def _ask(self, task: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        answer = await self._send(task, service=EVENTS, kwargs=kwargs)
        if not isinstance(answer, dict):
            raise RequestFailed(f"{EVENTS}: {str(answer)[:200]}", 400)
        return answer

    async def _unsubscribe(self) -> None:
        if self._ident is not None:
            ident, self._ident = self._ident, None
            await self._ask("unsubscribe", {"subscription": ident})

    async def _renew(self) -> None:
        """Have at the broker what all want now, and read what each of them has missed."""
        self._hold_back()
        await self._unsubscribe()
        self._ident = ""
        answer = await self._ask("subscribe", self._union())
        self._ident = str(answer.get("subscription") or "")
        epoch, latest = str(answer.get("epoch") or ""), int(answer.get("sequence") or 0)
        for subscription in tuple(self._all):
            await self._read(subscription, epoch, latest)
        held, cut, self._held = self._held, self._cut, None
        for event, size in held or ():
            if self._held is None:
                self._give(event, size)
        if cut and self._held is None:
            self._read_soon()

    def _union(self) -> dict[str, Any]:
        wanted = [one.wanted for one in self._all]
        uuids, services = {each.uuid for each in wanted}, {each.service for each in wanted}
        every_kind = not all(each.kinds for each in wanted)
        return EventFilter(
            uuids.pop() if len(uuids) == 1 else "",
            services.pop() if len(services) == 1 else "",
            frozenset() if every_kind else frozenset().union(*(each.kinds for each in wanted)),
        ).asked()

    async def _read(self, one: Subscription, epoch: str, latest: int) -> None:
        """Read for one, page by page, what it has not seen up to the number ``latest`` of ``epoch``."""
        if not one.epoch:  # it begins
            one.epoch, one.seen = epoch, latest if one.seen is None else min(one.seen, latest)
        while one.epoch != epoch or (one.seen or 0) < latest:
            wish = {**one.wanted.asked(), "since": one.seen, "epoch": one.epoch, "limit": PAGE}
            answer = await self._ask("read", wish)
            told = str(answer.get("epoch") or epoch)
            if one.epoch != told:  # a broker that was started anew: numbers begin again
                one.epoch, one.seen = told, 0
            before = one.seen
            for event in (*read_gap(answer), *map(read_event, answer.get("events") or ())):
                one.take(event)
            one.seen = max(one.seen or 0, int(answer.get("next") or 0))
            if one.seen == before or told != epoch:  # it has no more, whatever it said; or is yet another one
                return

    def take(self, packet: Packet) -> bool:
        """Take an EVENT with a sequence, or a gap that the broker tells; return False for other packets."""
        if packet.sequence is None and packet.service != EVENTS:
            return False
        said = read_object(packet.data)
        if said:
            event = read_event(said)
            if self._held is None:
                self._give(event, len(packet.data))
            elif self._lock.locked():  # else a change has failed: what comes until the next one is read then
                self._hold(event, len(packet.data))
        return True

    def _hold_back(self) -> None:
        """Give nothing from now on until all have read what they missed."""
        self._held, self._cut = BoundedQueue(*self.bounds), False

    def _hold(self, event: Event, size: int) -> None:
        """Keep ``event`` for later; what there is no room for is read, and all that follows it."""
        if self._held is not None and not self._cut:
            self._cut = not self._held.put((event, size), size + CHARGE_BYTES)

    def _read_soon(self) -> None:
        """What the broker left out, or there was no room for here, stands in front of all that comes now."""
        self._hold_back()
        self._again()

    def _give(self, event: Event, size: int) -> None:
        if event.kind != GAP:
            for subscription in self._all:
                subscription.take(event, size)
        elif any((one.seen or 0) < (event.sequence or 0) for one in self._all):
            self._read_soon()

    def close(self, error: Exception) -> None:
        """End all: the client is closed, or what they missed cannot be read."""
        for subscription in self._all:
            subscription.finish(error)


def read_gap(answer: Mapping[str, Any]) -> list[Event]:
    """Return the gap that an answer tells, events that the broker has no more; [] when there is none."""
    gap = answer.get("gap")
    if not isinstance(gap, dict):
        return []
    first, last = int(gap.get("first") or 0), int(gap.get("last") or 0)
    lost = max(0, last - first + 1) if last else 0
    return [Event(GAP, message=str(gap.get("reason") or ""), body=gap, lost=lost)]


def read_event(said: dict[str, Any]) -> Event:
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
