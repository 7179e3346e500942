"""The broker's silence: half way through the hold time it is asked for a sign of life, at its end it is given up.

A broker that is frozen while its kernel goes on keeps its connections. Workers miss its KEEPALIVE; clients are sent
none: that it answers nothing is all there is to see. Any packet is a sign of life; nothing is done for each, the
channel's counts are compared at every look. ::

    nothing is awaited of it    it may be silent for ever
    hold_s / 2 of silence       a probe, which it answers whatever else it has to say
    hold_s of silence           the session is over, as if the connection was lost

The hold time is what the broker's OPEN tells: keepalive_ms x multiplier; deployed NorFab's 15 s for one that tells
none. Time in which we were frozen ourselves does not count: what came meanwhile is still to be read.

A packet is seen when all of it is here, so a large one on a slow line passes for silence. Therefore the hold time
doubles with each session that ends so, up to ``STRETCH_MAX`` times, until one has outlived the usual time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.awake import StallMeter
from broker.nfp.opening import broker_of
from broker.nfp.peer.channel import Channel

log = logging.getLogger("headgate")
LEAST_S: Final = 1.0
"""Shortest hold time: what a busy machine needs for an answer."""
LOOKS: Final = 8
"""In one hold time."""
STRETCH_MAX: Final = 8


class BrokerLiveness:
    """Watches whether the broker of one client or worker is still there.

    Args:
        channel: to the broker; one within this process is not watched, it is frozen only when we are.
        awaited: whether anything is expected of the broker: an answer, a result, events. That something was sent since
            the broker was last heard counts, too.
        probe: sends what the broker answers at once, where it says nothing unasked.

    Attributes:
        hold_s: how long the broker may be silent. silent_s: how long it has been.
    """

    def __init__(
        self,
        channel: Channel,
        awaited: Callable[[], bool],
        probe: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.hold_s = self.silent_s = 0.0
        self._channel = channel
        self._awaited = awaited
        self._probe = probe
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._usual_s = 0.0
        self._stretch = 1
        self._began = self._looked = 0.0
        self._stall = StallMeter(loop.time)
        self._received = self._sent = 0
        self._probed = False

    def begin(self, opened: Mapping[str, Any] | None) -> None:
        """Begin to watch: a session begins, or the broker's OPEN has come late."""
        self.end()
        if not self._channel.broker:
            return
        said = broker_of(opened or {})
        self._usual_s = max(said.keepalive_ms * said.multiplier / 1000, LEAST_S)
        self._began = self._looked = self._loop.time()
        self._heard()
        self._arm()

    def end(self) -> None:
        """Watch no more: the session is over. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        delay = self._usual_s / LOOKS
        self._stall.wakes_at(self._loop.time() + delay)
        self._timer = self._loop.call_later(delay, self._look)

    def _heard(self) -> None:
        traffic = self._channel.traffic
        self._received, self._sent = traffic.received, traffic.sent
        self._probed = False
        self.silent_s = 0.0
        self.hold_s = self._usual_s * self._stretch

    def _look(self) -> None:
        now = self._loop.time()
        passed = now - self._looked - self._stall.stalled_s()
        self._looked = now
        self._arm()
        traffic = self._channel.traffic
        if traffic.received != self._received:
            if now - self._began > self._usual_s:
                self._stretch = 1
            self._heard()
        elif not self._awaited() and traffic.sent == self._sent:
            self.silent_s = 0.0
        else:
            self.silent_s += passed
            self._judge()

    def _judge(self) -> None:
        if self.silent_s >= self.hold_s:
            self._stretch = min(self._stretch * 2, STRETCH_MAX)
            self.end()
            log.warning(
                "%s: %s was silent for %.1f s", self._channel.name, self._channel.broker, self.silent_s
            )
            self._channel.reopen(f"the broker was silent for {self.silent_s:.1f} s")
        elif self.silent_s >= self.hold_s / 2 and not self._probed:
            self._probed = True
            self._probe()
