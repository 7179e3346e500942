"""Asks the authorisation hook, where one is configured: before what a client sends reaches its session, and before the
session gets an event.

What is known passes at once. *For a message* that is not, the link is read no further until the answer is there, so
that all of a client's messages stay in order; it has one question under way then, whatever it sends. What has come with
them waits, within bounds for each client and for all (``Sessions.waiting_bytes``). Answers of services, ends of calls
and what the gateway answers itself (``gateway.*``) pass unasked: a hook that is away keeps no owner from it. What
``gateway.presence`` tells of a topic is for those who may subscribe to it, and is asked for so; ``gateway.latest`` asks
for each topic itself (``administration.topics``).

*An event* is asked for by its own topic, for a subscription is to all that begins with it, and again when the answer
has aged. Behind an event of which the hook has not said whether it may be seen, all others of the session wait, so that
they stay in order. A no takes the event away, as a rule does; of those that nobody answered for the client is told
(``gap``). More than may wait ends the connection: its client comes back, and misses nothing.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.errors import HeadgateError
from broker.wire.message import EVENT, REQUEST, RESPONSE, Message
from broker.wire.parts import part_data
from broker.wire.payload import decode_json
from broker.wire.topic import service_of
from gateway.closes import BUSY
from gateway.events.run import Run, sender
from gateway.notices import gap
from gateway.sessions import answers
from gateway.sessions.calls import unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from broker.errors import LinkError
    from broker.transport.link import Link
    from gateway.identity.hook import AuthorizationHook, Verdict
    from gateway.sessions.session import Session

Question = tuple[str, bytes]
"""Kind and topic."""
Item = Message | dict[str, Any]
INSIDE: Final = {
    b"event.subscribe": ("subscribe", "topic"),
    b"event.publish": ("publish", "topic"),
    b"service.add": ("register", "service"),
    b"gateway.presence": ("subscribe", "topic"),
}
"""Requests whose payload says what is wanted."""
UNASKED: Final = frozenset((b"event.unsubscribe", b"service.remove"))
WAITING_MSGS: Final = 1024
"""Messages of one client that may wait for an answer; of bytes so many as one message may have, besides one message."""
AT_ONCE: Final = 16
"""Topics that one session asks for at a time, of events that wait."""
FULL: Final = "too many messages wait for the authorisation hook: retry in 1 s"
EVENTS_FULL: Final = "too many events wait for the authorisation hook"


class AuthorizationFilter:
    """The receiver of one link (``broker.transport.link.Receiver``)."""

    __slots__ = ("_hook", "_session", "_waiting", "_waiting_bytes")

    def __init__(self, session: Session, hook: AuthorizationHook) -> None:
        self._session = session
        self._hook = hook
        self._waiting: list[Item] | None = None
        self._waiting_bytes = 0

    def received(self, _link: Link, messages: list[Message]) -> None:
        """What one read produced, in order."""
        self._take(messages)

    def control(self, obj: dict[str, Any]) -> None:
        """A control object of the client."""
        self._take([obj])

    def refused(self, message: Message, text: str) -> None:
        """A request that is none: nobody is asked whether it may be, and nothing waits for its answer."""
        self._session.refused(message, text)

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The connection is gone."""
        self._take_waiting()
        self._session.link_ended(link, error)

    def link_choked(self, link: Link, choked: bool) -> None:
        """The client reads slowly, or does again."""
        self._session.link_choked(link, choked)

    def _take(self, items: Sequence[Item]) -> None:
        if self._waiting is not None:
            for item in items:
                self._keep(item)
        else:
            self._run(items, {})

    def _keep(self, item: Item) -> None:
        """Queue ``item``; if the queue is full, refuse it, silently where no response is possible."""
        waiting = self._waiting
        if waiting is None or self._session.ended:  # it was closed for the one before
            return
        size = item.size if isinstance(item, Message) else len(msgspec.json.encode(item))
        sessions = self._session.sessions
        most, most_of_all = sessions.settings.limits.message_bytes, sessions.options.budget.limit_bytes // 2
        mine = waiting and (len(waiting) >= WAITING_MSGS or self._waiting_bytes + size > most)
        everybodys = sessions.waiting_bytes and sessions.waiting_bytes + size > most_of_all
        if (mine or everybodys) and isinstance(item, Message) and not _always_waits(item):
            if self._session.charge(item):
                answers.disallow(self._session, item, "", b"", errno.EAGAIN, FULL)
            return
        waiting.append(item.copy())
        self._waiting_bytes += size
        sessions.waiting_bytes += size

    def _take_waiting(self) -> list[Item]:
        """What waits: it does no longer."""
        items, self._waiting = self._waiting or [], None
        self._session.sessions.waiting_bytes -= self._waiting_bytes
        self._waiting_bytes = 0
        return items

    def _run(self, items: Sequence[Item], said: Mapping[Question, Verdict]) -> None:
        """Pass on what may be, refuse what may not, and ask for the first that is not known."""
        flusher = self._session.sessions.options.flusher
        outer, flusher.batch = flusher.batch, True
        try:
            passed: list[Message] = []
            for at, item in enumerate(items):
                if self._session.ended:
                    return
                asked = questions_of(self._session, item)
                verdicts = {
                    each: said.get(each) or self._hook.known(self._session.principal, *each) for each in asked
                }
                if isinstance(item, Message) and all(each and each.allowed for each in verdicts.values()):
                    passed.append(item)
                    continue
                self._pass(passed)
                passed = []
                if None in verdicts.values():
                    self._ask([each for each, verdict in verdicts.items() if verdict is None], items[at:])
                    return
                self._judge(
                    item, [(each, verdict) for each, verdict in verdicts.items() if verdict is not None]
                )
            self._pass(passed)
        finally:
            flusher.batch = outer
            if not outer:
                flusher.flush()

    def _pass(self, messages: list[Message]) -> None:
        if messages:
            self._session.received(self._session.link, messages)

    def _judge(self, item: Item, verdicts: list[tuple[Question, Verdict]]) -> None:
        """A control object, or a message of which one thing may not be."""
        session = self._session
        denied = [(question, verdict) for question, verdict in verdicts if not verdict.allowed]
        if isinstance(item, Message):
            if session.charge(item):
                (kind, topic), verdict = denied[0]
                answers.disallow(session, item, kind, topic, verdict.errnum, verdict.text)
            return
        refused = {topic for (_kind, topic), _verdict in denied}
        kept = [each for each in _prefixes(session, item) if _encoded(each) not in refused]
        lost = sorted({*item.get("subscriptions", ())}.difference(kept))
        session.control(item | {"subscriptions": kept} if lost else item)
        if lost:
            session.tell({"type": "unsubscribed", "subscriptions": lost})

    def _ask(self, questions: list[Question], items: Sequence[Item]) -> None:
        self._waiting = []
        for item in items:
            self._keep(item)
        self._session.set_paused(True)
        self._session.sessions.tasks.spawn(f"authorisation hook {self._session.id}", self._asked(questions))

    async def _asked(self, questions: list[Question]) -> None:
        mine = self._session.principal
        try:
            found = [await self._hook.ask(mine, *each) for each in questions]
            items = self._take_waiting()
            same = self._session.principal == mine
            self._run(items, dict(zip(questions, found, strict=True)) if same else {})
        except Exception as error:
            self._session.fault(error)
        finally:
            self._session.set_paused(False)


