"""Calls to a service wherever it is: which ranks have it, and which of them is next (``anywhere=True``).

Requests are routed towards rank 0 only (RFC 3), but rank 0 knows where clients provide what (``service.providers``). So
a call that may go anywhere asks there first, then goes to a rank by its number.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import msgspec

from broker.errors import ProtocolError, RpcError
from broker.wire.message import NODEID_ANY, Message
from broker.wire.topic import service_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.client.calls import Response

    Ask = Callable[[Message], Awaitable[Response | None]]

FRESH_S: Final = 1.0
"""How long an answer holds; a call that fails ends that at once."""
ABSENT_S: Final = 0.1
"""The same of an answer that nobody has it: as long as brokers may take to tell each other."""
KEPT_MAX: Final = 256
"""Services whose ranks are remembered."""


class _Answer(msgspec.Struct):
    """Response of ``service.providers`` about one service."""

    services: dict[str, list[int]]
    nearest: int = 0


class _Providers:
    """Where a service is: ranks, the nearest first; so many of them are equally near and take turns."""

    __slots__ = ("nearest", "ranks", "turn", "until")

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.nearest = 0
        self.until = 0.0
        self.turn = 0

    def next(self) -> list[int]:
        """The ranks in the order in which one call tries them."""
        head, rest = self.ranks[: self.nearest], self.ranks[self.nearest :]
        first = self.turn % len(head) if head else 0
        self.turn += 1
        return head[first:] + head[:first] + rest


class Nearby:
    """Which ranks have which service, as brokers answered.

    Args:
        rpc: calls a topic with a payload at a rank. rank: that of our own broker.
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_known", "_rank", "_rpc")

    def __init__(
        self,
        rpc: Callable[[str, dict[str, object], int], Awaitable[Response]],
        rank: Callable[[], Awaitable[int]],
        clock: Callable[[], float],
    ) -> None:
        self._rpc = rpc
        self._rank = rank
        self._clock = clock
        self._known: dict[str, _Providers] = {}

    async def call(self, message: Message, ask: Ask) -> Response | None:
        """Have ``ask`` send ``message`` to the nearest provider; one that does not have it (ENOSYS) leads to the next.

        Where nobody tells of the service, built-in ones among them, it goes the way of any request.
        """
        topic = message.topic or ""
        tried: set[int] = set()
        for fresh in (False, True):
            for rank in await self.ranks(topic, fresh=fresh):
                if rank in tried:
                    continue
                tried.add(rank)
                try:
                    return await ask(directed(message, rank))
                except RpcError as error:
                    # the service or its broker has gone since brokers told of it: the next call asks anew
                    if error.errno in (errno.ENOSYS, errno.EHOSTUNREACH):
                        self.invalidate(service_of(topic))
                    # EHOSTUNREACH may come behind the call's work: only ENOSYS proves that nobody began it
                    if error.errno != errno.ENOSYS:
                        raise
            if not tried:
                break
        return await ask(message)

    async def ranks(self, topic: str, *, fresh: bool = False) -> list[int]:
        """Where the service of ``topic`` is, in the order in which to try; ``fresh`` asks in any case."""
        name = service_of(topic)
        known = self._known.get(name)
        if known is None or fresh or known.until <= self._clock():
            ranks, nearest = await self._look_up(name)
            if len(self._known) >= KEPT_MAX:
                self._known.clear()
            known = self._known.setdefault(name, _Providers())
            known.ranks, known.nearest = ranks, nearest
            known.until = self._clock() + (FRESH_S if ranks else ABSENT_S)
        return known.next()

    def invalidate(self, name: str) -> None:
        """Distrust the answer about this service: the next call asks again."""
        if name in self._known:
            self._known[name].until = 0.0

    async def _look_up(self, name: str) -> tuple[list[int], int]:
        """Ask rank 0, which knows all, else our own broker, which knows what is below it."""
        for nodeid in (0, NODEID_ANY):
            try:
                asked: dict[str, object] = {"service": name, "rank": await self._rank()}
                answer = (await self._rpc("service.providers", asked, nodeid)).json(_Answer)
            except (RpcError, ProtocolError):
                continue
            return answer.services.get(name, []), answer.nearest
        return [], 0


def directed(message: Message, rank: int) -> Message:
    """The same request, to one rank."""
    copy = message.copy()
    copy.set_aux1(rank)
    return copy
