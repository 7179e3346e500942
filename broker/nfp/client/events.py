"""What happens to jobs, kept for readers: bounded, so that nobody who does not read makes the client grow.

Concurrency: one event loop. A RecentEvents has any number of readers, each at its own place; a ByteStream has one.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final, NamedTuple, Self

from broker.bounded_queue import BoundedQueue
from broker.errors import Overrun
from broker.inbox import Inbox

CHARGE_BYTES: Final = 256
"""Counted for each event on top of its own bytes: what it weighs in memory at least."""


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

    async def changed(self) -> None:
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
            await self._buffer.changed()
        number, event = found
        self.lost += number - self._next
        self._next = number + 1
        if self._once:
            self._buffer.forget(self._next)
        return event


class ByteStream:
    """Keeps the chunks of a stream for one reader: ``async for chunk in job.stream``.

    Attributes:
        dropped: chunks that did not fit; the stream ended with Overrun in front of the first.
    """

    __slots__ = ("_inbox", "dropped")

    def __init__(self, max_bytes: int) -> None:
        self._inbox: Inbox[bytes] = Inbox(sys.maxsize, max_bytes)
        self.dropped = 0

    def put(self, chunk: bytes) -> None:
        """Keep ``chunk``. One that does not fit ends the stream: behind a gap the rest is worth nothing."""
        if not self._inbox.put(chunk, len(chunk)):
            self.dropped += 1
            waits = f"{self._inbox.bytes} bytes of a stream wait for a reader that does not read"
            self.finish(Overrun(waits, lost=1))

    @property
    def ready(self) -> int:
        """Chunks that can be had without waiting."""
        return len(self._inbox)

    def finish(self, end: Exception | None = None) -> None:
        """End it: the reader ends behind what is kept, with ``end`` where it is an error. The first end counts."""
        self._inbox.finish(end or StopAsyncIteration())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self._inbox.get()
