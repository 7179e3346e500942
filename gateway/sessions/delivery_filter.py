"""Asks the authorisation hook, where one is configured, before a session gets an event: each topic by itself, for a
subscription is to all that begins with it, and again when the answer has aged.

What is known passes at once. Behind an event of which the hook has not said whether it may be seen, all others of the
session wait, so that they stay in order. A no takes the event away, as a rule does; of those that nobody answered for
the client is told (``gap``). More than may wait ends the connection: its client comes back, and misses nothing.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING, Final

from broker.wire.parts import part_data
from gateway.closes import BUSY
from gateway.events.run import Run, sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from broker.wire.message import Message
    from gateway.identity.hook import AuthorizationHook, Verdict
    from gateway.sessions.session import Session

AT_ONCE: Final = 16
"""Topics that one session asks for at a time."""
FULL: Final = "too many events wait for the authorisation hook"


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
            self._session.hub.spawn(f"events of {self._session.id}", self._ask())

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
            span = {"from": lost[0].sequence, "to": lost[-1].sequence}
            self._session.tell({"type": "gap", "lost": len(lost), **span})
        return allowed, messages[known:]

    def _hand_on(self, run: Run) -> None:
        if run.messages:
            self.passed += len(run)
            self._send(run)

    def _keep(self, messages: Iterable[Message]) -> None:
        hub = self._session.hub
        for message in messages:
            size = message.size
            mine = self._waiting and self._bytes + size > hub.settings.limits.outbox_bytes
            everybodys = hub.waiting_bytes and hub.waiting_bytes + size > hub.options.budget.limit_bytes // 2
            if mine or everybodys:
                self._session.close(BUSY, FULL)
                return
            self._waiting.append(message)
            self._bytes += size
            hub.waiting_bytes += size

    def _take_bytes(self, size: int) -> None:
        self._bytes -= size
        self._session.hub.waiting_bytes -= size

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
            session.hub.fault(session, error)

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
