"""Finds WebSockets whose peer is gone: one timer for all of them, whatever their number.

Each link has a place on a wheel; when the wheel gets there the link is pinged, once in ``ping_s``. Places are random,
so that clients that all came at once are not all pinged at once. A link that shows no sign of life within ``pong_s``
of a ping is closed; any traffic counts, not only the pong, and time in which we were stopped ourselves does not.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from broker.awake import AwakeClock
from gateway.closes import NO_PONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.websocket.link import WebSocketLink

TURN_S: Final = 0.5
"""The wheel moves on this often: pings of 10 000 links in 25 s are 200 at a time."""


class Keepalive:
    """The wheel of one process.

    Args:
        ping_s: seconds between two pings of a link.
        pong_s: seconds a link may take to show a sign of life.
        stopped: told the seconds in which this process was stopped.
    """

    def __init__(
        self,
        ping_s: float,
        pong_s: float,
        *,
        stopped: Callable[[float], object] = lambda _seconds: None,
    ) -> None:
        turns = max(1, round(ping_s / min(TURN_S, ping_s / 4, pong_s / 2)))
        self._pong_s = pong_s
        self._turn_s = ping_s / turns
        self._stopped = stopped
        self._wheel: list[set[WebSocketLink]] = [set() for _ in range(turns)]
        self._at = 0
        # deadline, link, its life at the ping
        self._asked: deque[tuple[float, WebSocketLink, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._awake = AwakeClock(lambda: asyncio.get_running_loop().time())

    def __len__(self) -> int:
        return sum(map(len, self._wheel))

    def add(self, link: WebSocketLink) -> set[WebSocketLink]:
        """Keep ``link`` alive for as long as it is in the returned set: who ends takes itself out."""
        place = random.choice(self._wheel)
        place.add(link)
        if self._timer is None:
            self._again()
        return place

    def stop(self) -> None:
        """Ping nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._awake.wakes_at(inf)
        self._asked.clear()
        for place in self._wheel:
            place.clear()

    def _again(self) -> None:
        loop = asyncio.get_running_loop()
        self._awake.wakes_at(loop.time() + self._turn_s)
        self._timer = loop.call_later(self._turn_s, self._turn)

    def _turn(self) -> None:
        before = self._awake.stalled_s
        now = self._awake.now()
        self._awake.wakes_at(inf)
        self._timer = None
        try:
            # we were stopped ourselves: rates of sessions must not count that against their clients
            if self._awake.stalled_s > before:
                self._stopped(self._awake.stalled_s - before)
            self._close_silent(now)
            self._at = (self._at + 1) % len(self._wheel)
            self._ping(self._wheel[self._at], now + self._pong_s)
        finally:  # a fault with one link must not stop the wheel
            if self._asked or any(self._wheel):
                self._again()

    def _ping(self, place: set[WebSocketLink], deadline: float) -> None:
        for link in [*place]:
            self._asked.append((deadline, link, link.life))
            link.ping()

    def _close_silent(self, now: float) -> None:
        asked = self._asked
        while asked and asked[0][0] <= now:
            _, link, life = asked.popleft()
            # any sign of life counts, a pong is one of many (RFC 6455, section 5.5.2)
            if link.ended is None and link.life == life:
                link.close_with(NO_PONG)