def questions_of(session: Session, item: Item) -> list[Question]:
    """What of a message or control object is to be asked for: nothing where the rules deny it, or nobody needs to."""
    if isinstance(item, Message):
        topic = bytes(part_data(item.topic_part) or b"")
        found = _question(session, item, topic)
    else:
        found = [("subscribe", _encoded(each)) for each in _prefixes(session, item)]
    return [each for each in found if session.sessions.access.allows(session.roles, *each)]


def _question(session: Session, message: Message, topic: bytes) -> list[Question]:
    if message.head[3] == EVENT:
        return [("publish", topic)]
    if message.head[3] != REQUEST or not topic or topic in UNASKED:
        return []
    if topic not in INSIDE:
        own = service_of(topic) == b"gateway" or (unanswered(topic) and session.calls.has_called(topic))
        return [] if own else [("call", topic)]
    kind, field = INSIDE[topic]
    try:
        return [(kind, str(decode_json(message.payload)[field]).encode())]
    except (HeadgateError, KeyError, TypeError, ValueError):
        return []  # the session says what is wrong with it


def _prefixes(session: Session, item: dict[str, Any]) -> list[str]:
    """What a client that comes back wants again: it gets no more than a session may have, and no more is asked for."""
    wanted = item.get("subscriptions", ()) if item.get("type") == "resume" else ()
    return list(dict.fromkeys(wanted))[: session.sessions.settings.limits.subscriptions]


def _encoded(prefix: str) -> bytes:
    return prefix.encode("utf-8", "surrogateescape")


