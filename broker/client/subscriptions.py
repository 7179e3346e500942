"""Events by topic prefix (RFC 3, "Event Message Type"; deployed ``event.subscribe``).

Theory of operation. The broker is told about a prefix once, however many subscriptions here ask for it
(reference-counted), and delivers an event once, however many prefixes match; each subscription object with a
prefix that matches then gets it once, so that its events come in the order of the link. Subscribing waits for the
broker's answer; unsubscribing does not, because the link keeps order: what is subscribed later reaches the broker
later.

Events of before come first (``since``), page by page as they are read. What comes live meanwhile is kept, as much as
fits the buffer: rank 0 keeps it, too, and is asked again where it was too much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from broker.bounded_queue import BoundedQueue
from broker.client.calls import same_error
from broker.client.past_events import Caller, Page, past_page
from broker.errors import HeadgateError, LinkError, Missed, Overrun, ProtocolError, RpcError
from broker.serving.request import Received
from broker.wire.event_history import AHEAD, distance
from broker.wire.message import PRIVATE, Message, request
from broker.wire.parts import part_data
from broker.wire.payload import decode_json, encode_json
from broker.wire.topic import encode_topic

if TYPE_CHECKING:
    from types import TracebackType

    from broker.inbox import Inbox

Overflow: TypeAlias = Literal["raise", "mark"]
"""The effect of a full buffer: ``raise`` Overrun there, or ``mark`` it in ``Event.lost``."""

Since: TypeAlias = int | tuple[str, int] | timedelta
"""Where events begin: behind a number of rank 0's, behind one of the epoch that it was given in, or so long ago."""

Ask: TypeAlias = Callable[[Message], "asyncio.Future[Message]"]


def distinct(prefixes: Iterable[str]) -> list[str]:
    """The prefixes without those that another one covers: an event then matches one of them only.

    >>> distinct(["job.new", "job", "log", "log"])
    ['job', 'log']
    """
    kept: list[str] = []
    for prefix in sorted(set(prefixes)):
        # sorted, so that a prefix stands right behind the one that covers it
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


class Event(Received):
    """One event.

    Attributes:
        lost: how many events this subscription had no room for right before this one; 0 almost always.
        missed: why others may be missing right before this one: the link was lost, say; "" almost always.
    """

    __slots__ = ("lost", "missed")

    def __init__(self, message: Message, lost: int = 0, missed: str = "") -> None:
        super().__init__(message)
        self.lost = lost
        self.missed = missed

    @property
    def sequence(self) -> int:
        """Number of the event in the whole instance, from 1 on; other topics leave gaps."""
        return self.message.sequence

    @property
    def private(self) -> bool:
        """True when only the sender's userid and the owner received it."""
        return bool(self.message.flags & PRIVATE)


class SubscribedPrefix:
    """One prefix the broker knows about, and the subscriptions that want it."""

    __slots__ = ("accepted", "members", "was_live")

    def __init__(self, accepted: asyncio.Future[Message]) -> None:
        self.accepted = accepted
        self.members: list[Subscription] = []
        self.was_live = False

    @property
    def live(self) -> bool:
        """Whether the broker has accepted it, or did over a link before."""
        return self.was_live or (_succeeded(self.accepted) and not self.accepted.result().errnum)


