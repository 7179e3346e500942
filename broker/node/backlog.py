"""Fairness: a batch ends at a count of messages or deliveries; the rest waits here, its link's reading off.

Links take turns, one batch each per turn of the event loop, so that one greedy peer costs the others one batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from broker.errors import LinkError
from broker.routing.port import Port
from broker.transport.link import Link
from broker.wire.message import Message

if TYPE_CHECKING:
    from broker.node.broker import Broker


class _Rest:
    __slots__ = ("at", "ended", "link", "messages", "port")

    def __init__(self, link: Link, port: Port, messages: list[Message], at: int) -> None:
        self.link, self.port, self.messages, self.at = link, port, messages, at
        self.ended: LinkError | None = None


class Backlog:
    """What batches left over, round robin.

    Args:
        batch_msgs: messages handled per turn. batch_deliveries: event deliveries after which a turn ends early.
    """

    def __init__(self, broker: Broker, batch_msgs: int, batch_deliveries: int) -> None:
        self._broker = broker
        self.batch_msgs = batch_msgs
        self.batch_deliveries = batch_deliveries
        self._queue: deque[_Rest] = deque()
        self._waiting: dict[Port, _Rest] = {}
        self._scheduled = False

    def __contains__(self, port: Port) -> bool:
        return port in self._waiting

    def add(self, link: Link, port: Port, messages: list[Message], done: int) -> None:
        """Keep ``messages[done:]`` for later turns; the link is not read until they are handled."""
        rest = self._waiting.get(port)
        if rest is not None:  # a transport that had more in hand when it was paused: keep the order
            rest.messages = rest.messages[rest.at :] + messages
            rest.at = 0
            return
        rest = self._waiting[port] = _Rest(link, port, messages, done)
        link.pause()
        self._queue.append(rest)
        self._schedule()

    def last(self, port: Port, error: LinkError) -> bool:
        """The link of ``port`` ended: True when the broker is told again once what waits here is handled."""
        rest = self._waiting.get(port)
        if rest is not None:
            rest.ended = error
        return rest is not None

    def _turn(self, rest: _Rest) -> None:
        stop = min(rest.at + self.batch_msgs, len(rest.messages))
        rest.at = self._broker.run(rest.port, rest.messages, rest.at, stop)
        if rest.at < len(rest.messages):
            self._queue.append(rest)
            return
        del self._waiting[rest.port]
        if rest.ended is not None:
            self._broker.depart(rest.port, rest.ended)
        elif not self._broker.pressure.paused(rest.port):
            rest.link.resume()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        for _ in range(len(self._queue)):
            self._turn(self._queue.popleft())
        if self._queue:
            self._schedule()