def _always_waits(message: Message) -> bool:
    """Responses and ends of calls, for which somebody waits while their sender hears of no refusal. Control objects do,
    too; it is what one read has of them, for then the link is paused.
    """
    kind = message.head[3]
    return kind == RESPONSE or (kind == REQUEST and unanswered(bytes(part_data(message.topic_part) or b"")))


class DeliveryFilter:
    """Between the fan-out, or a replay, and the link of one session.

    Attributes:
        passed: events that were handed on. lost: those that nobody answered for.
    """

    __slots__ = ("_bytes", "_hook", "_on_empty", "_send", "_session", "_waiting", "lost", "passed")

    def __init__(self, session: Session, hook: AuthorizationHook) -> None:
        self.passed = 0
        self.lost = 0
        self._session = session
        self._hook = hook
        self._send = sender(session.link)
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._on_empty: list[Callable[[], None]] = []

    def send(self, run: Run) -> None:
        """Hand on what of ``run`` the session may see, now or later; never waits."""
        if self._session.ended:
            return
        if self._waiting:
            self._keep(run.messages)
            return
        allowed, left = self._judged(run.messages, {})
        self._hand_on(run if len(allowed) == len(run) else Run(allowed))
        if left and not self._session.ended:  # a link that takes no more ends the session
            self._keep(left)
            self._session.sessions.tasks.spawn(f"events of {self._session.id}", self._ask())

    def when_empty(self, told: Callable[[], None]) -> bool:
        """Call ``told`` once nothing waits any more; False: nothing does."""
        if self._waiting:
            self._on_empty.append(told)
        return bool(self._waiting)

    def clear(self) -> None:
        """The session is gone."""
        self._on_empty = []
        self._waiting = deque()
        self._take_bytes(self._bytes)

    def _judged(
        self, messages: Iterable[Message], said: Mapping[bytes, Verdict]
    ) -> tuple[list[Message], list[Message]]:
        """Those that may be seen; and those from the first on of which nobody knows."""
        allowed: list[Message] = []
        lost: list[Message] = []
        mine, messages = self._session.principal, list(messages)
        known = 0
        for message in messages:
            topic = bytes(part_data(message.topic_part) or b"")
            verdict = said.get(topic) or self._hook.known(mine, "subscribe", topic)
            if verdict is None:
                break
            known += 1
            if verdict.allowed:
                allowed.append(message)
            elif verdict.errnum == errno.EHOSTUNREACH:
                lost.append(message)
        if lost:
            self.lost += len(lost)
            self._session.tell(gap(len(lost), lost[0].sequence, lost[-1].sequence))
        return allowed, messages[known:]

    def _hand_on(self, run: Run) -> None:
        if run.messages:
            self.passed += len(run)
            self._send(run)

    def _keep(self, messages: Iterable[Message]) -> None:
        sessions = self._session.sessions
        for message in messages:
            size = message.size
            mine = self._waiting and self._bytes + size > sessions.settings.limits.outbox_bytes
            everybodys = (
                sessions.waiting_bytes
                and sessions.waiting_bytes + size > sessions.options.budget.limit_bytes // 2
            )
            if mine or everybodys:
                self._session.close(BUSY, EVENTS_FULL)
                return
            self._waiting.append(message)
            self._bytes += size
            sessions.waiting_bytes += size

    def _take_bytes(self, size: int) -> None:
        self._bytes -= size
        self._session.sessions.waiting_bytes -= size

    async def _ask(self) -> None:
        """Ask for the first that wait until none does."""
        session = self._session
        try:
            while self._waiting and not session.ended:
                topics: dict[bytes, None] = {}
                for message in self._waiting:
                    topics[bytes(part_data(message.topic_part) or b"")] = None
                    if len(topics) == AT_ONCE:
                        break
                mine = session.principal
                found = await asyncio.gather(*(self._hook.ask(mine, "subscribe", each) for each in topics))
                said = dict(zip(topics, found, strict=True)) if session.principal == mine else {}
                self._go_on(said)
        except Exception as error:
            session.fault(error)

    def _go_on(self, said: Mapping[bytes, Verdict]) -> None:
        allowed, left = self._judged(self._waiting, said)
        if self._session.ended:  # meanwhile, or by being told of a gap
            return
        self._waiting = deque(left)
        self._take_bytes(self._bytes - sum(message.size for message in left))
        if allowed:
            self._hand_on(Run(allowed))
        if not left:
            told, self._on_empty = self._on_empty, []
            for each in told:
                each()
