"""Fair scheduling: a batch ends at a count of messages or deliveries; what exceeds it is queued here, and its link
is not read meanwhile.

A *turn* is one batch of one link: at most ``batch_msgs`` messages, or what makes ``batch_deliveries`` small deliveries
of events (large ones weigh more, see ``DELIVERY_BYTES``). With the defaults that is half a millisecond to five, as the
messages are. One iteration of the event loop, whatever is queued and however many links have something to say, is

* turns of what waits here, round robin, up to ``TURNS`` batches, and then input and output again; every second turn
  is for the tree, as long as something of it waits: a link of the tree speaks for many, who have had turns elsewhere;
* reads, up to ``TURNS`` batches: what comes in beyond waits here, too. Reads of ``FEW_MSGS`` or less are handled at
  once up to ``READS`` batches, so that a link that says little does not wait behind those that say much.

each with at most one batch in excess. While ``MANY_LINKS`` wait, a read takes ``SMALL_READ_BYTES`` at most.
"""

# compiled: mypyc

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from broker.errors import LinkError
from broker.routing.events import DELIVERY_BYTES
from broker.routing.port import CLIENT, Port
from broker.transport.link import Link
from broker.wire.message import Message

if TYPE_CHECKING:
    from broker.node.broker import Broker

TURNS: Final = 2
READS: Final = 8
FEW_MSGS: Final = 16
MANY_LINKS: Final = 8
SMALL_READ_BYTES: Final = 8 << 10
"""Decoding what one read brought is work, too: 130 KiB of small messages take 2 ms."""


class _Rest:
    __slots__ = ("at", "ended", "link", "messages", "port", "queued")

    def __init__(self, link: Link, port: Port, messages: list[Message], at: int) -> None:
        self.link, self.port, self.messages, self.at = link, port, messages, at
        self.ended: LinkError | None = None
        self.queued = False


class Backlog:
    """The rests of batches, handled round robin.

    Args:
        batch_msgs: messages handled per turn. batch_deliveries: event deliveries after which a turn ends early.
    """

    def __init__(self, broker: Broker, batch_msgs: int, batch_deliveries: int) -> None:
        self._broker = broker
        self._events = broker.router.events
        self.batch_msgs = batch_msgs
        self.batch_deliveries = batch_deliveries
        self._clients: deque[_Rest] = deque()
        self._tree: deque[_Rest] = deque()
        self._tree_first = True
        self._waiting: dict[Port, _Rest] = {}
        self._scheduled = False
        self._msgs = 0
        self._load = 0

    def __contains__(self, port: Port) -> bool:
        return port in self._waiting

    def takes(self, port: Port, count: int) -> bool:
        """Whether a read of ``count`` messages is handled now, up to a batch: nothing of ``port`` waits, and this
        iteration of the loop has not done enough.
        """
        if port in self._waiting:
            return False
        msgs = self._msgs + count
        if msgs < TURNS * self.batch_msgs and self._events.load == self._load:  # as nearly always
            self._msgs = msgs
            return True
        return self._takes_more(count)

    def _takes_more(self, count: int) -> bool:
        batch, done = self.batch_msgs, self._done()
        # a read of a few messages is let through: a link that says little must not wait behind those that say much
        if done >= TURNS * batch and (count > FEW_MSGS or done >= READS * batch):
            return False
        self._msgs += min(count, batch)
        if done + count >= TURNS * batch:
            self._schedule()
        return True

    def _done(self) -> int:
        """Messages handled in this iteration; deliveries count as the part of a batch that they are."""
        load = self._events.load - self._load
        return self._msgs + load * self.batch_msgs // (self.batch_deliveries * DELIVERY_BYTES)

    def add(self, link: Link, port: Port, messages: list[Message], done: int) -> None:
        """Keep ``messages[done:]`` for later turns; the link is not read until they are handled."""
        rest = self._waiting.get(port)
        if rest is not None:  # a transport that had more in hand when it was paused: keep the order
            rest.messages = rest.messages[rest.at :] + messages
            rest.at = 0
            return
        rest = self._waiting[port] = _Rest(link, port, messages, done)
        link.pause()
        if not self._broker.pressure.is_held(port):
            self._put(rest)

    def put_back(self, port: Port, messages: list[Message]) -> None:
        """``messages`` of ``port`` had been set aside: they are in front of what waits of it. Not in its turn."""
        rest = self._waiting.get(port)
        if rest is None:
            self.add(port.link, port, messages, 0)
        else:
            rest.messages[rest.at : rest.at] = messages
            if not self._broker.pressure.is_held(port):
                self.requeue(port)

    def requeue(self, port: Port) -> None:
        """``port``, of which something is here, may go on if it was held."""
        rest = self._waiting[port]
        if not rest.queued:
            self._put(rest)

    def last(self, port: Port, error: LinkError) -> bool:
        """The link of ``port`` ended: True when the broker is told again once what waits here is handled."""
        # what its users said beyond their shares was said before the end, and is handled before it
        if port in self._broker.pressure.deferred and not self._broker.in_turn(port):
            self.put_back(port, self._broker.pressure.take_deferred(port))
        rest = self._waiting.get(port)
        if rest is None:
            return False
        rest.ended = error
        self.requeue(port)
        return True

    def _put(self, rest: _Rest) -> None:
        rest.queued = True
        (self._clients if rest.port.kind == CLIENT else self._tree).append(rest)
        self._schedule()

    def _turn(self, rest: _Rest) -> None:
        start, port = rest.at, rest.port
        stop = min(start + self.batch_msgs, len(rest.messages))
        # what happens on the way, the end of this link, too, does not queue it a second time
        rest.queued = True
        rest.at = self._broker.run(port, rest.messages, start, stop)
        rest.queued = False
        self._msgs += rest.at - start
        if rest.at < len(rest.messages):
            if not self._broker.pressure.is_held(port):
                self._put(rest)
            return
        del self._waiting[port]
        if rest.ended is not None:
            self._broker.depart(port, rest.ended)
        elif not self._broker.pressure.is_held(port):
            rest.link.resume()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A new iteration of the loop: turns first, then, when this returns, what it has to read."""
        self._scheduled = False
        self._begin()
        clients, tree = self._clients, self._tree
        try:
            while (clients or tree) and self._done() < TURNS * self.batch_msgs:
                tree_next = bool(tree) and (self._tree_first or not clients)
                self._tree_first = not tree_next
                self._turn((tree if tree_next else clients).popleft())
        finally:
            self._begin()
            if clients or tree:
                self._schedule()
        many = len(clients) + len(tree) >= MANY_LINKS
        self._broker.flusher.read_bytes = SMALL_READ_BYTES if many else 0

    def _begin(self) -> None:
        self._msgs = 0
        self._load = self._events.load
