"""Full outboxes: who is paused, who stalls, who must go.

Only a *pure caller* is ever paused: a client that provides no service. Tree links and providers are not, so a wait
chain has length one and cannot close into a circle; their request that does not fit is answered EAGAIN.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.errors import LinkBroken
from broker.routing.port import CLIENT, Port

if TYPE_CHECKING:
    from broker.node.broker import Broker

log = logging.getLogger("headgate")


class Pressure:
    """Back-pressure of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiters: dict[Port, set[Port]] = {}
        self._paused: dict[Port, int] = {}
        self._progress: dict[Port, tuple[int, float]] = {}
        self._told_missed: dict[Port, int] = {}

    def paused(self, port: Port) -> bool:
        """True while ``port`` waits for somebody's outbox."""
        return port in self._paused

    def congested(self, origin: Port, target: Port) -> bool:
        """``target`` is above high water: pause a pure caller and let its request pass; False means EAGAIN.

        Its request has been read, and so have those behind it and those of others: they do not all find room.
        """
        if origin.kind != CLIENT or origin.services or origin.link is None:
            return False
        if not target.link.outbox.has_room_for_requests:
            return False
        waiters = self._waiters.setdefault(target, set())
        if origin not in waiters:
            waiters.add(origin)
            self._paused[origin] = self._paused.get(origin, 0) + 1
            origin.link.pause()
        return True

    def mark(self, port: Port, choked: bool) -> None:
        """An outbox crossed a water mark."""
        self._broker.router.set_busy(port, choked)
        if choked:
            self._progress[port] = (port.link.outbox.progress, 0.0)
        else:
            self._progress.pop(port, None)
            self._release(port)
            self._tell_missed(port)

    def _tell_missed(self, port: Port) -> None:
        """A subscriber with policy ``drop`` reads again: one line says how many events it missed."""
        dropped: int = port.link.outbox.dropped_events
        missed = dropped - self._told_missed.get(port, 0)
        if missed:
            self._told_missed[port] = dropped
            log.warning("%s did not read in time and missed %d events", port.name, missed)

    def became_provider(self, port: Port) -> None:
        """A paused caller registered a service: it must be read again, others may wait for it."""
        if port in self._paused:
            for waiters in self._waiters.values():
                waiters.discard(port)
            del self._paused[port]
            self._resume(port)

    def forget(self, port: Port) -> None:
        """The port is gone: nobody waits for it and it waits for nobody."""
        self._progress.pop(port, None)
        self._told_missed.pop(port, None)
        self._release(port)
        if self._paused.pop(port, None) is not None:
            for waiters in self._waiters.values():
                waiters.discard(port)

    def sweep(self, elapsed_s: float, stall_s: float) -> None:
        """Called now and then: end links above high water that took no byte for ``stall_s`` seconds, while something
        waits that cannot be dropped.
        """
        for port, (progress, waited) in list(self._progress.items()):
            seen = port.link.outbox.progress
            if seen != progress or not port.link.outbox.owes:
                self._progress[port] = (seen, 0.0)
            elif waited + elapsed_s >= stall_s:
                log.warning("%s took no byte for %g s: disconnected", port.name, stall_s)
                port.link.abort(LinkBroken(f"took no byte for {stall_s:g} s"))
            else:
                self._progress[port] = (progress, waited + elapsed_s)

    def _release(self, target: Port) -> None:
        for origin in self._waiters.pop(target, ()):
            left = self._paused.get(origin, 0) - 1
            if left > 0:
                self._paused[origin] = left
            elif self._paused.pop(origin, None) is not None:
                self._resume(origin)

    def _resume(self, origin: Port) -> None:
        if origin.live and origin.link.ended is None and origin not in self._broker.backlog:
            origin.link.resume()