class SubscriptionTable:
    """All prefixes of one handle.

    Attributes:
        sequence: number of the last event that came, or that is known to have been in front of the first one.
        epoch: whose number that is; None: the far end did not say.
    """

    __slots__ = ("_ask", "_by_prefix", "epoch", "sequence")

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._by_prefix: dict[bytes, SubscribedPrefix] = {}
        self.sequence = 0
        self.epoch: str | None = None

    async def join(self, member: Subscription) -> None:
        """Add ``member``; returns once the broker knows its prefixes.

        Raises:
            RpcError: the broker refused one, and ``member`` has none. LinkError: the link ended.
        """
        try:
            joined = [self._add(prefix, member) for prefix in member.prefixes]
            # shielded: another subscription may wait for the same answer
            answers = await asyncio.gather(*(asyncio.shield(entry.accepted) for entry in joined))
            for prefix, entry, answer in zip(member.prefixes, joined, answers, strict=True):
                if answer.errnum:
                    # the broker does not know the prefix: ``leave`` has nothing to unsubscribe from
                    entry.members.remove(member)
                    if self._by_prefix.get(prefix) is entry:
                        del self._by_prefix[prefix]
                    raise RpcError(answer.errnum, "", f"event.subscribe {prefix.decode(errors='replace')!r}")
        except BaseException:
            self.leave(member)
            raise

    async def join_again(self, member: Subscription, resumed: asyncio.Future[Message]) -> None:
        """Add ``member``, the first of this link, whose prefixes the far end gives once it has ``resumed``.

        Raises:
            LinkError: the link ended before.
        """
        for prefix in member.prefixes:
            entry = self._by_prefix[prefix] = SubscribedPrefix(resumed)
            entry.members.append(member)
        try:
            await asyncio.shield(resumed)
            member.epoch = self.epoch or ""
        except BaseException:
            self.leave(member)
            raise

    def _add(self, prefix: bytes, member: Subscription) -> SubscribedPrefix:
        entry = self._by_prefix.get(prefix)
        if entry is None:
            entry = self._by_prefix[prefix] = SubscribedPrefix(self._tell("event.subscribe", prefix))
            entry.accepted.add_done_callback(self._accepted)
        entry.members.append(member)
        return entry

    def leave(self, member: Subscription) -> None:
        """Remove ``member``; the last one of a prefix tells the broker, without waiting."""
        for prefix in member.prefixes:
            entry = self._by_prefix.get(prefix)
            if entry is None or member not in entry.members:
                continue
            entry.members.remove(member)
            if not entry.members:
                del self._by_prefix[prefix]
                try:
                    self._tell("event.unsubscribe", prefix)
                except HeadgateError:
                    continue  # a link that has ended holds no subscriptions; events nobody here wants are dropped

    def _tell(self, topic: str, prefix: bytes) -> asyncio.Future[Message]:
        return self._ask(request(topic, encode_json({"topic": _text(prefix)})))

    def _accepted(self, answer: asyncio.Future[Message]) -> None:
        """A gateway tells the number after which a prefix is live; events behind the answer may have come already."""
        if not _succeeded(answer) or not answer.result().payload:
            return
        try:
            number = decode_json(answer.result().payload).get("sequence")
        except ProtocolError:
            return  # what it says is its own affair, unless it is a gateway
        if isinstance(number, int) and 0 < distance(self.sequence, number) <= AHEAD:
            self.sequence = number

    def __len__(self) -> int:
        """How many prefixes the far end was asked for, live or not yet."""
        return len(self._by_prefix)

    @property
    def prefixes(self) -> list[str]:
        """Those that are live, or were when the link was lost."""
        return [_text(prefix) for prefix, entry in self._by_prefix.items() if entry.live]

    def lost(self) -> None:
        """The link was lost, and another will follow: what was not live yet has failed."""
        self._by_prefix = {prefix: entry for prefix, entry in self._by_prefix.items() if entry.live}

    def restore(self) -> None:
        """Ask for every prefix anew, over another link."""
        for prefix, entry in self._by_prefix.items():
            if entry.live:
                entry.was_live = True
                entry.accepted = self._tell("event.subscribe", prefix)
                entry.accepted.add_done_callback(partial(self._restored, prefix))

    def _restored(self, prefix: bytes, answer: asyncio.Future[Message]) -> None:
        self._accepted(answer)
        if _succeeded(answer) and (errnum := answer.result().errnum):
            self.drop(_text(prefix), RpcError(errnum, "", f"event.subscribe {_text(prefix)!r}"))

    def drop(self, prefix: str, error: RpcError) -> None:
        """The far end does not give this prefix any more."""
        entry = self._by_prefix.pop(prefix.encode("utf-8", "surrogateescape"), None)
        for member in entry.members if entry is not None else ():
            member.failed(error)

    def missed(self, why: str) -> None:
        """Events may be missing here, of every subscription."""
        for member in {id(one): one for each in self._by_prefix.values() for one in each.members}.values():
            member.missed(why)

    def published(self, message: Message) -> None:
        """An event came from the link."""
        self.sequence = message.aux1
        # an event that nobody here wants any more has a number all the same: the position behind it counts
        if not self._by_prefix:
            return
        topic = bytes(part_data(message.topic_part) or b"")
        for prefix, entry in self._by_prefix.items():
            if topic.startswith(prefix):
                for member in entry.members:
                    member.published(message)

    def end(self, error: LinkError) -> None:
        """The link ended."""
        by_prefix, self._by_prefix = self._by_prefix, {}
        for entry in by_prefix.values():
            for member in entry.members:
                member.failed(same_error(error))


def _succeeded(answer: asyncio.Future[Message]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _text(prefix: bytes) -> str:
    return prefix.decode("utf-8", "surrogateescape")


class Past:
    """The events of before that one subscription still has to get.

    Args:
        caller: asks rank 0. since: where they begin. live: room for what comes meanwhile.

    Attributes:
        epoch: whose numbers they have; "" before the first page.
    """

    __slots__ = ("_asked", "_caller", "_live", "_passed", "epoch")

    def __init__(self, caller: Caller, since: Since, live: BoundedQueue[Message]) -> None:
        self._caller = caller
        if isinstance(since, timedelta):
            self._asked: dict[str, object] = {"age_s": since.total_seconds()}
        else:
            epoch, sequence = since if isinstance(since, tuple) else (None, since)
            self._asked = {"sequence": sequence} if epoch is None else {"epoch": epoch, "sequence": sequence}
        self._live = live
        self._passed = False  # live events were let pass: rank 0 has to be asked for them
        self.epoch = ""

    def published(self, message: Message) -> None:
        """An event came live."""
        self._live.add(message, message.size)
        while self._live.overflowing:
            self._live.pop()
            self._passed = True

    async def turn(self) -> tuple[Page, list[Message] | None]:
        """The next page, and what came live behind it, once it is the last one; None before. Who gives up waiting, or
        is refused, may ask again.

        Raises:
            RpcError, LinkError, ProtocolError: as ``past_page``.
        """
        page = await past_page(self._caller, self._asked)
        self._asked = page.rest
        if self.epoch not in ("", page.epoch):
            self._live.clear()  # another rank 0 begins anew: of what came live nobody knows whose it is
            self._passed = True
        self.epoch = page.epoch
        if not page.final:
            return page, None
        if self._passed:
            self._passed = False
            return page, None
        return page, [one for one in self._live if 0 < distance(page.end, one.sequence) <= AHEAD]


class Subscription:
    """Events whose topic begins with one of its prefixes, for the time of a block: ``async for event in events``.

    The buffer is bounded. Events that find it full are lost to this subscription only, and counted: with
    ``overflow="raise"`` (default) iteration raises Overrun where the gap is, and may go on behind it; with
    ``"mark"`` the event behind the gap says so in ``lost``. What may be missing because the link was lost, or because
    the gateway says so, is Missed in iteration, or ``missed`` of the event behind.

    Guests may publish too: look at ``event.rolemask`` before believing an event.

    Concurrency: one task iterates at a time.

    Attributes:
        prefixes: the topic prefixes in bytes, none of which covers another; b"" is every event.
        lost: events lost since the subscription began.
        epoch: whose numbers the events have, where it began with those of before (``since``); else "".
    """

    __slots__ = (
        "_behind_gap",
        "_inbox",
        "_missed",
        "_page",
        "_past",
        "_raise",
        "_resume",
        "_table",
        "_unmarked",
        "epoch",
        "lost",
        "prefixes",
    )

    def __init__(
        self,
        prefixes: Iterable[str],
        table: SubscriptionTable,
        inbox: Inbox[Event | Missed],
        overflow: Overflow,
        past: Past | None = None,
        resume: Callable[[list[str]], asyncio.Future[Message]] | None = None,
    ) -> None:
        if overflow not in ("raise", "mark"):
            raise ValueError(f"overflow={overflow!r}: expected 'raise' or 'mark'")
        self.prefixes = [encode_topic(prefix) for prefix in distinct(prefixes)]
        self.lost = 0
        self._table = table
        self._inbox = inbox
        self._raise = overflow == "raise"
        self._unmarked = 0
        self._missed = ""
        self._behind_gap: Event | None = None
        self._past = past
        self._resume = resume
        self._page: deque[Event] = deque()
        self.epoch = ""

    @property
    def ready(self) -> int:
        """Events (or a gap to raise) that can be had without waiting."""
        return len(self._page) + len(self._inbox) or int(
            self._behind_gap is not None or (self._raise and self._unmarked > 0)
        )

    async def __aenter__(self) -> Self:
        if self._resume is not None:
            await self._table.join_again(self, self._resume([_text(prefix) for prefix in self.prefixes]))
            return self
        await self._table.join(self)
        if self._past is not None:
            try:
                await self._turn_page(self._past)
            except BaseException:
                self._table.leave(self)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.leave(self)
        self._past = None
        self._page.clear()
        self._inbox.clear()
        self._inbox.finish(StopAsyncIteration())

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        event, self._behind_gap = self._behind_gap, None
        if event is not None:
            return event
        while self._past is not None and not self._page and self._inbox.end is None:
            await self._turn_page(self._past)
        if self._page:
            return self._found(self._page.popleft())
        if self._raise and self._unmarked and not self._inbox:
            lost, self._unmarked = self._unmarked, 0
            raise self._overrun(lost)
        found = await self._inbox.get()
        if isinstance(found, Missed):
            raise found
        return self._found(found)

    def _found(self, event: Event) -> Event:
        """Hand over an event, unless something has to be said before."""
        if event.missed and self._raise:
            self._behind_gap = Event(event.message, event.lost)
            raise Missed(event.missed)
        if event.lost and self._raise:
            self._behind_gap = event
            raise self._overrun(event.lost)
        return event

    async def _turn_page(self, past: Past) -> None:
        """Have the next page of the events of before; behind the last one those go on that came live meanwhile."""
        page, live = await past.turn()
        self.epoch = page.epoch
        missed = "rank 0 does not keep all that was published since" if page.missing else self._missed
        for message in page.events:
            topic = bytes(part_data(message.topic_part) or b"")
            if any(topic.startswith(prefix) for prefix in self.prefixes):
                self._page.append(Event(message, 0, missed))
                missed = ""
        self._missed = missed
        if live is not None:
            self._past = None
            for message in live:
                self.published(message)

    def _overrun(self, lost: int) -> Overrun:
        prefixes = " ".join(repr(prefix.decode(errors="replace")) for prefix in self.prefixes)
        return Overrun(f"{lost} events of subscription {prefixes} did not fit its buffer and are lost", lost)

    def published(self, message: Message) -> None:
        """An event for this subscription came."""
        if self._past is not None:
            self._past.published(message)
            return
        event = Event(message, self._unmarked, self._missed)
        if self._inbox.put(event, message.size):
            self._unmarked = 0
            self._missed = ""
        elif self._inbox.end is None:
            self._unmarked += 1
            self.lost += 1

    def missed(self, why: str) -> None:
        """Events may be missing behind those that came."""
        if not (self._raise and self._inbox.put(Missed(why), 0)):
            self._missed = why  # the next one that fits says so

    def failed(self, error: HeadgateError) -> None:
        """No more will come, and why."""
        self._inbox.finish(error)
